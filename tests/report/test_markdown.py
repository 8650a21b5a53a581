"""The report: its files against the figures, Markdown against a parser of it, and the command."""

import json
import re
import shutil
from functools import partial
from typing import Any

import pytest
import spacy
import srsly
from markdown_it import MarkdownIt
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from typer.testing import CliRunner

from helpers import LEARNED
from html_pages import Page
from pipelines import TOK2VEC, example_of, make_examples, small, train, write_docs
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation import compare, evaluate
from spacy_crf_ner.evaluation.error_analysis import CONTEXT
from spacy_crf_ner.pipeline.annotation import add_confidence_extension
from spacy_crf_ner.report import write_report
from spacy_crf_ner.report.html import report_page
from spacy_crf_ner.report.markdown import escape, markdown

NOISY = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "PER")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(0, 2, "LOC"), (7, 11, "LOC")]),
]
LOG = "E    #       LOSS NER  ENTS_F  SCORE \n---  ------  --------  ------  ------\n"
LOG += "  0       0     41.50    1.25    0.01\n  3     200      1.25   75.00    0.75\n"
# What would be markup in a table, in HTML, or in a link.
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a|b",
    "`code`",
    "**bold** *it* _under_ __twice__ in_the_word",
    "[link](http://example.org)",
    "![image](http://example.org/x.png)",
    "~~struck~~",
    "http://example.org www.example.org me@example.org <http://example.org>",
    "&lt;b&gt; &amp; &#124; \\| \\\\ \\",
    "$x^2$ :smile:",
    "tab\there",
    "#1 # two #",
)  # fmt: skip
FILES = ["report.html", "documents.html", "report.md", "report.json"]
runner = CliRunner()
DASH = "\N{EN DASH}"


def rendered(text: str) -> Page:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return Page(parser.render(text).replace(DASH, "-"))


def hostile() -> list[Example]:
    """Docs whose text and labels would be markup."""
    return [
        example_of([text, "and", text], [(0, 1, text), (2, 3, text)], [(0, 1, "OTHER")], [0.9])
        for text in HOSTILE
    ]


@pytest.fixture(scope="module", autouse=True)
def confidences():
    add_confidence_extension()


@pytest.fixture(scope="module")
def both():
    """The examples of two pipelines."""
    gold = [(0, 1, "A"), (2, 4, "B")]
    wrong = [(0, 1, "A"), (2, 3, "B")]
    examples, others = (
        [example_of("abcd", gold, predicted, [0.9, 0.8]) for _ in range(6)]
        for predicted in (gold, wrong)
    )
    examples[0].predicted.ents = []
    return examples, others


@pytest.fixture(scope="module")
def figures(both):
    """Figures that have all there may be but the transitions."""
    examples, others = both
    one, two = (evaluate(each, model=name, data="dev", resamples=99) for each, name in (
        (examples, "one"), (others, "two")
    ))  # fmt: skip
    one["training"] = [{"step": i, "epoch": 0, "losses": {"ner": None if i else 9.5},
                        "scores": {"ents_f": 1.0 * i}} for i in range(100)]  # fmt: skip
    return compare(one, examples, two, others, resamples=99)


# Markdown


def test_markdown_escapes_text_and_labels():
    figures = evaluate(hostile(), model=HOSTILE[0], data=HOSTILE[4], resamples=2)
    page = rendered(markdown(figures))
    assert set(page.tags) == {
        "h1", "h2", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "b",
    }  # fmt: skip
    assert f"The 20 most certain of {2 * len(HOSTILE)} errors, with" in markdown(figures)
    # The bold ones are ours.
    assert page.tags.count("b") == 20 and page.tags.count("strong") == 3
    cells = {cell for row in page.rows for cell in row}
    for text in HOSTILE:
        shown = text.replace("\t", " ")
        after = f" and {shown} "
        if len(after) > CONTEXT:  # no part of a word
            after = after[: CONTEXT + 1].rpartition(" ")[0]
        after = after.rstrip()
        assert shown in cells
        assert shown + after in cells
        assert f"{shown} ({shown})" in cells
    assert {len(row) for row in page.rows if row[0] in HOSTILE} <= {6, len(HOSTILE) + 3}


@pytest.mark.parametrize("text", HOSTILE)
def test_escape_keeps_text_in_one_cell(text):
    page = rendered(f"| a | b |\n|---|---|\n| {escape(text)} | c |\n")
    assert page.rows == [["a", "b"], [" ".join(text.split()), "c"]]
    assert escape(" a\n\n| b\r\nc\u2028d ") == "a &#124; b c d"
    # What links addresses by itself finds none.
    assert not any(part in escape(text) for part in ("http:", "www.", "@"))


