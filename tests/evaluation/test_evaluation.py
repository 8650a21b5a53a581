"""Evaluation: figures against seqeval, spaCy, and all resamples enumerated."""

import io
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.v1 import precision_recall_fscore_support
from seqeval.scheme import BILOU, IOB2
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.training.loggers import console_logger_v3

from helpers import LEARNED, write
from helpers import Span as Offsets
from pipelines import VOCAB, doc_of, example_of, listening, make_examples, small, train
from spacy_crf_ner.evaluation import check_gold, compare, evaluate, read_training_log
from spacy_crf_ner.evaluation.bootstrap import confidence_intervals, paired_bootstrap, wilson
from spacy_crf_ner.evaluation.error_analysis import CONTEXT, missed_probabilities
from spacy_crf_ner.evaluation.matching import Entity, Match
from spacy_crf_ner.evaluation.scores import by_label
from spacy_crf_ner.pipeline.annotation import add_confidence_extension

LABELS = ("LOC", "ORG", "PER", "rare")
FIGURES = ("precision", "recall", "f1")
# Differs in part from the training sentences.
NOISY = [
    ("Anna saw Bonn", [(0, 4, "PER"), (5, 8, "LOC")]),
    ("Bonn saw it", [(0, 4, "PER")]),
    ("it saw Anna", [(0, 2, "LOC"), (7, 11, "PER")]),
    ("it came", [(3, 7, "THING")]),
    ("Bonn came", [(0, 9, "LOC")]),
]


@pytest.fixture(scope="module", autouse=True)
def confidences():
    add_confidence_extension()


