"""Corpora that annotate different labels: losses against enumeration, scores against spaCy's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
import torch
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus, Example
from spacy.util import registry
from typer.testing import CliRunner

import enumeration
from pipelines import make_examples, small, train, trained_elsewhere
from posteriors import Batch, batches
from spacy_crf_ner.check import check
from spacy_crf_ner.cli import app
from spacy_crf_ner.crf import constrain, negative_log_likelihood, nll_with_gradient
from spacy_crf_ner.data import SYLLABLES, ConversionLog, ConvertOptions, convert
from spacy_crf_ner.data.jsonl import write_jsonl
from spacy_crf_ner.data.sentences import group_sentences
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.matching import collect_entities
from spacy_crf_ner.input_error import CorpusError, InputError
from spacy_crf_ner.pipeline import calibration as module
from spacy_crf_ner.pipeline.annotated_labels import (
    KEY,
    annotated_labels,
    is_complete,
    mark_annotated_labels,
)
from spacy_crf_ner.pipeline.calibration import TEMPERATURE_VARIANCE
from spacy_crf_ner.pipeline.scorer import score_entities
from spacy_crf_ner.training.labeled_corpora import labeled_corpora

# The loss

Drawn = tuple[Batch, np.ndarray, np.ndarray]


@st.composite
def partly_labeled(draw: st.DrawFn) -> Drawn:
    """Draw a batch whose docs do not annotate some labels: gold tags, and tags that O may hide."""
    batch = draw(batches(bounded=False))
    tags = batch.scheme.tags
    gold: list[int] = []
    ambiguous = np.zeros((0, len(tags)), dtype=bool)
    for T in batch.potentials.lengths.tolist():
        paths = enumeration.all_paths(T, len(tags))
        paths = paths[batch.is_legal(paths, None)]
        path = paths[draw(st.integers(0, len(paths) - 1))].tolist()
        unknown = draw(st.sets(st.sampled_from(batch.scheme.labels)))
        of_doc = np.array([tag[2:] in unknown for tag in tags])
        gold += [-1 if draw(st.integers(0, 4)) == 0 else 0 if of_doc[t] else t for t in path]
        ambiguous = np.concatenate([ambiguous, np.tile(of_doc, (T, 1))])
    return batch, np.array(gold, dtype=np.int64), ambiguous


@given(partly_labeled())
def test_loss_with_hidden_labels_matches_enumeration(drawn: Drawn) -> None:
    batch, gold, ambiguous = drawn
    chain = constrain(batch.potentials, *batch.scheme.constraints)
    losses, gradient = nll_with_gradient(chain, gold, ambiguous=ambiguous)
    np.testing.assert_allclose(
        negative_log_likelihood(chain, gold, ambiguous), losses, atol=1e-4, rtol=1e-4
    )
    names = ("emissions", "transitions", "start", "end")
    leaves = [torch.tensor(getattr(batch.potentials, n), requires_grad=True) for n in names]
    total = sum(leaf.sum() for leaf in leaves) * 0.0
    for doc, rows in enumerate(batch.rows):
        paths, scores = enumeration.scored_paths(leaves[0][rows], *leaves[1:])
        legal = batch.is_legal(paths, None)
        paths, scores = paths[legal], scores[legal]
        fits = [
            all(
                tag < 0 or at == tag or (tag == 0 and unknown[at])
                for at, tag, unknown in zip(path, gold[rows], ambiguous[rows])
            )
            for path in paths.tolist()
        ]
        known = (gold[rows] >= 0).any()
        loss = scores.logsumexp(0) - scores[torch.tensor(fits)].logsumexp(0)
        loss = loss if known else torch.zeros(())
        assert losses[doc] == pytest.approx(loss.item(), abs=1e-4, rel=1e-4)
        total = total + loss
    for name, expected in zip(names, torch.autograd.grad(total, leaves)):
        np.testing.assert_allclose(getattr(gradient, name), expected, atol=1e-4, err_msg=name)


# In a pipeline

BOTH = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")]),
    ("Bonn saw Anna", [(0, 4, "LOC"), (9, 13, "PER")]),
    ("Carl left Rome", [(0, 4, "PER"), (10, 14, "LOC")]),
    ("it left", []),
]


def of_labels(labels: Sequence[str]) -> list[Any]:
    return [(text, [ent for ent in ents if ent[2] in labels]) for text, ents in BOTH]


def marked(nlp: Language, labels: Sequence[str]) -> list[Example]:
    examples = make_examples(nlp, of_labels(labels))
    for eg in examples:
        mark_annotated_labels(eg.reference, labels)
    return examples


def found(nlp: Language, text: str) -> list[tuple[str, str]]:
    return [(ent.text, ent.label_) for ent in nlp(text).ents]


def test_a_model_learns_labels_from_separate_corpora(tmp_path: Any) -> None:
    nlp = small(name="ner")
    for label in ("PER", "LOC"):
        docs = [eg.reference for eg in make_examples(nlp, of_labels([label]))]
        DocBin(docs=docs).to_disk(tmp_path / f"{label}.spacy")
    paths = [str(tmp_path / "PER.spacy"), str(tmp_path / "LOC.spacy")]
    naive, right = small(name="ner"), small(name="ner")
    for each, labels in ((right, [["PER"], ["LOC"]]), (naive, [None, None])):
        examples = list(labeled_corpora(paths, labels)(each))
        spacy.util.fix_random_seed(0)
        optimizer = each.initialize(lambda examples=examples: examples)
        optimizer.learn_rate = 0.02
        for _ in range(20):
            each.update(examples, sgd=optimizer)
    for text, ents in BOTH:
        expected = [(text[start:end], label) for start, end, label in ents]
        assert found(right, text) == expected
    text = BOTH[0][0]
    for nlp, confident in ((right, True), (naive, False)):
        ner: Any = nlp.get_pipe("ner")
        doc = nlp.make_doc(text)
        spans = [doc.char_span(*ent) for ent in BOTH[0][1]]
        assert (min(ner.span_posteriors(doc, spans)) > 0.9) == confident


def test_annotated_labels_are_kept_by_files_augmenters_and_alignment(tmp_path: Any) -> None:
    nlp = small(name="ner")
    docs = [eg.reference for eg in marked(nlp, ["PER"])]
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    augmenter = registry.augmenters.get("spacy.lower_case.v1")(level=1.0)
    examples = list(Corpus(tmp_path / "a.spacy", augmenter=augmenter)(nlp))
    assert len(examples) == 4
    for eg in examples:
        assert eg.text.islower() and annotated_labels(eg.reference) == {"PER"}
    whole = Doc(nlp.vocab, ["An", "na", "saw", "Bonn"], [False, True, True, False])
    eg = Example(whole, docs[0])
    nlp.initialize(lambda: make_examples(nlp, BOTH))
    ner: Any = nlp.get_pipe("ner")
    loss, d_scores = ner.get_loss([eg], ner.model.predict([whole]))
    # The last token is only known not to be in a PER entity.
    assert loss > 0 and np.abs(d_scores.emissions[3]).max() > 1e-3
    other, _ = ner.get_loss([Example(whole, make_examples(nlp, BOTH)[0].reference)], d_scores)
    assert other > 0


def test_scorer_ignores_predictions_of_unannotated_labels() -> None:
    nlp = small(name="ner")
    examples = marked(nlp, ["PER"])
    for eg, (_, ents) in zip(examples, BOTH):
        eg.predicted.ents = [eg.predicted.char_span(*ent) for ent in ents]
    examples[0].predicted.ents = [examples[0].predicted.char_span(0, 8, "PER")]  # a wrong one
    scores = score_entities(examples)
    filtered = marked(nlp, ["PER"])
    for eg, kept in zip(filtered, examples):
        ents = [e for e in kept.predicted.ents if e.label_ == "PER"]
        eg.predicted.set_ents([eg.predicted[e.start : e.end] for e in ents]) if not ents else None
        eg.predicted.ents = [eg.predicted.char_span(e.start_char, e.end_char, "PER") for e in ents]
        del eg.reference.spans[KEY]
    assert scores == get_ner_prf(filtered)
    assert scores["ents_p"] == pytest.approx(2 / 3) and scores["ents_r"] == pytest.approx(2 / 3)
    collected = collect_entities(examples)
    assert [len(doc.left_out) for doc in collected] == [0, 1, 1, 0]
    assert sum(sum(doc.correct()) for doc in collected) == 2
    assert not any(is_complete(eg.reference, ["PER", "LOC"]) for eg in examples)
    assert all(is_complete(eg.reference, ["PER"]) for eg in examples)
    # But a gold entity is no entity of another label, annotated or not.
    examples[0].predicted.ents = [examples[0].predicted.char_span(0, 4, "LOC")]
    assert score_entities(examples)["ents_p"] == pytest.approx(2 / 3)
    (first, *_) = collect_entities(examples)
    assert first.correct() == [False] and not first.left_out
    unmarked = make_examples(nlp, BOTH)
    for eg, other in zip(unmarked, examples):
        eg.predicted = other.predicted
        assert is_complete(eg.reference, ["PER", "LOC"])
    assert score_entities(unmarked) == get_ner_prf(unmarked)
    # Nothing can be annotated at whitespace.
    doc = nlp.make_doc("Anna came \n")
    assert doc[-1].is_space
    for annotated, expected in ((2, True), (1, False), (0, False)):
        doc.set_ents([], missing=[doc[annotated:]], outside=[doc[:annotated]])
        assert is_complete(doc, ["PER", "LOC"]) == expected
    assert is_complete(nlp.make_doc(""), ["PER"])
    assert nlp.get_pipe("ner").scorer is score_entities


def test_prediction_of_other_label_overlapping_gold_counts_as_wrong() -> None:
    """Also if it has tokens beside the gold entity, which may be in an entity of its label."""
    nlp = spacy.blank("en")
    (eg,) = make_examples(nlp, [("Anna Bonn came", [(0, 4, "PER")])])
    mark_annotated_labels(eg.reference, ["PER"])
    for end in (4, 9, 14):
        eg.predicted.ents = [eg.predicted.char_span(0, end, "LOC")]
        assert score_entities([eg])["ents_per_type"].keys() == {"PER", "LOC"}
        (doc,) = collect_entities([eg])
        assert (len(doc.predicted), len(doc.left_out)) == (1, 0)
    eg.predicted.ents = [eg.predicted.char_span(5, 14, "LOC")]
    assert score_entities([eg])["ents_per_type"].keys() == {"PER"}
    (doc,) = collect_entities([eg])
    assert (len(doc.predicted), len(doc.left_out)) == (0, 1)


def test_match_candidates_skips_unannotated_labels_outside_gold_entities() -> None:
    nlp = small(name="ner")
    nlp.initialize(lambda: make_examples(nlp, BOTH))
    (eg,) = make_examples(nlp, [("Anna Bonn came", [(0, 4, "PER")])])
    mark_annotated_labels(eg.reference, ["PER"])
    spans = [(0, 1, "PER"), (0, 1, "LOC"), (0, 2, "LOC"), (1, 2, "PER"), (1, 2, "LOC")]
    asked = [(span, i / 10) for i, span in enumerate(spans)]
    judged = nlp.get_pipe("ner").encoding.match_candidates(eg, asked)  # type: ignore[attr-defined]
    assert judged == [(0.0, True), (0.1, False), (0.2, False), (0.3, False)]


def test_calibration_uses_only_annotated_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = small(name="ner")
    train(nlp, make_examples(nlp, BOTH), steps=3)
    ner: Any = nlp.get_pipe("ner")
    seen: list[int] = []
    original = module.most_probable_scaling

    def fit(p: Any, *others: Any) -> Any:
        seen.append(len(p))
        return original(p, *others)

    monkeypatch.setattr(module, "most_probable_scaling", fit)
    for examples in (make_examples(nlp, BOTH), marked(nlp, ["PER"]), marked(nlp, ["LOC"])):
        ner.fit_platt_scaling(examples)
    # Spans that overlap a gold entity of another label are known to be none.
    assert seen[1] + seen[2] > seen[0] > max(seen[1:]) > 0
    with pytest.raises(InputError, match="expected examples with annotated entities"):
        ner.fit_temperature(marked(nlp, [])[3:])


def test_fit_temperature_with_annotated_labels_minimizes_loss() -> None:
    """It maximizes the likelihood of gold entities of the annotated label, times the prior."""
    nlp = small(name="ner")
    train(nlp, make_examples(nlp, BOTH), steps=12)
    ner: Any = nlp.get_pipe("ner")
    examples = marked(nlp, ["PER"]) * 2
    for eg in examples[:2]:  # two of eight are not as they were learned
        eg.reference.set_ents([], default="outside")

    def loss(temperature: float) -> float:
        ner.temperature = temperature
        total = np.float64(0.0)
        labelings_of = {
            eg.text: [
                (each.probability, [(e.start, e.end, e.label_) for e in each.ents])
                for each in ner.nbest([eg.predicted], 10**4)[0]
            ]
            for eg in examples[:4]
        }
        for eg in examples:
            gold = [(ent.start, ent.end, ent.label_) for ent in eg.reference.ents]
            labelings = labelings_of[eg.text]
            agree = [p for p, ents in labelings if [e for e in ents if e[2] == "PER"] == gold]
            total -= np.log(sum(agree))
        return float(total + np.log(temperature) ** 2 / 2 / TEMPERATURE_VARIANCE)

    fitted = ner.fit_temperature(examples)
    assert fitted > 1.0
    assert loss(fitted) < min(loss(fitted * 1.05), loss(fitted / 1.05))


def test_guarantee_cost_excludes_candidates_of_unannotated_labels() -> None:
    """The cost of a recall is that of the gold entities and candidates of annotated labels."""
    nlp = small(name="ner")
    train(nlp, make_examples(nlp, BOTH), steps=10)
    trained_elsewhere(nlp)
    nlp.get_pipe("ner").temperature = 2.0
    whole = make_examples(nlp, BOTH * 10)
    (row,) = fit_guarantees(nlp, "ner", whole, Targets(recall=0.5))
    expected = row["threshold"], row["cost"]
    labels = ("PER", "LOC")
    parts = [eg for label in labels for eg in marked(nlp, [label]) * 10]
    nothing = [eg for eg in marked(nlp, []) for _ in range(5)]
    rows = fit_guarantees(nlp, "ner", [*parts, *nothing], Targets(recall=0.5, by_label=True))
    costs = [each["cost"] for each in rows]
    alone = fit_guarantees(nlp, "ner", parts, Targets(recall=0.5, by_label=True))
    assert costs == pytest.approx([each["cost"] for each in alone])
    assert max(costs) < 2 * expected[1]


# The reader


@pytest.fixture
def paths(tmp_path: Any) -> list[str]:
    nlp = spacy.blank("en")
    for label in ("PER", "LOC"):
        sentences = of_labels([label]) * 25
        docs = [eg.reference for eg in make_examples(nlp, sentences)]
        DocBin(docs=docs).to_disk(tmp_path / f"{label}.spacy")
    return [str(tmp_path / "PER.spacy"), str(tmp_path / "LOC.spacy")]


def test_labeled_corpora_weights_repeat_docs(paths: list[str]) -> None:
    nlp = spacy.blank("en")
    make = registry.readers.get("spacy-crf-ner.LabeledCorpora.v1")
    settings = {"labels": [["PER"], ["LOC", "ORG"]], "weights": [2.5, 1.0]}
    first, second = make(paths, **settings, seed=1), make(paths, **settings, seed=2)
    epochs = [
        [annotated_labels(eg.reference) for eg in reader(nlp)] for reader in (first, first, second)
    ]
    for epoch in epochs:
        assert 215 < epoch.count({"PER"}) < 285
        assert epoch.count({"LOC", "ORG"}) == 100
    assert epochs[0] == epochs[1] != epochs[2]
    often = make(paths, **{**settings, "weights": [1.75, 1.0]})
    assert 155 < [annotated_labels(eg.reference) for eg in often(nlp)].count({"PER"}) < 195
    once = list(labeled_corpora(paths, [["PER"], None])(nlp))
    assert [annotated_labels(eg.reference) for eg in once] == [{"PER"}, None] * 100  # in turns


def test_labeled_corpora_splits_and_limits_docs_like_spacy_corpus(tmp_path: Any) -> None:
    """For each corpus; the parts are marked."""
    nlp = spacy.blank("en")
    starts = [True, False, False, True, False, False, False]
    doc = Doc(nlp.vocab, ["Anna", "came", ".", "She", "slept", "well", "."], sent_starts=starts)
    doc.set_ents([doc.char_span(0, 4, "PER")], default="outside")
    for name in ("a", "b"):
        DocBin(docs=[doc] * 3).to_disk(tmp_path / f"{name}.spacy")
    files = [str(tmp_path / f"{name}.spacy") for name in ("a", "b")]

    def read(**settings: Any) -> list[int]:
        examples = list(labeled_corpora(files, [["PER"]] * 2, **settings)(nlp))
        assert {*(label for eg in examples for label in annotated_labels(eg.reference))} == {"PER"}
        return sorted(len(eg.reference) for eg in examples)

    assert read() == [7] * 6
    assert read(limit=2) == [7] * 4
    assert read(gold_preproc=True) == [3] * 6 + [4] * 6
    assert read(max_length=5) == [3] * 6 + [4] * 6
    assert read(max_length=4) == [3] * 6  # it must be shorter


def test_labeled_corpora_accepts_augmenter_yielding_several_docs(paths: list[str]) -> None:
    nlp = spacy.blank("en")

    def augment(nlp: Language, eg: Example) -> Any:
        yield eg
        yield Example(nlp.make_doc(eg.text), eg.reference.copy())

    read = labeled_corpora(paths, [["PER"], ["LOC"]], augmenter=augment)
    found = [annotated_labels(eg.reference) for eg in read(nlp)]
    assert found.count({"PER"}) == found.count({"LOC"}) == 200 == len(found) / 2


def lower_cased(
    doc: Doc, labels: list[str] | None, folder: Any, spans_key: str | None = None
) -> Example:
    """Read a corpus of one doc, with an augmenter."""
    DocBin(docs=[doc]).to_disk(folder / "a.spacy")
    augmenter = registry.augmenters.get("spacy.lower_case.v1")(level=1.0)
    settings = {"augmenter": augmenter, "spans_key": spans_key}
    read = labeled_corpora([str(folder / "a.spacy")], [labels], **settings)
    (eg,) = read(spacy.blank("en"))
    return eg


def test_labels_of_overlapping_entities_are_checked_and_augmented(tmp_path: Any) -> None:
    """They do not apply to `doc.ents`."""
    doc = make_examples(spacy.blank("en"), BOTH)[0].reference
    doc.spans["sc"] = [ent for ent in doc.ents if ent.label_ == "PER"]
    eg = lower_cased(doc, ["PER"], tmp_path, "sc")
    assert eg.text == "anna saw bonn" and annotated_labels(eg.reference) == {"PER"}
    assert [span.text for span in eg.reference.spans["sc"]] == ["anna"]
    with pytest.raises(InputError, match=r"annotated labels \['LOC'\], got 'PER'"):
        lower_cased(doc, ["LOC"], tmp_path, "sc")
    with pytest.raises(InputError, match=r"annotated labels \['LOC'\], got 'PER'"):
        mark_annotated_labels(doc, ["LOC"], "sc")
    assert annotated_labels(doc) is None


@pytest.mark.parametrize("given", [None, ["PER"]])
def test_augmenters_that_change_the_length_keep_the_labels(
    given: list[str] | None, tmp_path: Any
) -> None:
    """But not those of overlapping entities: spaCy could not place them."""
    nlp = spacy.blank("en")
    doc = make_examples(nlp, [("Anna saw \u0130zmir today", [(0, 4, "PER")])])[0].reference
    mark_annotated_labels(doc, ["PER"])
    eg = lower_cased(doc, given, tmp_path)
    assert eg.text.islower() and annotated_labels(eg.reference) == {"PER"}
    assert [span.text for span in eg.reference.spans[KEY]] == [eg.text]
    doc = nlp.make_doc(doc.text)
    doc.spans["sc"] = [doc.char_span(9, 14, "PER")]
    with pytest.raises(InputError, match=r"keeps the length of texts.*'Anna saw \u0130zmir today'"):
        lower_cased(doc, ["PER"], tmp_path, "sc")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"labels": [["PER"]]}, "labels: expected one for each of the 2 paths, got 1"),
        ({"labels": [["PER"], ["LOC"]], "weights": [1.0]}, "weights: expected one for each"),
        ({"labels": [["PER"], ["LOC"]], "weights": [1.0, 0.5]}, "weights of 1 or more"),
        ({"labels": [["PER"], ["LOC"]], "weights": [1.0, float("inf")]}, "weights of 1 or more"),
        ({"labels": ["PER", "LOC"]}, "labels: expected a list of labels for .*, got 'PER'"),
        ({"labels": [["PER"], [""]]}, "expected annotated labels that are not empty"),
        ({"labels": [["PER"], None], "max_length": 5}, "labels: expected those of .*LOC.spacy"),
        ({"labels": [["PER"], None], "gold_preproc": True}, "labels: expected those of .*LOC"),
        ({"labels": [["PER"]] * 2, "max_length": 5, "spans_key": "sc"}, "expected whole docs"),
        ({"labels": [["PER"]] * 2, "gold_preproc": True, "spans_key": "a"}, "expected whole docs"),
        ({"paths": ["none.spacy"], "labels": [["PER"]]}, "paths: expected a file or a folder, got"),
        ({"labels": [["PRE"], ["LOC"]]}, r"'Anna' in the doc 'Anna saw Bonn': expected one of the"),
    ],
)
def test_labeled_corpora_with_invalid_setting_raises(
    paths: list[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        list(labeled_corpora(**{"paths": paths, **settings})(spacy.blank("en")))


def test_score_ignores_empty_doc_with_annotated_labels() -> None:
    nlp = spacy.blank("en")
    add_flat = nlp.add_pipe("crf_ner")
    examples = make_examples(nlp, of_labels(["PER"]))
    nlp.initialize(lambda: examples)
    empty = Doc(nlp.vocab)
    mark_annotated_labels(empty, ["PER"])
    alone = add_flat.score(examples)
    assert add_flat.score([*examples, Example(Doc(nlp.vocab), empty)]) == alone


# Converting and checking


def test_convert_stores_the_labels_and_refuses_others(tmp_path: Any) -> None:
    source = tmp_path / "all.jsonl"
    nlp = spacy.blank("en")
    write_jsonl([eg.reference for eg in make_examples(nlp, BOTH)], source)
    run = ["convert", str(source), str(tmp_path / "out.spacy"), "--labels", "PER,ORG"]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 1 and not (tmp_path / "out.spacy").exists()
    assert "corpus, doc 1: expected entities of the annotated labels ['PER', 'ORG'], got the" in (
        " ".join(result.output.split())
    )
    result = CliRunner().invoke(app, [*run, "--repair", "--max-loss", "0.5"])
    assert result.exit_code == 0, result.output
    log = ConversionLog(repair=True, max_loss=0.5)
    convert(
        source, tmp_path / "again.spacy", ConvertOptions(labels=["PER", "ORG"]), nlp=nlp, log=log
    )
    assert log.counts["rejected.label"] == log.totals["rejected.entities"] == 3
    for name in ("out", "again"):
        docs = list(DocBin().from_disk(tmp_path / f"{name}.spacy").get_docs(nlp.vocab))
        assert [annotated_labels(doc) for doc in docs] == [{"PER", "ORG"}] * 4
        assert [ent.text for doc in docs for ent in doc.ents] == ["Anna", "Anna", "Carl"]
    for wrong in ("PER,,LOC", ""):
        result = CliRunner().invoke(app, [*run[:-1], wrong])
        assert result.exit_code == 1 and "--labels: expected labels such as" in result.output
    # JSON lines keep the labels, too.
    convert(tmp_path / "out.spacy", tmp_path / "back.jsonl", nlp=nlp)
    convert(tmp_path / "back.jsonl", tmp_path / "same.spacy", nlp=nlp)
    same = DocBin().from_disk(tmp_path / "same.spacy").get_docs(nlp.vocab)
    assert [annotated_labels(doc) for doc in same] == [{"PER", "ORG"}] * 4


def test_check_does_not_compare_unannotated_labels() -> None:
    nlp = spacy.blank("en")
    docs = [eg.reference for label in ("PER", "LOC") for eg in marked(nlp, [label])] * 12
    kinds = {each.kind for each in check(docs).findings}
    assert not kinds & {"sometimes-outside", "annotated-differently"}


def test_joined_and_split_docs_keep_their_labels() -> None:
    nlp = spacy.blank("en")
    docs = [eg.reference for eg in marked(nlp, ["PER"])]
    (joined,) = group_sentences([docs[0], docs[3]], 2)
    assert [(s.start, s.end, s.label_) for s in joined.spans[KEY]] == [(0, len(joined), "PER")]
    other = marked(nlp, ["LOC"])[0].reference
    unmarked = make_examples(nlp, BOTH)[0].reference
    for pair in ([docs[1], other], [docs[2], unmarked]):
        with pytest.raises(InputError, match="expected sentences with the same annotated labels"):
            list(group_sentences(pair, 2))
    (split,) = SYLLABLES["split"]([marked(nlp, ["PER"])[0].reference])
    assert annotated_labels(split) == {"PER"}
    with pytest.raises(InputError, match="expected some of its annotated labels"):
        mark_annotated_labels(split, ["PER", "LOC"])


@pytest.mark.parametrize("wrong", [[1], [""], [None], ["PER", ["x"]], "PER"])
def test_invalid_annotated_labels_in_jsonl_raise(tmp_path: Any, wrong: Any) -> None:
    path = tmp_path / "a.jsonl"
    srsly.write_jsonl(path, [{"text": "Anna left", "spans": [], "annotated_labels": wrong}])
    with pytest.raises(CorpusError, match=r"a.jsonl, line 1: expected a list"):
        convert(path, tmp_path / "a.spacy", nlp=spacy.blank("en"))
