"""The script for GPUs, on a CPU: what each step measures, and its time limit."""

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import spacy
import torch

from benchmarks import common, gpu
from benchmarks.gpu import DTYPES, PARTS, Sizes, limited, main
from benchmarks.systems import PEERS, trainees
from pipelines import make_examples

KINDS = ("sentences", "ten sentences", "2,000 words")
SIZES = Sizes((20, 40), 40, 1, 0.003, {})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round, and no measure of which dtype is fast."""
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    monkeypatch.setattr("spacy_crf_ner.ml.shim.fastest_dtype", lambda *args, **kwargs: "fp32")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    docs = [eg.reference for eg in make_examples(spacy.blank("en")) if len(eg.x)]
    for part in ("train", "dev", "test"):
        common.write_docs(docs, tmp_path / "corpus" / f"{part}.spacy")
    return common.converted(tmp_path / "corpus", tmp_path)


class Inside:
    """A system in this process."""

    def __init__(self, system: Any) -> None:
        if system.venv:
            raise RuntimeError(f"No module named {system.venv!r}")
        from spacy_pipeline import SpacyPipeline  # type: ignore[import-not-found]

        self.system = SpacyPipeline()
        self.system.batch_sizes = (32,)

    def ask(self, name: str, *arguments: Any) -> Any:
        *rest, last = arguments or (None,)
        settings = last if isinstance(last, dict) else {}
        plain = rest if settings or not arguments else arguments
        return getattr(self.system, name)(*plain, **settings)


@pytest.mark.parametrize("step", ["training", "prediction"])
def test_each_system_is_measured_or_skipped_with_the_reason(
    step: str, corpus: Path, tiny_transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PEERS)
    monkeypatch.setattr(
        common, "document_sets", lambda texts, share: dict.fromkeys(KINDS, texts[:2])
    )
    lines = list(gpu.STEPS[step](Inside, corpus, tiny_transformer, SIZES))
    skipped = {line["system"]: line["skipped"] for line in lines if "skipped" in line}
    rest = [line for line in lines if "skipped" not in line]
    names = {each.name for each in trainees(tiny_transformer)}
    if step == "training":
        expected = {(name, size) for name in names - {*skipped} for size in SIZES.batches}
        assert {(line["system"], line["padded_words"]) for line in rest} == expected
        assert skipped.keys() == {"EDS-NLP", "EDS-NLP, float32"}
    else:
        own = {(name, dtype) for name in DTYPES for dtype in DTYPES[name] if name not in skipped}
        found = {(line["system"], line["dtype"], line["documents"]) for line in rest}
        assert found == {(*each, kind) for each in own for kind in KINDS} and len(own) == 5
        assert skipped.keys() == {"EDS-NLP"}
    assert {*skipped.values()} == {"No module named 'edsnlp'"}
    assert len(rest) == len({str(line) for line in rest})
    assert all(0 < line["min"] <= line["words_per_s"] <= line["max"] for line in rest)
    assert all(line["peak_mb"] > 0 for line in rest)


def test_parts_of_an_update_are_measured(
    corpus: Path, tiny_transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    lines = list(gpu.parts(Inside, corpus, tiny_transformer, SIZES))
    assert [line["padded_words"] for line in lines] == [20, 40]
    for line in lines:
        assert set(line["ms"]) == {"whole, without waits", *PARTS, "the rest"}
        assert all(ms > 0 for part, ms in line["ms"].items() if part != "the rest")


@pytest.mark.slow
def test_scores_have_a_row_for_each_batch_size_and_rate(
    corpus: Path, tiny_transformer: str
) -> None:
    lines = list(gpu.scores(Inside, corpus, tiny_transformer, SIZES))
    rates = [(line["padded_words"], round(line["rate"] / 2e-4, 3)) for line in lines]
    assert rates == [(20, 1.0), (40, 1.0), (40, 1.189), (40, 1.414)]
    assert all(line["steps"] * line["padded_words"] == 80 for line in lines)
    assert all(0.0 <= line["f1"] <= 1.0 for line in lines)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_step_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    found = limited(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"], 0.2)
    assert found["ended"] == "time limit" and found["seconds"] < 10
    child = int((tmp_path / "child").read_text())
    end = perf_counter() + 5
    while is_running(child):
        assert perf_counter() < end
    assert limited(["sh", "-c", "exit 3"], 5)["ended"] == 3


def test_steps_run_in_order_until_there_is_no_time_left(
    corpus: Path, tiny_transformer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    called: list[tuple[list[str], float]] = []

    def pretend(command: list[str], seconds: float) -> dict[str, Any]:
        called.append((command, seconds))
        now[0] += seconds
        return {"ended": 0}

    monkeypatch.setattr(gpu, "limited", pretend)
    monkeypatch.setattr(gpu, "perf_counter", lambda: now[0])
    settings = {"corpus": corpus, "transformer": tiny_transformer, "cpu": True}
    main(tmp_path, minutes=6, **settings)
    assert [seconds for _, seconds in called] == [150, 150, 60]
    assert [command[-1] for command, _ in called[1:]] == ["training", "prediction"]
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert lines[0]["torch"] == torch.__version__
    assert lines[-1] == {"step": "parts", "ended": "no time left"}
    called.clear()
    main(tmp_path, only="scores,parts", minutes=90, **settings)
    assert [command[-1] for command, _ in called] == ["parts", "scores"]


@pytest.mark.slow
def test_script_measures_on_a_cpu(tmp_path: Path) -> None:
    command = [sys.executable, gpu.__file__, str(tmp_path), "--cpu", "--only", "training"]
    found = limited(command, 300)
    assert found["ended"] == 0
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    measured = {line["system"] for line in lines if "words_per_s" in line}
    assert {"crf_ner", "crf_ner, float32", "spaCy ner", "spaCy ner, float32"} <= measured
    assert os.listdir(tmp_path / "logs")
