"""Evaluation of overlapping entities: against spaCy's spancat scorer, and sets of pairs by hand."""

import json
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.pipeline.spancat import spancat_score
from spacy.tokens import Doc, Span
from spacy.training import Example

from helpers import Span as Offsets
from overlapping import TEXT, make_overlapping
from pipelines import VOCAB, doc_of, make_examples, small, spans_of, train
from spacy_crf_ner.evaluation import check_gold, compare, evaluate
from spacy_crf_ner.evaluation.calibration import calibrate, reliability
from spacy_crf_ner.evaluation.error_analysis import errors
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.guarantees import FITTED_SETTINGS
from spacy_crf_ner.evaluation.matching import Entity, collect_entities, match_entities, overlaps
from spacy_crf_ner.evaluation.scores import count_entities, nesting, score_strictly
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels
from spacy_crf_ner.pipeline.annotation import add_confidence_extension

LABELS = ("A", "B", "C")
WORDS = [
    "the", "king", "of", "France", "met", "University", "of", "Oslo", "president", "in", "Oslo",
]  # fmt: skip
GOLD = [
    (0, 4, "PER"), (3, 4, "LOC"), (5, 8, "ORG"), (5, 9, "PER"), (7, 8, "LOC"), (10, 11, "LOC"),
]  # fmt: skip
# What was learned, and in part other entities.
OTHER = [(0, 4, "PER"), (3, 4, "ORG"), (5, 8, "ORG"), (6, 9, "PER"), (7, 8, "LOC"), (9, 10, "LOC")]


@pytest.fixture(scope="module", autouse=True)
def confidences():
    add_confidence_extension()


def draw_spans(random: np.random.Generator, T: int) -> list[Offsets]:
    """Different spans of any lengths, which cross and nest."""
    spans = set()
    for _ in range(int(random.integers(0, 7))):
        start = int(random.integers(0, T))
        end = int(random.integers(start + 1, min(T, start + 5) + 1))
        spans.add((start, end, LABELS[int(random.integers(0, 3))]))
    return sorted(spans)


@pytest.fixture(scope="module")
def drawn():
    """Examples in which about half of the predicted spans are gold ones."""
    random = np.random.default_rng(0)
    examples = []
    for _ in range(300):
        words = ["w" * int(random.integers(1, 8)) for _ in range(int(random.integers(1, 9)))]
        gold, other = (draw_spans(random, len(words)) for _ in range(2))
        other = sorted({span for span in (*gold, *other) if random.random() < 0.5})
        scores = random.random(len(other)).tolist()
        examples.append(Example(spans_of(words, other, scores), spans_of(words, gold)))
    return examples


# Reading and matching


def test_strict_scores_equal_those_of_spacys_spancat_scorer(drawn):
    docs = collect_entities(drawn, "sc")
    found = score_strictly(count_entities(docs, LABELS), LABELS)["strict"]
    expected = spancat_score(drawn, spans_key="sc")
    names = dict(zip("prf", ("precision", "recall", "f1")))
    for letter, name in names.items():
        assert found["micro"][name] == pytest.approx(expected[f"spans_sc_{letter}"])
        for label, row in expected["spans_sc_per_type"].items():
            assert found["per_type"][label][name] == pytest.approx(row[letter])
        mean = np.mean([row[letter] for row in expected["spans_sc_per_type"].values()])
        assert found["macro"][name] == pytest.approx(mean)
    assert 0.3 < found["micro"]["f1"] < 0.8
    assert found["micro"]["gold"] == sum(len(eg.reference.spans["sc"]) for eg in drawn)
    assert not any(doc.left_out for doc in docs)


def test_overlaps_matches_brute_force_over_all_pairs(drawn):
    for doc in collect_entities(drawn, "sc"):
        expected = {
            (g, p)
            for g, p in product(doc.gold, doc.predicted)
            if {*range(*g.span)} & {*range(*p.span)}
        }
        found = list(overlaps(doc.gold, doc.predicted))
        assert len(found) == len(expected) and set(found) == expected


