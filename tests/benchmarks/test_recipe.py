"""The benchmark of recipes: best and last models on dev, each run made once."""

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
import typer
from spacy.language import Language

from benchmarks import common, recipe
from pipelines import make_examples

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus whose dev part has one doc less; trainings run in this process."""
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    for part, own in {"train": docs, "dev": docs[1:], "test": docs[:1]}.items():
        common.write_docs(own, tmp_path / "data" / "mine" / f"{part}.spacy")
    monkeypatch.setattr(common, "in_new_process", lambda function, *args: function(*args))
    return tmp_path / "data"


def variants(folder: Path, **settings: Any) -> Path:
    """Write a file of two variants, the second with these settings."""
    small = {"config": str(CONFIGS / "cnn.cfg"), "components.ner.model.hidden_width": 8}
    path = folder.parent / f"{len([*folder.parent.glob('*.yml')])}.yml"
    srsly.write_yaml(path, {"small": small, "other": {**small, **settings}})
    return path


def run(folder: Path, out: Path, **given: Any) -> None:
    settings = {"steps": 6, "evaluate_every": 2, "seeds": "0", "transformer": "none"}
    recipe.main(folder, out, "mine", **{**settings, **given})


def test_best_and_last_are_the_f1_of_dev_at_their_steps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([0.1, 0.4, 0.2, 0.3])
    parts = []

    def evaluate(self: Language, examples: Any, **_: Any) -> dict[str, float]:
        parts.append(len([*examples]))
        return {"ents_f": next(given)}

    monkeypatch.setattr(Language, "evaluate", evaluate)
    run(folder, tmp_path / "out", variants=variants(folder), names=["small"])
    (row,) = common.Rows(tmp_path / "out" / "recipe.csv")
    assert (row["best"], row["last"]) == (40.0, 30.0)
    docs = filter(len, common.read_docs(folder / "mine" / "dev.spacy"))
    assert parts == 4 * [len([*docs])]


def test_runs_are_made_once_for_each_setting(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[Any] = []

    def measure(config: Any, gpu_id: int) -> common.Row:
        made.append(config)
        return {"best": 10.0 * len(made), "last": 1.0 * len(made), "seconds": 0}

    monkeypatch.setattr(recipe, "measure", measure)
    rate = "training.optimizer.learn_rate.initial_rate"
    file = variants(folder, **{rate: 0.5})
    for _ in range(2):
        run(folder, tmp_path / "out", variants=file, seeds="0,1")
    assert [each["system"]["seed"] for each in made] == [0, 1, 0, 1]
    rates = [each["training"]["optimizer"]["learn_rate"]["initial_rate"] for each in made]
    assert rates[2:] == [0.5, 0.5] != rates[:2]
    assert {each["training"]["eval_frequency"] for each in made} == {2}
    rows = ["| small | 15.0 / 1.5 | 15.0 / 1.5 |", "| other | 35.0 / 3.5 | 35.0 / 3.5 |"]
    shown = capsys.readouterr().out
    assert all(shown.count(row) == 2 for row in rows)
    # Others, whose rows and figures are their own.
    for change in (
        {"steps": 8},
        {"evaluate_every": 3},
        {"transformer": "other"},
        {"variants": variants(folder, **{rate: 0.25}), "names": ["other"]},
        {"variants": variants(folder, config=str(CONFIGS / "char.cfg")), "names": ["other"]},
    ):
        n = len(made)
        run(folder, tmp_path / "out", **{"variants": file, "names": ["small"], **change})
        assert len(made) == n + 1
        assert f"{10 * len(made)}.0 / {len(made)}.0" in capsys.readouterr().out


@pytest.mark.parametrize("every", [0, 4, 7])
def test_a_last_model_that_would_not_be_evaluated_is_refused(
    folder: Path, tmp_path: Path, every: int
) -> None:
    with pytest.raises(typer.BadParameter, match="divisor of 6"):
        run(folder, tmp_path / "out", variants=variants(folder), evaluate_every=every)
