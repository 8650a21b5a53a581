"""The command line: what it prints, and how it ends."""

import io
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from spacy.schemas import ConfigSchema
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import ignore_error, registry
from thinc.api import Config
from typer.main import get_command
from typer.testing import CliRunner

from spacy_crf_ner.cli import PANELS, app, main
from spacy_crf_ner.cli.gold_corpus import annotate_examples
from spacy_crf_ner.input_error import CorpusError
from spacy_crf_ner.training.config_file import check_corpora

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
runner = CliRunner()


def test_convert_writes_files_and_counts(tmp_path: Path) -> None:
    source = tmp_path / "corpus.conll"
    source.write_text("".join(f"Anna B-PER\nsaw O\nit{i} B-[red]:cat:\n\n" for i in range(20)))
    result = runner.invoke(app, ["convert", str(source), str(tmp_path / "out"), "--n-sents", "2"])
    assert result.exit_code == 0
    assert "Format: conll" in result.output
    rows = [line.replace("│", " ").split() for line in result.output.splitlines()]
    assert ["docs", "8", "1", "1"] in rows
    assert ["sentences", "16", "2", "2"] in rows
    assert ["tokens", "48", "6", "6"] in rows
    assert ["entities", "32", "4", "4"] in rows
    # A label is text, not markup.
    assert ["entities.[red]:cat:", "16", "2", "2"] in rows
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["dev.spacy", "test.spacy", "train.spacy"]


def test_convert_uses_split_and_seed(tmp_path: Path) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("".join(f"[Anna](PER) came {i}\n" for i in range(20)))

    def convert(*options: str) -> bytes:
        arguments = ["convert", str(source), str(tmp_path), "--overwrite", *options]
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return (tmp_path / "train.spacy").read_bytes()

    assert convert("--split", "0.5,0.5") == convert("--split", "0.5, 0.5", "--seed", "0")
    assert not (tmp_path / "test.spacy").exists()
    assert convert("--split", "0.5,0.5") != convert("--split", "0.5,0.5", "--seed", "1")
    assert convert("--format", "inline", "--lang", "vi")


@pytest.mark.parametrize(
    "options, says",
    [
        (["--format", "json"], "expected auto, inline, conll, table, pubtator, webanno, "),
        (["--lang", "klingon"], "expected a language of spaCy, got 'klingon'"),
        (["--split", "most,some"], "--split: expected shares such as 0.8,0.1,0.1, got 'most,some'"),
        (["--split", "0.9,0.9"], "expected fractions that sum to 1"),
        ([], "corpus.txt, line 2: expected [text](LABEL), neither of them empty"),
    ],
)
def test_convert_bad_option_or_corpus_prints_error(
    options: list[str], says: str, tmp_path: Path
) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("[Anna](PER) came .\n" + ("" if options else "[Bob came .\n"))
    result = runner.invoke(app, ["convert", str(source), str(tmp_path / "out"), *options])
    assert result.exit_code == 1
    assert f"Error: {source.parent}" in result.output or options
    assert says in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bug", [KeyError("bug"), ValueError("operands could not be broadcast")])
def test_convert_internal_error_is_not_printed_as_user_error(
    bug: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*path: Path, columns: list[int]) -> str:
        raise bug

    monkeypatch.setattr("spacy_crf_ner.data.detect_format", fail)
    result = runner.invoke(app, ["convert", "a", "b"])
    assert result.exception is bug
    assert "Error:" not in result.output


def test_debug_option_raises_user_error(tmp_path: Path) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("[Bob](PER) came [.\n")
    arguments = ["convert", str(source), str(tmp_path / "out")]
    hidden, shown = (runner.invoke(app, [*options, *arguments]) for options in ([], ["--debug"]))
    assert hidden.exit_code == shown.exit_code == 1
    assert len(hidden.stderr.splitlines()) == 1 and hidden.stderr.startswith("Error: ")
    assert isinstance(hidden.exception, SystemExit)  # without a traceback
    assert isinstance(shown.exception, CorpusError)


def test_help_is_plain_text() -> None:
    assert "convert" in runner.invoke(app, ["--help"]).output
    output = runner.invoke(app, ["convert", "--help"]).output
    assert "[Tim Cook](PERSON) visited [Hanoi](GPE)." in output
    assert "One of auto, inline, conll, table, pubtator," in output


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )


@pytest.mark.slow
def test_package_run_as_module_prints_one_line_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    result = run("-m", "spacy_crf_ner", "convert", str(missing), str(tmp_path / "out"))
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ") and str(missing) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_convert_of_gmb_prints_nothing_to_stderr(tmp_path: Path) -> None:
    source = str(HERE / "fixtures" / "gmb.csv")
    options = ["--split", "0.34,0.33,0.33"]
    result = runner.invoke(app, ["convert", source, str(tmp_path / "out"), *options])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Format: table" in result.stdout
    assert (tmp_path / "out" / "dev.spacy").exists()


