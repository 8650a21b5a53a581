"""Gold that models contradict is found, by models that have not seen it."""

import math
import random

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span

from pipelines import TOK2VEC
from spacy_crf_ner.active_learning import label_errors, review
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.training import cross_validation
from spacy_crf_ner.training.cross_validation import divide, known_negatives, train_folds


def sentences(number):
    rng = random.Random(0)
    people, places = ["Anna", "Bob", "Carla", "Dora"], ["Bonn", "Paris", "Hanoi", "Oslo"]
    for i in range(number):
        words = [rng.choice(people), "went", "to", rng.choice(places), f"in{i}", "."]
        yield words, [(0, 1, "PER"), (3, 4, "LOC")]


def write_corpus(path, wrong):
    """Gold docs; `wrong` replaces the entities of some."""
    nlp = spacy.blank("en")
    docs = []
    for i, (words, ents) in enumerate(sentences(60)):
        doc = Doc(nlp.vocab, words)
        doc.set_ents([Span(doc, *ent) for ent in wrong.get(i, ents)], default="outside")
        docs.append(doc)
    docs.insert(7, Doc(nlp.vocab, []))
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
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": TOK2VEC}})
    filled = nlp.config
    filled["training"].update(max_steps=40, eval_frequency=20, patience=0)
    filled["training"]["optimizer"]["learn_rate"] = 0.01
    filled["training"]["batcher"] = {
        "@batchers": "spacy.batch_by_sequence.v1", "size": 16, "get_length": None,
    }  # fmt: skip
    return nlp


@pytest.mark.slow
def test_errors_are_the_first_findings(tmp_path):
    write_corpus(tmp_path / "gold.spacy", WRONG)
    done = []
    found = review(config(), tmp_path / "gold.spacy", 2, on_fold=done.append)
    first = {each["doc"]: each["kind"] for each in found.findings[:7]}
    assert first.items() >= KINDS.items()
    assert done == [1, 2] and found.docs == 61
    odds = [each["log_odds"] for each in found.findings]
    assert odds == sorted(odds, reverse=True)
    units = [*found.units()]
    assert {unit.source["doc"] for unit in units[:7]} >= {*KINDS}
    assert [unit.score for unit in units] == sorted((u.score for u in units), reverse=True)
    assert all(p is None for unit in units for _, p in unit.entities)


def test_a_label_of_one_fold_is_a_finding(tmp_path):
    write_corpus(tmp_path / "gold.spacy", {3: [(0, 1, "PER"), (3, 4, "RARE")]})
    nlp = config()
    nlp.config["training"].update(max_steps=2, eval_frequency=1)
    found = review(nlp, tmp_path / "gold.spacy", 2)
    rare = [each for each in found.findings if each["gold"] and each["gold"]["label"] == "RARE"]
    assert [(each["doc"], each["gold_probability"]) for each in rare] == [(3, 0.0)]


def test_negative_spans_of_a_label_that_a_fold_does_not_have_are_counted(tmp_path):
    docs = write_corpus(tmp_path / "gold.spacy", {3: [(0, 1, "PER"), (3, 4, "RARE")]})
    for i, label in enumerate(["RARE", "RARE", "NONE", "LOC", "", "O"], 10):
        docs[i].spans[INCORRECT] = [Span(docs[i], 1, 2, label)]
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "gold.spacy")
    nlp = config()
    nlp.config["training"].update(max_steps=2, eval_frequency=1)
    nlp.get_pipe("crf_ner").incorrect_spans_key = INCORRECT
    found = review(nlp, tmp_path / "gold.spacy", 2)
    assert found.findings and found.negatives == 3


def test_negative_spans_of_known_labels_are_kept():
    doc = Doc(spacy.blank("en").vocab, ["a", "b", "c"])
    doc.set_ents([Span(doc, 0, 1, "PER")], default="outside")
    doc.spans[INCORRECT] = [Span(doc, 1, 2, label) for label in ("PER", "LOC", "", "O")]
    assert known_negatives(doc, INCORRECT, {"PER", "LOC"}) is doc
    assert known_negatives(doc, None, {}) is doc
    kept = known_negatives(doc, INCORRECT, {"PER"})
    assert [span.label_ for span in kept.spans[INCORRECT]] == ["PER", "", "O"]
    assert len(doc.spans[INCORRECT]) == 4 and kept.ents[0].label_ == "PER"


def test_a_student_is_reviewed_without_its_teachers(tmp_path):
    write_corpus(tmp_path / "gold.spacy", {})
    nlp = config()
    nlp.config["training"].update(max_steps=2, eval_frequency=1, max_epochs=-1)
    reader = {"@readers": "spacy-crf-ner.TaughtCorpus.v1", "path": "teachers", "weight": 0.5}
    nlp.config["corpora"]["train"] = reader
    assert review(nlp, tmp_path / "gold.spacy", 2).docs == 61