def best_first(gold: list[Entity], predicted: list[Entity]) -> list[tuple[Any, Any]]:
    """The rule in words: take the best pair of those that are left, until none overlaps."""
    gold, predicted, pairs = list(gold), list(predicted), []
    while True:
        ranked = []
        for g, p in product(gold, predicted):
            common = len({*range(*g.span)} & {*range(*p.span)})
            if common:
                ranked.append((g.span == p.span, common, g.label == p.label, g, p))
        if not ranked:
            return [*pairs, *((g, None) for g in gold), *((None, p) for p in predicted)]
        top = max(each[:3] for each in ranked)
        *_, g, p = min((each for each in ranked if each[:3] == top), key=lambda each: each[3:])
        pairs.append((g, p))
        gold.remove(g)
        predicted.remove(p)


def test_match_entities_matches_greedy_rule(drawn):
    equal = 0
    for doc in collect_entities(drawn, "sc"):
        found = match_entities(doc.gold, doc.predicted)
        assert sorted(found, key=str) == sorted(best_first(doc.gold, doc.predicted), key=str)
        starts = [min(ent.start for ent in both if ent) for both in found]
        assert starts == sorted(starts)
        matched = [p for g, p in found if g and p and g[:3] == p[:3]]
        assert len(matched) == sum(doc.correct())
        equal += len(matched)
    assert equal > 200


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > other


def test_overlaps_compares_linearly_in_long_docs():
    n = 2000
    short = [Entity(10 * i, Counted(10 * i + 5), "A") for i in range(n)]
    both = [Entity(0, Counted(10 * n), "A"), *short]
    assert len(list(overlaps(both, both))) == 3 * n + 1
    assert Counted.compared < 10 * n


@pytest.mark.parametrize("scores", [[0.25, 0.75, 0.5], [0.75, 0.25, 0.5]])
def test_equal_spans_count_once_with_the_highest_score(scores):
    """As in spaCy's scorer."""
    spans = [(0, 2, "A"), (0, 2, "A"), (1, 2, "B")]
    eg = Example(spans_of(WORDS, spans, scores), spans_of(WORDS, [(0, 2, "A")] * 2))
    (doc,) = collect_entities([eg], "sc")
    assert [ent.confidence for ent in doc.predicted] == [0.75, 0.5] and len(doc.gold) == 1
    found = score_strictly(count_entities([doc], LABELS), LABELS)["strict"]["micro"]
    expected = spancat_score([eg], spans_key="sc")
    assert found["recall"] == expected["spans_sc_r"] == 1.0
    assert found["precision"] == expected["spans_sc_p"] == 0.5


def test_collect_entities_reads_gold_docs_without_key_as_flat():
    gold = doc_of("abcd", [(0, 1, "A")], missing=[3])
    found = [(0, 1, "A"), (0, 2, "B"), (2, 4, "A")]
    (doc,) = collect_entities([Example(spans_of("abcd", found, [0.5] * 3), gold)], "sc")
    assert doc.gold == [Entity(0, 1, "A")]
    assert [ent.span for ent in doc.predicted] == [(0, 1), (0, 3)]
    assert [ent.span for ent in doc.left_out] == [(4, 7)]  # it has a token without annotation


@pytest.mark.parametrize("key", ["sc", None])
def test_collect_entities_leaves_out_unannotated_labels(key):
    gold = spans_of("abc", [(0, 2, "A")]) if key else doc_of("abc", [(0, 2, "A")])
    mark_annotated_labels(gold, ["A"])
    predicted = spans_of("abc", [(0, 1, "B"), (0, 2, "A"), (2, 3, "B")], [0.5] * 3)
    (doc,) = collect_entities([Example(predicted, gold)], "sc")
    assert [ent.label for ent in doc.predicted] == ["A"]
    assert [ent.label for ent in doc.left_out] == ["B", "B"]


