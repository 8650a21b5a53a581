"""The commands write the results of the functions."""

import json
import re
import warnings
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin, Span
from typer.testing import CliRunner

from spacy_crf_ner import active_learning
from spacy_crf_ner.active_learning.label_errors import Review
from spacy_crf_ner.cli import app

SCRIPT = "<script>alert(1)</script>"


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def corpus(tmp_path):
    nlp = spacy.blank("en")
    doc = nlp.make_doc(f"Tim Cook visited Hanoi {SCRIPT}")
    doc.set_ents([doc.char_span(0, 8, "ORG"), Span(doc, 4, 5, SCRIPT)], default="outside")
    DocBin(docs=[doc]).to_disk(tmp_path / "gold.spacy")
    return tmp_path / "gold.spacy"


@pytest.fixture
def pipeline(trained, tmp_path):
    trained.to_disk(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("tool, suffix", [("prodigy", "jsonl"), ("label-studio", "json")])
def test_review_writes_page_findings_and_tasks(pipeline, corpus, tmp_path, tool, suffix):
    out = tmp_path / "o ut"
    corpus = corpus.rename(tmp_path / "r v.spacy")
    docs = [*DocBin().from_disk(corpus).get_docs(spacy.blank("en").vocab)]
    DocBin(docs=docs * 3).to_disk(corpus)
    result = run("review", pipeline, corpus, out, "--folds", 0, "--tool", tool, "--n", 2)
    assert result.exit_code == 0, result.output
    assert (out / f"tasks.{suffix}").read_text().count('"task_id"') == 2
    assert "learned" in result.output and "their errors" in result.output
    names = {"review.html", "findings.jsonl", f"tasks.{suffix}"}
    names |= {"labeling.xml"} if suffix == "json" else set()
    assert {path.name for path in out.iterdir()} == names
    page = (out / "review.html").read_text("utf-8")
    assert SCRIPT not in page and "&lt;script&gt;alert" in page
    findings = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    assert 0 < page.count("<article") == len([f for f in findings if f["doc"] < 2]) < len(findings)
    assert f"{len(findings) // 3} more are in findings.jsonl" in page
    assert "log odds" in page and min(each["log_odds"] for each in findings) > 0
    command = f"spacy-crf-ner merge answers.jsonl reviewed.spacy --into '{corpus}'"
    assert command in result.output and f"open '{out / 'review.html'}' in" in result.output


def test_review_label_studio_interface_has_gold_labels(pipeline, corpus, tmp_path):
    """Also one that the pipeline does not have, as it was trained on other texts."""
    vocab = spacy.blank("en").vocab
    docs = list(DocBin().from_disk(corpus).get_docs(vocab))
    ents = [Span(docs[0], 0, 1, "RIVER"), Span(docs[0], 1, 2, "ORG")]
    docs[0].set_ents(ents, default="outside")
    DocBin(docs=docs).to_disk(corpus)
    out = tmp_path / "out"
    result = run("review", pipeline, corpus, out, "--folds", 0, "--tool", "label-studio")
    assert result.exit_code == 0, result.output
    offered = set(re.findall('Label value="(.*?)"', (out / "labeling.xml").read_text("utf-8")))
    tasks = json.loads((out / "tasks.json").read_text("utf-8"))
    asked = {
        label
        for task in tasks
        for part in task["predictions"]
        for result in part["result"]
        for label in result["value"]["labels"]
    }
    assert "RIVER" in asked and asked <= offered


def test_review_says_what_it_trains_and_nothing_about_answers_without_places(
    pipeline, corpus, tmp_path, monkeypatch
):
    """Warnings are plain lines, each once."""

    def found(*_, **__):
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.warn("few entities", stacklevel=1)
        return Review([], [], [], 0, 0)

    monkeypatch.setattr(active_learning, "review", found)
    result = run("review", pipeline, corpus, tmp_path / "out", "--folds", 3)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        "Training: 3 pipelines, one without each fold. It takes as long as 3 trainings; "
        "--folds 0 only predicts.",
        "Warning: few entities",
    ]
    assert "Gold is probably wrong in 0 places" in result.stdout


def test_review_invalid_arguments_exit_with_1(pipeline, corpus, tmp_path):
    for arguments in (["--folds", "1"], ["--tool", "paper"]):
        result = run("review", pipeline, corpus, tmp_path / "out", *arguments)
        assert result.exit_code == 1 and "expected" in result.output
    assert run("review", pipeline, corpus, tmp_path).exit_code == 1
    assert not (tmp_path / "out").exists()


