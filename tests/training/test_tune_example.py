"""The example of a search for settings: its trials, how it continues, and what it keeps."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import spacy
import srsly
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from spacy.tokens import DocBin
from spacy.training import Corpus
from spacy.util import load_config
from typer.testing import CliRunner

from pipelines import make_examples

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "char.cfg"
DROPOUT = "training.dropout"
GOAL = 0.35  # the dropout with the best score of `imitated`


@pytest.fixture
def example() -> Any:
    spec = importlib.util.spec_from_file_location("tune_example", ROOT / "examples" / "tune.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return module


@pytest.fixture
def imitated(example: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Score settings without a training, and list what is tried; a dropout over 0.4 fails."""
    tried: list[dict[str, Any]] = []

    def run(config: Any, settings: dict[str, Any], folder: Path, gpu_id: int) -> float:
        tried.append(settings)
        if settings[DROPOUT] > 0.4:
            raise ValueError("too much")
        for name in ("model-best", "model-last"):
            (folder / name).mkdir(parents=True)
        return 1 - abs(settings[DROPOUT] - GOAL)

    monkeypatch.setattr(example, "run", run)
    monkeypatch.setattr(example, "SPACE", {DROPOUT: FloatDistribution(0.0, 0.5)})
    return tried


def search(example: Any, output: Path, trials: int, *options: str) -> str:
    arguments = [str(CONFIG), str(output), "--trials", str(trials), *options]
    result = CliRunner().invoke(example.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_search_continues_and_keeps_the_best_pipeline(
    example: Any, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    search(example, tmp_path, 4)
    assert len(imitated) == 4
    assert imitated[0][DROPOUT] == load_config(CONFIG)["training"]["dropout"]
    output = search(example, tmp_path, 12)
    assert len({settings[DROPOUT] for settings in imitated}) == len(imitated) == 12
    scores = [1 - abs(GOAL - s[DROPOUT]) if s[DROPOUT] <= 0.4 else 0.0 for s in imitated]
    best = scores.index(max(scores))
    assert min(scores) == 0.0 and max(scores) > scores[0]  # one fails, one is better
    assert [path.relative_to(tmp_path).parts for path in tmp_path.glob("*/model-*")] == [
        (f"{best}", "model-best")
    ]
    assert f"Pipeline: {tmp_path / str(best) / 'model-best'}" in output


def test_search_whose_config_fails_raises_at_once(
    example: Any, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="too much"):
        search(example, tmp_path, 4, f"--{DROPOUT}", "0.45")
    assert len(imitated) == 1


def test_search_that_was_stopped_in_its_first_trial_begins_with_the_config(
    example: Any, imitated: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the machine failed."""
    for error in (KeyboardInterrupt, MemoryError):
        with monkeypatch.context() as patch:
            patch.setattr(example, "run", Mock(side_effect=error))
            with pytest.raises(error):
                example.search(SimpleNamespace(args=[]), CONFIG, tmp_path)
    search(example, tmp_path, 2)
    assert imitated[0][DROPOUT] == load_config(CONFIG)["training"]["dropout"]


@pytest.mark.slow
def test_search_saves_the_pipeline_with_its_score(example: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.spacy"
    DocBin(docs=[eg.reference for eg in make_examples(spacy.blank("en"))]).to_disk(corpus)
    options = ["--training.max_steps", "30", "--training.eval_frequency", "10"]
    options += ["--paths.train", str(corpus), "--paths.dev", str(corpus)]
    search(example, tmp_path / "out", 2, *options, "--training.before_to_disk", "null")
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "out" / "search.log")))
    best = optuna.load_study(study_name="char", storage=storage).best_trial
    (pipeline,) = tmp_path.glob("out/*/model-best")
    assert pipeline.parent.name == f"{best.number}"
    nlp = spacy.load(pipeline)
    assert nlp.config["training"]["dropout"] == pytest.approx(best.params[DROPOUT])
    assert best.value is not None and best.value > 0
    assert nlp.evaluate(list(Corpus(corpus)(nlp)))["ents_f"] == pytest.approx(best.value)
    assert srsly.read_json(pipeline / "meta.json")["performance"]["ents_f"] > 0
