"""The command `distill`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import spacy
from spacy.language import Language
from thinc.api import Config
from typer.testing import CliRunner

from spacy_crf_ner import distillation
from spacy_crf_ner.cli import app

runner = CliRunner()


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the function, which returns `called["summary"]`."""
    found: dict[str, Any] = {"summary": {"errors": 0}}

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
    called["summary"] = {"errors": 3}
    result = runner.invoke(app, ["distill", "in.txt", "out", "--teacher", "one"])
    assert (result.exit_code, json.loads(result.output)) == (2, {"errors": 3})


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


@pytest.mark.slow
def test_distill_resume_after_kill_writes_equal_files(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path / "teacher")
    texts = [f"Tim Cook visited Hanoi and {i}.\n" for i in range(3000)]
    (tmp_path / "in.txt").write_text("".join(texts))
    root = Path(__file__).parents[2]
    config = Config().from_disk(root / "configs" / "cnn.cfg", interpolate=False)
    config["training"].update(max_steps=3, eval_frequency=3)
    config.to_disk(tmp_path / "short.cfg")
    command = [sys.executable, "-m", "spacy_crf_ner", "distill", "in.txt", "out"]
    command += ["--teacher", "teacher", "--config", "short.cfg", "--workers", "1"]
    settings: Any = {"cwd": tmp_path, "env": {**os.environ, "PYTHONWARNINGS": "default"}}

    subprocess.run(command, check=True, capture_output=True, **settings)
    (tmp_path / "out").rename(tmp_path / "whole")
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **settings
    )
    reports = tmp_path / "out" / "teachers" / "_progress"
    while process.poll() is None and not list(reports.glob("part-*.json")):
        sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = len(list(reports.glob("part-*.json")))
    assert not (tmp_path / "out" / "config.cfg").exists()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout[done.stdout.index("{") :])
    assert finished <= summary["resumed_shards"] < summary["shards"] == 6
    for name in (
        *[f"teachers/part-{i:06}.npz" for i in range(6)],
        "dev.spacy",
        "model-last/ner/model",
    ):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert spacy.load(tmp_path / "out" / "model-best")("Tim Cook visited Hanoi.")
