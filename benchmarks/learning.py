"""Training time to reach an F1 on GMB: docs/benchmarks.md, "Training"."""

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry

from benchmarks import common
from benchmarks.systems import RATES

Curve = list[tuple[int, float, float]]  # steps, seconds, F1
SYSTEMS: dict[str, tuple[str, common.Row]] = {  # their configs and settings
    "crf_ner, fp32": ("transformer", common.FLOAT32),
    "crf_ner, bf16": (
        "transformer",
        {
            f"{common.TRANSFORMER}.mixed_precision": "bf16",
            f"{common.TRANSFORMER}.dtype": "auto",
            "components.ner.model.dtype": "auto",
        },
    ),
    "spaCy ner": (
        "spacy_ner",
        {"training.optimizer.learn_rate.initial_rate": RATES["spacy_ner"]},
    ),
}


def main(
    folder: common.Folder,
    out: common.Out,
    transformer: common.Transformer = common.MINILM,
    steps: common.Steps = 200,
    every: Annotated[int, typer.Option(help="Steps between two evaluations.")] = 20,
    targets: Annotated[str, typer.Option(help="F1 on dev, comma-separated.")] = "60,65,70,75",
    gpu_id: common.Gpu = -1,
) -> None:
    """Measure the seconds of training, with evaluations, until an F1 on GMB's dev part.

    Same transformer, batches and number of steps; each uses its best learning rate.
    """
    common.print_machine(gpu_id)
    corpus = common.converted(folder / "gmb", out)
    goals = common.numbers(targets)
    common.print_header("seconds to an F1 of", *map(str, goals), f"all {steps} steps", "F1")
    for name in SYSTEMS:
        found = common.in_new_process(curve, name, corpus, transformer, steps, every, gpu_id)
        cells = [
            next((f"{taken:.0f} ({step} steps)" for step, taken, f1 in found if f1 >= goal), "-")
            for goal in goals
        ]
        _, whole, last = found[-1]
        common.print_row(name, *cells, f"{whole:.0f}", f"{last:.1f}")


def curve(name: str, corpus: Path, transformer: str, steps: int, every: int, gpu_id: int) -> Curve:
    """Train, and note the F1 of each evaluation and when it ended, from the first one on."""
    config, settings = SYSTEMS[name]
    path = common.CONFIGS / f"{config}.cfg"
    overrides = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "paths.transformer": transformer,
        **common.schedule(steps),
        "training.eval_frequency": every,
        **settings,
        **common.widths(load_config(path), transformer),
    }
    filled = load_config(path, overrides=overrides)
    filled["training"]["logger"] = {"@loggers": "clock"}
    filled["training"]["before_to_disk"] = None
    noted: list[tuple[int, float, float]] = []

    def note(info: common.Row | None) -> None:
        if info is not None and info["score"] is not None:
            f1 = 100 * info["other_scores"]["ents_f"]
            noted.append((info["step"], perf_counter(), f1))

    registry.loggers("clock", func=lambda: _logger(note))
    with open(os.devnull, "w") as nowhere:
        train(init_nlp(filled, use_gpu=gpu_id), use_gpu=gpu_id, stdout=nowhere)
    start = noted[0][1]
    return [(step, at - start, f1) for step, at, f1 in noted]


def _logger(note: Callable[[common.Row | None], None]) -> Callable[..., Any]:
    return lambda nlp, stdout, stderr: (note, lambda: None)