def test_markdown_tables_match_figures(figures):
    page = rendered(markdown(figures))
    (mean,) = (row for row in page.rows if row[0] == "micro mean")
    assert mean[1] == "100.0 (72.2-100.0)" and mean[4:] == ["12", "10"]  # Wilson's
    assert mean[3].startswith("90.9 (")  # 10 of 10 are right, of 12
    assert f"F1, old **{mean[3]}**" in markdown(figures).replace(DASH, "-")
    assert "The 2 most certain of 2 errors, with" in markdown(figures)
    assert ["missed", "-", "a (A)", "-", "a b c d", "0"] in page.rows


def test_every_table_of_the_page_is_in_the_markdown(figures):
    """The page has the cells that Markdown has; small letters there are brackets here."""

    def words(rows: list[list[str]]) -> list[list[str]]:
        return [[re.sub(r"[()\s]+", " ", cell).strip() for cell in row] for row in rows]

    in_markdown = words(rendered(markdown(figures)).rows)
    in_page = words(Page(report_page(figures).replace(DASH, "-")).rows)
    assert len(in_page) > 60
    for row in in_page:
        # The last column of the scores of each label is a drawing.
        assert row in in_markdown or row[:-1] in in_markdown


def test_markdown_long_training_log_shows_20_rows(figures):
    text = markdown(figures)
    assert "20 of 100 evaluations" in text
    page = rendered(text)
    logged = [row for row in page.rows if len(row) == 4 and row[1] == "0" and row[0].isdecimal()]
    assert len(logged) == 20
    assert logged[0] == ["0", "0", "9.50", "0.00"]
    assert logged[-1] == ["99", "0", "-", "99.00"]


def test_markdown_omits_sections_without_data():
    eg = example_of(["a", "b"], [(0, 1, "A")], [])
    text = markdown(evaluate([eg], model="m", data="d", resamples=2))
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Evaluation report",
        "## Labels",
        "## Matching",
        "## Confusion",
        "## Errors",
    ]
    assert "| A | - | 0.0 (0.0-79.3) | 0.0 (0.0-88.5) | 1 | 0 |" in text.replace(DASH, "-")


# The files


def test_write_report_json_equals_figures(figures, both, tmp_path):
    paths = write_report(figures, tmp_path / "new" / "report", *both)
    assert [path.name for path in paths] == FILES
    assert sorted(paths) == sorted((tmp_path / "new" / "report").iterdir())
    html, documents, text, figures_file = (path.read_text(encoding="utf-8") for path in paths)
    assert html.startswith("<!DOCTYPE html>")
    assert documents.count("<article") == 6
    assert text == markdown(figures)
    assert json.loads(figures_file) == figures
    before = [path.read_bytes() for path in paths]
    write_report(figures, tmp_path / "new" / "report", *both)  # replaces it
    assert [path.read_bytes() for path in paths] == before


def test_write_report_keeps_non_ascii_letters(tmp_path):
    eg = example_of(["Hà", "Nội"], [(0, 2, "Địa")], [])
    # The half of a character, as in the name of a folder that is not UTF-8.
    figures = evaluate([eg], model="m\udcff", data="d", resamples=2)
    for path in write_report(figures, tmp_path, [eg]):
        text = path.read_text(encoding="utf-8")
        assert "Hà Nội" in text and "Địa" in text and "m?" in text


