"""Training time to reach an F1."""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, NamedTuple

import typer
from spacy.util import load_config

from benchmark import (
    FLOAT32,
    ROOT,
    TRANSFORMER,
    Gpu,
    Transformer,
    _convert,
    _print_machine,
)
from benchmark_speed import RATES
from inputs import listener_widths

Curve = list[tuple[int, float, float]]  # steps, seconds, F1


class Trainee(NamedTuple):
    """A row of the table.

    name: Of the row.
    config: In `configs`.
    overrides: Of its config.
    """

    name: str
    config: str
    overrides: dict[str, str] = {}  # noqa: RUF012  (a tuple shares it, and nobody writes to it)


TRAINEES = (
    Trainee("crf_ner, fp32", "transformer", dict.fromkeys(FLOAT32, "false")),
    Trainee(
        "crf_ner, bf16",
        "transformer",
        {
            f"{TRANSFORMER}.mixed_precision": '"bf16"',
            f"{TRANSFORMER}.dtype": "auto",
            "components.ner.model.dtype": "auto",
        },
    ),
    Trainee("spaCy ner", "spacy_ner"),
)


def learning(
    folder: Annotated[Path, typer.Argument(help="Folder with gmb/.")],
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 200,
    every: Annotated[int, typer.Option(help="Steps between two evaluations.")] = 20,
    targets: Annotated[str, typer.Option(help="F1 on dev, comma-separated.")] = "60,65,70,75",
    gpu_id: Gpu = -1,
) -> None:
    """Measure the seconds of `spacy train`, with evaluations, until an F1 on GMB's dev part.

    Same transformer, batches and number of steps; each uses its best learning rate.
    """
    _print_machine(gpu_id)
    _convert(folder / "gmb", out / "gmb")
    goals = [float(goal) for goal in targets.split(",")]
    print(f"| seconds to an F1 of | {' | '.join(targets.split(','))} | all {steps} steps | F1 |")
    print("|---" * (len(goals) + 3) + "|", flush=True)
    for trainee in TRAINEES:
        curve = _curve(trainee, out, transformer, steps, every, gpu_id)
        cells = [
            next((f"{taken:.0f} ({step} steps)" for step, taken, f in curve if f >= goal), "-")
            for goal in goals
        ]
        *_, (_, whole, last) = curve
        cells += [f"{whole:.0f}", f"{last:.1f}"]
        print(f"| {trainee.name} | {' | '.join(cells)} |", flush=True)


def _curve(
    trainee: Trainee, out: Path, transformer: str, steps: int, every: int, gpu_id: int
) -> Curve:
    """Train, and note what `spacy train` prints, and when; from its first row on."""
    overrides = {
        "paths.train": str(out / "gmb" / "train.spacy"),
        "paths.dev": str(out / "gmb" / "dev.spacy"),
        "paths.transformer": transformer,
        "training.max_steps": str(steps),
        "training.eval_frequency": str(every),
        "training.optimizer.learn_rate.total_steps": str(steps),
        "training.optimizer.learn_rate.initial_rate": f"{RATES[trainee.config]:g}",
        **trainee.overrides,
    }
    config = ROOT / "configs" / f"{trainee.config}.cfg"
    widths = listener_widths(load_config(config), transformer)
    overrides |= {name: str(width) for name, width in widths.items()}
    command = [sys.executable, "-m", "spacy", "train", str(config)]
    command += ["--gpu-id", str(gpu_id)]
    command += [word for name, value in overrides.items() for word in (f"--{name}", value)]
    curve: Curve = []
    start = perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        # Epoch, step, two losses, F1, precision, recall, score.
        row = line.split()
        if len(row) == 8 and row[0].isdigit() and row[1].isdigit():
            if not curve:  # the row of no steps
                start = perf_counter()
            curve.append((int(row[1]), perf_counter() - start, float(row[4])))
    if process.wait():
        raise RuntimeError("".join(lines))
    return curve