def test_suggest_excludes_merged_answers(pipeline, corpus, tmp_path, loop):
    (tmp_path / "texts.txt").write_text("Tim Cook came.\nWashington\nNothing\n")
    out = tmp_path / "tasks"
    arguments = [pipeline, tmp_path / "texts.txt", out, "--n", 3, "--random-share", 0]
    result = run("suggest", *arguments, "--strategy", "errors")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:2] == [
        "Documents: 3",
        "Tasks: 3 of 3 docs, and 0 in a random sample",
    ]
    assert result.stdout.splitlines()[-4:] == [
        str(out / name) for name in ("errors.jsonl", "sample.jsonl", "summary.json", "tasks.jsonl")
    ]
    lines = (out / "tasks.jsonl").read_text().splitlines()
    answers = [{**json.loads(line), "answer": "accept", "spans": []} for line in lines]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    merged = tmp_path / "merged.spacy"
    result = run("merge", tmp_path / "answers.jsonl", merged, "--into", corpus)
    assert result.exit_code == 0, result.output
    assert "Merged: 3 answers, 1 unchanged, 0 changed, 3 added" in result.output
    again = tmp_path / "again"
    result = run("suggest", *arguments[:2], again, "--exclude", merged)
    assert "Left out: 3 that are annotated, 0 repetitions\n" in result.stdout
    assert Path(again / "tasks.jsonl").read_text() == ""


@pytest.mark.parametrize(
    "options, says",
    [
        (["--into", "none.spacy"], "none.spacy does not exist."),
        (["--into", "none.spacy", "--min-agree", 1], "--min-agree is for inputs without --into."),
        ([], "Agreement needs two or more different inputs, got answers.jsonl."),
    ],
)
def test_merge_mistakes_print_one_line(tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    Path("answers.jsonl").write_text('{"text": "Hanoi", "spans": []}')
    result = run("merge", "answers.jsonl", "new.spacy", *options)
    assert result.exit_code == 1 and result.stderr.startswith(f"Error: {says}")
    assert len(result.stderr.splitlines()) == 1 and not Path("new.spacy").exists()


def test_merge_into_folder_writes_all_docs(corpus, tmp_path):
    folder = tmp_path / "train.spacy"  # as `convert` writes a large corpus
    folder.mkdir()
    corpus.rename(folder / "00000.spacy")
    (tmp_path / "answers.jsonl").write_text('{"text": "Hanoi", "spans": []}')
    new = tmp_path / "new.spacy"
    result = run("merge", tmp_path / "answers.jsonl", new, "--into", folder)
    assert result.exit_code == 0, result.output
    texts = [doc.text for doc in DocBin().from_disk(new).get_docs(spacy.blank("en").vocab)]
    assert texts == [f"Tim Cook visited Hanoi {SCRIPT}", "Hanoi"]


@pytest.mark.parametrize("text, is_warned", [("Tim Cook", True), ("Tim saw them in Bonn", False)])
def test_suggest_warns_if_tasks_are_too_short_to_judge(pipeline, tmp_path, loop, text, is_warned):
    (tmp_path / "texts.txt").write_text(f"{text}\nWashington {text}\nBonn {text}\n")
    result = run("suggest", pipeline, tmp_path / "texts.txt", tmp_path / "out")
    assert result.exit_code == 0
    assert ("half of the tasks have fewer than 5 tokens" in result.stderr) == is_warned


@pytest.mark.parametrize("max_per_surface, left_out", [(2, 4), (0, 0), (6, 0)])
def test_suggest_warns_if_the_limit_of_repeats_leaves_out_tasks(
    model, tmp_path, loop, max_per_surface, left_out
):
    (tmp_path / "texts.txt").write_text("10\n11\n12\n13\n14\n15\n")
    limit = ("--n", 6, "--random-share", 0, "--max-per-surface", max_per_surface, "--json")
    result = run("suggest", model, tmp_path / "texts.txt", tmp_path / "out", *limit)
    assert result.exit_code == 0
    assert ("Warning: 2 of 6 tasks. --max-per-surface 2 left out 4 more" in result.stderr) == bool(
        left_out
    )
    assert json.loads(result.stdout)["over_max_per_surface"] == left_out
    # The limit is not blamed for what the budget leaves out.
    result = run("suggest", model, tmp_path / "texts.txt", tmp_path / "b", *limit, "--budget", 1)
    assert json.loads(result.stdout)["over_budget"] > 0 and "--max-per-surface" not in result.stderr


def test_review_and_report_refuse_the_name_of_a_file_as_folder(pipeline, corpus, tmp_path):
    for command, name in (("review", "found.jsonl"), ("report", "report.html")):
        result = run(command, pipeline, corpus, tmp_path / name)
        assert result.exit_code == 1 and "name of a file" in result.output
        assert not (tmp_path / name).exists()


def test_suggest_unreadable_record_exits_with_2(pipeline, tmp_path, loop):
    (tmp_path / "texts.jsonl").write_text('{"text": "Tim Cook"}\n{"text": 3}\n')
    result = run("suggest", pipeline, tmp_path / "texts.jsonl", tmp_path / "out")
    assert result.exit_code == 2, result.output