def test_write_report_failure_writes_nothing(figures, tmp_path, monkeypatch):
    def fails(figures: dict[str, Any]) -> str:
        raise ValueError("no page")

    monkeypatch.setattr("spacy_crf_ner.report.report_page", fails)
    with pytest.raises(ValueError, match="no page"):
        write_report(figures, tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


# The command


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    """A trained pipeline, `model`, gold docs, `dev.spacy`, and one that learned these, `other`."""

    def make(sentences: Any) -> Language:
        nlp = small()
        train(nlp, make_examples(nlp, sentences))
        return nlp

    root = tmp_path_factory.mktemp("report")
    for name, sentences in (("model", LEARNED), ("other", NOISY)):
        shutil.copytree(shared(f"report-{name}", partial(make, sentences)), root / name)
    write_docs(root / "dev.spacy", NOISY)
    (root / "log.txt").write_text(LOG, encoding="utf-8")
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(root / "sentencizer")
    DocBin(docs=[nlp("Anna saw Bonn")]).to_disk(root / "bare.spacy")
    return root


def run(*arguments: Any) -> tuple[int, str]:
    result = runner.invoke(app, ["report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command_writes_a_report(folder, tmp_path):
    out = tmp_path / "out"
    code, output = run(folder / "model", folder / "dev.spacy", out)
    assert code == 0, output
    figures = json.loads((out / "report.json").read_text(encoding="utf-8"))
    # Found are Anna (PER), Bonn (LOC), Bonn (LOC) and Anna (PER): 2 of them right, of 5.
    micro = figures["matching"]["strict"]["micro"]
    assert (micro["precision"], micro["recall"]) == (0.5, 0.4)
    low, high = figures["intervals"]["micro"]["f1"]
    assert f"Micro F1: 44.4 ({100 * low:.1f} to {100 * high:.1f})" in output
    for name in FILES:
        assert str(out / name) in output.replace("\n", "")
    assert f"Next: open {out / 'report.html'} in a browser" in output
    assert figures["model"] == str(folder / "model")
    assert figures["data"] == str(folder / "dev.spacy")
    assert figures["reliability"]["entities"] == 4 and figures["comparison"] is None
    assert figures["calibration"] == "Confidences: not calibrated"
    assert figures["calibration"] in output.splitlines()
    assert "Confidences: not calibrated" in (out / "report.md").read_text()
    assert "U-PER" in figures["transitions"]["tags"]
    (error,) = [each for each in figures["errors"]["list"] if each["kind"] == "missed"]
    assert 0 < error["gold_probability"] < 0.5 and error["gold"]["text"] == "it"


def test_the_command_compares_and_reads_the_log(folder, tmp_path):
    code, output = run(
        folder / "model", folder / "dev.spacy", tmp_path,
        "--compare", folder / "other", "--training-log", folder / "log.txt",
    )  # fmt: skip
    assert code == 0, output
    figures = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [row["step"] for row in figures["training"]] == [0, 200]
    comparison = figures["comparison"]
    assert comparison["model"] == str(folder / "other")
    mine, theirs = (each["matching"]["strict"]["micro"]["recall"]
                    for each in (figures, comparison["other"]))  # fmt: skip
    difference = comparison["difference"]["micro"]["recall"]["difference"]
    assert difference == pytest.approx(theirs - mine) and mine < theirs
    scores = [
        100 * each["matching"]["strict"]["micro"]["f1"] for each in (figures, comparison["other"])
    ]
    said = " ".join(output.split())
    assert f"Micro F1, new minus old: {scores[1] - scores[0]:+.1f} (" in said
    for name, model, score in zip(("old", "new"), ("model", "other"), scores):
        assert re.search(rf"F1, {name}: {score:.1f} \([^)]*\) {folder / model} ", said)


@pytest.mark.parametrize("command", ["report", "calibrate", "review --folds 0"])
def test_gold_whose_labels_are_all_unknown_is_refused(folder, tmp_path, command):
    task = {"text": "Anna saw Bonn", "spans": [{"start": 0, "end": 4, "label": "CUSTOMER"}]}
    srsly.write_jsonl(tmp_path / "dev.jsonl", [task])
    paths = [str(each) for each in (folder / "model", tmp_path / "dev.jsonl", tmp_path / "out")]
    result = runner.invoke(app, [*command.split(), *paths])
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert "The corpus has 1 (CUSTOMER); the pipeline has 2 (LOC, PER)." in line
    assert not (tmp_path / "out").exists()


def test_report_command_accepts_spacy_ner(folder, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("ner", config={"model": {"tok2vec": TOK2VEC}})
    train(nlp, make_examples(nlp, LEARNED), steps=2)
    nlp.to_disk(tmp_path / "model")
    write_docs(tmp_path / "d.spacy", NOISY)
    code, output = run(tmp_path / "model", tmp_path / "d.spacy", tmp_path / "out")
    assert code == 0, output
    figures = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert figures["gold"] == 5
    for name in ("reliability", "thresholds", "coverage", "transitions", "training", "comparison"):
        assert figures[name] is None
    assert all(error["confidence"] is None for error in figures["errors"]["list"])
    named = spacy.load(folder / "model")
    named.rename_pipe("crf_ner", "ner")
    named.to_disk(tmp_path / "named")
    arguments = "--component", "ner", "--compare", tmp_path / "model"
    code, output = run(tmp_path / "named", tmp_path / "d.spacy", tmp_path / "out", *arguments)
    assert code == 0, output


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("sentencizer dev.spacy OUT", "got 3 by ['sentencizer'] without"),
        ("model bare.spacy OUT", "expected docs with gold entities, got 1"),
        ("model dev.spacy FILE", "expected a new or an existing folder, got a file"),
        ("model dev.spacy FILE/deep", "expected a new or an existing folder, got a file"),
        ("model dev.spacy OUT --component x", "expected one of ['crf_ner'], got x"),
        ("model dev.spacy OUT --training-log dev.spacy", "dev.spacy, line 1: expected one table"),
        ("model dev.spacy OUT --training-log missing", "missing"),
        ("missing dev.spacy OUT", "missing"),
        ("model dev.spacy OUT --compare missing", "missing"),
        ("model missing.spacy OUT", "missing.spacy"),
    ],
)
def test_report_command_bad_argument_prints_one_line_error(
    arguments, says, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder)
    (tmp_path / "file").touch()
    paths = arguments.replace("OUT", str(tmp_path / "out")).replace("FILE", str(tmp_path / "file"))
    code, output = run(*paths.split())
    assert code == 1 and "Traceback" not in output
    (error,) = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert says in error
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]
