"""The command `distill`."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spacy_crf_ner import distillation
from spacy_crf_ner.cli import app

runner = CliRunner()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the function, which returns `called["summary"]`."""
    counts = {"errors": 0, "in": 3, "out": 3, "model": "out/model-best"}
    found: dict[str, Any] = {"summary": counts}

    def distill(*args: Any, **settings: Any) -> Any:
        found.update(args=args, **settings)
        return found["summary"]

    monkeypatch.setattr(distillation, "distill", distill)
    return found


def test_distill_passes_several_texts_and_teachers(called: dict[str, Any]) -> None:
    words = "distill a.txt b/ out --teacher one --teacher two --config char.cfg --weight 0.8"
    words += " --text-column body --gpu-id 0,1 --dev dev.spacy"
    result = runner.invoke(app, words.split())
    assert result.exit_code == 0, result.output
    teachers, texts, output, config, settings = called["args"]
    assert (teachers, texts, output) == (["one", "two"], ["a.txt", "b/"], "out")
    assert (config, called["weight"], called["temperature"]) == ("char.cfg", 0.8, 1.0)
    assert (settings.text_column, settings.dtype) == ("body", "fp32")
    assert (called["gpu_ids"], called["dev"], called["gold"]) == ([0, 1], Path("dev.spacy"), None)


def test_distill_gold_without_texts_passes_gold(called: dict[str, Any]) -> None:
    result = runner.invoke(app, ["distill", "out", "--teacher", "one", "--gold", "train.spacy"])
    assert result.exit_code == 0, result.output
    assert called["args"][1:3] == ([], "out")
    assert called["gold"] == Path("train.spacy")


def test_documents_with_errors_give_exit_code_2(called: dict[str, Any]) -> None:
    called["summary"] |= {"errors": 2, "out": 1}
    words = ["distill", "in.txt", "out", "--teacher", "one"]
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        "Documents that the teachers read: 1 of 3",
        "Pipeline: out/model-best",
        "Failed: 2, see out/teachers/errors.jsonl",
    ]
    result = runner.invoke(app, [*words, "--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (2, called["summary"])


@pytest.mark.parametrize(
    "words, message",
    [
        ("out --teacher one", "expected INPUT, --gold or both, got only OUTPUT, out"),
        ("in.txt out --teacher one --resume --restart", "expected one of --resume and --restart"),
        ("in.txt out", "Missing option '--teacher'"),
        ("in.txt out --teacher one --dtype fp8", "expected one of auto|fp32"),
    ],
)
def test_distill_bad_usage_prints_error(words: str, message: str, called: dict[str, Any]) -> None:
    result = runner.invoke(app, ["distill", *words.split()])
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "args" not in called
