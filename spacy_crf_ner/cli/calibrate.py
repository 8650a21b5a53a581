"""The command `calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ..evaluation.calibration import calibrate as fit
from ..input_error import InputError
from ..pipeline.load import load
from ..pipeline.lookup import require_recognizer
from .console import print_table
from .gold_corpus import read_examples
from .options import Component, GpuId, Model, Precision

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer


def calibrate(
    model: Model,
    corpus: Annotated[
        Path, typer.Argument(help="Held-out documents with gold entities, not the training data.")
    ],
    target: Annotated[Path, typer.Argument(help="New folder for the calibrated pipeline.")],
    gpu_id: GpuId = -1,
    precision: Precision = None,
    component: Component = None,
) -> None:
    """Calibrate the confidences of entities.

    Fits the temperature, one number that divides all scores, to the gold entities.
    Predicted entities do not change, unless thresholds drop those with low confidence.
    Only the temperature differs in the saved pipeline; --precision is not saved.

    \b
    Prints, before and after calibration, over the predicted entities:
      ECE    expected calibration error, in 15 bins
      Brier  mean of (confidence - correct)^2, with correct = 0 or 1

    \b
    Example:
      spacy-crf-ner calibrate training/model-best corpus/dev.spacy calibrated
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"{target}: expected a new or an empty folder, got a file, or a folder that is not "
            "empty. Choose another folder."
        )
    nlp = load(model, gpu_id, precision)
    examples = track(read_examples(nlp, corpus), "Calibrating", console=Console(stderr=True))
    result = fit(nlp, examples, component)
    # Load the pipeline again, to save it without the words of the corpus and settings for speed.
    nlp = load(model)
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(require_recognizer(nlp, component)))
    pipe.temperature = result["temperature"]
    nlp.to_disk(target)
    before, after = result["before"], result["after"]
    table = Table("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for name, key in (("ECE", "ece"), ("Brier", "brier")):
        scores = (each[key] for each in (before, after))
        table.add_row(name, *("none" if x is None else f"{x:.4f}" for x in scores))
    print_table(table)
    typer.echo(
        f"Entities: {before['entities']}; {before['left_out']} were left out because gold "
        "annotation is missing"
    )
    typer.echo(f"Temperature: {result['temperature']:.3f}")
    typer.echo(f"Pipeline: {target}")
