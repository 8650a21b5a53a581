"""`review` finds errors in gold with models that were not trained on it."""

import math
import random

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin, Span
from spacy.training import Example
from spacy.util import load_config

from pipelines import TOK2VEC, copied, doc_of, small
from spacy_crf_ner.active_learning import label_errors, review
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline import calibration
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels
from spacy_crf_ner.pipeline.transformer_config import bundled_config
from spacy_crf_ner.training import cross_validation
from spacy_crf_ner.training.cross_validation import divide, known_negatives, train_folds


def sentences(number):
    rng = random.Random(0)
    people, places = ["Anna", "Bob", "Carla", "Dora"], ["Bonn", "Paris", "Hanoi", "Oslo"]
    for i in range(number):
        words = [rng.choice(people), "went", "to", rng.choice(places), f"in{i}", "."]
        yield words, [(0, 1, "PER"), (3, 4, "LOC")]


def write_corpus(path, wrong, number=20):
    """Gold docs; `wrong` replaces the entities of some."""
    corpus = enumerate(sentences(number))
    docs = [doc_of(words, wrong.get(i, ents)) for i, (words, ents) in corpus]
    docs.insert(7, doc_of([], []))
    DocBin(docs=docs).to_disk(path)
    return docs


WRONG = {
    3: [(0, 1, "LOC"), (3, 4, "LOC")],  # label
    20: [(0, 1, "PER")],  # missing
    31: [(0, 2, "PER"), (3, 4, "LOC")],  # boundary
    44: [(0, 1, "PER"), (2, 3, "LOC"), (3, 4, "LOC")],  # spurious
    50: [(0, 1, "PER"), (2, 3, "LOC"), (3, 4, "LOC")],
}
KINDS = {3: "other type", 21: "not in gold", 32: "other boundary"}
KINDS |= {45: "only in gold", 51: "only in gold"}


def config():
    nlp = small()
    filled = nlp.config
    filled["training"].update(max_steps=40, eval_frequency=20, patience=0)
    filled["training"]["optimizer"]["learn_rate"] = 0.01
    filled["training"]["batcher"] = {
        "@batchers": "spacy.batch_by_sequence.v1", "size": 16, "get_length": None,
    }  # fmt: skip
    return nlp


@pytest.mark.slow
def test_review_ranks_label_errors_first(tmp_path):
    write_corpus(tmp_path / "gold.spacy", WRONG, 60)
    done = []
    found = review(config(), tmp_path / "gold.spacy", 2, on_fold=done.append)
    first = {each["doc"]: each["kind"] for each in found.findings[:7]}
    assert first.items() >= KINDS.items()
    assert done == [1, 2] and len(found.gold) == 61
    odds = [each["log_odds"] for each in found.findings]
    assert odds == sorted(odds, reverse=True)
    likely = {each["doc"] for each in found.findings if each["log_odds"] > 0}
    assert {3, 21, 32} < likely and len(likely) < len(found.findings)
    units = [*found.units()]
    assert {unit.source["doc"] for unit in units} == likely
    left_out = len(found.findings) - len(likely)
    assert f"Left out are {left_out} predictions that are less likely" in found.summary()
    assert [unit.score for unit in units] == sorted((u.score for u in units), reverse=True)
    assert all(p is None for unit in units for _, p in unit.entities)


def test_review_units_contain_findings_of_their_doc():
    docs = [spacy.blank("en").make_doc(text) for text in ("Anna saw Bonn", "Bob saw Bonn")]
    for doc in docs:
        doc.set_ents([Span(doc, 2, 3, "PER")], default="outside")
    place = {"text": "Bonn", "label": "LOC"}
    found = [
        {"doc": 1, "kind": "other type", "log_odds": 3.0, "gold_probability": 0.25,
         "confidence": 0.75, "gold": {**place, "label": "PER"}, "predicted": place},
        {"doc": 0, "kind": "only in gold", "log_odds": 2.0, "gold_probability": 0.125,
         "confidence": 0.5, "gold": place, "predicted": None},
        {"doc": 1, "kind": "not in gold", "log_odds": 1.0, "gold_probability": None,
         "confidence": 0.875, "gold": None, "predicted": place},
    ]  # fmt: skip
    units = [*label_errors.Review(found, docs, [], 0, 0).units()]
    assert [(unit.text, unit.score) for unit in units] == [(docs[1].text, 3.0), (docs[0].text, 2.0)]
    assert [unit.entities for unit in units] == [[((8, 12, "PER"), None)], [((9, 13, "PER"), None)]]
    assert [unit.source for unit in units] == [
        {"doc": 1, "findings": [
            "other type: gold 'Bonn' (PER, 0.250), predicted 'Bonn' (LOC, 0.750)",
            "not in gold: gold none, predicted 'Bonn' (LOC, 0.875)",
        ]},
        {"doc": 0, "findings": ["only in gold: gold 'Bonn' (LOC, 0.125), predicted none"]},
    ]  # fmt: skip


