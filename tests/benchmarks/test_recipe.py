"""The benchmark of recipes: best and last models on dev, each run made once."""

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly

from benchmarks import common, recipe
from pipelines import make_examples

ROOT = Path(__file__).parents[2]


def test_best_and_last_scores_are_those_of_the_log_and_runs_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "data", tmp_path / "out"
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    for part in ("train", "dev", "test"):
        common.write_docs(docs, folder / "mine" / f"{part}.spacy")
    made: list[Any] = []

    def in_this_process(function: Any, *args: Any) -> Any:
        made.append(args)
        return function(*args)

    monkeypatch.setattr(common, "in_new_process", in_this_process)
    small = {"config": str(ROOT / "configs" / "cnn.cfg"), "components.ner.model.hidden_width": 8}
    wide = {**small, "training.optimizer.learn_rate.initial_rate": 0.0}
    variants = tmp_path / "variants.yml"
    srsly.write_yaml(variants, {"learns": small, "does not": wide})
    for _ in range(2):
        recipe.main(
            folder, out, "mine", variants, transformer="none", steps=6, evaluate_every=3, seeds="0"
        )
    assert len(made) == 2
    learns, still = common.Rows(out / "recipe.csv")
    assert still["best"] == still["last"] < learns["best"] and learns["last"] <= learns["best"]
    row = f"| learns | {learns['best']:.1f} / {learns['last']:.1f} |"
    assert row in capsys.readouterr().out
