"""Marks of no width: what they are, and that the words around them are read as if without."""

import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.attrs import DEP, ENT_IOB, ENT_TYPE, LEMMA, MORPH, NORM, POS, SENT_START, SHAPE, TAG
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Model

from graphs import ENCODER, NO_DROPOUT, WORDS, joined
from pipelines import OWN_TRANSFORMER, TOK2VEC
from spacy_crf_ner.ml import zero_width
from spacy_crf_ner.ml.concatenate import concatenate
from spacy_crf_ner.ml.zero_width import (
    MARKS,
    blank_tokens,
    is_blank,
    without_marks,
    word_without_marks,
)

VOCAB = spacy.blank("en").vocab
SEEN = ["\ufeff", "\u200b", "\u2060", "\u00ad", "\u200d", "\u202e", "\ufe0f"]


def test_marks_are_characters_that_have_no_glyph() -> None:
    found = {*MARKS.findall("".join(map(chr, range(sys.maxunicode + 1))))}
    assert {*SEEN} <= found
    # Formatting, variation selectors and others that combine, and those that are not assigned yet.
    assert {unicodedata.category(each) for each in found} == {"Cf", "Mn", "Cn"}
    # Signs of Arabic and Syriac that are formatting by name, and are printed.
    assert not found & {"\u0600", "\u06dd", "\u070f", "\u08e2"}


@given(st.lists(st.text(st.sampled_from("aZ1-\u0301" + "".join(SEEN)), min_size=1), max_size=8))
def test_blank_tokens_have_nothing_but_marks(words: list[str]) -> None:
    doc, expected = Doc(VOCAB, words), [not word.strip("".join(SEEN)) for word in words]
    assert blank_tokens(doc.to_array(SHAPE), VOCAB.strings).tolist() == expected
    assert [is_blank(word) for word in words] == expected
    assert is_blank(" \ufeff\n") and not is_blank("\ufeff a")


LAYERS: dict[str, Any] = {
    "words": WORDS,
    "encoder over spaCy's": {**ENCODER, "tok2vec": TOK2VEC},
    "concatenation": joined(words=WORDS, cnn=TOK2VEC),
    "transformer": OWN_TRANSFORMER,
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_alone_reads_words_without_marks(name: str, tiny_transformer: str) -> None:
    """As in a tok2vec that components share."""
    config = {"model": LAYERS[name]}
    if name == "transformer":
        own = {"name": tiny_transformer, "transformer_config": NO_DROPOUT}
        config = {"model": {**OWN_TRANSFORMER, **own}}
    layer = spacy.registry.resolve(config)["model"]
    words = ["Tim", "Cook", "visited", "Hanoi"]
    plain, marked = Doc(VOCAB, words), Doc(VOCAB, ["T\u200bim", "\ufeffCook", *words[2:]])
    layer.initialize(X=[plain])
    for is_train in (False, True):
        expected, found = (layer([doc], is_train)[0] for doc in (plain, marked))
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)


@pytest.mark.parametrize("is_train", [False, True])
def test_a_listener_reads_the_docs_that_the_component_above_it_has_read(is_train: bool) -> None:
    read: dict[str, list[Doc]] = {}

    class Listener(Model):
        upstream_name = "tok2vec"

    def layer(name: str, kind: Any = Model) -> Any:
        def forward(model: Any, docs: list[Doc], is_train: bool) -> Any:
            read[name] = docs
            return [np.zeros((len(doc), 2), dtype="f") for doc in docs], lambda dY: docs

        return kind(name, forward)

    doc = Doc(VOCAB, ["T\u200bim"])
    concatenate(layer("other"), layer("listener", Listener))([doc], is_train)
    assert read["listener"][0] is doc and read["other"][0].text.strip() == "Tim"


@pytest.mark.parametrize(
    "word, expected",
    [
        ("\ufeffTim", "Tim"),
        ("Tim\u200b\u200d", "Tim"),
        ("co\u00adop", "coop"),
        ("\u0645\u06cc\u200c\u0631\u0648\u0645", "\u0645\u06cc\u200c\u0631\u0648\u0645"),
        ("\u200b", "\u200b"),
    ],
)
def test_word_without_marks_keeps_joiners_inside_a_word(word: str, expected: str) -> None:
    assert word_without_marks(word) == expected


@given(st.lists(st.sampled_from([mark for mark in SEEN if mark != "\u200d"])), st.data())
def test_words_have_no_marks_at_any_place(marks: list[str], data: st.DataObject) -> None:
    marked = "didn't"
    for mark in marks:
        at = data.draw(st.integers(0, len(marked)))
        marked = marked[:at] + mark + marked[at:]
    assert word_without_marks(marked) == "didn't"


def test_a_mark_in_one_word_changes_no_attribute_of_the_others() -> None:
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "TITLE", "pattern": "zed"}])
    nlp.add_pipe("sentencizer")
    attributes = [DEP, ENT_IOB, ENT_TYPE, LEMMA, MORPH, NORM, POS, SENT_START, TAG]
    doc = nlp("He met zed today and co\u00adoperated. He's gone.")
    doc[0].pos_, doc[1].lemma_ = "PRON", "meet"
    doc[1].set_morph("Tense=Past")
    doc.tensor = np.ones((len(doc), 2), dtype="float32")
    copied = without_marks(doc)
    assert doc[5].text == "co\u00adoperated"
    others = [token.i for token in doc if "\u00ad" not in token.text]
    found, expected = copied.to_array(attributes), doc.to_array(attributes)
    np.testing.assert_array_equal(found[others], expected[others])
    assert copied[5].text == "cooperated" == copied[5].norm_ and copied[2].ent_type_ == "TITLE"
    assert copied.tensor is doc.tensor


def test_kinds_of_shapes_are_forgotten_after_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_width, "MAX_KINDS", 5)
    for i in range(20):
        doc = Doc(VOCAB, ["x-" * i + "\u200b", "\u200b"])
        assert blank_tokens(doc.to_array(SHAPE), VOCAB.strings).tolist() == [i == 0, True]
    assert len(zero_width._kinds) <= 5


def test_a_token_of_marks_is_read_as_it_is_and_in_no_entity(trained: Language) -> None:
    doc = trained("\u200b Tim Cook \ufeff visited Hanoi.")
    assert [token.text for token in doc][:1] == ["\u200b"]
    assert [ent.text for ent in doc.ents] == ["Tim Cook", "Hanoi"]
    assert all(ent._.confidence > 0.9 for ent in doc.ents)
