"""A guarantee is refused once the pipeline is not the one that was calibrated, whatever changed."""

from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import get_words_and_spaces
from spacy.vocab import Vocab

from pipelines import SENTENCES, copied, make_examples, trained_elsewhere
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.guarantees import guarantees
from spacy_crf_ner.evaluation.monitoring import drift
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.lookup import model_layers, recognizer
from spacy_crf_ner.pipeline.settings import SETTINGS, Setting


class Splitter:
    """A tokenizer that cannot be saved."""

    def __init__(self, vocab: Vocab, mark: str = "'") -> None:
        self.vocab, self.mark = vocab, mark

    def __call__(self, text: str) -> Doc:
        words = text.replace(self.mark, f" {self.mark} ").split()
        return Doc(self.vocab, *get_words_and_spaces(words, text))


@Language.component("test_first")
def first(doc: Doc) -> Doc:
    return doc


@Language.component("test_other")
def other(doc: Doc) -> Doc:
    for token in doc[1:]:
        token.is_sent_start = True
    return doc


@pytest.fixture
def nlp(trained):
    return trained_elsewhere(copied(trained))


def guaranteed(nlp: Language, **asked: float) -> None:
    examples = make_examples(spacy.blank("en"), SENTENCES * 5)
    with nlp.select_pipes(disable="crf_ner"):
        read = [Example(nlp(eg.text), eg.reference) for eg in examples]
    fit_guarantees(nlp, "crf_ner", read, Targets(**(asked or {"recall": 0.5})))
    assert guarantees(nlp)


def add_tagger(nlp: Language) -> None:
    tagger: Any = nlp.add_pipe("tagger", before="crf_ner")
    tagger.add_label("X")
    tagger.initialize(lambda: [Example.from_dict(nlp.make_doc("Tim"), {"tags": ["X"]})], nlp=nlp)


def change_weights(model: Any) -> None:
    node = next(node for node in model.walk() if node.param_names)
    name = node.param_names[0]
    node.set_param(name, node.get_param(name) + 1e-3)


def set_dtype(nlp: Language) -> None:
    shims = [shim for node in model_layers(recognizer(nlp)) for shim in node.shims]
    next(each for each in shims if hasattr(each, "set_dtype")).set_dtype("bf16")


def add_own_key(nlp: Language) -> None:
    ruler: Any = nlp.add_pipe("span_ruler", config={"spans_key": "sc"})
    ruler.add_patterns([{"label": "ORG", "pattern": "Apple"}])