def draw_spans(random: np.random.Generator, T: int) -> list[Offsets]:
    spans, start = [], 0
    while start < T:
        end = min(T, start + int(random.integers(1, 4)))
        if random.random() < 0.45:
            spans.append((start, end, LABELS[min(3, int(random.integers(0, 10)) // 3)]))
        start = end
    return spans


Drawn = tuple[list[str], list[Offsets], list[Offsets]]
Groups = list[tuple[list[Drawn], dict[str, Any]]]


def draw_pair(random: np.random.Generator) -> Drawn:
    """Words with gold and predicted entities, of which about half agree."""
    T = int(random.integers(1, 13))
    words = ["w" * int(random.integers(1, 8)) for _ in range(T)]
    gold, other = draw_spans(random, T), draw_spans(random, T)
    if random.random() < 0.5:
        other = [
            (start, end, label if random.random() < 0.8 else "rare") for start, end, label in gold
        ]
    return words, gold, other


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(0)
    return [draw_pair(random) for _ in range(1000)]


def measure(pairs: Sequence[Drawn]) -> dict[str, Any]:
    return evaluate([example_of(*each) for each in pairs], resamples=2)


@pytest.fixture(scope="module")
def groups(drawn):
    """All of them as one corpus, and as small corpora, in which labels are often absent."""
    corpora = [drawn, *(drawn[i : i + 5] for i in range(0, 500, 5))]
    return [(pairs, measure(pairs)["matching"]) for pairs in corpora]


# Precision, recall and F1


@pytest.mark.parametrize("scheme, prefixes", [(IOB2, "bio"), (BILOU, "biluo")])
def test_strict_figures_equal_seqeval(groups, scheme, prefixes):
    undefined = 0
    for pairs, matching in groups:
        gold, predicted = (
            [write(prefixes, len(each[0]), each[side]) for each in pairs] for side in (1, 2)
        )
        strict = matching["strict"]
        for average in ("micro", "macro"):
            expected = precision_recall_fscore_support(
                gold, predicted, average=average, scheme=scheme, zero_division=0
            )
            found = [strict[average][name] or 0.0 for name in FIGURES]
            assert found == pytest.approx(expected[:3], abs=1e-9)
        *by_label, support = precision_recall_fscore_support(
            gold, predicted, scheme=scheme, zero_division=0
        )
        assert list(strict["per_type"]) == sorted(
            {label for each in pairs for side in each[1:] for _, _, label in side}
        )
        for i, row in enumerate(strict["per_type"].values()):
            found = [row[name] or 0.0 for name in FIGURES]
            assert found == pytest.approx([values[i] for values in by_label], abs=1e-9)
            assert row["gold"] == support[i]
            # What seqeval makes 0, and would make 1 with zero_division=1, has no value here.
            assert (row["precision"] is None) == (row["predicted"] == 0)
            assert (row["recall"] is None) == (row["gold"] == 0)
            assert row["f1"] is not None
            undefined += row["precision"] is None or row["recall"] is None
    assert undefined > 20


def test_four_matchings_match_manual_calculation():
    words = list("abcdefgh")
    gold = [(0, 2, "A"), (2, 3, "B"), (4, 6, "A"), (7, 8, "B")]
    predicted = [(0, 2, "A"), (2, 3, "A"), (4, 5, "A"), (6, 7, "B")]
    found = evaluate([example_of(words, gold, predicted)], resamples=2)["matching"]
    points = {name: found[name]["micro"]["correct"] for name in found}
    assert points == {"strict": 1.0, "exact": 2.0, "partial": 2.5, "type": 2.0}
    by_label = {"precision": pytest.approx(1 / 3), "recall": 0.5, "f1": pytest.approx(0.4)}
    counts = {"gold": 2, "predicted": 3, "correct": 1.0}
    assert found["strict"]["per_type"]["A"] == {**by_label, **counts}
    for name, of_a in (("exact", 1.0), ("partial", 1.5), ("type", 2.0)):  # among those of A alone
        assert found[name]["per_type"]["A"]["correct"] == of_a
    assert found["type"]["macro"]["recall"] == pytest.approx((2 / 2 + 0 / 2) / 2)


def test_evaluate_without_predicted_or_gold_entities_gives_none():
    words = ["a", "b"]
    strict = evaluate([example_of(words, [(0, 1, "A")], [])], resamples=2)["matching"]["strict"]
    for row in (strict["micro"], strict["per_type"]["A"]):
        assert [row[name] for name in FIGURES] == [None, 0.0, 0.0]
    assert [strict["macro"][name] for name in FIGURES] == [0.0, 0.0, 0.0]
    found = evaluate([example_of(words, [], [])], resamples=2)
    for of_name in found["matching"].values():
        assert [of_name[mean][name] for mean in ("micro", "macro") for name in FIGURES] == [
            None
        ] * 6
        assert of_name["per_type"] == {}
    assert found["intervals"]["micro"] == dict.fromkeys(FIGURES)
    assert found["confusion"] == {"labels": [], "counts": [[0]]}


def test_evaluate_ignores_predictions_where_gold_is_missing():
    words = list("abcdef")
    eg = example_of(
        words,
        gold=[(0, 1, "A"), (4, 5, "A")],
        predicted=[(0, 1, "A"), (1, 3, "B"), (3, 4, "A"), (4, 6, "A")],
        confidences=[0.5, 0.5, 0.5, 0.5],
        missing=[2, 5],
    )
    found = evaluate([eg], resamples=2)
    assert (found["gold"], found["predicted"], found["left_out"]) == (2, 2, 2)
    for of_name in found["matching"].values():
        assert (of_name["micro"]["precision"], of_name["micro"]["recall"]) == (0.5, 0.5)
        assert list(of_name["per_type"]) == ["A"]
    assert found["confusion"] == {"labels": ["A"], "counts": [[1, 1], [1, 0]]}
    assert found["errors"]["counts"]["missed"] == found["errors"]["counts"]["spurious"] == 1


def test_evaluate_keeps_entity_over_unannotated_whitespace():
    words, spaces = ["New", " ", "York"], [False] * 3
    predicted, gold = (Doc(VOCAB, words=words, spaces=spaces) for _ in range(2))
    predicted.set_ents([Span(predicted, 0, 3, "GPE")], default="outside")
    gold.set_ents([Span(gold, 0, 1, "GPE")], missing=[gold[1:2]], default="outside")
    found = evaluate([Example(predicted, gold)], resamples=2)
    assert (found["predicted"], found["left_out"]) == (1, 0)


def test_evaluate_compares_characters_instead_of_tokens():
    predicted = doc_of(["in", "New", "York", "City", "now"], [(1, 4, "GPE")])
    gold = doc_of(["in", "New York", "City", "now"], [(1, 3, "GPE"), (3, 4, "DATE")])
    found = evaluate([Example(predicted, gold)], resamples=2)
    assert found["matching"]["strict"]["micro"]["correct"] == 1
    assert (found["tokens"], found["gold"]) == (4, 2)
    # A gold entity that no predicted tokens can give is missed.
    inside = Doc(VOCAB, words=["in", "NewYork"], spaces=[True, False])
    inside.set_ents([Span(inside, 1, 2, "GPE")], default="outside")
    gold = Doc(VOCAB, words=["in", "New", "York"], spaces=[True, False, False])
    gold.set_ents([Span(gold, 2, 3, "GPE")], default="outside")
    found = evaluate([Example(inside, gold)], resamples=2)
    assert found["errors"]["counts"]["wrong boundary"] == 1
    assert found["left_out"] == 0


def test_evaluate_counts_same_entities_in_all_parts():
    """Whatever the tokens of the two docs, and wherever gold annotation is missing."""
    random = np.random.default_rng(4)
    examples, left_out = [], 0
    for _ in range(50):
        letters = ["x"] * int(random.integers(2, 12))
        docs = []
        for _ in range(2):  # one text, cut into tokens at random
            cuts = sorted({0, len(letters), *random.integers(1, len(letters), 3).tolist()})
            words = ["x" * (b - a) for a, b in pairwise(cuts)]
            doc = Doc(VOCAB, words=words, spaces=[False] * len(words))
            spans = [Span(doc, *span) for span in draw_spans(random, len(doc))]
            free = [i for i in range(len(doc)) if not any(s.start <= i < s.end for s in spans)]
            missing = [doc[i : i + 1] for i in free if docs and random.random() < 0.3]
            doc.set_ents(spans, missing=missing, default="outside")
            docs.append(doc)
        for ent in docs[0].ents:
            ent._.confidence = 0.5
            unknown = {i for t in docs[1] if not t.ent_iob for i in range(t.idx, t.idx + len(t))}
            left_out += not unknown.isdisjoint(range(ent.start_char, ent.end_char))
        examples.append(Example(*docs))
    found = evaluate(examples, resamples=2)
    assert found["left_out"] == found["reliability"]["left_out"] == left_out > 5
    assert found["predicted"] == found["reliability"]["entities"] > 30
    micro = found["matching"]["strict"]["micro"]
    row = found["thresholds"][0]
    assert (row["precision"], row["recall"]) == (micro["precision"], micro["recall"])


def test_evaluate_and_compare_different_docs_raise():
    eg = Example(doc_of(["ab"], []), doc_of(["a", "b"], []))
    with pytest.raises(ValueError, match=r"doc 1: .* with the same text"):
        evaluate([example_of(["a"], [], []), eg])
    one, two = [example_of(["a"], [], [])], [example_of(["b"], [], [])]
    figures = evaluate(one, resamples=2)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    with pytest.raises(ValueError, match="expected two models on the same gold docs"):
        compare(figures, one, figures, two)


def test_evaluate_docs_without_annotation_raises():
    bare = Example(Doc(VOCAB, words=["a"]), doc_of(["a"], [(0, 1, "A")]))
    with pytest.raises(ValueError, match="expected docs with predicted entities, got 1 without"):
        evaluate([bare])
    with pytest.raises(ValueError, match="expected examples, got none"):
        evaluate([])
    with pytest.raises(ValueError, match=r"corpus\.spacy: expected docs with gold entities, got 1"):
        check_gold([example_of(["a"], [], [(0, 1, "A")])], "corpus.spacy")
    check_gold([bare], "corpus.spacy")


def test_evaluate_without_nervaluate_error_names_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nervaluate", None)
    with pytest.raises(ValueError, match=r'pip install .* "\.\[report\]"'):
        evaluate([example_of(["a"], [(0, 1, "A")], [])])


# The bootstrap. Counts of a doc by label: (correct, predicted, gold).


def f1_of(rows: Sequence[Sequence[int]]) -> float:
    correct, predicted, gold = (sum(row[i] for row in rows) for i in range(3))
    return 2 * correct / (predicted + gold) if predicted + gold else math.nan


MINE = np.array([[[1, 1, 2]], [[2, 3, 2]], [[0, 1, 1]], [[1, 1, 1]]])
THEIRS = np.array([[[0, 2, 2]], [[2, 2, 2]], [[0, 0, 1]], [[0, 2, 1]]])


def test_confidence_intervals_match_enumerated_resamples():
    # 4 docs have 4^4 equally probable resamples: the percentiles of all are the exact ones.
    random = np.random.default_rng(1)
    counts = np.stack([random.integers(4, 8, (4, 2)), *random.integers(9, 15, (2, 4, 2))], axis=-1)
    found = confidence_intervals(counts, ["A", "B"], resamples=20_000)
    every: dict[tuple[str, int], list[float]] = {}
    for docs in product(range(4), repeat=4):
        sums = counts[list(docs)].sum(0)
        cases = {"A": sums[0], "B": sums[1], "micro": sums.sum(0)}
        shares = {name: (c / p, c / g, 2 * c / (p + g)) for name, (c, p, g) in cases.items()}
        shares["macro"] = tuple((a + b) / 2 for a, b in zip(shares["A"], shares["B"]))
        for name, values in shares.items():
            for i, value in enumerate(values):
                every.setdefault((name, i), []).append(value)
    for (name, i), values in every.items():
        row = found["per_type"][name] if name in found["per_type"] else found[name]
        low, high = row[FIGURES[i]]
        # 2.5 % of 256 are 6.4: the neighbors of the percentile bound what is sampled.
        ranked = sorted(values)
        assert ranked[3] <= low <= ranked[10], (name, i)
        assert ranked[-11] <= high <= ranked[-4], (name, i)
        assert low < high
    assert (found["level"], found["resamples"]) == (0.95, 20_000)


def test_confidence_intervals_skip_resamples_without_label():
    counts = np.array([[[0, 0, 1], [1, 1, 1]], [[0, 0, 0], [0, 0, 0]]])
    found = confidence_intervals(counts, ["A", "B"], resamples=200)
    recalls = [each["recall"] for each in (*found["per_type"].values(), found["micro"])]
    assert recalls == [pytest.approx(by_hand(*each)) for each in ((0, 1), (1, 1), (1, 2))]
    assert found["per_type"]["A"]["precision"] is None


def by_hand(correct: int, number: int) -> list[float]:
    """Wilson's interval: the shares from which what was found is 1.96 standard deviations off."""
    p, z2 = correct / number, 1.959963984540054**2 / number
    return sorted(np.roots([1 + z2, -2 * p - z2, p * p]).real.tolist())


@pytest.mark.parametrize("correct, number", [(0, 1), (1, 1), (13, 13), (0, 41), (41, 41), (2, 3)])
def test_wilson_solves_its_equation_and_has_exact_ends(correct, number):
    low, high = wilson(correct, number)
    assert [low, high] == pytest.approx(by_hand(correct, number), abs=1e-9)
    assert (low == 0) == (correct == 0) and (high == 1) == (correct == number)


def test_confidence_intervals_of_a_perfect_sample_have_room_for_unseen_errors():
    counts = np.array([[[1, 1, 1], [0, 0, 0]]] * 9 + [[[4, 4, 4], [2, 2, 2]]])
    found = confidence_intervals(counts, ["A", "B"], resamples=100)
    ranges = {"A": found["per_type"]["A"], "B": found["per_type"]["B"], "both": found["micro"]}
    for name, number in (("A", 13), ("B", 2), ("both", 15)):
        low, high = by_hand(number, number)
        for score in ("precision", "recall"):
            assert ranges[name][score] == pytest.approx([low, high])
        # One error among 1 / (1 - low) entities of gold or prediction.
        assert ranges[name]["f1"] == pytest.approx([2 * low / (low + 1), 1.0])
    low = 1 - math.hypot(*(1 - ranges[name]["f1"][0] for name in "AB")) / 2
    assert found["macro"]["f1"] == pytest.approx([low, 1.0])


@pytest.mark.parametrize("wrong, is_wilson", [(1, True), (4, True), (5, False)])
def test_confidence_intervals_of_few_errors_are_wilsons(wrong, is_wilson):
    counts = np.array([[[1, 1, 1]]] * 30 + [[[0, 1, 1]]] * wrong)
    found = confidence_intervals(counts, ["A"], resamples=100)["micro"]
    share = by_hand(30, 30 + wrong)
    of_union = [2 * each / (1 + each) for each in by_hand(30, 30 + 2 * wrong)]
    assert (found["precision"] == pytest.approx(share)) == is_wilson
    assert (found["f1"] == pytest.approx(of_union)) == (wrong < 3)  # two errors of F1 for each


def test_confidence_intervals_of_a_label_without_gold_add_nothing_to_the_macro_mean():
    counts = np.array([[[1, 1, 1], [0, 1, 0]]] * 13)
    found = confidence_intervals(counts, ["A", "B"], resamples=100)["macro"]["recall"]
    low, high = by_hand(13, 13)
    assert found == pytest.approx([low / 2, high / 2])


def test_confidence_intervals_of_one_doc_are_no_points():
    found = confidence_intervals(np.array([[[2, 3, 4]]]), ["A"], resamples=50)
    assert found["micro"]["precision"] == pytest.approx(by_hand(2, 3))
    assert found["micro"]["recall"] == pytest.approx(by_hand(2, 4))
    low, high = by_hand(2, 5)  # right, of those that are gold or predicted
    assert found["micro"]["f1"] == pytest.approx([2 * low / (1 + low), 2 * high / (1 + high)])
    for name in FIGURES:
        assert found["macro"][name] == pytest.approx(found["micro"][name])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4
    )
)
def test_confidence_intervals_contain_the_score_and_are_never_points(rows):
    counts = np.array([[[c, c + p, c + g]] for c, p, g in rows])
    found = confidence_intervals(counts, ["A"], resamples=20)
    scores = by_label(counts.sum((0, 1)))
    for name, score in zip(FIGURES, scores):
        for interval in (found["micro"][name], found["per_type"]["A"][name]):
            assert interval is None if math.isnan(score) else interval[0] < interval[1]
            assert interval is None or 0 <= interval[0] <= interval[1] <= 1


def test_evaluate_and_compare_same_seed_gives_same_result(drawn):
    examples = [example_of(*each) for each in drawn[:40]]
    right = [Example(eg.reference, eg.reference) for eg in examples]
    first, again, other = (
        evaluate(examples, resamples=50, seed=seed)["intervals"] for seed in (0, 0, 1)
    )
    assert first == again != other
    figures, best = evaluate(examples, resamples=2), evaluate(right, resamples=2)
    first, again, other = (
        compare(figures, examples, best, right, resamples=50, seed=seed)["comparison"]
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_paired_bootstrap_p_matches_enumerated_resamples():
    observed = f1_of(THEIRS[:, 0]) - f1_of(MINE[:, 0])
    differences = []
    for docs in map(list, product(range(4), repeat=4)):
        differences.append(f1_of(THEIRS[docs, 0]) - f1_of(MINE[docs, 0]))
    far = [d for d in differences if abs(d - observed) >= abs(observed)]
    found = paired_bootstrap(MINE, THEIRS, ["A"], resamples=20_000)["micro"]["f1"]
    assert found["difference"] == pytest.approx(observed)
    assert 0.05 < len(far) / 256 < 0.95
    assert found["p"] == pytest.approx(len(far) / 256, abs=0.015)
    ranked = sorted(differences)
    assert ranked[3] <= found["interval"][0] <= ranked[10]
    assert ranked[-11] <= found["interval"][1] <= ranked[-4]
    back = paired_bootstrap(THEIRS, MINE, ["A"], resamples=20_000)["micro"]["f1"]
    assert (back["difference"], back["p"]) == (-found["difference"], found["p"])


def test_compare_model_with_itself_gives_zero_difference(drawn):
    examples = [example_of(*each) for each in drawn[:50]]
    figures = evaluate(examples, model="one", resamples=100)
    found = compare(figures, examples, {**figures, "model": "two"}, examples, resamples=100)
    comparison = found["comparison"]
    same = {"difference": 0.0, "interval": None, "p": 1.0}  # in all resamples
    assert comparison["difference"]["micro"] == {name: same for name in FIGURES}
    assert comparison["difference"]["per_type"] == {label: {"f1": same} for label in LABELS}
    assert (comparison["model"], comparison["resamples"]) == ("two", 100)
    assert comparison["other"]["comparison"] is None and figures["comparison"] is None


def test_compare_much_better_model_gives_smallest_p():
    words, gold = ["a", "b", "c"], [(0, 1, "A"), (2, 3, "B")]
    good = [example_of(words, gold, gold) for _ in range(100)]
    bad = [example_of(words, gold, gold if i % 2 else [(0, 1, "C")]) for i in range(100)]
    pair_of = [evaluate(each, resamples=2) for each in (good, bad)]
    found = compare(pair_of[0], good, pair_of[1], bad, resamples=999)["comparison"]["difference"]
    assert found["micro"]["f1"]["p"] == 0.001
    low, high = found["micro"]["recall"]["interval"]
    assert low < found["micro"]["recall"]["difference"] == -0.5 < high
    # The better one predicts no C: it has no precision there, and no F1 of 0 either.
    assert found["per_type"]["C"]["f1"] == {"difference": None, "interval": None, "p": None}


# Mistakes


def test_rows_and_columns_of_the_confusion_sum_to_gold_and_predicted(drawn):
    found = measure(drawn)
    labels, counts = found["confusion"]["labels"], np.array(found["confusion"]["counts"])
    assert counts.shape == (5, 5) and counts[-1, -1] == 0 and labels == list(LABELS)
    gold, predicted = (
        Counter(label for each in drawn for _, _, label in each[side]) for side in (1, 2)
    )
    assert counts.sum(1)[:4].tolist() == [gold[label] for label in labels]
    assert counts.sum(0)[:4].tolist() == [predicted[label] for label in labels]
    kinds = found["errors"]["counts"]
    assert (kinds["missed"], kinds["spurious"]) == (counts[:, -1].sum(), counts[-1].sum())
    off_diagonal = counts[:4, :4].sum() - counts[:4, :4].trace()
    assert kinds["wrong type"] + kinds["wrong type and boundary"] == off_diagonal
    right = found["matching"]["strict"]["micro"]["correct"]
    assert kinds["wrong boundary"] == counts[:4, :4].trace() - right
    assert len(found["errors"]["list"]) == sum(kinds.values())


def test_evaluate_lists_five_error_kinds_sorted_by_confidence():
    words = ["on", "the", "Old", "Sea", "sailed", "Mr", "Poe", "to", "Rome", "and", "Ulm", "too"]
    gold = [(2, 4, "LOC"), (6, 7, "PER"), (8, 9, "LOC"), (10, 11, "LOC")]
    predicted = [(0, 1, "PER"), (3, 4, "LOC"), (5, 7, "ORG"), (8, 9, "PER")]
    examples = [example_of(words, gold, predicted, [0.2, 0.9, None, 0.5]),
                example_of(["a"], [(0, 1, "A")], [(0, 1, "A")], [0.99])]  # fmt: skip
    errors = evaluate(examples, resamples=2)["errors"]
    assert errors["counts"] == {
        "wrong type": 1,
        "wrong boundary": 1,
        "wrong type and boundary": 1,
        "missed": 1,
        "spurious": 1,
    }
    ranked = [(error["kind"], error["confidence"]) for error in errors["list"]]
    assert ranked == [
        ("wrong boundary", 0.9),
        ("wrong type", 0.5),
        ("spurious", 0.2),
        ("wrong type and boundary", None),
        ("missed", None),
    ]
    assert errors["list"][0] == {
        "kind": "wrong boundary",
        "confidence": 0.9,
        "gold_probability": None,  # only that of missed ones
        "doc": 0,
        "gold": {"start": 7, "end": 14, "label": "LOC", "text": "Old Sea"},
        "predicted": {"start": 11, "end": 14, "label": "LOC", "text": "Sea"},
        "before": "on the ",
        "text": "Old Sea",
        "after": " sailed Mr Poe to Rome and Ulm too ",
        "offset": 7,
        "beside": {
            "gold": [
                {"start": 25, "end": 28, "label": "PER", "text": "Poe"},
                {"start": 32, "end": 36, "label": "LOC", "text": "Rome"},
                {"start": 41, "end": 44, "label": "LOC", "text": "Ulm"},
            ],
            "predicted": [
                {"start": 0, "end": 2, "label": "PER", "text": "on"},
                {"start": 22, "end": 28, "label": "ORG", "text": "Mr Poe"},
                {"start": 32, "end": 36, "label": "PER", "text": "Rome"},
            ],
        },
    }
    assert errors["list"][2]["gold"] is errors["list"][4]["predicted"] is None


def test_evaluate_error_context_ends_at_word_boundary_unless_a_word_is_longer():
    words = ["x" * 8] * 50
    (error,) = evaluate([example_of(words, [(20, 22, "A")], [])], resamples=2)["errors"]["list"]
    text = " ".join(words)
    # Six words of 8 and a space each; 6 characters of a seventh would be a part of it.
    assert (len(error["before"]), len(error["after"])) == (6 * 9 + 1, 6 * 9 + 1)
    assert 6 * 9 + 1 <= CONTEXT < 7 * 9 + 1
    assert text[error["offset"] :].startswith(error["text"] + error["after"])
    assert text[: error["offset"]].endswith(error["before"])
    words = ["x" * 200, "y", "x" * 200]
    (error,) = evaluate([example_of(words, [(1, 2, "A")], [])], resamples=2)["errors"]["list"]
    assert (error["before"], error["after"]) == ("x" * (CONTEXT - 1) + " ", " " + "x" * 59)


# The pipelines


def annotated(nlp: Language, sentences: Any = NOISY) -> list[Example]:
    examples = make_examples(nlp, sentences)
    for eg in examples:
        eg.predicted = nlp(eg.predicted)
    return examples


@pytest.fixture(scope="module")
def nlp():
    """Our component over a shared tok2vec; not to be changed."""
    nlp = listening("tok2vec")
    train(nlp, make_examples(nlp, LEARNED))
    return nlp


def test_evaluate_transitions_are_those_of_the_component(nlp):
    found = evaluate(annotated(nlp), nlp=nlp, resamples=2)["transitions"]
    pipe: Any = nlp.get_pipe("crf_ner")
    assert found == pipe.transitions().to_dict() and found["tags"] == list(pipe.scheme.tags)
    crf = pipe.model.get_ref("output_layer").shims[0].module.crf
    weights, (allowed, _, _) = crf.transitions.detach().tolist(), pipe.scheme.constraints
    for i, j in product(range(len(weights)), repeat=2):
        cell = pytest.approx(weights[i][j], abs=1e-6) if allowed[i, j] else None
        assert found["scores"][i][j] == cell


def test_evaluate_missed_entity_has_model_posterior(nlp):
    found = evaluate(annotated(nlp), nlp=nlp, resamples=2)["errors"]["list"]
    missed = [error for error in found if error["kind"] == "missed"]
    assert len(missed) >= 3
    pipe: Any = nlp.get_pipe("crf_ner")
    for error in missed:
        gold = error["gold"]
        if gold["label"] == "THING":  # not a label of the model
            assert error["gold_probability"] == 0.0
            continue
        with nlp.select_pipes(disable=["crf_ner"]):
            fresh = nlp(NOISY[error["doc"]][0])
        span = fresh.char_span(gold["start"], gold["end"], gold["label"])
        (p,) = pipe.span_posteriors(fresh, [span])
        assert error["gold_probability"] == pytest.approx(p, rel=1e-4) and 0 < p < 1
    ranked = [error["gold_probability"] for error in missed]
    assert ranked == sorted(ranked) and found[-len(missed) :] == missed


def test_evaluate_with_nlp_keeps_docs_unchanged_and_gives_thresholds(nlp):
    examples = annotated(nlp)
    before = [eg.predicted.to_bytes() for eg in examples]
    found = evaluate(examples, nlp=nlp, resamples=2)
    assert [eg.predicted.to_bytes() for eg in examples] == before
    assert found["reliability"]["entities"] == found["predicted"] > 2
    rows = found["thresholds"]
    assert [row["threshold"] for row in rows] == pytest.approx([*(i / 20 for i in range(20)), 0.99])
    micro = found["matching"]["strict"]["micro"]
    assert (rows[0]["precision"], rows[0]["recall"]) == (micro["precision"], micro["recall"])


def test_evaluate_with_entity_ruler_gives_no_missed_posterior():
    nlp = small()
    train(nlp, make_examples(nlp, LEARNED), steps=2)
    ruler: Any = nlp.add_pipe("entity_ruler", before="crf_ner")
    ruler.add_patterns([{"label": "LOC", "pattern": "Bonn"}])
    found = evaluate(annotated(nlp), nlp=nlp, resamples=2)
    missed = [error for error in found["errors"]["list"] if error["kind"] == "missed"]
    assert missed and all(error["gold_probability"] is None for error in missed)
    assert found["transitions"] is not None


# The log of the training

JSON = '{"epoch": 0, "step": 1, "losses": {}, "scores": {}, "score": 1}\n'
LOGGED = [
    {"epoch": 0, "step": 0, "losses": {"tok2vec": 0.0, "crf_ner": 41.256}, "score": 0.0133,
     "other_scores": {"ents_f": 0.0125, "speed": 1234.5}},
    {"epoch": 11, "step": 2000, "losses": {"tok2vec": 7.5, "crf_ner": 123456789.0}, "score": 0.75,
     "other_scores": {"ents_f": 0.75, "speed": 999.0}},
    {"epoch": 12, "step": 2200, "losses": {"tok2vec": 7.5, "crf_ner": math.nan}, "score": 1.0,
     "other_scores": {"ents_f": 1.0, "speed": 999.0}},
]  # fmt: skip


@pytest.fixture(scope="module")
def logs(nlp, tmp_path_factory):
    """JSON lines and a table of the same training, both written by spaCy's own logger."""
    folder = tmp_path_factory.mktemp("logs")
    trained = nlp.from_config(nlp.config)
    trained.config["training"]["score_weights"] = dict(
        ents_f=1.0, speed=0.0, ents_p=None, ents_r=None
    )
    printed = io.StringIO()
    # JSON has no NaN, and spaCy writes none: the last row is in the table alone.
    for path, rows in ((folder / "log.jsonl", LOGGED[:2]), (None, LOGGED)):
        stream = io.StringIO() if path else printed
        log_step, finalize = console_logger_v3(output_file=path)(trained, stdout=stream)
        for info in rows:
            log_step(info)
        finalize()
    table = folder / "log.txt"
    message = "\n✔ Initialized pipeline\nPipeline: ['tok2vec', 'crf_ner']\n"
    after = "[W108] a warning\r 50%|###   |\n✔ Saved pipeline to output directory\nmodel-last\n"
    table.write_text(message + printed.getvalue() + after, encoding="utf-8")
    return folder / "log.jsonl", table


def test_both_logs_of_a_training_are_read(logs):
    from_json, from_table = map(read_training_log, logs)
    assert from_json == [
        {
            "step": info["step"],
            "epoch": info["epoch"],
            "losses": info["losses"],
            "scores": {
                "ents_f": pytest.approx(100 * info["other_scores"]["ents_f"]),
                "speed": info["other_scores"]["speed"],
                "score": pytest.approx(100 * info["score"]),
            },
        }
        for info in LOGGED[:2]
    ]
    assert len(from_table) == 3
    for row, printed in zip(from_json, from_table):
        assert (row["step"], row["epoch"]) == (printed["step"], printed["epoch"])
        for key in ("losses", "scores"):
            # The table has two decimals, of the score before it is made percent.
            assert printed[key] == pytest.approx(row[key], abs=0.51 if key == "scores" else 0.006)
    assert from_table[2]["losses"] == {"tok2vec": 7.5, "crf_ner": None}


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "line 1: expected one table of spacy train, got ''"),
        ("hello\nworld\n", "line 1: expected one table of spacy train, got 'hello'"),
        (bytes(range(256)).decode("latin-1"), "line 1: expected one table"),
        ("\n{}\n", "line 2: expected a JSON object with epoch"),
        ('{"epoch": 1,', "line 1: expected a JSON object with epoch"),
        (JSON.replace('"step": 1', '"step": 1.5'), "line 1: "),
        (JSON.replace('"losses": {}', '"losses": []'), "line 1: "),
        (JSON.replace('"losses": {}', '"losses": {"a": "b"}'), "line 1: "),
        (JSON + "[]\n", "line 2: "),
        ("E    #  \n---  ---\n  0    1   2\n", "line 3: expected 2 columns"),
        ("E  #  LOSS A\n-  -  ------\n 0  1   x\n", "expected 3 columns of numbers"),
        ("E    #    A    A\n---  ---  ---  ---\n", "line 1: expected columns E, #"),
        ("A    B\n---  ---\n", "line 1: expected columns E, #"),
        ("E    #\n---  ---\n  0    1\nE    #\n---  ---\n", "line 5: expected one table"),
        ("E    #\n---  ---\n", "expected a training log, got no rows"),
    ],
)
def test_read_training_log_invalid_line_raises(text, says, tmp_path):
    path = tmp_path / "log"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError) as error:
        read_training_log(path)
    assert says in str(error.value) and str(path) in str(error.value)


