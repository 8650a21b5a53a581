"""Redaction: every candidate is removed, and nothing else."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, Span, SpanGroup
from typer.testing import CliRunner

from annotated import read_lines
from pipelines import TOK2VEC, make_examples, train, trained_elsewhere
from spacy_crf_ner.annotate.readers import read_texts
from spacy_crf_ner.annotate.redaction import redact
from spacy_crf_ner.annotate.settings import Settings
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.guarantees import renew
from spacy_crf_ner.input_error import InputError

LABELS = ["PER", "LOC", "ORG"]
VOCAB = spacy.blank("en").vocab


def drawn(seed: int) -> Doc:
    """A doc with overlapping spans; no two characters of its words are the same."""
    rng = random.Random(seed)
    letters = [chr(ord("一") + i) for i in range(100)]
    words = ["".join(letters.pop() for _ in range(rng.randint(1, 3))) for _ in range(12)]
    doc = Doc(VOCAB, words)
    ends = [(start, rng.randint(start + 1, min(start + 4, 12))) for start in range(12)]
    spans = [Span(doc, *each, rng.choice(LABELS)) for each in rng.choices(ends, k=6)]
    scores = np.array([rng.random() for _ in spans], dtype=np.float32)
    doc.spans["x"] = SpanGroup(doc, name="x", spans=spans, attrs={"scores": scores})
    return doc


@pytest.mark.parametrize("seed", range(50))
def test_redact_removes_exactly_the_candidates(seed: int) -> None:
    doc, labels = drawn(seed), LABELS[: 1 + seed % 3]
    text, replaced = redact(doc, "x", labels)
    removed = {
        i
        for span in doc.spans["x"]
        if span.label_ in labels
        for i in range(span.start_char, span.end_char)
    }
    assert not {doc.text[i] for i in removed if doc.text[i] != " "} & set(text)
    kept = "".join(char for i, char in enumerate(doc.text) if i not in removed)
    restored, end, without = "", 0, ""
    for start, stop, new_start, new_end, label in replaced:
        assert text[new_start:new_end] == f"[{label}]"
        restored += text[end:new_start] + doc.text[start:stop]
        without += text[end:new_start]
        end = new_end
        inside = [s for s in doc.spans["x"] if s.label_ in labels and start <= s.start_char < stop]
        scores = dict(zip(doc.spans["x"], doc.spans["x"].attrs["scores"]))
        assert label == max(inside, key=lambda span: scores[span]).label_
        assert min(s.start_char for s in inside) == start
        assert max(s.end_char for s in inside) == stop
    assert restored + text[end:] == doc.text and without + text[end:] == kept


def test_redact_replaces_each_adjacent_span_by_its_label() -> None:
    doc = Doc(VOCAB, ["in", "Bonn", "Anna", "."], [True, False, False, False])
    spans = [Span(doc, 2, 3, "PER"), Span(doc, 1, 2, "LOC")]
    scores = np.array([0.9, 0.8], dtype=np.float32)
    doc.spans["x"] = SpanGroup(doc, name="x", spans=spans, attrs={"scores": scores})
    for labels, expected in ((None, "in [LOC][PER]."), ([], doc.text), (["PER"], "in Bonn[PER].")):
        text, replaced = redact(doc, "x", labels)
        assert text == expected
        assert [text[each.start : each.end] for each in replaced] == [
            f"[{each.label}]" for each in replaced
        ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": TOK2VEC}})
    sentences = [(f"Anna saw Bonn {i}", [(0, 4, "PER"), (9, 13, "LOC")]) for i in range(10)]
    examples = make_examples(nlp, [*sentences, ("it came", [])])
    train(nlp, examples)
    trained_elsewhere(nlp)
    folder = tmp_path_factory.mktemp("redact")
    nlp.to_disk(folder / "plain")
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.9))
    nlp.to_disk(folder / "together")
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.9, by_label=True))
    nlp.add_pipe("merge_entities")
    nlp.to_disk(folder / "careful")
    return folder


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["redact", *map(str, arguments)])


def test_redact_command_output_omits_removed_text(model: Path, tmp_path: Path) -> None:
    texts = [f"Anna saw Bonn {i % 10}" for i in range(300)]
    rows = [{"id": f"doc {i}", "text": text, "name": "Anna"} for i, text in enumerate(texts)]
    rows[7]["id"] = ""
    srsly.write_jsonl(tmp_path / "texts.jsonl", rows)
    out = tmp_path / "out.jsonl"
    result = run(model / "careful", tmp_path / "texts.jsonl", out, "--labels", " PER ")
    assert result.exit_code == 0, result.output
    records: list[Any] = list(srsly.read_jsonl(out))
    assert records[7]["id"] == f"{tmp_path / 'texts.jsonl'}:8"
    others = [(record["id"], row["id"]) for record, row in zip(records, rows) if row["id"]]
    assert len(others) == 299 and all(ours == theirs for ours, theirs in others)
    assert "Anna" not in out.read_text()
    for i, record in enumerate(records):
        assert record["text"] == f"[PER] saw Bonn {i % 10}"
        assert record["replaced"] == [
            {"original_start": 0, "original_end": 4, "start": 0, "end": 5, "label": "PER"}
        ]
    assert "Documents: 300" in result.stdout and "Replaced by [PER]: 300" in result.stdout
    promise = "Promise: the mean share of missed entities of a label in a document is at most 0.1"
    assert promise in result.stdout
    assert "on average" in result.stdout


def test_preset_entities_of_other_labels_are_removed(model: Path, tmp_path: Path) -> None:
    nlp: Language = spacy.load(model / "plain")
    ruler: Any = nlp.add_pipe("entity_ruler", before="crf_ner")
    ruler.add_patterns([{"label": "ID", "pattern": "x17"}])
    sentences = [(f"Anna saw Bonn {i}", [(0, 4, "PER"), (9, 13, "LOC")]) for i in range(10)]
    fit_guarantees(nlp, "crf_ner", make_examples(nlp, sentences), Targets(recall=0.9))
    nlp.to_disk(tmp_path / "ruled")
    (tmp_path / "texts.txt").write_text("Anna saw Bonn x17\n")
    result = run(tmp_path / "ruled", tmp_path / "texts.txt", tmp_path / "x.jsonl")
    assert result.exit_code == 0, result.output
    (record,) = srsly.read_jsonl(tmp_path / "x.jsonl")
    assert record["text"] == "[PER] saw [LOC] [ID]"


@pytest.mark.parametrize(
    "name, labels, message",
    [
        ("plain", "", "has no promise of a recall, which redaction needs"),
        ("together", "PER", "expected all labels, or a promise for each label, got one for all"),
        ("careful", "PER,ORG", "--labels: expected some of LOC, PER, got ORG"),
    ],
)
def test_redact_command_without_guarantee_writes_nothing(
    model: Path, tmp_path: Path, name: str, labels: str, message: str
) -> None:
    (tmp_path / "texts.txt").write_text("Anna saw Bonn\n")
    result = run(model / name, tmp_path / "texts.txt", tmp_path / "x.jsonl", "--labels", labels)
    assert result.exit_code == 1 and message in result.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_redact_command_changed_pipeline_prints_error(model: Path, tmp_path: Path) -> None:
    nlp: Language = spacy.load(model / "careful")
    nlp.get_pipe("crf_ner").candidate_thresholds = {"PER": 0.9}
    nlp.to_disk(tmp_path / "changed")
    (tmp_path / "texts.txt").write_text("Anna saw Bonn\n")
    result = run(tmp_path / "changed", tmp_path / "texts.txt", tmp_path / "x.jsonl")
    assert result.exit_code == 1 and "got other candidate_thresholds" in result.stderr


def test_redact_command_bad_record_is_not_quoted_and_leaves_no_output(model, tmp_path) -> None:
    for bad in ('{"text": ["Secret"]}', '{"text": "Secret'):
        (tmp_path / "texts.jsonl").write_text(f'{{"text": "Anna"}}\n{bad}\n')
        result = run(model / "careful", tmp_path / "texts.jsonl", tmp_path / "x.jsonl")
        expected = "texts.jsonl, line 2: expected a readable record"
        assert result.exit_code == 1 and expected in result.stderr
        assert "Secret" not in result.output
    assert not list(tmp_path.glob("x.jsonl*"))
    assert run(model / "careful", tmp_path / "texts.jsonl", tmp_path / "x.txt").exit_code == 1


def test_redact_command_missing_id_is_file_and_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    lines = [{"id": None}, {}, {"id": 10**30}, {"id": [1]}]
    path.write_text("\n".join(json.dumps({"text": "it", **each}) for each in lines))
    result = run(model / "together", tmp_path / "texts.jsonl", tmp_path / "x.jsonl")
    assert result.exit_code == 0, result.output
    ids = [record["id"] for record in read_lines(tmp_path / "x.jsonl")]
    assert ids == [f"{path}:1", f"{path}:2", 10**30, "[1]"]


def test_read_texts_nan_id_is_file_and_line(tmp_path: Path) -> None:
    table = pa.table({"id": [1.0, math.nan], "text": ["it", "it"]})
    pq.write_table(table, tmp_path / "texts.parquet")
    found = [key for _, key in read_texts([tmp_path / "texts.parquet"], Settings())]
    assert found == ["1.0", f"{tmp_path / 'texts.parquet'}:2"]


def test_read_texts_text_over_max_length_raises(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc\n")
    (tmp_path / "b.txt").write_text("abcd\n")
    found = read_texts([tmp_path / "a.txt", tmp_path / "b.txt"], Settings(), max_length=3)
    assert next(found)[0] == "abc"
    with pytest.raises(InputError, match=r"b\.txt, line 1: expected at most 3 characters, got 4"):
        next(found)


@pytest.mark.parametrize("command", ["redact", "promise check"])
def test_redact_and_promise_check_too_long_text_prints_line_number(
    model: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "texts.txt").write_text("it\n" + "Anna " * 200_001 + "\n")
    arguments = [*command.split(), str(model / "careful"), str(tmp_path / "texts.txt")]
    arguments += [str(tmp_path / "x.jsonl")] * (command == "redact")
    result = CliRunner().invoke(app, arguments)
    place = "texts.txt, line 2" if command == "redact" else "texts.txt:2"
    expected = f"{place}: expected at most 1,000,000 characters, got 1,000,005"
    assert result.exit_code == 1 and expected in " ".join(result.stderr.split())
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("command", ["redact", "promise check"])
def test_redact_and_promise_check_failing_document_raises_despite_error_handler(
    model: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(doc: Doc) -> Doc:
        if doc[0].text == "it":
            raise RuntimeError("no such word")
        return doc

    def load(*arguments: Any) -> Language:
        nlp = spacy.load(model / "careful")
        Language.component("fail", func=fail)
        nlp.add_pipe("fail", first=True)
        renew(nlp, "crf_ner")
        nlp.set_error_handler(lambda name, pipe, docs, error: None)
        return nlp

    for module in ("annotate.redaction", "pipeline.load"):
        monkeypatch.setattr(f"spacy_crf_ner.{module}.load", load)
    (tmp_path / "texts.txt").write_text("Anna came\nit came\nAnna saw it\n")
    arguments = [*command.split(), "careful", str(tmp_path / "texts.txt")]
    arguments += [str(tmp_path / "x.jsonl")] * (command == "redact")
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, RuntimeError), result.output
    assert str(result.exception) == "no such word"
    assert not (tmp_path / "x.jsonl").exists()


def test_redact_command_changed_text_leaves_no_output(model, tmp_path, monkeypatch) -> None:
    nlp: Language = spacy.load(model / "careful")
    nlp.tokenizer = lambda text: Doc(nlp.vocab, text.split())
    renew(nlp, "crf_ner")
    monkeypatch.setattr("spacy_crf_ner.annotate.redaction.load", lambda *arguments: nlp)
    (tmp_path / "texts.txt").write_text("it came\n\nthen   Anna saw Bonn\n")
    result = run("careful", tmp_path / "texts.txt", tmp_path / "x.jsonl")
    assert result.exit_code == 1 and "texts.txt:3: the tokenizer changes the text" in result.stderr
    assert "Anna" not in result.output and not (tmp_path / "x.jsonl").exists()