def test_log_odds_compare_prediction_and_gold(trained, tmp_path):
    nlp = spacy.blank("en")
    doc = nlp.make_doc("Tim Cook visited Hanoi.")
    doc.set_ents([doc.char_span(0, 8, "ORG")], default="outside")
    other = nlp.make_doc("Washington")
    other.set_ents([Span(other, 0, 1, "ORG")], default="outside")
    DocBin(docs=[nlp.make_doc(""), doc, other]).to_disk(tmp_path / "gold.spacy")
    found = review(trained, tmp_path / "gold.spacy", 0)
    ner = trained.get_pipe("crf_ner")
    expected = {}
    for i, gold, wrong, right in [
        (1, doc, (0, 2, "ORG"), (0, 2, "PERSON")),
        (1, doc, None, (3, 4, "GPE")),
        (2, other, (0, 1, "ORG"), (0, 1, "GPE")),
    ]:
        bare = trained.make_doc(gold.text)
        (p,) = ner.span_posteriors(bare, [Span(bare, *right)])
        q = None if wrong is None else ner.span_posteriors(bare, [Span(bare, *wrong)])[0]
        expected[i, right[2]] = math.log(p / (1 - p)), q
    for each in found.findings:
        log_odds, q = expected.pop((each["doc"], each["predicted"]["label"]))
        assert each["log_odds"] == pytest.approx(log_odds, rel=1e-3)
        assert each["gold_probability"] == pytest.approx(q, abs=1e-6)
    assert not expected


@pytest.mark.parametrize("q, miss_rate, p", [(0.2, 0.0, 0.8), (0.0, 0.4, 0.6), (0.5, 0.4, 0.5)])
def test_absence_is_no_surer_than_the_recall_of_the_label(q, miss_rate, p):
    finding = {"predicted": None, "gold_probability": q, "confidence": q}
    expected = math.log(p / (1 - p)) + math.log(label_errors.INVENTED)
    assert label_errors.log_odds(finding, miss_rate) == pytest.approx(expected)


def test_names_that_no_other_text_has_are_no_surprise():
    nlp, findings, gold = spacy.blank("en"), [], []
    for i, word in enumerate(["Bonn"] * 9 + ["Oslo", "Paris", "Rome"]):
        doc = nlp.make_doc(f"{word} {i}")
        doc.set_ents([Span(doc, 0, 1, "LOC")], default="outside")
        gold.append(doc)
        if i in (0, 9, 10, 11):
            ent = {"start": 0, "end": len(word), "label": "LOC", "text": word}
            common = {"predicted": None, "gold_probability": 1e-9, "confidence": 1e-9}
            findings.append({"kind": "only in gold", "doc": i, "gold": ent, **common})
    label_errors._rank(findings, gold)
    assert findings[0]["gold"]["text"] == "Bonn"  # 1 of 9 is missed, and 3 of the 3 others
    odds = [each["log_odds"] - math.log(label_errors.INVENTED) for each in findings]
    assert odds == pytest.approx([math.log(9 / 2)] + [math.log(1 / 4)] * 3)


def test_equal_texts_are_in_one_fold():
    texts = [f"text {i % 10}" for i in range(40)]
    folds = divide(texts, 3, seed=1)
    assert {*folds} == {0, 1, 2}
    assert len({*zip(texts, folds)}) == 10
    assert folds == divide(texts, 3, seed=1) != divide(texts, 3, seed=2)
    for number in (1, 11):
        with pytest.raises(InputError, match="folds"):
            divide(texts, number)


def test_a_fold_is_not_trained_on(tmp_path, monkeypatch):
    docs = write_corpus(tmp_path / "gold.spacy", {})
    fold_of = divide([doc.text for doc in docs], 3)
    seen = []

    def train(nlp, path, **others):
        parts = (spacy.tokens.DocBin().from_disk(path / f"{p}.spacy") for p in ("train", "dev"))
        seen.append([{doc.text for doc in part.get_docs(nlp.vocab)} for part in parts])
        nlp.to_disk(path / "model-best")

    monkeypatch.setattr(cross_validation, "train", train)
    nlp = config()
    held_out = [[docs[i].text for i in rows] for _, rows in train_folds(nlp.config, docs, fold_of)]
    assert sorted(text for rows in held_out for text in rows) == sorted(doc.text for doc in docs)
    for (train_texts, dev_texts), rows in zip(seen, held_out, strict=True):
        assert train_texts | dev_texts | {*rows} == {doc.text for doc in docs}
        assert not (train_texts & dev_texts) and not (train_texts | dev_texts) & {*rows}


def test_what_cannot_be_reviewed_is_an_error(trained, tmp_path):
    nlp = spacy.blank("en")
    DocBin(docs=[nlp.make_doc("It came")]).to_disk(tmp_path / "none.spacy")
    with pytest.raises(InputError, match="docs with entities"):
        review(trained, tmp_path / "none.spacy", 0)
    write_corpus(tmp_path / "gold.spacy", {})
    ruled = spacy.blank("en")
    ruled.add_pipe("crf_ner", source=trained)
    ruled.add_pipe("entity_ruler")
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
