"""The command `predict`: what it reads, prints and writes. The oracle is the pipeline itself."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import spacy
from rich.cells import cell_len
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import ignore_error
from typer.testing import CliRunner, Result

from overlapping import LEARNED, TEXT, make_overlapping
from spacy_crf_ner.annotate import Settings, annotate
from spacy_crf_ner.cli import app, console, predictions
from spacy_crf_ner.extras import PACKAGES

runner = CliRunner()
TEXTS = [
    "Tim Cook visited Hanoi.",
    "Nothing in [bold]brackets[/bold] :cat:",
    "",
    "Apple is in Oslo",
]
TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color", "COLORTERM": ""}


@Language.component("fails_on_boom")
def fails_on_boom(doc: Doc) -> Doc:
    if "boom" in doc.text:
        raise ValueError("boom")
    return doc


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)


def predict(nlp: Language, *arguments: str, stdin: str | bytes = "", **env: str) -> Result:
    """Run the command with the folder of a pipeline."""
    model = nlp.path
    if model is None:
        model = Path("model")
        nlp.to_disk(model)
    return runner.invoke(app, ["predict", str(model), *arguments], input=stdin, env=env)


def printed(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def entities_of(doc: Doc) -> list[dict[str, Any]]:
    return [
        {
            "start": ent.start_char,
            "end": ent.end_char,
            "label": ent.label_,
            "confidence": pytest.approx(ent._.confidence, abs=1e-5),
        }
        for ent in doc.ents
    ]


def table_rows(result: Result, width: int = 80) -> list[list[str]]:
    """Return the cells of a table without color, whose columns begin under their heads."""
    plain = re.sub(r"\x1b\[[01]m", "", result.stdout)  # bold
    head, _, *lines, _ = plain.splitlines()
    assert "\x1b" not in plain and max(map(cell_len, plain.splitlines())) <= width
    begins = [head.index(title) for title in ("Text", "Entity", "Label", "Confidence", "Decision")]
    ends = [*begins[1:], None]
    return [[line[i:j].strip() for i, j in zip(begins, ends)] for line in lines if line.strip()]


# Inputs


def test_texts_are_printed_as_json_lines_where_no_terminal_is(trained: Language) -> None:
    result = predict(trained, *TEXTS)
    assert result.exit_code == 0, result.output
    assert printed(result) == [
        {"text": text, "id": f"text:{i}", "entities": entities_of(trained(text))}
        for i, text in enumerate(TEXTS, 1)
    ]


def test_printed_records_are_those_of_written_shards(trained: Language) -> None:
    Path("a.jsonl").write_text('{"n": 1, "text": "Tim Cook"}\n\n{"text": "in Hanoi", "id": 7}\n')
    Path("b.csv").write_text("id,text\nx,Apple\n")
    annotate(str(trained.path), ["a.jsonl", "b.csv"], "out", Settings(), workers=1)
    written = "".join(shard.read_text() for shard in sorted(Path("out").glob("part-*")))
    result = predict(trained, "a.jsonl", "b.csv")
    digits = re.compile(r"(0\.\d{4})\d+")
    assert digits.sub(r"\1", result.stdout) == digits.sub(r"\1", written)
    assert len(printed(result)) == 3 and digits.search(written)


def test_texts_files_and_stdin_are_read_in_their_order(trained: Language) -> None:
    Path("texts").mkdir()
    for name in ("texts/b.txt", "texts/a.txt", "my file.txt", "Hanoi"):
        Path(name).write_text(f"of {name}\n")
    Path("texts/c.md").write_text("not read")
    inputs = ["One text", "my file.txt", "-", "texts", "What?", "m?*.txt"]
    result = predict(trained, *inputs[:-1], stdin="Ann\r\n\nBob")
    assert [row["id"] for row in printed(result)] == [
        "text:1",
        "my file.txt:1",
        "-:1",
        "-:2",
        "-:3",
        "texts/a.txt:1",
        "texts/b.txt:1",
        "text:5",
    ]
    assert [row["text"] for row in printed(result)][2:5] == ["Ann", "", "Bob"]
    assert result.exit_code == 0
    assert "Files of other kinds, not read: 1, such as texts/c.md\n" in result.stderr
    assert [row["text"] for row in printed(predict(trained, inputs[-1]))] == ["of my file.txt"]


@pytest.mark.parametrize("name", ["none.jsonl", "NONE.CSV.GZ", "no/folder", "no*", "a.txt?.tsv"])
def test_missing_file_is_an_error_and_no_text(name: str, trained: Language) -> None:
    result = predict(trained, "Tim Cook", name)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"Error: {name} does not exist. Correct the name")


@pytest.mark.parametrize("text", ["", " ", "Hanoi?", "no/folder ", "x" * 5000, "a\0b", "see a.txt"])
def test_what_is_no_path_is_a_text(text: str, trained: Language) -> None:
    (row,) = printed(predict(trained, text))
    assert row["text"] == text


def test_file_without_the_column_of_texts_is_an_error(trained: Language) -> None:
    Path("a.jsonl").write_text('{"body": "Tim Cook"}\n')
    result = predict(trained, "a.jsonl")
    assert result.exit_code == 1 and "Set --text-column" in result.stderr
    assert printed(predict(trained, "a.jsonl", "--text-column", "body"))[0]["entities"]


def test_files_alone_need_an_extra(trained: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.txt").write_text("Hanoi")
    for package in PACKAGES["annotate"]:
        monkeypatch.setitem(sys.modules, package, None)
    assert len(printed(predict(trained, "Hanoi", "-", stdin="Hanoi\n"))) == 2
    result = predict(trained, "a.txt")
    assert result.exit_code == 1 and '".[annotate]"' in result.stderr


# Documents that fail


@pytest.mark.parametrize("env", [{}, TERMINAL])
def test_documents_that_fail_are_named_and_counted(env: dict[str, str]) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("fails_on_boom")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Hanoi"}])
    nlp.set_error_handler(ignore_error)  # it would drop documents
    Path("a.jsonl").write_text('{"text": "in Hanoi"}\nno json\n{"text": 3}\n')
    result = predict(nlp, "boom in Hanoi", "a.jsonl", "ends in Hanoi", **env)
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "text:1: ValueError: boom",
        "a.jsonl:2: expected JSON, got 'no json' (Expecting value: line 1 column 1 (char 0))",
        "a.jsonl:3: expected text in 'text', got 3",
        "Left out: 3 of 5 documents, see above.",
    ]
    assert "ends in Hanoi" in result.stdout and "boom" not in result.stdout
    if not env:
        assert [row["id"] for row in printed(result)] == ["a.jsonl:1", "text:3"]
        assert [row["entities"][0]["confidence"] for row in printed(result)] == [None, None]


# The table


def test_table_shows_confidences_as_bars_and_what_to_do(trained: Language) -> None:
    result = predict(trained, *TEXTS, "--accept", "0.99", **TERMINAL, NO_COLOR="1")
    assert result.exit_code == 0
    rows = table_rows(result)
    expected = []
    for doc in trained.pipe(TEXTS):
        for ent in doc.ents:
            decision = "accept" if ent._.confidence >= 0.99 else "ask a person"
            expected.append([ent.text, ent.label_, f"{ent._.confidence:.3f}", decision])
        if not doc.ents:
            expected.append(["none", "", "", ""])
    found = [row[1:] for row in rows if any(row[1:])]
    assert [[*row[:2], row[2][:5], row[3]] for row in found] == expected
    assert {row[3] for row in expected} == {"accept", "ask a person", ""}
    for _, _, p, _ in found:
        if p:
            assert p.count("━") + p.count("╸") / 2 == pytest.approx(8 * float(p[:5]), abs=0.26)
    assert " ".join(row[0] for row in rows).split() == " ".join(TEXTS).split()
    accepted = sum(row[3] == "accept" for row in expected)
    entities = sum(bool(row[1]) for row in expected)
    assert result.stdout.splitlines()[-1] == f"{entities} entities; {accepted} to accept"
    assert result.stderr == "Confidences: not calibrated\n"


def test_bars_are_green_for_high_confidences_and_red_for_low_ones(trained, monkeypatch) -> None:
    result = predict(trained, "Tim Cook", **{**TERMINAL, "COLORTERM": "truecolor"})
    red, green, _ = map(int, re.findall(r"38;2;(\d+);(\d+);(\d+)m━", result.stdout)[0])
    assert green > 150 > 50 > red
    red, green, _ = console.confidence_color(0.1).color.get_truecolor()  # type: ignore[union-attr]
    assert red > 150 > 100 > green
    hidden = runner.invoke(
        app, ["--no-color", "predict", str(trained.path), "Tim Cook"], env=TERMINAL
    )
    assert "━" in hidden.stdout and "38;" not in hidden.stdout
    assert "\x1b" not in predict(trained, "Tim Cook").stdout
    assert "━" not in predict(trained, "Tim Cook", "--json", **TERMINAL).stdout


def test_terminal_without_unicode_gets_bars_of_hyphens(trained: Language) -> None:
    (encoding,) = (CliRunner(charset="ascii"),)
    arguments = ["predict", str(trained.path), "Tim Cook"]
    result = encoding.invoke(app, arguments, env={**TERMINAL, "NO_COLOR": "1"})
    assert result.exit_code == 0 and " --------" in result.stdout


def test_long_texts_are_cut_in_the_table_alone(trained: Language) -> None:
    text = "nothing to see here, move along please. " * 40
    rows = table_rows(predict(trained, text, **TERMINAL, NO_COLOR="1"))
    assert len(rows) == 11 and rows[-1][0] == "..."
    assert printed(predict(trained, text))[0]["text"] == text


def test_texts_cannot_control_the_terminal(trained: Language) -> None:
    text = "\x1b[2J Tim Cook visited \x9bHanoi."
    result = predict(trained, text, **TERMINAL, NO_COLOR="1")
    assert "\x1b[2J" not in result.stdout and "\x9b" not in result.stdout
    assert printed(predict(trained, text))[0]["text"] == text


def test_table_has_a_limited_number_of_documents(trained, monkeypatch) -> None:
    monkeypatch.setattr(predictions, "PRINTED_TOGETHER", 3)
    result = predict(trained, *["Tim Cook"] * 7, **TERMINAL)
    assert result.stdout.count("Decision") == 3
    assert result.stdout.splitlines()[-1].startswith("7 entities; ")


def test_entities_without_confidences_are_printed() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Hanoi"}])
    result = predict(nlp, "Hanoi", **TERMINAL, NO_COLOR="1")
    assert table_rows(result) == [["Hanoi", "Hanoi", "GPE", "", ""]]
    assert result.stdout.splitlines()[-1] == "1 entity; 0 to accept"


def test_overlapping_entities_are_printed_with_their_probabilities() -> None:
    nlp = make_overlapping()
    result = predict(nlp, "It rains.", TEXT, **{**TERMINAL, "COLUMNS": "120", "NO_COLOR": "1"})
    doc = nlp(TEXT)
    group = doc.spans["sc"]
    scores = {
        (span.start_char, span.end_char, span.label_): f"{score:.3f}"
        for span, score in zip(group, group.attrs["scores"].tolist(), strict=True)
    }
    rows = [row for row in table_rows(result, 120) if row[1]]
    assert [[*row[1:3], row[3][:5]] for row in rows] == [
        ["none", "", ""],
        *([TEXT[i:j], label, scores[i, j, label]] for i, j, label in LEARNED[TEXT]),
    ]


# Alternatives


def test_alternatives_are_probabilities_of_the_span_before_prediction(trained: Language) -> None:
    (row,) = printed(predict(trained, TEXTS[0], "--alternatives"))
    ner: Any = trained.get_pipe("crf_ner")
    for entity in row["entities"]:
        doc = trained.make_doc(TEXTS[0])
        spans = [doc.char_span(entity["start"], entity["end"], label) for label in ner.labels]
        p = dict(zip(ner.labels, ner.span_posteriors(doc, spans), strict=True))
        own = {i for span in spans for i in range(span.start, span.end)}
        p[None] = sum(
            labeling.probability
            for labeling in ner.nbest([doc], 2000)[0]
            if not any(token.i in own for ent in labeling.ents for token in ent)
        )
        found = {each["label"]: each["confidence"] for each in entity["alternatives"]}
        assert found == pytest.approx(p, abs=1e-4)
        assert [*found.values()] == sorted(found.values(), reverse=True)
        assert found[entity["label"]] == pytest.approx(entity["confidence"], abs=1e-5)


def test_table_shows_probable_alternatives_below_an_entity(trained, monkeypatch) -> None:
    monkeypatch.setattr(predictions, "SHOWN", 0.002)
    text = "Apple is in Oslo"
    (row,) = printed(predict(trained, text, "--alternatives"))
    result = predict(trained, text, "--alternatives", **TERMINAL, NO_COLOR="1")
    expected = []
    for entity in row["entities"]:
        expected.append([text[entity["start"] : entity["end"]], entity["label"]])
        expected += [
            ["", each["label"] or "nothing"]
            for each in entity["alternatives"]
            if each["label"] != entity["label"] and each["confidence"] >= 0.002
        ]
    assert [row[1:3] for row in table_rows(result)] == expected
    assert ["", "nothing"] in expected


def test_alternatives_of_entities_that_the_component_has_not_predicted_are_null(trained) -> None:
    nlp = spacy.blank("en", vocab=trained.vocab)
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "BRAND", "pattern": "Hanoi"}])
    nlp.add_pipe("crf_ner", source=trained)
    (row,) = printed(predict(nlp, TEXTS[0], "--alternatives"))
    person, brand = row["entities"]
    assert person["alternatives"][0]["label"] == "PERSON"
    assert brand["label"] == "BRAND" and brand["alternatives"] is None


@pytest.mark.parametrize("kind", ["overlapping", "none", "two"])
def test_alternatives_need_one_flat_component(kind: str, trained: Language) -> None:
    nlp = make_overlapping() if kind == "overlapping" else spacy.blank("en", vocab=trained.vocab)
    for name in ("a", "b") if kind == "two" else ():
        nlp.add_pipe("crf_ner", name=name, source=trained)
    result = predict(nlp, "Oslo", "--alternatives")
    got = {"overlapping": "one whose entities may overlap", "none": "none", "two": "a, b"}[kind]
    assert result.exit_code == 1 and result.stdout == ""
    assert f"This pipeline has {got}. Leave out --alternatives.\n" in result.stderr


# Output


def test_output_is_that_of_annotate(trained: Language) -> None:
    Path("a.txt").write_text("Tim Cook\n\nHanoi\n")
    annotate(str(trained.path), ["a.txt"], "expected", Settings(shard_size=2), workers=1)
    options = ["--output", "out", "--shard-size", "2", "--workers", "1"]
    result = predict(trained, "a.txt", *options)
    assert result.exit_code == 0, result.output
    for shard in Path("expected").glob("part-*"):
        assert (Path("out") / shard.name).read_bytes() == shard.read_bytes()
    first, *_, time = result.stdout.splitlines()
    assert first == "Documents: 3 of 3" and "Shards: 2 in out" in result.stdout
    assert time.startswith("Time: ")
    again = predict(trained, "a.txt", *options, "--resume")
    assert "Shards: 2 in out, 2 of them kept" in again.stdout and "Time" not in again.stdout
    as_json = predict(trained, "a.txt", *options, "--restart", "--json")
    assert json.loads(as_json.stdout) == json.loads(Path("out", "summary.json").read_text())


def test_output_with_errors_exits_with_2_and_names_their_file(trained: Language) -> None:
    Path("a.jsonl").write_text('{"text": "Tim Cook"}\nno json\n')
    result = predict(trained, "a.jsonl", "-o", "out")
    assert result.exit_code == 2
    assert "Documents: 1 of 2\n" in result.stdout
    assert "Left out: 1, see out/errors.jsonl\n" in result.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["Hanoi", "--format", "spacy"], "--format is for files that are written. Add --output"),
        (["Hanoi", "--workers", "0"], "--workers is for files that are written. Add --output"),
        (["Hanoi", "--gpu-id", "0,1"], "--gpu-id 0,1: several GPUs need --output"),
        (["a.txt", "-o", "out", "--accept", "0.9"], "--accept is for what is printed"),
        (["a.txt", "-o", "out", "--alternatives"], "--alternatives is for what is printed"),
        (["a.txt", "Hanoi", "-o", "out"], "'Hanoi' is a text, but --output is for files"),
        (["-", "-o", "out"], "'-' is the standard input, but --output is for files"),
        (["b.txt", "-o", "out"], "b.txt does not exist. Correct the name"),
        (["a.txt", "-o", "out"], "model: expected the folder of a pipeline, or the name of"),
        (["a.csv", "-o", "out"], "a.csv: expected a column 'text', got the columns a. Set --t"),
        (["a.txt", "-o", "out", "--format", "xml"], "format: expected one of jsonl, parquet"),
        (["a.txt", "-o", "out", "--engine", "hadoop"], "--engine: expected one of local, ray, got"),
        (["a.txt", "--gpu-id", "one"], "--gpu-id: expected numbers such as 0,1,2, got 'one'"),
        (["a.txt", "-o", "out", "--resume", "--restart"], "expected one of --resume and --restart"),
        (["a.txt", "Hanoi", "./a.txt"], "a.txt: expected every file once, got it also as a.txt"),
    ],
)
def test_options_that_do_not_fit_print_one_line(arguments: list[str], says: str) -> None:
    Path("a.txt").write_text("Hanoi")
    Path("a.csv").write_text("a\n1\n")
    result = runner.invoke(app, ["predict", "no-model", *arguments])
    assert result.exit_code == 1 and result.stderr.startswith(f"Error: {says}")
    assert result.output.count("\n") == 1 and not Path("out").exists()


# How it ends


def test_predict_missing_gpu_prints_error(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("spacy_crf_ner.ml.hardware.gpu_problems", lambda: ["CuPy is missing."])
    result = runner.invoke(app, ["predict", str(tmp_path), "text", "--gpu-id", "0"])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert (
        "Error: expected a GPU with the number 0, got none that can be used. CuPy" in result.output
    )
    assert "CuPy is missing." in runner.invoke(app, ["info"]).output


def test_predict_unloadable_pipeline_prints_error(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path)
    config = tmp_path / "config.cfg"
    config.write_text(config.read_text("utf-8").replace("BiLSTMCRF.v1", "Unknown.v9"), "utf-8")
    result = runner.invoke(app, ["predict", str(tmp_path), "text"])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert f"Error: {tmp_path}: expected a pipeline that spaCy can load" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, TERMINAL])
def test_reader_that_ends_early_sees_no_traceback(env: dict[str, str], trained: Language) -> None:
    Path("a.txt").write_text("Tim Cook visited Hanoi.\n" * 5000)
    command = [sys.executable, "-m", "spacy_crf_ner", "predict", str(trained.path), "a.txt"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **env}, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_stdin_in_utf_16_is_refused_and_a_mark_alone_is_no_document(trained: Language) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        content = "\ufeffTim Cook\nHanoi\n".encode(encoding)
        result = predict(trained, "-", stdin=content)
        assert result.exit_code == 1 and "-: expected UTF-8, got UTF-16." in result.stderr
        assert result.stdout == ""
    result = predict(trained, "-", stdin=b"\xef\xbb\xbf")
    assert (result.exit_code, result.stdout) == (0, "")


def test_data_cannot_control_the_terminal(trained: Language, tmp_path: Path) -> None:
    odd = "Tim\x9b31m Cook\x7f\x1b]0;title\x07 visited \x0eHanoi"
    source = tmp_path / "odd.jsonl"
    records = [{"text": odd}, {"\x1b]0;title\x07": "x"}]
    source.write_text("\n".join(json.dumps(each) for each in records))
    table = predict(trained, str(source), **TERMINAL)
    lines = predict(trained, str(source), "--json", **TERMINAL)
    missing = tmp_path / "with\x1b[31m.jsonl"
    error = predict(trained, str(missing), **TERMINAL)
    for result in (table, lines, error):
        own = re.sub(r"\x1b\[[\d;]*m", "", result.output)  # the colors of the program
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", own), repr(own)
    assert json.loads(lines.stdout.splitlines()[0])["text"] == odd