@pytest.mark.parametrize("first", [True, False])
def test_annotate_examples_failing_doc_keeps_entities_aligned(first: bool) -> None:
    nlp = spacy.blank("en")

    @Language.component("cli_test_finds_the_first_word")
    def finds(doc: Doc) -> Doc:
        doc.ents = [Span(doc, 0, 1, doc[0].text)]
        return doc

    @Language.component("cli_test_sometimes_fails")
    def fails(doc: Doc) -> Doc:
        if doc.text == "boom":
            raise RuntimeError("this doc cannot be read")
        return doc

    nlp.add_pipe("cli_test_finds_the_first_word")
    nlp.add_pipe("cli_test_sometimes_fails", **({"first": True} if first else {"last": True}))
    nlp.set_error_handler(ignore_error)
    texts = ["one", "boom", "two"]
    examples = [Example(nlp.make_doc(text), nlp.make_doc(text)) for text in texts]
    annotate_examples(nlp, examples)
    found = [(eg.predicted.text, [ent.label_ for ent in eg.predicted.ents]) for eg in examples]
    assert found == [("one", ["one"]), ("boom", []), ("two", ["two"])]


def test_report_model_folder_not_utf_8_writes_pages(trained: Language, tmp_path: Path) -> None:
    model = tmp_path / "m\udcff"
    trained.to_disk(model)
    DocBin(docs=[trained("Tim Cook visited Hanoi.")]).to_disk(tmp_path / "gold.spacy")
    arguments = ["report", str(model), str(tmp_path / "gold.spacy"), str(tmp_path / "out")]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for name in ("report.html", "documents.html"):
        assert "/m?</dd>" in (tmp_path / "out" / name).read_text("utf-8")


def test_report_counts_right_entities_by_confidence(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path / "model")
    words = ("Tim", "Cook", "visited", "Hanoi", "in", "May", "and", "left")
    docs = [trained(" ".join(words[i:])) for i in range(8)] + [trained("Hanoi visited Tim")]
    is_right = {}
    for i, doc in enumerate(docs):
        for k, ent in enumerate(doc.ents):
            is_right[i, k] = ent._.confidence, (i + k) % 2 == 0
        doc.set_ents([ent for k, ent in enumerate(doc.ents) if is_right[i, k][1]])
    DocBin(docs=docs).to_disk(tmp_path / "gold.spacy")
    paths = [str(tmp_path / each) for each in ("model", "gold.spacy", "out")]
    result = runner.invoke(app, ["report", *paths])
    assert result.exit_code == 0, result.output
    rows = [line for line in result.output.splitlines() if line.startswith("│")]
    shown = [re.findall(r"[\d.]+", line) for line in rows]
    cells = {row[0]: [int(each) for each in row[2:4]] for row in shown}
    for low, high in ((0.95, 2.0), (0.9, 0.95), (0.8, 0.9), (0.5, 0.8), (0.0, 0.5)):
        own = [right for p, right in is_right.values() if low <= p < high]
        assert cells[f"{low:.2f}"] == [len(own), sum(own)]
    sure = [right for p, right in is_right.values() if p >= 0.95]
    said = f"Of the {len(sure)} entities with a confidence of at least 0.95, {sum(sure)} are right."
    assert said in result.output and is_right