def test_preset_entities_have_no_confidence():
    predicted = spans_of("abc", [(0, 1, "A"), (0, 2, "B"), (2, 3, "A")], [1.0, 0.5, 1.0])
    predicted.set_ents([predicted.spans["sc"][i] for i in (0, 2)])
    predicted.ents[1]._.confidence = 1.0
    (doc,) = collect_entities([Example(predicted, spans_of("abc", []))], "sc")
    assert [ent.confidence for ent in doc.predicted] == [None, 0.5, 1.0]


def test_collect_entities_keeps_confidence_of_earlier_recognizer():
    nlp, first = spacy.blank("en"), small(name="first")
    train(first, make_examples(first, [("Anna", [(0, 4, "PER")]), ("it", [])]), steps=20)
    (ent,) = first("Anna").ents
    assert 0.5 < ent._.confidence < 1.0
    nlp.add_pipe("first", source=first)
    nlp.add_pipe("crf_ner", source=make_overlapping())
    predicted = nlp("Anna")
    scores = predicted.spans["sc"].attrs["scores"].tolist()
    assert ("Anna", "PER", 1.0) in [
        (span.text, span.label_, p) for span, p in zip(predicted.spans["sc"], scores)
    ]
    gold = nlp.make_doc("Anna")
    gold.set_ents([])
    (doc,) = collect_entities([Example(predicted, gold)], "sc")
    assert {e.label: e.confidence for e in doc.predicted}["PER"] == ent._.confidence


def test_collect_entities_score_1_is_not_read_as_preset(monkeypatch):
    nlp = make_overlapping()
    for setting, value in (("confidence", False), ("temperature", 1e-4)):
        monkeypatch.setattr(nlp.get_pipe("crf_ner"), setting, value)
    predicted = nlp(TEXT)
    assert 1.0 in predicted.spans["sc"].attrs["scores"]
    (doc,) = collect_entities([Example(predicted, predicted)], "sc")
    assert None not in [ent.confidence for ent in doc.predicted]


def test_collect_entities_spans_without_all_scores_have_no_confidence():
    predicted = spans_of("abc", [(0, 1, "A"), (0, 2, "B")], [0.5])
    (doc,) = collect_entities([Example(predicted, spans_of("abc", []))], "sc")
    assert [ent.confidence for ent in doc.predicted] == [None, None]
    missing = Example(Doc(VOCAB, words=["a"]), spans_of("a", [(0, 1, "A")]))
    (doc,) = collect_entities([missing], "sc")
    assert (len(doc.gold), doc.predicted) == (1, [])


def test_errors_of_nested_entities_match_manual_list():
    gold = [(0, 4, "PER"), (3, 4, "LOC"), (5, 9, "PER"), (7, 8, "LOC")]
    predicted = [(0, 4, "PER"), (3, 4, "ORG"), (5, 8, "PER"), (10, 11, "LOC")]
    eg = Example(spans_of(WORDS, predicted, [0.9, 0.6, 0.7, 0.8]), spans_of(WORDS, gold))
    docs = collect_entities([eg], "sc")
    found = errors(docs, [match_entities(doc.gold, doc.predicted) for doc in docs])
    shown = [
        (error["kind"], *(error[side] and error[side]["text"] for side in ("gold", "predicted")))
        for error in found["list"]
    ]
    assert shown == [
        ("spurious", None, "Oslo"),
        ("wrong boundary", "University of Oslo president", "University of Oslo"),
        ("wrong type", "France", "France"),
        ("missed", "Oslo", None),
    ]


# Nesting


