"""The comparison on overlapping spans: conversion and places match hand counts."""

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.training import Corpus
from spacy.vocab import Vocab

from benchmarks import overlapping
from benchmarks.overlapping import SYSTEMS, convert, covering, places, recalls, split_sentences

# Sentences "the bank of Oslo cannot pay Lee" and "rain fell"; the last span crosses their boundary.
WORDS = ["the", "bank", "of", "Oslo", "cannot", "pay", "Lee", "rain", "fell"]
SPANS = [(0, 4, "org"), (3, 4, "place"), (1, 2, "org"), (7, 8, "event"), (6, 8, "event")]


def document() -> dict[str, Any]:
    starts = [sum(len(word) + 1 for word in WORDS[:i]) for i in range(len(WORDS))]
    ends = [start + len(word) for start, word in zip(starts, WORDS)]
    return {
        "text": " ".join(WORDS),
        "tokens": [{"text": w, "start": s, "end": e} for w, s, e in zip(WORDS, starts, ends)],
        "spans": [{"start": starts[s], "end": ends[e - 1], "label": of} for s, e, of in SPANS],
        "sentence_starts": [starts[0], starts[7]],
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for part in ("train", "dev", "test"):
        srsly.write_jsonl(source / f"{part}.jsonl", [document()])
    convert(source, tmp_path / "corpus")
    return tmp_path / "corpus"


def test_convert_writes_one_doc_per_sentence_with_spans(corpus: Path) -> None:
    first, second = Corpus(corpus / "test.spacy")(spacy.blank("en"))
    assert (
        [[str(token) for token in eg.predicted] for eg in (first, second)]
        == [
            WORDS[:7],  # the tokenizer makes two of "cannot"
            WORDS[7:],
        ]
    )
    found = [[(s.text, s.label_) for s in eg.reference.spans["sc"]] for eg in (first, second)]
    assert found == [
        [("the bank of Oslo", "org"), ("bank", "org"), ("Oslo", "place")],
        [("rain", "event")],
    ]
    records = srsly.read_jsonl(corpus / "test.jsonl")
    assert [[(r["text"][s:e], of) for s, e, of in r["spans"]] for r in records] == found
    assert split_sentences(document(), Vocab())[1] == 1


def test_recalls_are_grouped_by_nesting() -> None:
    outer, inner, same = (0, 0, 9, "A"), (0, 2, 4, "B"), (0, 5, 9, "A")
    flat, twin = (0, 9, 12, "A"), (1, 0, 9, "A")  # begins where another ends; in another doc
    gold = {outer, inner, same, flat, twin}
    assert [places(span, [outer, inner, same, flat]) for span in (outer, inner, same, flat)] == [
        ["outer"],
        ["nested"],
        ["nested", "nested in its label"],
        ["flat"],
    ]
    assert places((0, 3, 6, "A"), [(0, 3, 6, "A"), (0, 5, 8, "B")]) == ["outer"]  # they cross
    found = {inner, flat, (0, 0, 9, "B"), (1, 0, 8, "A")}
    shares = {"flat": 1 / 2, "outer": 0, "nested": 1 / 2, "nested in its label": 0}
    assert recalls(gold, found) == {f"recall, {place}": of for place, of in shares.items()}
    assert recalls({flat}, set())["recall, nested"] is None


def test_covering_returns_length_that_covers_99_percent() -> None:
    assert covering([5] * 99 + [7]) == 5
    assert covering([7, 7] + [5] * 98) == 7


@pytest.mark.parametrize("model", [s.model for s in SYSTEMS if not s.venv])
def test_configs_load_as_pipelines(model: str, corpus: Path, tiny_transformer: str) -> None:
    config = overlapping.config(model, corpus)
    config["paths"]["transformer"] = tiny_transformer
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    name, pipe = nlp.pipeline[-1]
    assert not nlp.config["training"]["before_to_disk"]  # calibration on the one doc of dev
    if "spancat" in model:
        assert pipe.key == "sc" and name == model
        assert pipe.suggester([nlp.make_doc("a b c d e f")]).lengths.tolist() == [6 + 5 + 4 + 3]
