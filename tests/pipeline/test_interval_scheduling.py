"""Decoding for the F-score, against all sets of disjoint spans."""

from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from pipelines import make_examples, small, train
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.interval_scheduling import Candidate, best_disjoint, best_threshold


def spans(seed: int) -> list[Candidate]:
    """Some spans of 6 tokens and two labels, with any probabilities."""
    rng = np.random.default_rng(seed)
    every = [((i, j, label), 0.0) for i, j in combinations(range(7), 2) for label in "AB"]
    chosen = rng.choice(len(every), size=8, replace=False)
    return [(every[i][0], float(rng.random())) for i in chosen]


def disjoint_sets(candidates: list[Candidate]) -> list[list[Candidate]]:
    """All sets of spans that do not overlap."""
    sets = []
    for kept in product((False, True), repeat=len(candidates)):
        chosen = sorted(c for c, keep in zip(candidates, kept) if keep)
        if all(a[0][1] <= b[0][0] for a, b in pairwise(chosen)):
            sets.append(chosen)
    return sets


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(10))
def test_best_disjoint_returns_set_with_largest_sum(seed: int, threshold: float) -> None:
    candidates = spans(seed)
    expected = max(disjoint_sets(candidates), key=lambda of: sum(p - threshold for _, p in of))
    assert best_disjoint(candidates, threshold) == expected


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("others, kept", [(0.0, 0), (1.5, 2)])
def test_best_threshold_of_two_docs_maximizes_expected_f_score(
    seed: int, beta: float, others: float, kept: int
) -> None:
    """Of all sets in two docs, the second of which is less sure, beside those kept."""
    docs = [spans(seed), [(span, p / 3) for span, p in spans(seed + 100)]]
    gold = others + kept + sum(p for of_doc in docs for _, p in of_doc)
    best = max(
        (1 + beta**2) * (sum(p for _, p in both) + kept) / (len(both) + kept + beta**2 * gold)
        for first, second in product(*map(disjoint_sets, docs))
        for both in [first + second]
    )
    found = best_threshold(docs, best_disjoint, gold, kept, beta)
    assert found == pytest.approx(best / (1 + beta**2))


def test_best_disjoint_without_probable_spans_returns_empty_list() -> None:
    assert best_disjoint([], 0.3) == best_disjoint([((0, 1, "A"), 0.3)], 0.3) == []
    for docs in ([], [[]]):
        assert best_threshold(docs, best_disjoint, 0.0, 0, 1.0) == 0.0


@pytest.fixture
def unsure(shared: Any) -> Any:
    """A pipeline that has learned little."""

    def make() -> Any:
        nlp = small(width=8, name="ner")
        train(nlp, make_examples(nlp), steps=15)
        return nlp

    return spacy.load(shared("unsure", make))


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.4])
def test_max_expected_f_sets_best_disjoint_spans(unsure: Any, threshold: float) -> None:
    ner = unsure.get_pipe("ner")
    ner.spans_key, ner.candidate_threshold = "sc", threshold
    ner.decode, ner.f_score_threshold = "max_expected_f", threshold
    n = 0
    for doc in unsure.pipe([eg.reference.text for eg in make_examples(unsure)]):
        group = doc.spans["sc"]
        ps = {(s.start, s.end, s.label_): p for s, p in zip(group, group.attrs["scores"])}
        chosen = [(ent.start, ent.end, ent.label_) for ent in doc.ents]
        # By steps: what is chosen, and as good as the best with each other span forced in.
        total = sum(ps[span] - threshold for span in chosen)
        for span, p in ps.items():
            others = [(s, q) for s, q in ps.items() if s[1] <= span[0] or span[1] <= s[0]]
            forced = sum(q - threshold for _, q in best_disjoint(others, threshold))
            assert forced + p - threshold <= total + 1e-6
        assert [ent._.confidence for ent in doc.ents] == pytest.approx([ps[s] for s in chosen])
        n += len(chosen)
    assert n


