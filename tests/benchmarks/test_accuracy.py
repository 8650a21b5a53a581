"""The comparison of F1: entities match those of seqeval, the table matches pandas."""

import random
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import srsly
from seqeval.metrics.sequence_labeling import get_entities
from spacy.scorer import PRFScore

from benchmark_accuracy import SYSTEMS, _Runs, table
from benchmark_speed import PEERS, _Comparison, best_rate
from peers.system import System, bio, from_bio


def record(words: int) -> dict[str, Any]:
    """A record of one-letter tokens, with a space after each."""
    text = "a " * words
    return {"text": text, "tokens": [(2 * i, 2 * i + 1) for i in range(words)], "ents": []}


@pytest.mark.parametrize("seed", range(20))
def test_from_bio_matches_seqeval(seed: int) -> None:
    rng = random.Random(seed)
    tags = rng.choices(["O", "B-A", "I-A", "B-B", "I-B"], k=30)
    own = record(len(tags))
    found = from_bio(own, tags)
    assert found == [(2 * first, 2 * last + 1, label) for label, first, last in get_entities(tags)]
    assert from_bio(own, bio({**own, "ents": found})) == found


def rows() -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [
        {"system": system.name, "corpus": corpus, "seed": seed, "part": part, "steps": steps}
        | {"f": rng.random(), "rate": 2e-4, "evaluate_every": every, "device": device}
        for system in SYSTEMS[:3]
        for corpus in ("gmb", "wnut17", "re3d")
        for seed in range(3)
        for part in ("dev", "test")
        for steps, every in ((200, 0), (2000, 0), (2000, 100))
        for device in ("cpu", "NVIDIA H100")
    ]


def test_table_has_mean_and_standard_deviation_of_test_part() -> None:
    frame = pd.DataFrame(rows()).query("part == 'test'")
    written = table([{**rows()[0], "rate": 1e-4, "f": 7.0, "part": "test"}, *rows()])
    for budget, group in frame.groupby(["system", "steps", "evaluate_every", "device"]):
        system, steps, every, device = budget
        title = f"| {steps} steps{f', best on dev every {every}' if every else ''}, {device} |"
        of_budget = written[written.index(title) :]
        line = next(line for line in of_budget.splitlines() if line.startswith(f"| {system} |"))
        figures = [float(figure) for figure in re.findall(r"\d+\.\d", line)]
        by_corpus = 100 * group.groupby("corpus").f.agg(["mean", "std"])
        expected = [*by_corpus.loc[["wnut17", "gmb", "re3d"]].to_numpy().ravel()]
        assert figures == pytest.approx([*expected, by_corpus["mean"].mean()], abs=0.051)


def test_runs_with_other_evaluate_every_are_stored_separately(tmp_path: Path) -> None:
    runs, others = (_Runs(tmp_path, tmp_path, "minilm", 200, 0, every) for every in (0, 100))
    keys = [each.key(SYSTEMS[0], Path("gmb"), 2e-4, 0, "test") for each in (runs, others)]
    for key in keys:
        assert runs.known(key) is None
        runs.add(key, {(0, 0, 1, "A")}, {(0, 0, 1, "A")}, {})
        assert runs.known(key) is not None


def test_runs_on_other_device_are_stored_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda gpu_id: f"GPU {gpu_id}")
    runs = [_Runs(tmp_path, tmp_path, "minilm", 200, gpu_id=gpu_id) for gpu_id in (-1, 1)]
    keys = [each.key(SYSTEMS[0], Path("gmb"), 2e-4, 0, "test") for each in runs]
    assert [key["device"] for key in keys] == ["cpu", "GPU 1"]
    runs[0].add(keys[0], {(0, 0, 1, "A")}, {(0, 0, 1, "A")}, {})
    assert runs[1].known(keys[1]) is None


def test_comparison_selects_gpu_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Process:
        def __init__(self, *_: Any) -> None: ...

        def ask(self, *request: Any) -> None:
            asked.append(request)

        def stop(self) -> None: ...

    monkeypatch.setattr("benchmark_speed._Process", Process)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda gpu_id: f"GPU {gpu_id}")
    monkeypatch.setattr("benchmark_speed._python", lambda *_: Path(__file__))
    (tmp_path / "gmb").mkdir()
    system = next(each for each in SYSTEMS if each.model == "edsnlp")
    folders = []
    for gpu_id in (-1, 1, 2):
        comparison = _Comparison(tmp_path, tmp_path, 1, gpu_id)
        folders.append(comparison.trained(system.model, tmp_path / "gmb", "minilm", 200, 2e-4))
    assert [request[0] for request in asked] == ["train", *2 * ["use_gpu", "train"]]
    assert asked[1] == ("use_gpu", 1) and len({*folders}) == 3