def test_nesting_recall_matches_manual_calculation():
    # A holds B, which holds another B; B crosses C; A is alone, twice.
    gold = [(0, 4, "A"), (1, 3, "B"), (1, 2, "B"), (5, 7, "B"), (6, 8, "C")]
    gold += [(8, 9, "A"), (9, 10, "A")]
    predicted = [(0, 4, "A"), (1, 2, "B"), (6, 8, "C"), (8, 9, "A"), (4, 5, "A")]
    docs = collect_entities(
        [Example(spans_of("a" * 10, predicted), spans_of("a" * 10, gold))], "sc"
    )
    found = nesting(docs, LABELS, 1)

    def row(flat: Any, overlapping: Any, lost: int) -> dict[str, Any]:
        counts = [{"gold": n, "recall": recall} for n, recall in (flat, overlapping)]
        return {"flat": counts[0], "overlapping": counts[1], "lost": lost}

    assert found == {
        "max_nesting": 1,
        "ceiling": pytest.approx(6 / 7),
        "micro": row((2, 0.5), (5, 0.6), 1),
        "per_type": {
            "A": row((2, 0.5), (1, 1.0), 0),
            "B": row((0, None), (3, pytest.approx(1 / 3)), 1),
            "C": row((0, None), (1, 1.0), 0),
        },
    }
    assert nesting(docs, LABELS, 2)["ceiling"] == 1.0
    assert nesting([], LABELS, 1)["ceiling"] is None


# The pipelines


def examples_of(gold: Sequence[Sequence[Offsets]]) -> list[Example]:
    return [Example(Doc(VOCAB, words=WORDS), spans_of(WORDS, spans)) for spans in gold]


def annotated(nlp: Language, gold: Sequence[Sequence[Offsets]]) -> list[Example]:
    examples = examples_of(gold)
    for eg in examples:
        eg.predicted = nlp(eg.predicted)
    return examples


@pytest.fixture(scope="module")
def folder(shared):
    def make() -> Language:
        nlp = small(overlap=True, max_nesting=1)
        train(nlp, examples_of([GOLD]), steps=60)
        return nlp

    return shared("evaluation-overlapping", make)


@pytest.fixture
def nlp(folder):
    return spacy.load(folder)