def expected_f_score(nlp: Any, docs: list[Doc], beta: float) -> float:
    """From the candidates that the component writes, preset entities too, which are right."""
    chosen, gold = [], 0.0
    for doc in nlp.pipe(doc.copy() for doc in docs):
        gold += sum(doc.spans["sc"].attrs["scores"].tolist())
        ps = [ent._.confidence for ent in doc.ents]
        chosen += [1.0 if p is None else p for p in ps]
    return (1 + beta**2) * sum(chosen) / (len(chosen) + beta**2 * gold)


@pytest.mark.parametrize(
    "case, beta",
    [
        ("plain", 0.3),
        ("plain", 1.0),
        ("plain", 3.0),
        ("thresholds", 3.0),
        ("preset", 0.3),
        ("overwrite", 1.0),
    ],
)
def test_fit_f_score_threshold_maximizes_expected_f_score(
    unsure: Any, case: str, beta: float
) -> None:
    ner = unsure.get_pipe("ner")
    docs = [unsure.make_doc(eg.reference.text) for eg in make_examples(unsure)] * 10
    ner.temperature, ner.platt_slope, ner.platt_intercept = 0.8, 1.2, 0.4
    ner.thresholds = dict.fromkeys(ner.labels, 0.5) if case == "thresholds" else {}
    ner.overwrite = case == "overwrite"
    if case in ("preset", "overwrite"):
        docs = [doc.copy() for doc in docs]
        for doc in (doc for doc in docs[::2] if doc.text.strip()):
            doc.set_ents([spacy.tokens.Span(doc, 0, 1, label=ner.labels[0])], default="missing")
    found = ner.fit_f_score_threshold((doc.copy() for doc in docs), beta)
    assert ner.f_score_threshold == found
    ner.decode, ner.spans_key, ner.candidate_threshold = "max_expected_f", "sc", 0.01
    # The docs are the same ones again and again, and so are their F-scores.
    docs = docs[:14]
    best = expected_f_score(unsure, docs, beta)
    assert found == pytest.approx(best / (1 + beta**2), abs=1e-4)
    others = []
    for ner.f_score_threshold in np.arange(0.02, 1.0, 0.04):
        others.append(expected_f_score(unsure, docs, beta))
    assert min(others) < max(others) <= best + 1e-6


def test_fit_f_score_threshold_without_probable_spans_raises(unsure: Any) -> None:
    ner = unsure.get_pipe("ner")
    doc = unsure.make_doc("Tim Cook")
    doc.ents = [spacy.tokens.Span(doc, 0, 2, label=ner.labels[0])]
    before = ner.f_score_threshold
    for docs in ([], [unsure.make_doc("")], [doc]):
        with pytest.raises(InputError, match=rf"not preset, got none in {len(docs)}: "):
            ner.fit_f_score_threshold(docs)
    for beta in (0.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="beta: expected a number over 0, got"):
            ner.fit_f_score_threshold([unsure.make_doc("Tim Cook")], beta)
    assert ner.f_score_threshold == before


def test_max_expected_f_drops_spans_below_label_threshold_first(unsure: Any) -> None:
    ner = unsure.get_pipe("ner")
    ner.spans_key, ner.candidate_threshold = "sc", 0.01
    ner.decode, ner.f_score_threshold = "max_expected_f", 0.02
    ner.thresholds = {ner.labels[0]: 0.9, ner.labels[1]: 0.6}
    dropped = 0
    for doc in unsure.pipe([eg.reference.text for eg in make_examples(unsure)]):
        group = doc.spans["sc"]
        ps = {(s.start, s.end, s.label_): p for s, p in zip(group, group.attrs["scores"])}
        allowed = {s: p for s, p in ps.items() if p >= ner.thresholds.get(s[2], 0.0)}
        expected = best_disjoint(allowed.items(), 0.02)
        assert [(e.start, e.end, e.label_) for e in doc.ents] == [span for span, _ in expected]
        without = [s for s, _ in best_disjoint(ps.items(), 0.02) if s in allowed]
        dropped += [span for span, _ in expected] != without
    assert dropped  # choosing first and dropping afterwards finds other entities
