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
    f_beta: Annotated[
        float | None,
        typer.Option(
            "--f-beta",
            help="Also choose entities for the best F-score, with recall beta times as important "
            "as precision; 1 for F1.",
        ),
    ] = None,
    gpu_id: GpuId = -1,
    precision: Precision = None,
    component: Component = None,
) -> None:
    """Calibrate the confidences of entities.

    Fits the temperature, one number that divides all scores, to the gold entities.
    Predicted entities do not change, unless thresholds drop those with low confidence, or
    the pipeline chooses entities by --f-beta: give it again then.
    Only the temperature differs in the saved pipeline; --precision is not saved.
    With --f-beta, entities are chosen by their probabilities instead of the most probable tag
    sequence: those over a threshold that is fitted too.

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
    result = fit(nlp, examples, component, f_beta=f_beta)
    # Load the pipeline again, to save it without the words of the corpus and settings for speed.
    nlp = load(model)
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(require_recognizer(nlp, component)))
    pipe.temperature = result["temperature"]
    if f_beta is not None:
        pipe.decode, pipe.span_threshold = "f_score", result["span_threshold"]
    nlp.to_disk(target)
    before, after = result["before"], result["after"]
    table = Table("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    measures = [("ECE", "ece"), ("Brier", "brier")]
    if f_beta is not None:
        measures += [("precision", "precision"), ("recall", "recall"), (f"F{f_beta:g}", "f_beta")]
    for name, key in measures:
        scores = (each[key] for each in (before, after))
        table.add_row(name, *("none" if x is None else f"{x:.4f}" for x in scores))
    print_table(table)
    typer.echo(
        f"Entities: {before['entities']}; {before['left_out']} were left out because gold "
        "annotation is missing"
    )
    typer.echo(f"Temperature: {result['temperature']:.3f}")
    if f_beta is not None:
        typer.echo(f"Threshold of spans: {result['span_threshold']:.2f}")
    typer.echo(f"Pipeline: {target}")