@pytest.mark.parametrize("folds", [0, 2])
def test_review_keeps_doc_order_of_equal_findings(trained, tmp_path, monkeypatch, folds):
    doc = trained.make_doc("Tim Cook visited Hanoi.")
    assert [ent.text for ent in trained(doc.text).ents] == ["Tim Cook", "Hanoi"]
    doc.set_ents([Span(doc, 3, 4, "ORG")], missing=[doc[0:2]], default="outside")
    DocBin(docs=[doc] * 3).to_disk(tmp_path / "gold.spacy")
    held_out = [(trained, [2]), (trained, [0, 1])]
    monkeypatch.setattr(label_errors, "divide", lambda *arguments: [1, 1, 0])
    monkeypatch.setattr(label_errors, "train_folds", lambda *arguments, **others: held_out)
    monkeypatch.setattr(label_errors, "calibrate", lambda *arguments: None)
    found = review(trained, tmp_path / "gold.spacy", folds)
    assert len({each["log_odds"] for each in found.findings}) == 1
    assert [each["doc"] for each in found.findings] == [0, 1, 2]
    assert (len(found.gold), found.left_out) == (3, 3)


def test_review_label_missing_in_other_fold_is_finding(tmp_path):
    write_corpus(tmp_path / "gold.spacy", {3: [(0, 1, "PER"), (3, 4, "RARE")]})
    nlp = config()
    nlp.config["training"].update(max_steps=2, eval_frequency=2)
    found = review(nlp, tmp_path / "gold.spacy", 2)
    rare = [each for each in found.findings if each["gold"] and each["gold"]["label"] == "RARE"]
    assert [(each["doc"], each["gold_probability"]) for each in rare] == [(3, 0.0)]


def test_review_counts_negative_spans_of_labels_missing_in_fold(tmp_path):
    docs = write_corpus(tmp_path / "gold.spacy", {3: [(0, 1, "PER"), (3, 4, "RARE")]})
    for i, label in enumerate(["RARE", "RARE", "NONE", "LOC", "", "O"], 10):
        docs[i].spans[INCORRECT] = [Span(docs[i], 1, 2, label)]
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "gold.spacy")
    nlp = config()
    nlp.config["training"].update(max_steps=2, eval_frequency=2)
    nlp.get_pipe("crf_ner").incorrect_spans_key = INCORRECT
    found = review(nlp, tmp_path / "gold.spacy", 2)
    assert found.findings and found.negatives == 3


def test_negative_spans_of_known_labels_are_kept():
    doc = doc_of("abc", [(0, 1, "PER")])
    doc.spans[INCORRECT] = [Span(doc, 1, 2, label) for label in ("PER", "LOC", "", "O")]
    assert known_negatives(doc, INCORRECT, {"PER", "LOC"}) is doc
    assert known_negatives(doc, None, {}) is doc
    kept = known_negatives(doc, INCORRECT, {"PER"})
    assert [span.label_ for span in kept.spans[INCORRECT]] == ["PER", "", "O"]
    assert len(doc.spans[INCORRECT]) == 4 and kept.ents[0].label_ == "PER"


