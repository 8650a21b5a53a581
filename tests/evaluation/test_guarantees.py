"""Guarantees: thresholds against plain loops, what invalidates them, and saving and loading."""

import random
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.training import Example
from spacy.util import ignore_error
from typer.testing import CliRunner

from pipelines import copied, listening, make_examples, small, train, trained_elsewhere, write_docs
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation import calibration, evaluate, monitoring
from spacy_crf_ner.evaluation import fit_guarantees as fitting
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.guarantees import guarantees
from spacy_crf_ner.evaluation.matching import Entity, span_probabilities
from spacy_crf_ner.evaluation.risk_control import (
    GRID,
    coverage_threshold,
    precision_threshold,
    recall_threshold,
)
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline import network
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.settings import FITS, current_settings

WORDS = ["it", "saw", "came", "Anna", "Bonn", "Bonn Anna"]
REFUSED = r"Documents of train and dev do not count\.$"
LABELS = {"Anna": ["PER", "PER", "PER", "LOC"], "Bonn": ["LOC"], "Bonn Anna": ["PER", "LOC"]}


def drawn(nlp: Language, n: int, seed: int) -> list[Example]:
    """Documents in which the label of a name is drawn at random."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(n):
        text, ents = "", []
        for word in rng.choices(WORDS, k=rng.randint(1, 7)):
            if word in LABELS:
                ents.append((len(text), len(text) + len(word), rng.choice(LABELS[word])))
            text += f"{word} "
        sentences.append((text.strip(), ents))
    return make_examples(nlp, sentences)


def predicted(nlp: Language, examples: list[Example]) -> list[Example]:
    """The examples, annotated by the whole pipeline."""
    for eg in examples:
        eg.predicted = nlp(eg.text)
    return examples


def keys(spans: Any) -> list[tuple[int, int, str]]:
    return [(span.start_char, span.end_char, span.label_) for span in spans]


@pytest.fixture(scope="module")
def model(shared):
    def make() -> Language:
        nlp = small()
        train(nlp, drawn(nlp, 100, 0), steps=40)
        return trained_elsewhere(nlp)

    return shared("guarantees", make)


@pytest.fixture
def nlp(model):
    return spacy.load(model)


@pytest.fixture(scope="module")
def dev(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("guarantees") / "dev.spacy"
    DocBin(docs=[eg.reference for eg in drawn(spacy.load(model), 200, 1)]).to_disk(path)
    return path


HALVES = fitting.HALVES


@pytest.fixture(autouse=True)
def few_halves(monkeypatch):
    """Where nothing is said of errors on halves."""
    monkeypatch.setattr(fitting, "HALVES", 4)


def posteriors(nlp: Language, eg: Example) -> list[tuple[str, float]]:
    spans = [eg.predicted.char_span(e.start_char, e.end_char, e.label_) for e in eg.reference.ents]
    found = nlp.get_pipe("crf_ner").span_posteriors(eg.predicted, spans)
    return [(span.label_, p) for span, p in zip(spans, found)]


@pytest.mark.parametrize("confidence_level, by_label", [(None, False), (0.9, True)])
def test_candidates_have_the_guaranteed_recall(nlp, monkeypatch, confidence_level, by_label):
    monkeypatch.setattr(fitting, "HALVES", HALVES)
    examples = drawn(nlp, 150, 2)
    gold = [posteriors(nlp, eg) for eg in examples]
    ner = nlp.get_pipe("crf_ner")
    ner.candidate_threshold, ner.candidate_thresholds = 0.9, {"PER": 1.0}
    asked = Targets(recall=0.9, confidence_level=confidence_level, by_label=by_label)
    rows = fit_guarantees(nlp, "crf_ner", examples, asked)
    assert {row["kind"] for row in rows} == {"recall"}
    assert [row["label"] for row in rows] == ([*ner.labels] if by_label else [None])
    docs = list(nlp.pipe([eg.predicted.copy() for eg in examples]))
    for label, row in zip(ner.labels if by_label else [None], rows):
        of_label = [[p for each, p in doc if label in (None, each)] for doc in gold]
        documents = [np.array(ps) for ps in of_label if ps]
        threshold = recall_threshold(documents, 0.1, confidence_level)
        assert row["documents"] == len(documents)
        assert row["threshold"] == pytest.approx(threshold, rel=2e-6)
        assert row["threshold"] <= threshold
        shares = []
        candidates = 0
        for doc, eg in zip(docs, examples):
            found = keys(doc.spans["sc"])
            candidates += sum(label in (None, each) for *_, each in found)
            wanted = [ent for ent in keys(eg.reference.ents) if label in (None, ent[2])]
            if wanted:
                shares.append(sum(ent not in found for ent in wanted) / len(wanted))
        assert np.mean(shares) == pytest.approx(
            np.mean([(p < threshold).mean() for p in documents])
        )
        assert np.mean(shares) <= 0.1
        assert row["cost"] == pytest.approx(candidates / sum(map(len, of_label)))
        assert 0 < row["on_halves"] < 0.12 and row["on_halves"] < row["p95"] < 0.3
        # On the half that it was fitted to, a threshold never misses more.
        assert row["p95"] > (0.1 if confidence_level is None else 0.05)
    stored = guarantees(nlp)["recall"]
    assert stored["level"] == 0.9 and stored["confidence_level"] == confidence_level
    expected = {r["label"]: r["threshold"] for r in rows} if by_label else rows[0]["threshold"]
    assert stored["threshold"] == expected
    assert stored["documents"] == min(row["documents"] for row in rows)


def test_guarantee_on_halves_measures_error_on_other_half(nlp, monkeypatch):
    """Of 9 documents with one entity each, the threshold for 90 % is their lowest probability.

    A tenth of the others is below it. Three or more of these nine are below it in 10 % of the
    halves, four or more in 4 %.
    """
    monkeypatch.setattr(fitting, "HALVES", 2000)
    found = {eg.text: eg for eg in drawn(nlp, 100, 35) if len(eg.reference.ents) == 1}
    examples = [*found.values()][:18]
    assert len({p for eg in examples for _, p in posteriors(nlp, eg)}) == 18
    (row,) = fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.9))
    assert row["on_halves"] == pytest.approx(0.1, abs=0.01)
    assert row["p95"] == pytest.approx(3 / 9)


def test_found_entities_have_the_guaranteed_precision(nlp):
    examples = drawn(nlp, 300, 3)
    ner = nlp.get_pipe("crf_ner")
    ner.threshold, ner.thresholds = 0.9, {"PER": 1.0}
    (row,) = fit_guarantees(nlp, "crf_ner", examples, Targets(precision=0.75))
    ner.threshold, ner.thresholds = 0.0, {}
    documents, gold = [], 0
    for doc, eg in zip(nlp.pipe([eg.predicted.copy() for eg in examples]), examples):
        wanted = keys(eg.reference.ents)
        correct = [ent in wanted for ent in keys(doc.ents)]
        documents.append((np.array([e._.confidence for e in doc.ents]), np.array(correct, bool)))
        gold += len(wanted)
    by_threshold = [{t: correct[p >= t] for t in GRID} for p, correct in documents]
    expected = precision_threshold(by_threshold, 0.25, 0.95)
    assert row["threshold"] == pytest.approx(expected, rel=2e-6) and expected > 0
    assert row["confidence_level"] == 0.95
    kept = sum(int(correct[p >= row["threshold"]].sum()) for p, correct in documents)
    assert row["cost"] == pytest.approx(kept / gold)
    with pytest.raises(InputError, match="got other threshold"):
        guarantees(nlp)


def test_calibrate_says_that_the_threshold_of_a_dropped_promise_stays(nlp):
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 300, 3), Targets(precision=0.75))
    threshold = nlp.get_pipe("crf_ner").threshold
    assert threshold > 0
    stays = f"threshold of the promised precision, {threshold:g}, still drops entities"
    with pytest.warns(UserWarning, match=stays):
        calibrate(nlp, drawn(nlp, 20, 12))
    assert nlp.get_pipe("crf_ner").threshold == threshold


@pytest.mark.slow
def test_guarantee_precision_with_max_expected_f_decodes_at_each_threshold():
    """With max_expected_f, a dropped entity makes room for another one, with a lower
    probability.
    """
    nlp = small()
    one = [("Anna Bonn", [(0, 9, "PER")])] * 5
    two = [("Anna Bonn", [(0, 4, "PER"), (5, 9, "PER")])] * 4
    examples = make_examples(nlp, [*one, *two, *[("it saw Carl", [(7, 11, "PER")])] * 9])
    train(nlp, examples, steps=50)
    trained_elsewhere(nlp)
    ner = nlp.get_pipe("crf_ner")
    ner.decode, ner.f_score_threshold = "max_expected_f", 0.3
    assert [ent.text for ent in nlp("Anna Bonn").ents] == ["Anna", "Bonn"]
    ner.threshold = 0.5
    assert [ent.text for ent in nlp("Anna Bonn").ents] == ["Anna Bonn"]
    fit_guarantees(nlp, "crf_ner", examples * 11, Targets(precision=0.9))
    shares = []
    for eg in examples:
        found = [ent in keys(eg.reference.ents) for ent in keys(nlp(eg.text).ents)]
        shares += [np.mean(found)] if found else []
    assert np.mean(shares) >= 0.9


def test_prediction_sets_have_the_guaranteed_coverage(nlp):
    examples = drawn(nlp, 100, 4)
    ner = nlp.get_pipe("crf_ner")
    ner.temperature = 1.5
    with pytest.raises(InputError, match="has no promise of a set coverage"):
        ner.prediction_sets([nlp.make_doc("Anna")])
    unknown = [Example(nlp.make_doc("Anna came"), nlp.make_doc("Anna came")) for _ in range(9)]
    docs = [eg.predicted for eg in (*examples, *unknown)]
    ranked = ner.nbest(docs, 200)
    gold = []
    for eg, of_doc in zip(examples, ranked):
        found = [keys(each.ents) for each in of_doc]
        gold.append(of_doc[found.index(keys(eg.reference.ents))].probability)
    for level in (0.5, 0.9):
        (row,) = fit_guarantees(nlp, "crf_ner", [*examples, *unknown], Targets(set_coverage=level))
        assert row["documents"] == 100
        sets = ner.prediction_sets(docs)
        threshold = coverage_threshold(np.array(gold), 1 - level)
        assert row["threshold"] == pytest.approx(threshold, rel=2e-6)
        for of_doc, kept in zip(ranked, sets):
            expected = [each for each in of_doc if each.probability >= row["threshold"]]
            assert [a.ents for a in kept] == [a.ents for a in expected or of_doc[:1]]
        assert row["cost"] == np.mean([len(each) for each in sets])
        assert max(map(len, sets)) > 4 or level < 0.9  # more than are asked for at first
        assert np.mean([p >= threshold for p in gold]) >= level


def test_guarantee_unpredictable_gold_entities_count_as_missed(nlp):
    """A label of gold only, and entities within a token, have probability 0."""
    doc = nlp.make_doc("Anna saw Bonn")
    odd = [Entity(0, 2, "PER"), Entity(0, 4, "ORG"), Entity(7, 13, "LOC")]
    ents = [Entity(0, 4, "PER"), Entity(9, 13, "LOC"), Entity(9, 13, "PER")]
    (found,) = span_probabilities(nlp.get_pipe("crf_ner"), [doc], [[*odd, *ents]])
    spans = [doc.char_span(*ent.span, ent.label) for ent in ents]
    expected = nlp.get_pipe("crf_ner").span_posteriors(doc, spans)
    assert found == {**dict.fromkeys(odd, 0.0), **dict(zip(ents, expected))}
    assert len({*expected}) == 3 and min(expected) > 0
    examples = drawn(nlp, 60, 5)
    for text, ent in [("Anna saw it", (0, 4, "ORG")), ("Bonn came", (0, 2, "LOC"))]:
        words = [text[:2], *text[2:].split()]
        gold = Doc(nlp.vocab, words, [False, *[True] * (len(words) - 2), False])
        gold.ents = [gold.char_span(*ent)]
        examples.append(Example(nlp.make_doc(text), gold))
    for kinds in ({"recall": 0.97}, {"set_coverage": 0.97}):
        with pytest.raises(InputError, match=r"well enough for 97 %: .*, got 0\."):
            fit_guarantees(nlp, "crf_ner", examples, Targets(**kinds))


def test_guarantee_recall_of_entity_below_candidate_limit_raises(nlp):
    """Spans of a posterior below 1e-5 are too many, also where calibration makes it larger."""
    ner = nlp.get_pipe("crf_ner")
    ner.temperature = 0.2
    examples = make_examples(nlp, [("it came", [(0, 2, "PER")])]) * 20
    ((_, p),) = posteriors(nlp, examples[0])
    ner.platt_slope = 0.3
    ((_, calibrated),) = posteriors(nlp, examples[0])
    assert 0 < p < 1e-5 < calibrated
    with pytest.raises(InputError, match=r"recall: .* 90 %: expected .* at least 0\.03"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.9))


@pytest.mark.parametrize(
    "asked, documents, message",
    [
        ({"recall": 0.9}, 8, rf"recall: .* 90 % needs at least 9, got 8 with such .* {REFUSED}"),
        ({"recall": 0.9, "confidence_level": 0.9}, 21, r"recall: .* needs at least 22, got 21"),
        ({"recall": 0.9, "by_label": True}, 20, r"recall of PER: .* needs at least 9, got 0 with"),
        ({"set_coverage": 0.95}, 18, r"set_coverage: .* needs at least 19, got 18"),
        ({"precision": 0.9}, 56, r"precision: .* needs at least 57, got 56"),
        ({"precision": 0.9}, 0, rf"precision: At no threshold is 90 % certain.* {REFUSED}"),
        ({}, 50, r"There is nothing to promise"),
        ({"recall": 0.0}, 50, r"The recall must be between 0 and 1, got 0\.0"),
        ({"recall": 1.0}, 50, "The recall must be between 0 and 1, got 1.0"),
        ({"recall": 0.5, "confidence_level": 0.0}, 50, "The confidence level must be"),
        (
            {"set_coverage": 0.5, "confidence_level": 0.9},
            50,
            r"A confidence level is of a recall or",
        ),
        ({"by_label": True, "set_coverage": 0.5}, 50, "A promise by label is of a recall. Name"),
    ],
)
def test_guarantee_impossible_request_raises(nlp, asked, documents, message):
    example = make_examples(nlp, [("Bonn came", [(0, 4, "LOC")])])[0]
    wrong = make_examples(nlp, [("Bonn came", [])])[0]
    examples = [example] * (documents or 20) + [wrong] * (0 if documents else 180)
    with pytest.raises(InputError, match=message):
        fit_guarantees(nlp, "crf_ner", examples, Targets(**asked))


CHANGES: dict[str, tuple[set[str], Any]] = {  # what each setting matters to, and another value
    "temperature": ({"recall", "precision", "set_coverage"}, 1.00001),
    "platt_slope": ({"recall", "precision", "set_coverage"}, 1.00001),
    "platt_intercept": ({"recall", "precision", "set_coverage"}, 1e-5),
    "overwrite": ({"recall", "precision", "set_coverage"}, True),
    "decode": ({"precision"}, "max_expected_f"),
    "f_score_threshold": ({"precision"}, 0.41),
    "threshold": ({"precision"}, 0.999),
    "thresholds": ({"precision"}, {"PER": 0.7}),
    "spans_key": ({"recall"}, "other"),
    "candidate_threshold": ({"recall"}, 0.5),
    "candidate_thresholds": ({"recall"}, {"LOC": 0.5, "PER": 0.5}),
    "disabled_labels": ({"recall", "precision", "set_coverage"}, ["PER"]),
}


@pytest.mark.parametrize("kind", ["recall", "precision", "set_coverage"])
def test_guarantees_changed_relevant_setting_raises(nlp, kind):
    ner: Any = nlp.get_pipe("crf_ner")
    asked: Any = {kind: 0.3, "by_label": kind == "recall"}
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 60, 33), Targets(**asked))
    given = guarantees(nlp)
    if kind == "recall":  # another number for the same labels
        assert set(ner.candidate_thresholds) == {"LOC", "PER"}
    for name, (kinds, value) in CHANGES.items():
        before = getattr(ner, name)
        setattr(ner, name, value)
        if kind in kinds:
            with pytest.raises(InputError, match=rf"got other {name}\. Promise them again"):
                guarantees(nlp)
        else:
            assert guarantees(nlp) == given
        setattr(ner, name, before)
        assert guarantees(nlp) == given


def test_guarantee_with_disabled_label_is_about_the_other_labels(nlp):
    ner: Any = nlp.get_pipe("crf_ner")
    ner.disabled_labels = ["PER"]
    examples = drawn(nlp, 60, 40)
    gold = [[p for label, p in posteriors(nlp, eg) if label == "LOC"] for eg in examples]
    documents = [np.array(ps) for ps in gold if ps]
    rows = fit_guarantees(
        nlp, "crf_ner", examples, Targets(recall=0.8, by_label=True, set_coverage=0.5)
    )
    assert [row["label"] for row in rows] == ["LOC", None]
    assert rows[0]["threshold"] == pytest.approx(recall_threshold(documents, 0.2, None), rel=2e-6)
    assert rows[0]["documents"] == len(documents) < rows[1]["documents"] == len(examples)
    assert [*guarantees(nlp)] == ["recall", "set_coverage"]
    docs = [eg.predicted for eg in examples]
    exact = []
    for eg, of_doc in zip(examples, ner.nbest(docs, 200)):
        found = {tuple(keys(each.ents)): each.probability for each in of_doc}
        wanted = tuple(ent for ent in keys(eg.reference.ents) if ent[2] == "LOC")
        exact.append(found.get(wanted, 0.0))
    threshold = coverage_threshold(np.array(exact), 0.5)
    assert rows[1]["threshold"] == pytest.approx(threshold, rel=2e-6)
    annotated = [Example(doc, eg.reference) for doc, eg in zip(nlp.pipe(docs), examples)]
    coverage = evaluate(annotated, nlp=nlp)["coverage"]["guarantees"]
    assert [*coverage["recall"]["found"]] == ["LOC"] and coverage["set_coverage"]["found"] >= 0.5
    ner.disabled_labels = []
    with pytest.raises(InputError, match=r"the disabled labels of the guarantee, \['PER'\]"):
        ner.prediction_sets(docs)


def test_guarantees_hold_for_saved_pipeline_until_weights_vectors_or_config_change(nlp, tmp_path):
    """Words can also exchange their vectors: the table stays the same."""
    for i, word in enumerate(("Anna", "Bonn", "saw")):
        nlp.vocab.set_vector(word, np.eye(3, dtype="f")[i])
    assert guarantees(nlp) == {}
    examples = drawn(nlp, 40, 34)
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5, set_coverage=0.5))
    given = guarantees(nlp)
    assert list(given) == ["recall", "set_coverage"]
    nlp.to_disk(tmp_path)
    for same in (spacy.load(tmp_path), copied(nlp)):
        assert guarantees(same) == given
    same.get_pipe("crf_ner").temperature = 3.0
    with pytest.raises(InputError, match="expected the temperature of the guarantee"):
        same.get_pipe("crf_ner").prediction_sets([nlp.make_doc("Anna")])
    same = spacy.load(tmp_path, config={"components": {"crf_ner": {"overwrite": True}}})
    with pytest.raises(InputError, match="got other overwrite"):
        guarantees(same)
    same = spacy.load(tmp_path)
    table = same.vocab.vectors.data.copy()
    (anna, bonn) = same.vocab.vectors.find(keys=["Anna", "Bonn"])
    same.vocab.vectors.add("Anna", row=bonn)
    same.vocab.vectors.add("Bonn", row=anna)
    np.testing.assert_array_equal(same.vocab.vectors.data, table)
    other = spacy.load(tmp_path)
    other.vocab.vectors.data[anna] += 1.0  # in place, under the same keys
    nlp.update(examples[:2], sgd=nlp.resume_training())
    for changed in (same, other, nlp):
        with pytest.raises(InputError, match=r"recall, set_coverage were .*, got other weights"):
            guarantees(changed)
    nlp.initialize(lambda: examples)
    assert guarantees(nlp) == {}


def test_documents_that_served_the_calibration_do_not_count(nlp):
    """They are left out, also those without gold that an F-score threshold was fitted to."""
    names = "calibrated", "unlabeled", "new"
    parts = [
        make_examples(nlp, [(f"Bonn came {part} {i}", [(0, 4, "LOC")]) for i in range(20)])
        for part in names
    ]
    calibrate(nlp, parts[0], f_beta=1.0, docs=[eg.predicted for eg in parts[1]])
    fitted = {name: getattr(nlp.get_pipe("crf_ner"), name) for name in FITS}
    for part in parts[:2]:
        with pytest.raises(InputError, match=r"20 in the evaluations or the calibration"):
            fit_guarantees(nlp, "crf_ner", part, Targets(recall=0.9))
    with pytest.warns(UserWarning, match=r"40 of 60 documents are left out"):
        (row,) = fit_guarantees(nlp, "crf_ner", [*chain(*parts)], Targets(recall=0.9))
    assert row["documents"] == 20
    assert {name: getattr(nlp.get_pipe("crf_ner"), name) for name in FITS} == fitted


@pytest.mark.parametrize("name", ["calibration", "guarantees"])
def test_calibrate_and_guarantees_run_the_network_once_for_each_doc(model, monkeypatch, name):
    """Each finds the same as if the network ran for each question."""
    asked = Targets(recall=0.8, precision=0.4, set_coverage=0.5)
    compute, read = network.compute_potentials, []

    def counted(pipe: Any, docs: list[Doc]) -> Any:
        read.append(len(docs))
        return compute(pipe, docs)

    monkeypatch.setattr(network, "compute_potentials", counted)
    found, times = [], []
    for _ in range(2):
        nlp = spacy.load(model)
        examples = drawn(nlp, 150, 50)
        if name == "calibration":
            fitted = calibrate(nlp, examples)
            found.append([{name: fitted[name] for name in FITS}])
        else:
            found.append(fit_guarantees(nlp, "crf_ner", examples, asked))
        times.append(sum(read) / 150)
        read.clear()
        assert nlp.get_pipe("crf_ner").computed is None
        for module in (calibration, monitoring, fitting):
            monkeypatch.setattr(module, "computed_once", lambda pipe: nullcontext())
    assert times[0] == 1 and times[1] >= 4
    for one, other in zip(*found, strict=True):
        assert one == {
            key: pytest.approx(x, rel=1e-4) if isinstance(x, float) else x
            for key, x in other.items()
        }


def test_guarantee_with_failing_docs_keeps_candidates_aligned(nlp):
    examples = drawn(nlp, 300, 7)
    expected = fit_guarantees(nlp, "crf_ner", examples, Targets(precision=0.6))
    ner = nlp.get_pipe("crf_ner")
    ner.set_error_handler(ignore_error)
    predict = ner.predict

    def fails(docs: list[Doc]) -> Any:
        if any(doc.text.startswith("fail") for doc in docs):
            raise ValueError
        return predict(docs)

    ner.predict = fails
    failing = make_examples(nlp, [("fail", [])])
    mixed = [*examples[:40], *failing, *examples[40:]]
    found = fit_guarantees(nlp, "crf_ner", mixed, Targets(precision=0.6))
    # The batch of the doc that fails has no entities.
    assert 0 < found[0]["documents"] < expected[0]["documents"]
    assert found[0]["cost"] < expected[0]["cost"]
    assert abs(found[0]["threshold"] - expected[0]["threshold"]) < 0.2


def test_interrupted_guarantee_leaves_the_component_as_before(nlp):
    """Precision is tried at many thresholds, which are settings of the component."""
    ner = nlp.get_pipe("crf_ner")
    predict, calls = ner.predict, count()

    def interrupted(docs: list[Doc]) -> Any:
        if next(calls) == 10:
            raise KeyboardInterrupt
        return predict(docs)

    ner.decode, ner.predict = "max_expected_f", interrupted
    before = srsly.json_dumps([current_settings(ner), ner.cfg])
    with pytest.raises(KeyboardInterrupt):
        fit_guarantees(nlp, "crf_ner", drawn(nlp, 300, 7), Targets(precision=0.6))
    assert srsly.json_dumps([current_settings(ner), ner.cfg]) == before


def test_promise_fit_command_saves_and_prints_guarantees(model, dev, tmp_path):
    asked = "--recall 0.6 --ents-precision 0.5 --set-coverage 0.6 --confidence-level 0.8 --by-label"
    paths = [str(each) for each in (model, dev, tmp_path / "x")]
    result = CliRunner().invoke(app, ["promise", "fit", *paths, *asked.split()])
    assert result.exit_code == 0, result.output
    nlp = spacy.load(tmp_path / "x")
    given = guarantees(nlp)
    assert {kind: (of["level"], of["confidence_level"]) for kind, of in given.items()} == {
        "recall": (0.6, 0.8), "precision": (0.5, 0.8), "set_coverage": (0.6, None),
    }  # fmt: skip
    thresholds = given["recall"]["threshold"]
    assert given["recall"]["by_label"] and set(thresholds) == {"LOC", "PER"}
    for name, threshold in (
        ("recall of LOC", thresholds["LOC"]),
        ("recall of PER", thresholds["PER"]),
        ("precision", given["precision"]["threshold"]),
        ("set_coverage", given["set_coverage"]["threshold"]),
    ):
        (line,) = (line for line in result.stdout.splitlines() if f" {name}: " in line)
        assert f"{threshold:.3g}" in line
    assert f"{given['precision']['documents']}" in result.stdout
    doc = nlp("Anna saw Bonn")
    assert doc.spans["sc"] and nlp.get_pipe("crf_ner").prediction_sets([doc])[0]
    config = srsly.read_json(tmp_path / "x" / "crf_ner" / "cfg")
    assert set(config["guarantees"]) == {*given, "digest", "reference", "computed_in"}
    assert "Promised for a document" in result.stdout
    # A calibration drops the promises, and its documents serve none.
    paths = [str(each) for each in (tmp_path / "x", dev, tmp_path / "y")]
    again = CliRunner().invoke(app, ["calibrate", *paths])
    assert again.exit_code == 0, again.output
    assert "promises of recall, precision, set_coverage were for another" in again.stderr
    assert guarantees(spacy.load(tmp_path / "y")) == {}
    paths = [str(each) for each in (tmp_path / "y", dev, tmp_path / "z")]
    refused = CliRunner().invoke(app, ["promise", "fit", *paths, "--recall", "0.6"])
    assert refused.exit_code == 1 and "0 are left." in refused.stderr
    assert not (tmp_path / "z").exists()


def test_promise_fit_command_leaves_out_documents_of_train(model, tmp_path):
    sentences = [(f"Bonn came {i}", [(0, 4, "LOC")]) for i in range(30)]

    def run(known: Any) -> Any:
        write_docs(tmp_path / "dev.spacy", sentences[:20])
        write_docs(tmp_path / "train.spacy", known)
        paths = [str(tmp_path / name) for name in ("dev.spacy", "x", "train.spacy")]
        options = "--train", paths[2], "--recall", "0.5"
        return CliRunner().invoke(app, ["promise", "fit", str(model), *paths[:2], *options])

    result = run([("Bonn  came\n7", [(0, 4, "LOC")]), *sentences[18:]])
    assert result.exit_code == 0, result.output
    assert "3 of 20 documents are left out" in result.stderr
    assert "(document 8, 19, 20; the first is 'Bonn came 7'). 17 are left." in result.stderr


def ruled(nlp: Language, label: str = "PER", word: str = "Anna", **config: Any) -> Language:
    """Add an entity ruler before the recognizer."""
    ruler = nlp.add_pipe("entity_ruler", before="crf_ner", config=config)
    ruler.add_patterns([{"label": label, "pattern": word}])
    return nlp


def test_preset_entities_are_candidates(nlp, tmp_path):
    nlp = ruled(nlp)
    sentences = [("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")]), ("Bonn came", [(0, 4, "LOC")])]
    examples = make_examples(nlp, sentences) * 50
    (row,) = fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.7))
    assert row["cost"] >= 1.0
    nlp.to_disk(tmp_path)
    for same in (nlp, spacy.load(tmp_path)):
        assert guarantees(same)["recall"]["level"] == 0.7
        doc = same("Anna saw Bonn")
        found = doc.spans["sc"]
        p = {(s.text, s.label_): p for s, p in zip(found, found.attrs["scores"])}
        assert p["Anna", "PER"] == 1.0 and ("Bonn", "LOC") in p


def test_guarantee_accepts_preset_entities_of_other_labels(nlp):
    nlp = ruled(nlp, label="URL", word="came")
    asked = Targets(recall=0.5, precision=0.5, set_coverage=0.3)
    rows = fit_guarantees(nlp, "crf_ner", drawn(nlp, 200, 9), asked)
    assert [row["kind"] for row in rows] == ["recall", "precision", "set_coverage"]


def test_set_coverage_counts_wrong_preset_entity_as_error(nlp):
    nlp = ruled(nlp, label="LOC", word="saw")
    examples = make_examples(nlp, [("Bonn saw", [(0, 4, "LOC")]), ("Bonn came", [(0, 4, "LOC")])])
    asked = Targets(set_coverage=0.7)
    with pytest.raises(InputError, match=r"set_coverage: .* well enough for 70 %"):
        fit_guarantees(nlp, "crf_ner", examples * 50, asked)
    (row,) = fit_guarantees(nlp, "crf_ner", [*examples * 10, *examples[1:] * 50], asked)
    assert row["on_halves"] < 0.3
    nlp.get_pipe("crf_ner").overwrite = True  # it is not kept then
    assert fit_guarantees(nlp, "crf_ner", examples * 50, asked)


def test_set_coverage_counts_adjacent_entities_as_error_in_io():
    nlp = small(scheme="io")
    adjacent = [("Anna Bonn came", [(0, 4, "PER"), (5, 9, "PER")])]
    apart = [("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "PER")])]
    examples = make_examples(nlp, [*apart * 7, *adjacent * 3]) * 5
    train(nlp, examples, steps=30)
    trained_elsewhere(nlp)
    with pytest.raises(InputError, match=r"set_coverage: .* well enough for 80 %"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(set_coverage=0.8))
    fit_guarantees(nlp, "crf_ner", examples, Targets(set_coverage=0.6))


def test_calibration_and_drift_need_scipy_and_guarantees_do_not(nlp, monkeypatch):
    """Where exported pipelines run, it need not be installed."""
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 20, 41), Targets(recall=0.5))
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert guarantees(nlp)["recall"]["level"] == 0.5 and nlp("Anna saw Bonn").ents
    needs = r'The extra .calibrate. .*pip install .* "\.\[calibrate\]"'
    for fails in (
        lambda: calibrate(nlp, []),
        lambda: fit_guarantees(nlp, "crf_ner", [], Targets(recall=0.5)),
        lambda: monitoring.drift(nlp, []),
    ):
        with pytest.raises(InputError, match=needs):
            fails()


def test_guarantee_spans_key_of_another_component_raises(nlp):
    nlp.add_pipe("span_ruler", config={"spans_key": "sc"})
    with pytest.raises(InputError, match="expected a key of its own, got 'sc', which 'span_ruler'"):
        fit_guarantees(nlp, "crf_ner", drawn(nlp, 40, 11), Targets(recall=0.9))
    assert nlp.get_pipe("crf_ner").spans_key is None
    nlp.get_pipe("crf_ner").spans_key = "candidates"
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 40, 11), Targets(recall=0.9))


def test_guarantees_ignore_order_of_sentencizer_characters(nlp):
    """Its characters are a set: their order is another one in each process."""

    class Reversed(set[str]):
        def __iter__(self) -> Iterator[str]:
            return reversed([*super().__iter__()])

    sentencizer: Any = nlp.add_pipe("sentencizer", first=True)
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 20, 31), Targets(recall=0.5))
    sentencizer.punct_chars = Reversed(sentencizer.punct_chars)
    assert guarantees(nlp)
    for name, value in (("overwrite", not sentencizer.overwrite), ("punct_chars", {"!"})):
        before = getattr(sentencizer, name)
        setattr(sentencizer, name, value)
        with pytest.raises(InputError, match="got other weights, tokenizer or earlier components"):
            guarantees(nlp)
        setattr(sentencizer, name, before)


def test_guarantees_hold_after_new_vocabulary_words(nlp, tmp_path):
    """The vocab grows with each new word, and a component can store it."""
    ruler = nlp.add_pipe("attribute_ruler", before="crf_ner")
    ruler.add([[{"TEXT": "Anna"}]], {"LEMMA": "anna"})
    lemmatizer = nlp.add_pipe("lemmatizer", before="crf_ner", config={"mode": "lookup"})
    lemmatizer.lookups.add_table("lemma_lookup", {"saw": "see"})
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 30, 20), Targets(recall=0.8))
    nlp.to_disk(tmp_path)
    for same in (nlp, spacy.load(tmp_path)):
        same("Someword neverseen")
        assert guarantees(same)["recall"]["level"] == 0.8
    ruler.add([[{"TEXT": "Bonn"}]], {"LEMMA": "bonn"})
    with pytest.raises(InputError, match="got other weights, tokenizer or earlier components"):
        guarantees(nlp)


def test_guarantee_recall_holds_for_probabilities_rounded_to_1(nlp):
    ner = nlp.get_pipe("crf_ner")
    ner.platt_slope, ner.temperature = 3.5, 0.2
    examples = drawn(nlp, 100, 21)
    (row,) = fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.3))
    assert row["threshold"] > 1 - 1e-6
    shares = []
    for eg in examples:
        doc = nlp(eg.text)
        found, gold = keys(doc.spans["sc"]), keys(eg.reference.ents)
        shares += [np.mean([ent in found for ent in gold])] if gold else []
    assert np.mean(shares) >= 0.3 and row["cost"] > 0


def test_guarantee_threshold_not_representable_raises(nlp):
    ner = nlp.get_pipe("crf_ner")
    ner.platt_slope, ner.platt_intercept, ner.temperature = 3.0, -3.0, 0.5
    with pytest.raises(InputError, match="The model does not know these documents well enough"):
        fit_guarantees(nlp, "crf_ner", drawn(nlp, 100, 22), Targets(recall=0.97))


@pytest.mark.parametrize("asked", [{"recall": 0.8}, {"precision": 0.2}, {}])
def test_evaluate_candidates_replaced_by_other_component_warns(nlp, asked):
    nlp.get_pipe("crf_ner").spans_key = "sc"
    if asked:
        fit_guarantees(nlp, "crf_ner", drawn(nlp, 60, 23), Targets(**asked))
    ruler = nlp.add_pipe("span_ruler", config={"spans_key": "sc"})
    ruler.add_patterns([{"label": "ORG", "pattern": "Anna"}])
    if "recall" in asked:
        with pytest.raises(InputError, match="spans_key: expected a key of its own, got 'sc'"):
            guarantees(nlp)
    examples = predicted(nlp, drawn(nlp, 20, 24))
    with pytest.warns(UserWarning, match="expected a key of its own"):
        assert evaluate(examples, nlp=nlp, resamples=2)["coverage"] is None


def test_guarantees_changed_setting_of_earlier_recognizer_raises(nlp):
    other = small(8, "second")
    other.initialize(lambda: drawn(other, 10, 25))
    nlp.add_pipe("second", source=trained_elsewhere(other))
    examples = drawn(nlp, 20, 25)
    for eg in examples:
        eg.predicted = nlp.get_pipe("crf_ner")(eg.predicted)
    fit_guarantees(nlp, "second", examples, Targets(recall=0.01))
    assert guarantees(nlp, "second")
    first: Any = nlp.get_pipe("crf_ner")
    for name, value in (("platt_intercept", -3.0), ("f_score_threshold", 0.9), ("threshold", 0.9)):
        before = getattr(first, name)
        setattr(first, name, value)
        with pytest.raises(InputError, match="got other weights"):
            guarantees(nlp, "second")
        setattr(first, name, before)
    assert guarantees(nlp, "second")


def test_a_failed_guarantee_or_calibration_changes_nothing_and_a_calibration_drops_it(model):
    nlp = spacy.load(model, config={"components.crf_ner.threshold": 0.25})
    pipe = recognizer(nlp)
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 50, 10), Targets(recall=0.9))
    pipe.f_score_threshold = 0.3  # not relevant to it
    given = guarantees(nlp)
    before = srsly.json_dumps([current_settings(pipe), pipe.cfg])
    for fails, message in (
        (lambda: calibrate(nlp, make_examples(nlp, [("it came", [])])),
         r"expected examples with annotated entities"),
        (lambda: calibrate(nlp, drawn(nlp, 20, 26), f_beta=1.0, docs=[]), r"probable entities"),
        (lambda: fit_guarantees(nlp, "crf_ner", drawn(nlp, 50, 10),
                                Targets(recall=0.5, precision=0.999)),
         r"precision: There are too few documents"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            fails()
        assert srsly.json_dumps([current_settings(pipe), pipe.cfg]) == before
    assert guarantees(nlp) == given
    with pytest.warns(UserWarning, match=r"promises of recall were for another calibration"):
        calibrate(nlp, drawn(nlp, 20, 12))
    assert guarantees(nlp) == {}


# In reports


@pytest.mark.parametrize("by_label", [pytest.param(False, marks=pytest.mark.slow), True])
def test_evaluate_coverage_matches_direct_calculation(nlp, by_label):
    asked = Targets(recall=0.9, precision=0.5, set_coverage=0.7, by_label=by_label)
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 150, 12), asked)
    examples = predicted(nlp, drawn(nlp, 60, 13))
    partly = drawn(nlp, 2, 14)
    partly[0].reference.set_ents([], missing=[partly[0].reference[:]])
    of_one_label = partly[1].reference
    of_one_label.ents = []
    of_one_label.spans["annotated_labels"] = [Span(of_one_label, 0, len(of_one_label), "PER")]
    found = evaluate([*examples, *predicted(nlp, partly)], nlp=nlp, resamples=2)["coverage"]
    assert found["docs"] == 60
    given = guarantees(nlp)
    assert {kind: {**each, "found": None} for kind, each in given.items()} == {
        kind: {**each, "found": None} for kind, each in found["guarantees"].items()
    }

    recalls, precisions, right = [], [], []
    by_name: dict[str, list[Any]] = {"LOC": [], "PER": []}
    candidates: list[dict[tuple[int, int, str], float]] = []
    gold = [keys(eg.reference.ents) for eg in examples]
    for eg, ents in zip(examples, gold):
        group = eg.predicted.spans["sc"]
        candidates.append(dict(zip(keys(group), group.attrs["scores"])))
        if ents:
            recalls.append(np.mean([ent in candidates[-1] for ent in ents]))
        for label in ("LOC", "PER"):
            found_of = [ent in candidates[-1] for ent in ents if ent[2] == label]
            by_name[label] += [np.mean(found_of)] if found_of else []
        if eg.predicted.ents:
            precisions.append(np.mean([ent in ents for ent in keys(eg.predicted.ents)]))
        (labelings,) = nlp.get_pipe("crf_ner").prediction_sets([nlp.make_doc(eg.text)])
        right.append(any(keys(each.ents) == ents for each in labelings))
    recall = found["guarantees"]["recall"]["found"]
    if by_label:
        assert recall == {label: pytest.approx(np.mean(of)) for label, of in by_name.items()}
    else:
        assert recall == pytest.approx(np.mean(recalls))
    for kind, values in (("precision", precisions), ("set_coverage", right)):
        assert found["guarantees"][kind]["found"] == pytest.approx(np.mean(values))
        assert 0.4 < np.mean(values)
    assert np.mean(recalls) < 1.0
    for at in found["curve"]:
        least = (at["threshold"] or 0.0) * (1 - 1e-6)
        kept = [{c for c, p in of_doc.items() if p >= least} for of_doc in candidates]
        assert at["per_entity"] == pytest.approx(sum(map(len, kept)) / sum(map(len, gold)))
        shares = [np.mean([ent in of for ent in ents]) for of, ents in zip(kept, gold) if ents]
        assert at["coverage"] == pytest.approx(np.mean(shares))
    thresholds = [at["threshold"] for at in found["curve"]]
    if by_label:
        assert thresholds.pop() is None
        used = nlp.get_pipe("crf_ner").candidate_thresholds.values()
        assert thresholds[-1] == max(used) > min(used)
    assert thresholds == sorted(thresholds, reverse=True) and len(thresholds) > 3
    assert found["curve"][-1]["coverage"] == pytest.approx(np.mean(recalls))


def test_evaluate_invalid_guarantee_warns_and_is_left_out(nlp):
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 50, 15), Targets(recall=0.9))
    nlp.get_pipe("crf_ner").candidate_threshold = 0.5
    examples = predicted(nlp, drawn(nlp, 20, 16))
    with pytest.warns(UserWarning, match="got other candidate_threshold"):
        found = evaluate(examples, nlp=nlp, resamples=2)["coverage"]
    assert found["guarantees"] == {} and found["curve"][-1]["threshold"] == 0.5
    nlp.get_pipe("crf_ner").spans_key = None
    with pytest.warns(UserWarning, match="got other"):
        assert evaluate(examples, nlp=nlp, resamples=2)["coverage"] is None


def test_evaluate_guaranteed_precision_excludes_preset_entities(nlp):
    """As the guarantee of a precision does: preset entities have no confidence."""
    nlp = ruled(nlp, "ORG", "it")  # always wrong
    prepared = _prepared(nlp, drawn(nlp, 150, 28))
    fit_guarantees(nlp, "crf_ner", prepared, Targets(precision=0.5))
    examples = predicted(nlp, drawn(nlp, 60, 29))
    found = evaluate(examples, nlp=nlp, resamples=2)["coverage"]["guarantees"]
    shares = []
    for eg in examples:
        added = [ent for ent in keys(eg.predicted.ents) if ent[2] != "ORG"]
        shares += [np.mean([ent in keys(eg.reference.ents) for ent in added])] if added else []
    assert found["precision"]["found"] == pytest.approx(np.mean(shares)) and np.mean(shares) >= 0.5
    without = [eg for eg in prepared if "it" not in eg.text]
    fit_guarantees(nlp, "crf_ner", without, Targets(set_coverage=0.1))
    # What the ruler had set is not known any more.
    found = evaluate(examples, nlp=nlp, resamples=2)["coverage"]["guarantees"]
    assert found["set_coverage"]["found"] is None


@pytest.mark.slow
def test_guarantee_precision_counts_entities_of_one_recognizer():
    """Those of an earlier one, which is always right here, have a confidence too."""
    nlp = spacy.blank("en")
    for name, word, other in (("first", "Acme", "Anna"), ("second", "Anna", "Acme")):
        own = small(name=name)
        train(own, make_examples(own, [(word, [(0, 4, "NAME")]), (other, [])]), steps=20)
        nlp.add_pipe(name, source=trained_elsewhere(own))
    acme, anna = (0, 4, "NAME"), (5, 9, "NAME")  # the second recognizer is right in one half
    examples = make_examples(nlp, [("Acme Anna", [acme, anna]), ("Acme Anna", [acme])] * 50)
    fitted = calibrate(nlp, examples, "second")
    assert fitted["before"]["entities"] == fitted["after"]["entities"] == 100
    with pytest.raises(InputError, match="At no threshold is 60 % certain"):
        fit_guarantees(nlp, "second", examples, Targets(precision=0.6, count_dev=True))
    fit_guarantees(nlp, "second", examples, Targets(precision=0.3, count_dev=True))
    for eg in examples:
        eg.predicted = nlp(eg.text)
    # Which of the two has found an entity is not known any more.
    found = evaluate(examples, nlp=nlp, component="second", resamples=2)["coverage"]["guarantees"]
    assert found["precision"]["found"] is None


def test_evaluate_labeling_with_extra_entities_is_wrong(nlp):
    fit_guarantees(nlp, "crf_ner", drawn(nlp, 20, 36), Targets(set_coverage=0.5))
    anna, bonn = (0, 4, "PER"), (9, 13, "LOC")
    examples = predicted(
        nlp, make_examples(nlp, [("Anna saw Bonn", [anna]), ("Anna saw Bonn", [anna, bonn])])
    )
    ner: Any = nlp.get_pipe("crf_ner")
    ner.prediction_sets = lambda docs: [
        [SimpleNamespace(ents=[doc.char_span(*span) for span in (anna, bonn)])] for doc in docs
    ]
    for kept, expected in ((examples[:1], 0.0), (examples, 0.5)):
        found = evaluate(kept, nlp=nlp, resamples=2)["coverage"]["guarantees"]["set_coverage"]
        assert found["found"] == expected


def test_evaluate_coverage_curve_rounds_float32_scores(nlp):
    nlp.get_pipe("crf_ner").spans_key, nlp.get_pipe("crf_ner").candidate_threshold = "sc", 0.8
    examples = make_examples(nlp, [("Anna came", [(0, 4, "PER")])] * 2)
    assert float(np.float32(0.9)) < 0.9
    for eg, p in zip(examples, (0.9, 0.899)):
        doc, scores = eg.predicted, np.array([p], dtype=np.float32)
        doc.ents = [doc.char_span(0, 4, "PER")]
        doc.spans["sc"] = SpanGroup(doc, name="sc", spans=doc.ents, attrs={"scores": scores})
    curve = evaluate(examples, nlp=nlp, resamples=2)["coverage"]["curve"]
    assert [(at["threshold"], at["coverage"], at["per_entity"]) for at in curve] == [
        (0.9, 0.5, 0.5),
        (0.8, 1.0, 1.0),
    ]


def test_docs_that_failed_count_as_docs_without_entities():
    """Components before the recognizer have not processed them."""
    nlp = listening("tok2vec")
    train(nlp, drawn(nlp, 40, 0), steps=30)
    trained_elsewhere(nlp)
    prepared = _prepared(nlp, drawn(nlp, 60, 32))
    fit_guarantees(nlp, "crf_ner", prepared, Targets(set_coverage=0.5))
    examples = make_examples(nlp, [("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")])] * 2)
    examples[0].predicted = nlp(examples[0].text)
    found = evaluate(examples, nlp=nlp, resamples=2)
    assert [e["kind"] for e in found["errors"]["list"] if e["doc"] == 1] == ["missed", "missed"]
    assert [e["gold_probability"] for e in found["errors"]["list"] if e["doc"] == 1] == [None] * 2
    alone = evaluate(examples[:1], nlp=nlp, resamples=2)["coverage"]["guarantees"]["set_coverage"]
    assert alone["found"] == 1.0
    assert found["coverage"]["guarantees"]["set_coverage"]["found"] == 0.5


def _prepared(nlp: Language, examples: list[Example]) -> list[Example]:
    with nlp.select_pipes(disable="crf_ner"):
        return [Example(nlp(eg.text), eg.reference) for eg in examples]
