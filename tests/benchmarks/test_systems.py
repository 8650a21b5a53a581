"""The compared systems: choices on dev, entities as of seqeval, F1 as of spaCy."""

import random
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from seqeval.metrics.sequence_labeling import get_entities
from spacy.scorer import PRFScore
from spacy.tokens import DocBin
from spacy.training import Example

from benchmarks import overlapping
from benchmarks.accuracy import SYSTEMS
from benchmarks.common import Rows
from benchmarks.peers.system import System, bio, from_bio
from benchmarks.systems import (
    PEERS,
    Budget,
    Comparison,
    Runs,
    best_rate,
    in_turns,
    last_of,
)


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


@pytest.mark.parametrize("every", [0, 2])
def test_spacy_pipeline_keeps_the_best_and_the_last_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    pipeline: Any = import_module("spacy_pipeline").SpacyPipeline()

    def train(config: str, folder: str, use_gpu: int, overrides: dict[str, Any]) -> None:
        assert (config, use_gpu, overrides["system.seed"]) == ("a.cfg", -1, 3)
        assert overrides["training.eval_frequency"] == (every or 6)
        for name in ("best", "last"):
            (Path(folder) / f"model-{name}").mkdir(parents=True)
            (Path(folder) / f"model-{name}" / name).touch()

    monkeypatch.setattr("spacy.cli.train.train", train)
    out = tmp_path / "model"
    pipeline.train("corpus", str(out), "minilm", 6, 1e-3, 3, every, "a.cfg")
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*/*")}
    assert files == ({"model/best", "model.last/last"} if every else {"model/last"})


def test_decoding_for_f1_is_fitted_to_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = spacy.blank("en")
    monkeypatch.syspath_prepend(str(PEERS))
    pipeline: Any = import_module("spacy_pipeline").SpacyPipeline()
    DocBin(docs=[nlp("Ann left.")]).to_disk(tmp_path / "dev.spacy")
    nlp.config["paths"] = {"dev": str(tmp_path / "dev.spacy")}
    fitted = []

    def calibrate(own: Any, examples: list[Example], *, f_beta: float) -> None:
        fitted.append((own, [eg.text for eg in examples], f_beta))

    monkeypatch.setattr("spacy.load", lambda path: nlp)
    monkeypatch.setattr("spacy_crf_ner.evaluation.calibration.calibrate", calibrate)
    pipeline.load("model")
    assert not fitted
    pipeline.load("model", decode_for_f1=True)
    assert fitted == [(nlp, ["Ann left."], 1.0)]


def test_peer_f1_matches_spacy_scorer(tmp_path: Path) -> None:
    rng = random.Random(0)
    spans = [(start, start + 1, label) for start in range(20) for label in "AB"]
    gold = [{"ents": rng.sample(spans, 5)} for _ in range(30)]
    found = [rng.sample(spans, 10) for _ in range(30)]
    score = PRFScore()
    for each, ents in zip(gold, found):
        score.score_set({*ents}, {*each["ents"]})
    srsly.write_jsonl(tmp_path / "dev.jsonl", gold)

    class Finder(System):
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
    last = trainee.model.classifier.weight.tolist()
    assert saved == (weights[1] if every else last) and (not every or saved != last)
    if every:
        loaded.load(f"{out}.last")
        assert loaded.model.classifier.weight.tolist() == last
    path = str(tmp_path / "dev.jsonl")
    assert loaded.find_in_tokens(path, 4) == trainee.find_in_tokens(path, 4)


@pytest.mark.parametrize(
    ("best", "chosen"), [(4e-4, 4e-4), (5e-4, 4e-4), (3.3e-3, 3.2e-3), (1e-5, 1.25e-5)]
)
def test_peers_get_the_best_rate_on_dev_and_crf_ner_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, best: float, chosen: float
) -> None:
    asked = []

    def result(self: Runs, system: Any, corpus: Path, rate: float, seed: int, part: str) -> Any:
        asked.append((seed, part))
        return {"f": -abs(rate - best)}

    monkeypatch.setattr(Runs, "result", result)
    runs = Runs(Comparison(tmp_path), Rows(tmp_path / "accuracy.csv"), "minilm", 200)
    ours = next(each for each in SYSTEMS if each.name == "crf_ner")
    theirs = next(each for each in SYSTEMS if each.name == "spaCy ner")
    assert runs.best_rate(ours, tmp_path, 7) == 2e-4 and not asked
    assert runs.best_rate(theirs, tmp_path, 7) == pytest.approx(chosen)
    assert {*asked} == {(7, "dev")}
    assert best_rate(4e-4, lambda rate: 0.0) == 4e-4


def test_rates_of_earlier_runs_are_taken_and_the_last_model_of_a_training_is_a_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = Rows(tmp_path / "accuracy.csv")
    corpus = tmp_path / "gmb"
    corpus.mkdir()
    srsly.write_jsonl(corpus / "test.jsonl", [{**record(3), "ents": [[0, 1, "A"]]}])
    earlier = {"system": "spaCy ner", "corpus": "gmb", "steps": 200, "evaluate_every": 0}
    earlier |= {"transformer": "minilm", "device": "cpu", "part": "test", "rate": 5e-4}
    other = {"transformer": "large", "evaluate_every": 20, "part": "dev", "steps": 1000}
    for change in ({}, {"device": "GPU"}, *({name: of} for name, of in other.items())):
        rows.add({**earlier, **change, "rate": 1e-3 if change else 5e-4}, {})
    asked = []

    def trained(self: Any, system: Any, corpus: Any, budget: Budget, config: Any) -> Any:
        asked.append((budget.rate, budget.steps, budget.evaluate_every))
        return tmp_path / "model", {}

    def found(self: Any, system: Any, model: Path, path: Any) -> Any:
        ents = {"model": {(0, 0, 1, "A"), (0, 2, 3, "A")}, "model.last": {(0, 0, 1, "A")}}
        return ents[model.name], {"versions": {}}

    monkeypatch.setattr(Comparison, "trained", trained)
    monkeypatch.setattr(Comparison, "found", found)
    comparison = Comparison(tmp_path)
    runs = Runs(comparison, rows, "minilm", 1000, 100, rates_of=200)
    theirs = next(each for each in SYSTEMS if each.name == "spaCy ner")
    runs.measure_all([theirs], [corpus], [0])
    assert {*asked} == {(5e-4, 1000, 100)}
    made = rows.matching({"steps": 1000, "rate": 5e-4})
    measured = {row["evaluate_every"]: row["f"] for row in made}
    assert measured == {100: pytest.approx(2 / 3, abs=1e-6), 0: 1.0}
    runs.measure_all([each for each in SYSTEMS if each.script == "hugging_face"], [corpus], [0])
    assert comparison.failed == {
        "Hugging Face on gmb": "expected a run of 200 steps over minilm, got none"
    }


def test_threshold_is_chosen_on_dev(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def row(self: Any, system: Any, corpus: Any, rate: Any, seed: Any, part: Any, at: Any) -> Any:
        asked.append((part, at))
        return {"f": 0.0 if at is None else -abs(at - 0.41), "threshold": at}

    monkeypatch.setattr(Runs, "_row", row)
    thresholds = overlapping.THRESHOLDS
    rows = Rows(tmp_path / "overlapping.csv")
    runs = Runs(Comparison(tmp_path), rows, "minilm", 200, thresholds=thresholds)
    ours, spancat = overlapping.SYSTEMS[0], overlapping.SYSTEMS[2]
    assert runs.result(spancat, tmp_path, 2e-4, 0, "test")["threshold"] == 0.4
    assert asked == [*(("dev", at) for at in thresholds[spancat.name]), ("test", 0.4)]
    asked.clear()
    runs.result(ours, tmp_path, 2e-4, 0, "test")
    assert asked == [("test", None)]


class Process:
    """Notes what a system is asked, in place of its process."""

    pid = "self"
    asked: list[Any]

    def __init__(self, *_: Any) -> None: ...

    def ask(self, *request: Any) -> None:
        self.asked.append(request)
        if request[0] == "train":
            for path in [Path(request[2]), last_of(Path(request[2]))]:
                path.mkdir()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None: ...


def test_a_model_is_trained_once_for_each_budget_and_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Process, "asked", [], raising=False)
    monkeypatch.setattr("benchmarks.systems.Process", Process)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda gpu_id: f"GPU {gpu_id}")
    python = tmp_path / "edsnlp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    system = next(each for each in SYSTEMS if each.model == "edsnlp")
    budget = Budget("minilm", 200, 2e-4, 0)
    budgets = [budget, budget._replace(evaluate_every=100), budget._replace(transformer="b")]
    folders = []
    for gpu_id in (-1, 1):
        comparison = Comparison(tmp_path, tmp_path, 1, gpu_id)
        for each in (*budgets, *budgets):
            folders.append(comparison.trained(system, tmp_path / "gmb", each)[0])
    assert len({*folders}) == 6 == sum(each[0] == "train" for each in Process.asked)
    asked = [each[0] for each in Process.asked]
    assert asked[-3:] == ["use_gpu", "versions", "train"] and asked[:2] == ["versions", "train"]
    best = folders[1]
    shutil.rmtree(last_of(best))
    (best / "of an earlier training").touch()
    again, _ = Comparison(tmp_path, tmp_path, 1).trained(system, tmp_path / "gmb", budgets[1])
    assert again == best and [*best.iterdir()] == [] == [*last_of(best).iterdir()]


def test_a_system_that_is_not_installed_is_left_out_with_the_command(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, tmp_path / "peers")
    system = next(each for each in SYSTEMS if each.venv)
    with comparison.guard(system.name):
        comparison.start(system)
    assert f"-r {PEERS}/{system.venv}.txt" in comparison.failed[system.name]


def test_turns_leave_out_the_first_round_and_systems_that_fail() -> None:
    now = iter(range(100))

    def fail(is_first: bool) -> float:
        if not is_first:
            raise RuntimeError("out of memory")
        return next(now)

    failed: dict[str, str] = {}
    acts = {"a": lambda is_first: next(now), "b": fail, "c": lambda is_first: next(now)}
    assert in_turns(acts, 2, failed) == {"a": [3, 5], "c": [4, 6]}
    assert failed == {"b": "out of memory"}