@pytest.mark.parametrize(
    "reader",
    [
        {"@readers": "spacy-crf-ner.DistillCorpus.v1", "path": "teachers", "weight": 0.5},
        {"@readers": "spacy-crf-ner.LabeledCorpora.v1", "paths": ["a"], "labels": [["PERSON"]]},
    ],
)
def test_review_accepts_pipeline_with_other_reader(reader, tmp_path):
    write_corpus(tmp_path / "gold.spacy", {})
    nlp = config()
    nlp.config["training"].update(max_steps=2, eval_frequency=2, max_epochs=-1)
    nlp.config["corpora"]["train"] = reader
    assert len(review(nlp, tmp_path / "gold.spacy", 2).gold) == 21


@pytest.mark.parametrize("epochs, expected", [(-1, 0), (0, 0), (3, 3)])
def test_with_corpora_replaces_streaming_epochs_by_zero(epochs, expected, tmp_path):
    own = config().config
    own["training"]["max_epochs"] = epochs
    own["corpora"]["train"] = {
        "@readers": "spacy-crf-ner.LabeledCorpora.v1",
        "paths": ["a"],
        "labels": [["PERSON"]],
    }
    assert cross_validation.with_corpora(own, tmp_path)["training"]["max_epochs"] == expected


def test_review_log_odds_match_enumerated_labelings(trained, tmp_path):
    nlp = spacy.blank("en")
    doc = nlp.make_doc("Tim Cook visited Hanoi.")
    doc.set_ents([doc.char_span(0, 8, "ORG")], default="outside")
    other = nlp.make_doc("Washington")
    other.set_ents([Span(other, 0, 1, "ORG")], default="outside")
    DocBin(docs=[nlp.make_doc(""), doc, other]).to_disk(tmp_path / "gold.spacy")
    found = review(trained, tmp_path / "gold.spacy", 0)
    ner = trained.get_pipe("crf_ner")
    bare = trained.make_doc(doc.text)
    log_p = log_probabilities(ner, bare)
    gold = log_p[frozenset([(0, 2, "ORG")])]
    person = log_p[frozenset([(0, 2, "PERSON")])] - gold
    hanoi = log_p[frozenset([(0, 2, "ORG"), (3, 4, "GPE")])] - gold
    of_doc = {f["predicted"]["label"]: f for f in found.findings if f["doc"] == 1}
    assert {*of_doc} == {"PERSON", "GPE"}
    for label, ratio, prior in (("PERSON", person, 1), ("GPE", hanoi, 10)):
        limited = min(ratio, label_errors.LIMIT)
        assert of_doc[label]["log_likelihood_ratio"] == pytest.approx(limited, abs=1e-3)
        assert of_doc[label]["log_odds"] == pytest.approx(limited + math.log(prior), abs=1e-3)
    (q,) = ner.span_posteriors(bare, [Span(bare, 0, 2, "ORG")])
    assert of_doc["PERSON"]["gold_probability"] == pytest.approx(q, abs=1e-6)
    assert of_doc["GPE"]["gold_probability"] is None
    assert {each["doc"] for each in found.findings} == {1, 2}


def side(doc, start, end, label):
    """One side of a finding, of tokens of a doc."""
    span = Span(doc, start, end, label)
    place = {"start": span.start_char, "end": span.end_char, "label": label}
    return {**place, "text": span.text}


def log_probabilities(ner, doc):
    """The log probabilities of all labelings of a short doc, at most 2089, from the n-best list."""
    (ranked,) = ner.nbest([doc], 2100)
    return {
        frozenset((ent.start, ent.end, ent.label_) for ent in each.ents): each.log_probability
        for each in ranked
    }