def test_missed_probabilities_of_failed_doc_are_empty(trained):
    text = "Tim Cook visited Hanoi."
    docs = [trained(text), trained.make_doc(text)]  # the second one as after an error
    missed: list[Match] = [(Entity(0, 3, "ORG"), None)]
    found = missed_probabilities(trained, "crf_ner", docs, [missed, missed])
    assert found is not None
    assert [*found[0]] == [Entity(0, 3, "ORG")] and 0 < found[0][Entity(0, 3, "ORG")] < 1
    assert found[1] == {}


@Language.component("merges_all_words")
def merges_all_words(doc: Doc) -> Doc:
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:])
    return doc


@pytest.mark.filterwarnings("ignore:A component has merged tokens")
def test_evaluate_probabilities_are_those_before_tokens_were_merged(nlp, monkeypatch):
    pipe: Any = nlp.get_pipe("crf_ner")
    monkeypatch.setattr(pipe, "spans_key", "x")
    monkeypatch.setattr(pipe, "candidate_threshold", 0.01)
    before = evaluate(annotated(nlp), nlp=nlp, resamples=2)
    later = spacy.blank("en", vocab=nlp.vocab)
    for name in nlp.pipe_names:
        later.add_pipe(name, source=nlp)
    later.add_pipe("merges_all_words")
    examples = annotated(later)
    assert all(len(eg.predicted) == 1 for eg in examples)
    after = evaluate(examples, nlp=later, resamples=2)
    missed = [
        [
            (each["gold"], each["gold_probability"])
            for each in found["errors"]["list"]
            if each["kind"] == "missed"
        ]
        for found in (before, after)
    ]
    known = {str(gold): p for gold, p in missed[0]}
    assert len(known) >= 3 and any(0 < p < 1 for p in known.values())
    assert {gold: p for gold, p in known.items() if p} == pytest.approx(
        {str(gold): p for gold, p in missed[1] if p and str(gold) in known}
    )
    assert after["coverage"] == before["coverage"] is not None