def test_peer_f1_matches_spacy_scorer(tmp_path: Path) -> None:
    rng = random.Random(0)
    spans = [(start, start + 1, label) for start in range(20) for label in "AB"]
    gold = [{"ents": rng.sample(spans, 5)} for _ in range(30)]
    found = [rng.sample(spans, 10) for _ in range(30)]
    score = PRFScore()
    for record, ents in zip(gold, found):
        score.score_set({*ents}, {*record["ents"]})
    srsly.write_jsonl(tmp_path / "dev.jsonl", gold)

    class Finder(System):
        load = annotate = None

        def find_in_tokens(self, path: str, batch_size: int) -> Any:
            return found

    assert Finder().f1(str(tmp_path / "dev.jsonl")) == pytest.approx(score.fscore)
    assert 0.1 < score.fscore < 0.9


@pytest.mark.parametrize("every", [0, 2])
def test_hugging_face_saves_the_best_or_the_last_model(
    tmp_path: Path, tiny_transformer: str, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    for part in ("train", "dev"):
        ents = [(2 * i, 2 * i + 1, "A") for i in range(0, 12, 3)]
        srsly.write_jsonl(tmp_path / f"{part}.jsonl", 10 * [{**record(12), "ents": ents}])
    monkeypatch.syspath_prepend(str(PEERS))
    HuggingFace: Any = import_module("hugging_face").HuggingFace
    given = iter([0.2, 0.7, 0.7, 0.1])
    weights = []

    def f1(self: Any, path: str) -> float:
        assert path == str(tmp_path / "dev.jsonl") and not self.model.training
        weights.append(self.model.classifier.weight.tolist())
        return next(given)

    monkeypatch.setattr(HuggingFace, "f1", f1)
    trainee, loaded = HuggingFace(), HuggingFace()
    out = str(tmp_path / "model")
    trainee.train(str(tmp_path), out, tiny_transformer, 7, 1e-3, 0, evaluate_every=every)
    loaded.load(out)
    assert len(weights) == (4 if every else 0)  # after steps 2, 4, 6 and 7
    saved = loaded.model.classifier.weight.tolist()
    assert saved == (weights[1] if every else trainee.model.classifier.weight.tolist())
    path = str(tmp_path / "dev.jsonl")
    if not every:
        assert loaded.find_in_tokens(path, 4) == trainee.find_in_tokens(path, 4)


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.7, 1e-4, None])
def test_runs_known_returns_finished_run(tmp_path: Path, threshold: float | None) -> None:
    runs = _Runs(tmp_path, tmp_path, "minilm", 200)
    key = {"system": "spancat", "threshold": threshold}
    runs.add(key, {(0, 0, 1, "A")}, {(0, 0, 1, "A")}, {})
    known = runs.known(key)
    assert known is not None and known["f"] == 1.0
    assert runs.known({**key, "threshold": 0.35}) is None


def test_runs_with_other_transformer_are_stored_separately(tmp_path: Path) -> None:
    runs, others = (_Runs(tmp_path, tmp_path, f"models/{name}", 200) for name in ("a", "b"))
    keys = [each.key(SYSTEMS[0], Path("gmb"), 2e-4, 0, "test") for each in (runs, others)]
    runs.add(keys[0], {(0, 0, 1, "A")}, {(0, 0, 1, "A")}, {})
    assert runs.known(keys[0]) is not None and others.known(keys[1]) is None
    assert len(runs.rows()) == 1 and not others.rows()


@pytest.mark.parametrize(
    ("best", "chosen"), [(4e-4, 4e-4), (5e-4, 4e-4), (3.3e-3, 3.2e-3), (1e-5, 1.25e-5)]
)
def test_runs_best_rate_is_chosen_on_dev_for_peers_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, best: float, chosen: float
) -> None:
    """Peers get the best rate on dev, at any distance from the start; crf_ner keeps its own."""
    asked = []

    def result(self: _Runs, system: Any, corpus: Path, rate: float, seed: int, part: str) -> Any:
        asked.append((seed, part))
        return {"f": -abs(rate - best)}

    monkeypatch.setattr(_Runs, "result", result)
    runs = _Runs(tmp_path, tmp_path, "minilm", 200)
    ours, theirs = SYSTEMS[:2]
    assert runs.best_rate(ours, tmp_path, 7) == 2e-4 and not asked
    assert runs.best_rate(theirs, tmp_path, 7) == pytest.approx(chosen)
    assert {*asked} == {(7, "dev")}


def test_best_rate_without_improvement_returns_start() -> None:
    assert best_rate(4e-4, lambda rate: 0.0) == 4e-4