@pytest.mark.parametrize(
    "gold, predicted, text, changed",
    [
        ((0, 2, "ORG"), (0, 1, "PERSON"), "Tim Cook", [(0, 1, "PERSON"), (3, 5, "GPE")]),
        # The prediction overlaps two gold entities, and is matched with one of them.
        ((0, 2, "ORG"), (1, 4, "GPE"), "Tim Cook visited Hanoi", [(1, 4, "GPE")]),
        ((3, 5, "GPE"), None, "Hanoi.", [(0, 2, "ORG")]),
        (None, (2, 3, "ORG"), "visited", [(0, 2, "ORG"), (2, 3, "ORG"), (3, 5, "GPE")]),
    ],
)
def test_log_likelihood_ratios_change_only_entities_of_finding(
    trained, monkeypatch, gold, predicted, text, changed
):
    monkeypatch.setattr(label_errors, "LIMIT", math.inf)
    ner = trained.get_pipe("crf_ner")
    doc = trained.make_doc("Tim Cook visited Hanoi.")
    before = [(0, 2, "ORG"), (3, 5, "GPE")]
    doc.set_ents([Span(doc, *ent) for ent in before], default="outside")
    eg = Example(trained.make_doc(doc.text), doc)
    sides = {"gold": gold and side(doc, *gold), "predicted": predicted and side(doc, *predicted)}
    each = {"doc": 0, **sides, "text": text, "offset": doc.text.index(text)}
    log_p = log_probabilities(ner, eg.predicted)
    expected = log_p[frozenset(changed)] - log_p[frozenset(before)]
    (found,) = label_errors._log_likelihood_ratios(ner, [eg], [each])
    assert found == pytest.approx(expected, abs=1e-3)
    monkeypatch.setattr(label_errors, "LIMIT", 1.0)  # upper limit of each ratio
    (found,) = label_errors._log_likelihood_ratios(ner, [eg], [each])
    assert found == pytest.approx(min(expected, 1.0), abs=1e-3)


@pytest.mark.parametrize("tokens", [1, 10, 10_000])  # of a batch: 1, 2 or all annotations
def test_log_likelihood_ratios_score_each_doc_once(trained, monkeypatch, tokens):
    ner = trained.get_pipe("crf_ner")
    examples, findings = [], []
    for i, text in enumerate(["Tim Cook visited Hanoi.", "Washington"]):
        doc = trained.make_doc(text)
        doc.set_ents([Span(doc, 0, 1, "ORG")], default="outside")
        examples.append(Example(trained.make_doc(text), doc))
        for label in ("GPE", "PERSON", "ORG"):
            sides = {"gold": side(doc, 0, 1, "ORG"), "predicted": side(doc, 0, 1, label)}
            findings.append({"doc": i, **sides, "offset": 0, "text": doc[0].text})
    findings = findings[::2] + findings[1::2]
    expected = []
    for each in findings:
        log_p = log_probabilities(ner, examples[each["doc"]].predicted)
        labels = each["gold"]["label"], each["predicted"]["label"]
        gold, other = (log_p[frozenset([(0, 1, label)])] for label in labels)
        expected.append(min(other - gold, label_errors.LIMIT))
    scored, sizes = [], []
    potentials, log_likelihoods = ner.potentials, calibration.Scored.log_likelihoods

    def counted(docs):
        scored.append(len(docs))
        return potentials(docs)

    def measured(batch, *rest):
        sizes.append(batch.potentials.lengths.sum())
        return log_likelihoods(batch, *rest)

    monkeypatch.setattr(ner, "potentials", counted)
    monkeypatch.setattr(calibration.Scored, "log_likelihoods", measured)
    monkeypatch.setattr(calibration, "BATCH_TOKENS", tokens)
    found = label_errors._log_likelihood_ratios(ner, examples, findings)
    assert found == pytest.approx(expected, abs=1e-3)
    assert scored == [1, 1]
    assert max(sizes) <= max(tokens, 5)


def test_log_likelihoods_of_one_doc_match_separate_docs():
    nlp = small(overlap=True)
    ner = nlp.get_pipe("crf_ner")
    doc, golds = nlp.make_doc("Anna saw Bonn"), []
    for ents in ([(0, 1, "PER"), (0, 3, "LOC")], [(2, 3, "LOC")], []):
        gold = nlp.make_doc(doc.text)
        gold.spans["sc"] = [Span(gold, *ent) for ent in ents]
        golds.append(gold)
    nlp.initialize(lambda: [Example(doc, golds[0])])
    ner.temperature = 2.0
    expected = calibration.log_likelihoods(ner, [Example(doc.copy(), gold) for gold in golds])
    assert [*calibration.log_likelihoods_of(ner, doc, golds)] == pytest.approx(expected)


