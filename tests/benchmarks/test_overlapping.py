"""The comparison on overlapping spans: conversion, scores and choices match manual results."""

import os
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.training import Corpus
from spacy.vocab import Vocab

import benchmark_overlapping
from benchmark_overlapping import (
    SYSTEMS,
    _SpanRuns,
    convert,
    covering,
    places,
    recalls,
    split_sentences,
    table,
)

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
    assert [[str(token) for token in eg.predicted] for eg in (first, second)] == [
        [
            "the",
            "bank",
            "of",
            "Oslo",
            "cannot",
            "pay",
            "Lee",
        ],  # the tokenizer makes two of "cannot"
        ["rain", "fell"],
    ]
    found = [[(s.text, s.label_) for s in eg.reference.spans["sc"]] for eg in (first, second)]
    assert found == [
        [("the bank of Oslo", "org"), ("bank", "org"), ("Oslo", "place")],
        [("rain", "event")],
    ]
    assert split_sentences(document(), Vocab())[1] == 1


def test_convert_writes_same_spans_as_jsonl_for_peers(corpus: Path) -> None:
    records = list(srsly.read_jsonl(corpus / "dev.jsonl"))
    assert [[r["text"][s:e] for s, e in r["tokens"]] for r in records] == [WORDS[:7], WORDS[7:]]
    assert [[(r["text"][s:e], of) for s, e, of in r["spans"]] for r in records] == [
        [("the bank of Oslo", "org"), ("bank", "org"), ("Oslo", "place")],
        [("rain", "event")],
    ]


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
    assert recalls(gold, found) == {
        "flat": 1 / 2,
        "outer": 0,
        "nested": 1 / 2,
        "nested in its label": 0,
    }
    assert recalls({flat}, set())["nested"] is None


def test_covering_returns_length_that_covers_99_percent() -> None:
    assert covering([5] * 99 + [7]) == 5
    assert covering([7, 7] + [5] * 98) == 7


def test_the_threshold_is_chosen_on_dev(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def row(self: Any, system: Any, corpus: Any, rate: Any, seed: Any, part: Any, at: Any) -> Any:
        asked.append((part, at))
        return {"f": 0.0 if at is None else -abs(at - 0.41), "threshold": at}

    monkeypatch.setattr(_SpanRuns, "_row", row)
    runs = _SpanRuns(tmp_path, tmp_path, "minilm", 200)
    ours, spancat = SYSTEMS[0], SYSTEMS[4]
    assert runs.result(spancat, tmp_path, 2e-4, 0, "test")["threshold"] == 0.4
    offered = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    assert asked == [*(("dev", at) for at in offered), ("test", 0.4)]
    asked.clear()
    runs.result(ours, tmp_path, 2e-4, 0, "test")
    assert asked == [("test", None)]


def test_span_runs_train_one_model_per_transformer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    class Process:
        pid = os.getpid()

        def ask(self, *words: Any) -> int:
            asked.append(words)
            return 1

        def stop(self) -> None:
            pass

    system = SYSTEMS[-1]
    folders = []
    for name in ("minilm", "roberta", "minilm"):
        runs = _SpanRuns(tmp_path, tmp_path, f"models/{name}", 200)
        monkeypatch.setattr(runs.comparison, "start", lambda _: Process())
        folders.append(runs._trained(system, tmp_path / "gum", 4e-4, 0)[0])
    assert folders[0] == folders[2] != folders[1]
    assert [words[3] for words in asked if words[0] == "train"] == [
        "models/minilm",
        "models/roberta",
    ]


@pytest.mark.parametrize("model", [s.model for s in SYSTEMS if not s.venv])
def test_configs_load_as_pipelines(model: str, corpus: Path, tiny_transformer: str) -> None:
    config = benchmark_overlapping._config(model, corpus)
    config["paths"]["transformer"] = tiny_transformer
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    name, pipe = nlp.pipeline[-1]
    assert not nlp.config["training"]["before_to_disk"]  # calibration on the one doc of dev
    if "spancat" in model:
        assert pipe.key == "sc" and name == model
        assert pipe.suggester([nlp.make_doc("a b c d e f")]).lengths.tolist() == [6 + 5 + 4 + 3]


def test_the_table_has_the_mean_of_the_test_part() -> None:
    row = {"system": "spaCy spancat", "steps": 200, "part": "test", "p": 0.5, "r": 0.25, "f": 0.3}
    row |= {"recalls": {"flat": 1.0, "outer": 0.0, "nested": None, "nested in its label": None}}
    row |= {"train_seconds": 100, "train_peak_mb": 2000, "words_per_second": 3000}
    row |= {"predict_peak_mb": 900, "parameters": 23_000_000, "rate": 2e-4}
    # The first row is of a learning rate that was tried before.
    rows = [
        {**row, "rate": 8e-4, "f": 0.0},
        row,
        {**row, "f": 0.5, "train_seconds": 200},
        {**row, "part": "dev", "f": 0.9},
    ]
    expected = "| spaCy spancat | 50.0 ± 0.0 | 25.0 ± 0.0 | 40.0 ± 14.1 | 100.0 ± 0.0 | 0.0 ± 0.0 "
    expected += "| - | - | 150 | 2,000 | 3,000 | 900 | 23,000,000 |"
    assert expected in table(rows).splitlines()