EARLIER = "got other weights, tokenizer or earlier components"
LABELS = "got other labels"
CHANGES = {
    "a label more": (lambda nlp: recognizer(nlp).add_label("NEW"), EARLIER),
    "labels renamed": (lambda nlp: recognizer(nlp).cfg.update(labels=["A", "B", "C"]), LABELS),
    "labels in another order": (lambda nlp: recognizer(nlp).cfg["labels"].reverse(), LABELS),
    "another tokenizer": (lambda nlp: setattr(nlp, "tokenizer", Splitter(nlp.vocab)), EARLIER),
    "a tokenizer that splits otherwise": (
        lambda nlp: setattr(nlp.tokenizer, "mark", "-"),
        EARLIER,
    ),
    "a special case of the tokenizer": (
        lambda nlp: nlp.tokenizer.add_special_case("Tims", [{"ORTH": "Tim"}, {"ORTH": "s"}]),
        EARLIER,
    ),
    "a component more": (lambda nlp: nlp.add_pipe("entity_ruler", first=True), EARLIER),
    "a component that is disabled": (lambda nlp: nlp.disable_pipe("sentencizer"), EARLIER),
    "weights of another component": (
        lambda nlp: change_weights(nlp.get_pipe("tagger").model),
        EARLIER,
    ),
    "another function under the same name": (
        lambda nlp: (nlp.remove_pipe("x"), nlp.add_pipe("test_other", "x", before="crf_ner")),
        EARLIER,
    ),
    "labels of another component": (
        lambda nlp: nlp.get_pipe("tagger").cfg.update(labels=["Y"]),
        EARLIER,
    ),
    "the order of other components": (
        lambda nlp: (nlp.remove_pipe("sentencizer"), nlp.add_pipe("sentencizer", first=True)),
        EARLIER,
    ),
    "another dtype": (set_dtype, r"got other dtype \(bf16\)"),
    "candidates of another component": (add_own_key, "expected a key of its own"),
}
BEFORE = {  # what some of them need
    "a tokenizer that splits otherwise": CHANGES["another tokenizer"][0],
    "a component that is disabled": lambda nlp: nlp.add_pipe("sentencizer", first=True),
    "weights of another component": add_tagger,
    "another function under the same name": (
        lambda nlp: nlp.add_pipe("test_first", "x", before="crf_ner")
    ),
    "labels of another component": add_tagger,
    "the order of other components": (
        lambda nlp: (add_tagger(nlp), nlp.add_pipe("sentencizer", before="crf_ner"))
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_guarantees_of_changed_pipeline_raise(nlp, name):
    change, message = CHANGES[name]
    BEFORE.get(name, lambda nlp: None)(nlp)
    guaranteed(nlp)
    change(nlp)
    with pytest.raises(InputError, match=message):
        guarantees(nlp)


@pytest.mark.parametrize("name", ["no other component", *list(BEFORE)[3:]])
def test_guarantees_of_saved_pipeline_hold(nlp, name, tmp_path):
    BEFORE.get(name, lambda nlp: None)(nlp)
    guaranteed(nlp)
    nlp.to_disk(tmp_path)
    assert guarantees(spacy.load(tmp_path)) == guarantees(nlp)


def test_guarantees_of_pipeline_loaded_in_another_dtype_raise(nlp, tmp_path):
    guaranteed(nlp)
    nlp.to_disk(tmp_path)
    setting = "components.crf_ner.model.dtype"
    for same in (None, "fp32"):
        assert guarantees(spacy.load(tmp_path, config={setting: same}))
    with pytest.raises(InputError, match=r"got other dtype \(bf16\)"):
        guarantees(spacy.load(tmp_path, config={setting: "bf16"}))


def test_setting_that_is_new_matters_to_all_guarantees(nlp, monkeypatch):
    ner: Any = recognizer(nlp)
    monkeypatch.setitem(SETTINGS, "x", Setting(lambda value: True, "anything"))
    for asked in (
        {"recall": 0.5},
        {"precision": 0.1, "confidence_level": 0.1},
        {"set_coverage": 0.1},
    ):
        ner.x = 1
        guaranteed(nlp, **asked)
        ner.x = 2
        with pytest.raises(InputError, match=r"got other x\."):
            guarantees(nlp)


def test_sourced_recognizer_keeps_its_guarantee_where_nothing_else_differs(nlp):
    guaranteed(nlp)
    same, of_another_language, behind = (spacy.blank(lang) for lang in ("en", "de", "en"))
    behind.add_pipe("sentencizer")
    for target in (same, of_another_language, behind):
        target.add_pipe("crf_ner", source=nlp)
    assert guarantees(same) == guarantees(nlp)
    for target in (of_another_language, behind):
        with pytest.raises(InputError, match=EARLIER):
            guarantees(target)


def test_two_recognizers_with_one_key_raise(nlp, trained):
    guaranteed(nlp)
    second: Any = nlp.add_pipe("crf_ner", "second", source=copied(trained))
    assert guarantees(nlp, "crf_ner")
    second.spans_key = "sc"
    with pytest.raises(InputError, match="expected a key of its own, got 'sc', which 'second'"):
        guarantees(nlp, "crf_ner")


def test_guarantee_for_sentences_names_their_length_and_drift_flags_documents(nlp, tmp_path):
    examples = make_examples(nlp, SENTENCES * 20)
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5))
    given = guarantees(nlp)["recall"]
    assert given["unit"] == "document" and given["drift"] is None
    assert given["tokens"] == pytest.approx(sum(len(eg.predicted) for eg in examples) / 140)
    assert given["labels"] == ["GPE", "ORG", "PERSON"]
    assert (given["texts"], given["different_texts"]) == (140, 7)
    long = " ".join(text for text, _ in SENTENCES)
    drift(nlp, [nlp.make_doc(long) for _ in range(40)])
    found = guarantees(nlp)["recall"]["drift"]
    assert found["documents"] == 40 and "tokens" in found["differ"]
    nlp.to_disk(tmp_path)
    assert guarantees(spacy.load(tmp_path))["recall"]["drift"] == found
    drift(nlp, [eg.predicted for eg in examples])
    assert guarantees(nlp)["recall"]["drift"] == {"documents": 120, "differ": []}
    # nothing is known of this one
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5))
    assert guarantees(nlp)["recall"]["drift"] is None