def test_evaluate_with_nlp_reads_entities_from_doc_spans(nlp):
    examples = annotated(nlp, [GOLD, OTHER])
    found = evaluate(examples, nlp=nlp, resamples=2)
    assert found["entities_key"] == "sc"
    assert found["predicted"] == sum(len(eg.predicted.spans["sc"]) for eg in examples) >= 8
    assert found["gold"] == 12
    assert list(found["matching"]) == ["strict"]
    scores = nlp.evaluate(examples_of([GOLD, OTHER]))
    micro = found["matching"]["strict"]["micro"]
    assert [micro[name] for name in ("precision", "recall", "f1")] == pytest.approx(
        [scores[f"spans_sc_{letter}"] for letter in "prf"]
    )
    assert 0.3 < micro["f1"] < 1
    assert found["reliability"]["entities"] == found["predicted"]
    row = found["thresholds"][0]
    assert (row["precision"], row["recall"]) == (micro["precision"], micro["recall"])
    assert found["nesting"]["max_nesting"] == 1 and found["nesting"]["ceiling"] == 1.0
    assert found["coverage"] is None and found["transitions"]["tags"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    # Without the pipeline, the entities are those of doc.ents, which gold docs do not annotate.
    assert evaluate(examples, resamples=2)["gold"] == 0


def test_missed_entities_have_the_posterior_of_their_span(nlp):
    (*_, eg) = examples = annotated(nlp, [GOLD, OTHER])
    found = evaluate(examples, nlp=nlp, resamples=2)["errors"]["list"]
    missed = [error for error in found if error["kind"] == "missed"]
    assert missed
    for error in missed:
        gold = error["gold"]
        doc = Doc(nlp.vocab, words=WORDS)
        span = doc.char_span(gold["start"], gold["end"], gold["label"])
        (p,) = nlp.get_pipe("crf_ner").span_posteriors(doc, [span])
        assert error["gold_probability"] == pytest.approx(p, rel=1e-4) and p < 0.6
    assert "sc" in eg.predicted.spans


def test_compare_uses_doc_spans(nlp):
    examples, worse = annotated(nlp, [GOLD, OTHER]), annotated(nlp, [GOLD, OTHER])
    for eg in worse:
        eg.predicted.spans["sc"] = []
    figures, other = (evaluate(each, nlp=nlp, resamples=10) for each in (examples, worse))
    found = compare(figures, examples, other, worse, resamples=10)["comparison"]["difference"]
    recall = figures["matching"]["strict"]["micro"]["recall"]
    assert -found["micro"]["recall"]["difference"] == recall > 0


def test_require_gold_and_evaluate_without_entities_raise(nlp):
    examples = examples_of([GOLD])
    check_gold(examples, "corpus", "sc")
    with pytest.raises(InputError, match=r"got 1 without.*in doc\.ents or doc\.spans\['other'\]"):
        check_gold(examples, "corpus", "other")
    with pytest.raises(InputError, match="got 1 without"):
        check_gold(examples, "corpus")
    with pytest.raises(
        InputError, match=r"got 1 by \['crf_ner'\] without.*sets doc\.spans\['sc'\]"
    ):
        evaluate(examples, nlp=nlp)


def test_calibrate_measures_doc_spans(nlp):
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.confidence = False  # those in doc.ents are not needed
    gold = [GOLD, OTHER] * 4
    before = reliability(collect_entities(annotated(nlp, gold), "sc"))
    found = calibrate(nlp, examples_of(gold))
    assert found["before"]["entities"] == before["entities"] >= 8 * 4
    assert found["before"]["ece"] == pytest.approx(before["ece"])
    after = reliability(collect_entities(annotated(nlp, gold), "sc"))
    assert found["after"]["ece"] == pytest.approx(after["ece"], abs=1e-6)
    assert pipe.temperature == found["temperature"] > 1
    assert found["after"]["brier"] < found["before"]["brier"]


def test_calibrate_f_beta_gives_best_threshold_for_spans(nlp):
    pipe: Any = nlp.get_pipe("crf_ner")
    gold = [GOLD, OTHER] * 4
    found = calibrate(nlp, examples_of(gold), f_beta=2)
    assert (pipe.decode, pipe.f_score_threshold) == ("max_expected_f", found["f_score_threshold"])
    each = spancat_score(annotated(nlp, gold), spans_key="sc")
    p, r = each["spans_sc_p"], each["spans_sc_r"]
    assert found["after"]["f_beta"] == pytest.approx(5 * p * r / (4 * p + r))

    fresh = Doc(nlp.vocab, words=WORDS)
    every = [
        Span(fresh, i, j, label) for i, j in combinations(range(12), 2) for label in pipe.labels
    ]
    of_gold = sum(p for p in pipe.span_posteriors(fresh, every) if p >= 0.01)

    def expected() -> float:
        chosen = nlp(Doc(nlp.vocab, words=WORDS)).spans["sc"].attrs["scores"]
        return 5 * sum(chosen) / (len(chosen) + 4 * of_gold)

    best, others = expected(), []
    for pipe.f_score_threshold in np.arange(0.05, 1.0, 0.05):
        others.append(expected())
    assert min(others) < max(others) <= best + 1e-6


@pytest.mark.parametrize("kind", ["recall", "precision", "set_coverage"])
def test_guarantee_overlapping_raises_before_fitting(nlp, kind):
    pipe: Any = nlp.get_pipe("crf_ner")
    before = {name: getattr(pipe, name) for name in FITTED_SETTINGS}
    says = r"\[crf_ner\] Nothing can be promised of entities that overlap"

    def unread() -> Any:
        raise AssertionError("read examples")
        yield

    with pytest.raises(InputError, match=says):
        fit_guarantees(nlp, "crf_ner", unread(), Targets(**{kind: 0.9}))
    assert {name: getattr(pipe, name) for name in FITTED_SETTINGS} == before