def test_support_counts_the_other_texts():
    nlp = spacy.blank("en")
    gold = []
    for text, length, label in [
        ("Bad Bonn", 2, "PER"),  # the finding
        ("in Bad Bonn", 2, "LOC"), ("by bad bonn", 2, "LOC"), ("by bad bonn", 2, "LOC"),  # 1 text
        ("at Bad Bonn", 2, "PER"), ("Bad Bonn .", 0, ""), ("of Bad Bonn", 0, ""),
        ("a Bad Bonn", 0, ""), ("x Bad Bonn", 0, "missing"), ("y Bad Bonn", 1, "LOC"),
        ("Bad Bonner", 2, "LOC"),
    ]:  # fmt: skip
        doc = nlp.make_doc(text)
        (start,) = (token.i for token in doc if token.lower_ == "bad")
        ents = [Span(doc, start, start + length, label)] if length else []
        doc.set_ents(ents, default="missing" if label == "missing" else "outside")
        gold.append(doc)
    person, place = side(gold[0], 0, 2, "PER"), side(gold[0], 0, 2, "LOC")
    findings = [
        {"doc": 0, "gold": person, "predicted": place},
        {"doc": 0, "gold": None, "predicted": place},
        {"doc": 0, "gold": person, "predicted": None},
    ]
    found = label_errors._support(findings, gold, nlp.vocab)
    assert [(each["predicted"], each["gold"]) for each in found] == [(2, 1), (2, 3), (3, 1)]


def test_support_ignores_texts_that_do_not_annotate_the_label():
    nlp = spacy.blank("en")
    gold = [nlp.make_doc(f"{word} saw Bonn") for word in ("Anna", "Bob", "Carla", "Dora")]
    for doc, labels in zip(gold, (None, ["PER"], ["PER", "LOC"], None)):
        doc.set_ents([], default="outside")
        if labels is not None:
            mark_annotated_labels(doc, labels)
    place, person = side(gold[0], 2, 3, "LOC"), side(gold[0], 2, 3, "PER")
    findings = [
        {"doc": 0, "gold": place, "predicted": None},
        {"doc": 0, "gold": None, "predicted": place},
        {"doc": 0, "gold": None, "predicted": person},
    ]
    found = label_errors._support(findings, gold, nlp.vocab)
    assert [(each["predicted"], each["gold"]) for each in found] == [(2, 0), (0, 2), (0, 3)]


@pytest.mark.parametrize(
    "sides, is_apart, prior",
    [("gp", False, 1), ("p", True, 10), ("p", False, 1), ("g", False, 0.01)],
)
def test_log_odds_add_ratio_support_and_prior(sides, is_apart, prior):
    each = {
        "gold": {"label": "A"} if "g" in sides else None,
        "predicted": {"label": "A"} if "p" in sides else None,
    }
    each |= {"log_likelihood_ratio": 1.5, "support": {"predicted": 5, "gold": 0}}
    found = label_errors.log_odds(each, is_apart)
    assert found == pytest.approx(1.5 + math.log(11) + math.log(prior))


def test_review_reports_entity_inside_gold_entity(trained, tmp_path):
    nlp = spacy.blank("en")
    doc = nlp.make_doc("Tim Cook visited Hanoi.")
    doc.set_ents([Span(doc, 0, 4, "ORG")], default="outside")
    DocBin(docs=[doc]).to_disk(tmp_path / "gold.spacy")
    found = review(trained, tmp_path / "gold.spacy", 0).findings
    assert {(each["kind"], each["predicted"]["text"]) for each in found} == {
        ("other type and boundary", "Tim Cook"), ("not in gold", "Hanoi"),
    }  # fmt: skip
    assert all(each["log_odds"] == each["log_likelihood_ratio"] for each in found)


@pytest.mark.parametrize("folds", [0, 2])
def test_review_unlearnable_gold_raises_before_prediction(trained, tmp_path, monkeypatch, folds):
    spans = ((0, 2), (1, 2), (0, 1))
    docs = [doc_of(["Anna", "\n", "Bonn"], [(*span, "GPE")]) for span in spans]
    DocBin(docs=docs).to_disk(tmp_path / "gold.spacy")
    monkeypatch.setattr(label_errors, "_compare", None)
    monkeypatch.setattr(label_errors, "train_folds", None)
    with pytest.raises(InputError) as error:
        review(trained, tmp_path / "gold.spacy", folds)
    first, *lines = str(error.value).splitlines()
    assert "got 2" in first and len(lines) == 2
    assert "characters 0:6" in lines[0] and "characters 5:6" in lines[1]