def test_next_command_quotes_paths(tmp_path: Path) -> None:
    sources, merged = [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "merged corpus.spacy"
    for source in sources:
        source.write_text("[Anna](PER) came\n")
    result = runner.invoke(app, ["merge", *map(str, sources), str(merged)])
    assert result.exit_code == 0, result.output
    (command,) = re.findall("Next: (.*)", result.stderr)
    assert shlex.split(command) == ["spacy-crf-ner", "check", str(merged)]


def test_explain_refuses_a_folder_as_page_before_it_loads(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = runner.invoke(app, ["explain", "MODEL", "text", "--html", str(tmp_path)])
    assert result.exit_code == 1
    assert "expected the name of a file, got a folder" in result.output


@pytest.mark.parametrize("command", ["predict", "explain", "report"])
def test_commands_missing_pipeline_print_error(command: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    rest = ["text"] if command in ("predict", "explain") else [missing, missing]
    result = runner.invoke(app, [command, missing, *rest])
    assert result.exit_code == 1
    assert missing in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("command", ["calibrate", "report"])
def test_commands_unreadable_corpus_print_one_line_error(
    command: str, trained: Language, tmp_path: Path
) -> None:
    trained.to_disk(tmp_path / "model")
    (tmp_path / "gold.txt").write_text("Hanoi")
    paths = (tmp_path / part for part in ("model", "gold.txt", "out"))
    result = runner.invoke(app, [command, *map(str, paths)])
    assert result.exit_code == 1
    (error,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert "gold.txt" in error and "the nearest format is inline" in error
    assert "Traceback" not in result.output


def test_help_lists_each_command_with_its_whole_summary_in_a_panel() -> None:
    output = runner.invoke(app, ["-h"]).output
    for panel in PANELS:
        assert f"\n{panel}:\n" in output
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        summary = command.help.split("\n\n")[0]
        assert f" {name} {summary} " in f"{' '.join(output.split())} "


@pytest.mark.parametrize(
    "name",
    [*get_command(app).commands, "promise fit", "promise check"],  # type: ignore[attr-defined]
)
def test_help_of_a_command_has_an_example_and_fits_in_80_columns(name: str) -> None:
    text = runner.invoke(app, [*name.split(), "-h"], env={"COLUMNS": "80"}).output
    assert re.search(rf"Examples?[^\n]*:\n.*spacy.crf.ner {name}", text, re.DOTALL), text
    assert "\\b" not in text and "\b" not in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_check_output_escapes_characters_missing_in_encoding(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = spacy.blank("vi")
    DocBin(docs=[Doc(nlp.vocab, ["Hà_Nội"], ents=["B-Địa"])]).to_disk(tmp_path / "train.spacy")
    arguments = ["check", str(tmp_path / "train.spacy"), "--lang", "vi"]
    monkeypatch.setattr(sys, "argv", ["spacy-crf-ner", *arguments])
    written = {}
    for name in ("stdout", "stderr"):  # as those of a program in such a terminal
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, name, stream)
        written[name] = stream
    with pytest.raises(SystemExit) as ended:
        main()
    for stream in written.values():
        stream.flush()
    out, error = (stream.buffer.getvalue() for stream in written.values())  # type: ignore[attr-defined]
    assert not ended.value.code and b"Traceback" not in error, error
    assert rb"\u0110\u1ecba" in out


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["convert", "c.txt", "out.spacy", "--parquet"], "--parquet: expected a folder"),
        (["convert", "c.txt", "out", "--token-column=--1"], "c.txt: expected"),
        (["convert", "c.txt", "out", "--labels", "GPE,P\udcff"], "labels: expected UTF-8, got 'P"),
        (["convert", "c.spacy", "out", "--spans-key", "s\udcff"], "spans_key: expected UTF-8, got"),
        (["check", "c.spacy", "--transformer", "some"], "--transformer: expected --config too"),
        (["init", "-", "--transformer", ""], "--transformer: expected a local folder"),
        (["init", "out", "--cnn", "--char"], "expected one of --transformer, --cnn and --char, go"),
    ],
)
def test_commands_invalid_options_print_error(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vocab = spacy.blank("en").vocab
    DocBin(docs=[Doc(vocab, ["Hanoi"], ents=["B-GPE"])]).to_disk(tmp_path / "c.spacy")
    Path("c.txt").write_text("Hanoi B-GPE\n")
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert f"Error: {says}" in result.output
    assert not Path("out").exists()


def test_write_report_full_disk_keeps_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, all old files of the report are kept."""
    report = import_module("spacy_crf_ner.report")
    for name in ("markdown", "report_page", "documents_page"):
        monkeypatch.setattr(report, name, lambda results: results["text"])
    old = {path.name: path.read_bytes() for path in report.write_report({"text": "old"}, tmp_path)}
    write_bytes = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write_bytes(path, data[:1])
        if "html" in path.name:
            raise OSError("No space left on device")
        return len(data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        report.write_report({"text": "new"}, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_check_corpora_accepts_other_readers_without_path() -> None:
    """Also without a block of a corpus, which spaCy fills in."""
    own = {"corpora": {"train": {"@readers": "mine.v1", "path": None}, "dev": {"path": None}}}
    for config in (Config(), Config(own), Config({"corpora": {"dev": 1}})):
        check_corpora(config)


def test_invalid_config_prints_error_without_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*path: Path, columns: list[int]) -> str:
        registry.resolve({"training": {"max_steps": "many"}}, schema=ConfigSchema)
        return ""

    monkeypatch.setattr("spacy_crf_ner.data.detect_format", fail)
    (tmp_path / "a.txt").write_text("it")
    result = runner.invoke(app, ["convert", str(tmp_path / "a.txt"), str(tmp_path / "out")])
    assert isinstance(result.exception, SystemExit) and result.exit_code == 1
    assert "Error: " in result.output and "max_steps" in result.output
