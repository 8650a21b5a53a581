"""The command `calibrate`."""

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.progress import (
    track,
)
from rich.table import Table

from ..evaluation.calibration import calibrate as calibrate_pipeline
from ..pipeline.load import load
from .console import (
    print_table,
)
from .gold_corpus import read_examples
from .options import Precision


def calibrate(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[
        Path, typer.Argument(help="Documents with gold entities, not those of the training.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder for the calibrated pipeline: a new one.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, where there are several.")
    ] = None,
) -> None:
    """Make the confidences of entities say how often they are right.

    One number is fitted to the gold entities, the temperature, which divides all scores.
    No entity changes, but where thresholds drop those of low confidence.

    \b
    Prints, before and after, for the entities that are found:
      ECE    how far confidence and share of right ones lie apart, in 15 bins
      Brier  mean of (confidence - right)^2
    """
    _require_free(target)
    nlp = load(model, gpu_id, precision)
    examples = read_examples(nlp, corpus)
    result = calibrate_pipeline(nlp, track(examples, "Calibrating"), component)
    nlp.to_disk(target)
    before, after = result["before"], result["after"]
    table = Table("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    table.add_row("ECE", _figure(before["ece"]), _figure(after["ece"]))
    table.add_row("Brier", _figure(before["brier"]), _figure(after["brier"]))
    print_table(table)
    typer.echo(
        f"Entities: {before['entities']}, and {before['left_out']} left out where the gold "
        "annotation is missing"
    )
    typer.echo(f"Temperature: {result['temperature']:.3f}")
    typer.echo(f"Pipeline: {target}")


def _require_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{target}: expected a new or an empty folder, got one that holds something, or a "
            "file. Name another."
        )


def _figure(value: Optional[float]) -> str:
    return "none" if value is None else f"{value:.4f}"