def test_examples_keep_norms_of_tokenizer_exceptions():
    gold = spacy.blank("en")("Anna can't come")
    (example,) = label_errors._examples(spacy.blank("en"), [gold])
    assert [token.norm_ for token in example.predicted] == ["anna", "can", "not", "come"]


def test_review_with_folds_of_a_frozen_component_raises(trained, tmp_path):
    nlp = copied(trained)
    nlp.config["training"]["frozen_components"] = ["crf_ner"]
    docs = [doc_of([name], [(0, 1, "GPE")]) for name in ("Anna", "Bonn")]
    DocBin(docs=docs).to_disk(tmp_path / "gold.spacy")
    with pytest.raises(InputError, match="folds: expected a config that trains"):
        review(nlp, tmp_path / "gold.spacy", folds=2)


def test_equal_texts_are_in_one_fold():
    texts = [f"text {i % 10}" for i in range(40)]
    folds = divide(texts, 3, seed=1)
    assert {*folds} == {0, 1, 2}
    assert len({*zip(texts, folds)}) == 10
    assert folds == divide(texts, 3, seed=1) != divide(texts, 3, seed=2)
    for number in (1, 11):
        with pytest.raises(InputError, match="folds"):
            divide(texts, number)


@pytest.fixture
def learned(monkeypatch):
    """The docs of train and of dev of each training, which is left out."""
    found = []

    def train(nlp, path, **others):
        parts = (DocBin().from_disk(path / f"{part}.spacy") for part in ("train", "dev"))
        found.append([[*part.get_docs(nlp.vocab)] for part in parts])
        nlp.to_disk(path / "model-best")

    monkeypatch.setattr(cross_validation, "train", train)
    return found


def test_train_folds_does_not_train_on_held_out_fold(tmp_path, learned):
    docs = write_corpus(tmp_path / "gold.spacy", {})
    fold_of = divide([doc.text for doc in docs], 3)
    nlp = config()
    held_out = [[docs[i].text for i in rows] for _, rows in train_folds(nlp.config, docs, fold_of)]
    assert sorted(text for rows in held_out for text in rows) == sorted(doc.text for doc in docs)
    for parts, rows in zip(learned, held_out, strict=True):
        train_texts, dev_texts = ({doc.text for doc in part} for part in parts)
        with_tokens = {doc.text for doc in docs if len(doc)}
        assert (train_texts | dev_texts | {*rows}) - {""} == with_tokens
        assert "" not in train_texts | dev_texts
        assert not (train_texts & dev_texts) and not (train_texts | dev_texts) & {*rows}


def test_train_folds_keeps_negative_spans_of_configured_labels(tmp_path, learned):
    docs = write_corpus(tmp_path / "gold.spacy", {})
    for doc in (docs[i] for i in range(0, len(docs), 3) if len(docs[i])):
        doc.spans["neg"] = [Span(doc, 0, 1, "RARE"), Span(doc, 0, 1, "UNKNOWN")]
    nlp = config()
    nlp.get_pipe("crf_ner").incorrect_spans_key = "neg"
    nlp.config["initialize"]["components"] = {"crf_ner": {"labels": ["PER", "LOC", "RARE"]}}
    nlp.add_pipe("textcat_multilabel")
    nlp.config["initialize"]["components"]["textcat_multilabel"] = {"labels": ["UNKNOWN"]}
    # UNKNOWN is a label of other components only.
    nlp.add_pipe("crf_ner", "other", config={"model": {"hidden_width": 8, "tok2vec": TOK2VEC}})
    nlp.config["initialize"]["components"]["other"] = {"labels": ["PER", "LOC", "UNKNOWN"]}
    fold_of = divide([doc.text for doc in docs], 2)
    folds = train_folds(nlp.config, docs, fold_of, negative_key="neg", source=nlp)
    held_outs = [rows for _, rows in folds]
    for parts, held_out in zip(learned, held_outs, strict=True):
        gold = [doc for part in parts for doc in part if "neg" in doc.spans]
        found = {doc.text: [span.label_ for span in doc.spans["neg"]] for doc in gold}
        rest = (doc for i, doc in enumerate(docs) if i not in held_out and "neg" in doc.spans)
        assert found == {doc.text: ["RARE"] for doc in rest} and found


