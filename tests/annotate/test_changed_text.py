"""Offsets are those of the text that was given, whatever the tokenizer makes of it."""

from importlib import import_module
from typing import Any

import pandas as pd
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc
from typer.testing import CliRunner

from spacy_crf_ner.active_learning import Options
from spacy_crf_ner.active_learning.ranking import rank_texts
from spacy_crf_ner.annotate import annotate_frames
from spacy_crf_ner.cli import app
from spacy_crf_ner.distillation.shards import _tokenize

SHIFTED = "then   John left ."
KEPT = "John left ."


def at_spaces(text: str) -> list[str]:
    return text.split()


def pieces(text: str) -> list[str]:
    """The words, the longer ones in pieces as a transformer has them."""
    words = [(word[:4], f"##{word[4:]}") if word[4:] else (word,) for word in text.split()]
    return [piece for word in words for piece in word]


def finding_john(split: Any = at_spaces) -> Language:
    """A pipeline with a tokenizer that loses spaces, or adds marks."""
    nlp = spacy.blank("en")
    nlp.tokenizer = lambda text: Doc(nlp.vocab, split(text))
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PER", "pattern": [{"ORTH": "John"}]}])
    return nlp


def annotated(nlp: Language, texts: list[str], **options: Any) -> Any:
    (frame,) = annotate_frames([pd.DataFrame({"text": texts})], nlp, **options)
    return frame


@given(st.lists(st.sampled_from(["John", "reading", " ", "  ", "\n", "."]), max_size=8))
def test_annotate_frames_tokenizer_loses_spaces_offsets_are_of_the_text(words: list[str]) -> None:
    text = " ".join(words)
    for split in (at_spaces, pieces):
        (row,) = annotated(finding_john(split), [text]).itertuples()
        changed = " ".join(split(text)) != text.rstrip()
        assert (row.error is not pd.NA) == changed
        assert [text[ent["start"] : ent["end"]] for ent in row.entities] == (
            [] if changed else ["John"] * text.count("John")
        )


@pytest.mark.parametrize("docs", [False, True])
def test_annotate_frames_changed_text_is_an_error_of_its_document(docs: bool) -> None:
    frame = annotated(finding_john(), [SHIFTED, KEPT], docs=docs)
    assert "the tokenizer changes the text" in frame["error"][0] and frame["error"].isna()[1]
    assert frame["entities"][0] == [] and frame["entities"][1][0]["start"] == 0
    if docs:  # the tokenizer adds a space at the end
        doc = Doc(spacy.blank("en").vocab).from_bytes(frame["doc"][1])
        assert doc.text == f"{KEPT} " and [ent.text for ent in doc.ents] == ["John"]


@pytest.mark.parametrize("unit", ["docs", "sentences"])
def test_rank_texts_changed_text_is_an_error_of_its_document(trained: Language, unit: str) -> None:
    nlp = spacy.blank("en", vocab=trained.vocab)
    nlp.tokenizer = lambda text: Doc(nlp.vocab, at_spaces(text))
    nlp.add_pipe("crf_ner", source=trained)
    units, documents = rank_texts(nlp, [SHIFTED, "Tim Cook visited Hanoi ."], Options(unit=unit))
    assert "the tokenizer changes the text" in str(documents[0].error) and units[0] == []
    assert documents[1].error is None and len(units[1]) == 1


def test_predict_changed_text_prints_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("spacy_crf_ner.pipeline.load")
    monkeypatch.setattr(module, "load", lambda *arguments: finding_john())
    result = CliRunner().invoke(app, ["predict", "model", SHIFTED, KEPT])
    assert result.exit_code == 2
    assert "text:1: ValueError: the tokenizer changes the text" in result.stderr
    assert SHIFTED not in result.stdout and KEPT in result.stdout
    assert "text:2" not in result.stderr


def test_distilled_docs_have_the_text_of_the_record() -> None:
    nlp = finding_john()
    assert "the tokenizer changes the text" in str(_tokenize(nlp, SHIFTED, 100))
    examples = _tokenize(nlp, KEPT, 100)
    assert [eg.reference.text.rstrip() for eg in examples] == [KEPT]  # type: ignore[union-attr]
