"""A selection from a stream of units matches sorting all of them."""

import random
from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spacy_crf_ner.active_learning import Options
from spacy_crf_ner.active_learning import selection as selections
from spacy_crf_ner.active_learning.selection import (
    Selection,
    Unit,
    random_key,
    until_enough,
    within_budget,
)
from spacy_crf_ner.active_learning.suggestion import choose


def unit(number, score=0.0, surface="", size=1, source=""):
    tokens = [("w", True)] * size
    return Unit(f"{number:03}", "text", tokens, [], score, surface, {"file": source})


UNITS = st.lists(
    st.builds(
        unit,
        st.integers(0, 20),
        st.integers(0, 3).map(float),
        st.sampled_from(["", "hanoi", "bonn"]),
        st.integers(1, 4),
    ),
    max_size=30,
)


def by_sorting(units, n, aside, max_per_surface, seed):
    """The definition: of equal ids the best, a random sample, then the best of the others."""
    best = {}
    for each in sorted(units, key=lambda each: each.rank):
        best.setdefault(each.id, each)
    sample = sorted(best, key=lambda identity: random_key(seed, identity))[:aside]
    used, chosen = Counter(), []
    for each in sorted(best.values(), key=lambda each: each.rank):
        if each.id in sample or len(chosen) == n:
            continue
        if not (max_per_surface and each.surface and used[each.surface] == max_per_surface):
            used[each.surface] += 1
            chosen.append(each.id)
    return chosen, sample


def ids(units):
    return [each.id for each in units]


@pytest.mark.parametrize("buffer", [0, 5, 1000])
@given(UNITS, st.integers(0, 6), st.integers(0, 4), st.integers(0, 3), st.randoms())
def test_selection_matches_sorting_all_units(buffer, units, n, aside, max_per_surface, rng):
    with patch.object(selections, "BUFFER", buffer):
        check_selection(units, n, aside, max_per_surface, rng)


def check_selection(units, n, aside, max_per_surface, rng):
    same_id = {}
    for each in units:  # equal texts have equal spans
        each.surface = same_id.setdefault(each.id, each.surface)
    selection = Selection(n, aside, max_per_surface, seed=3)
    rng.shuffle(units)
    selection.add(units)
    expected = by_sorting(units, n, aside, max_per_surface, 3)
    assert (ids(selection.ranked), ids(selection.sample)) == expected

    parts = [Selection(n, aside, max_per_surface, seed=3) for _ in range(3)]
    for each in units:
        rng.choice(parts).add([each])
    joined = Selection(n, aside, max_per_surface, seed=3)
    for part in rng.sample(parts, 3):
        joined.add([*part.ranked, *part.sample])
    assert (ids(joined.ranked), ids(joined.sample)) == expected


def test_selection_keeps_only_chosen_units():
    selection = Selection(n=3, aside=2, max_per_surface=1)
    selection.add(unit(i, random.Random(i).random(), str(i % 7)) for i in range(5000))
    assert len(selection._units) <= 3 + 2 + 1010


@pytest.mark.parametrize(
    "pool, share, ranked, sample",
    [(100, 0.1, 90, 10), (20, 0.1, 18, 2), (8, 0.1, 7, 1), (0, 0.1, 0, 0), (8, 1.0, 0, 8)],
)
def test_selection_balance_keeps_sample_share_of_small_pool(pool, share, ranked, sample):
    aside = round(100 * share)
    selection = Selection(100 - aside, aside)
    selection.add(unit(i, float(i)) for i in range(pool))
    drawn = ids(selection.sample)
    selection.balance(share)
    assert (len(selection.ranked), len(selection.sample)) == (ranked, sample)
    assert ids(selection.sample) == drawn[:sample]  # the first of a random order
    assert ids(selection.ranked) == sorted(ids(selection.ranked), reverse=True)
    assert len({*ids(selection.ranked), *drawn[:sample]}) == pool


def test_selection_sample_depends_on_seed():
    units = [unit(i, float(i)) for i in range(100)]
    samples = []
    for seed in (0, 0, 1):
        selection = Selection(n=0, aside=10, seed=seed)
        selection.add(units)
        samples.append(ids(selection.sample))
    assert samples[0] == samples[1] != samples[2]


@pytest.mark.parametrize("budget, chosen", [(8, "abc"), (6, "ab"), (5, "ac"), (2, "c"), (0, "")])
def test_a_budget_is_never_exceeded(budget, chosen):
    units = [unit(0, size=3), unit(1, size=3), unit(2, size=2)]
    named = dict(zip(ids(units), "abc"))
    assert "".join(named[each.id] for each in within_budget(units, budget)) == chosen


@pytest.mark.parametrize("budget", [300, 1000])
def test_choose_fills_places_cut_from_sample_with_tasks(budget):
    units = [unit(i, 0.1, size=100) for i in range(20)]
    units += [unit(i, 0.5, size=5) for i in range(20, 420)]
    for seed in range(30):
        options = Options(n=100, budget=budget, max_per_surface=0, seed=seed)
        parts = [options.selection() for _ in range(3)]  # as of three workers
        for i, each in enumerate(units):
            parts[i % 3].add([each])
        selection = options.selection()
        for part in parts:
            selection.add([*part.ranked, *part.sample])
        selection.balance(options.random_share)
        tasks, sample = choose(selection, options)
        drawn = sorted(units, key=lambda each: random_key(seed, each.id))
        assert 0 < len(sample) <= 10 and ids(sample) == ids(drawn[: len(sample)])
        left = budget - sum(len(each.tokens) for each in sample)
        expected = []
        for each in sorted(drawn[len(sample) :], key=lambda each: each.rank):
            if len(expected) + len(sample) < 100 and len(each.tokens) <= left:
                expected.append(each)
                left -= len(each.tokens)
        assert ids(tasks) == ids(expected)
        assert len(tasks) + len(sample) == 100 or left < 5


def test_choose_sample_keeps_length_distribution_of_corpus():
    units = [unit(i, float(i), size=30 if i % 2 else 2) for i in range(100)]
    drawn = Counter()
    for seed in range(600):
        options = Options(n=24, random_share=0.5, budget=200, seed=seed)
        selection = options.selection()
        selection.add(units)
        tasks, sample = choose(selection, options)
        assert ids(sample) == ids(selection.sample)[: len(sample)]
        assert sum(len(each.tokens) for each in (*tasks, *sample)) <= 200
        assert sum(len(each.tokens) for each in sample) >= 100 or len(sample) == 12
        drawn.update(len(each.tokens) for each in sample)
    assert drawn[30] / drawn.total() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    "enough, most, chosen",
    [(0, 9, ""), (1, 9, "a"), (3, 9, "a"), (4, 9, "ab"), (4, 5, "a"), (9, 2, "")],
)
def test_until_enough_stops_at_required_tokens(enough, most, chosen):
    units = [unit(0, size=3), unit(1, size=3), unit(2, size=2)]
    named = dict(zip(ids(units), "abc"))
    assert "".join(named[each.id] for each in until_enough(units, enough, most)) == chosen