@pytest.mark.parametrize("number, tenth", [(2, 1), (14, 1), (40, 4)])
def test_train_folds_uses_a_tenth_of_other_docs_as_dev(number, tenth, learned):
    docs = [doc_of(["one", f"in{i}"], [(0, 1, "PER")]) for i in range(3 + number)]
    fold_of = [0] * 3 + [1] * number
    own = config().config
    for seed in (0, 0, 1) if number == 40 else (0,):
        assert len([*train_folds(own, docs, fold_of, seed=seed, only=[0])]) == 1
    texts = [[[doc.text for doc in part] for part in parts] for parts in learned]
    for train_texts, dev_texts in texts:
        assert len(dev_texts) == tenth
        assert sorted(train_texts + dev_texts) == sorted(doc.text for doc in docs[3:])
    assert number < 40 or texts[0] == texts[1] != texts[2]


def test_train_folds_with_fewer_than_two_other_docs_raises():
    docs = [*(doc_of([name], [(0, 1, "PER")]) for name in ("Anna", "Bonn")), doc_of([], [])]
    with pytest.raises(InputError, match="at least 2 docs with tokens to train on, got 1"):
        list(train_folds(config().config, docs, [0, 1, 1]))


def test_with_corpora_sets_fold_paths_and_keeps_callbacks(tmp_path):
    given = load_config(bundled_config("cnn.cfg"))
    given["paths"]["train"] = given["paths"]["dev"] = "all.spacy"
    given["corpora"]["more"] = {"@readers": "spacy.Corpus.v1", "path": "${paths.train}"}
    given["training"]["before_update"] = given["training"]["before_to_disk"] = {"@callbacks": "own"}
    before = given.to_str()
    own = cross_validation.with_corpora(given, tmp_path).interpolate()
    assert own["corpora"]["more"]["path"] == str(tmp_path / "train.spacy")
    assert own["corpora"]["dev"]["path"] == str(tmp_path / "dev.spacy")
    for name in ("before_update", "before_to_disk"):
        assert own["training"][name] == {"@callbacks": "own"}
    assert given.to_str() == before


def test_review_unsupported_corpus_or_pipeline_raises(trained, tmp_path):
    nlp = spacy.blank("en")
    DocBin(docs=[nlp.make_doc("It came")]).to_disk(tmp_path / "none.spacy")
    with pytest.raises(InputError, match="docs with entities"):
        review(trained, tmp_path / "none.spacy", 0)
    write_corpus(tmp_path / "gold.spacy", {})
    for ruler, settings in (("entity_ruler", {}), ("span_ruler", {"annotate_ents": True})):
        ruled = spacy.blank("en")
        ruled.add_pipe("crf_ner", source=trained)
        ruled.add_pipe(ruler, config=settings).add_patterns([{"label": "PER", "pattern": "came"}])
        with pytest.raises(InputError, match="no other component sets entities"):
            review(ruled, tmp_path / "gold.spacy", 0)
    plain = config()
    plain.get_pipe("crf_ner").confidence = False
    with pytest.raises(InputError, match="confidence: expected true"):
        review(plain, tmp_path / "gold.spacy", 0)
    with pytest.raises(InputError, match="a reader with a path"):
        plain = config()
        plain.config["corpora"]["train"] = {"@readers": "other"}
        review(plain, tmp_path / "gold.spacy", 2)


@Language.component("merges_all_tokens")
def merges_all_tokens(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:])
    return doc


def test_review_compares_docs_before_later_components_merge_tokens(model, tmp_path):
    nlp = spacy.load(model)
    docs = [doc_of(["Anna", "saw", "Bonn", "."], [(2, 3, "PER")])]
    docs.append(doc_of(["It", "came", "."], [(0, 1, "LOC")]))
    DocBin(docs=docs).to_disk(tmp_path / "gold.spacy")
    expected = review(nlp, tmp_path / "gold.spacy", 0).findings
    nlp.add_pipe("merges_all_tokens")
    found = review(nlp, tmp_path / "gold.spacy", 0).findings
    assert len(found) >= 2 and found == expected
