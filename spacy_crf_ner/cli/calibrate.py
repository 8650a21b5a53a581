"""The command `calibrate`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..atomic import check_new_folder
from ..input_error import InputError
from . import options
from .console import note, plain_warnings, print_table, right, tracked
from .gold_corpus import read_examples, warn_if_trained_on
from .startup import leave_out_torch_if_exported

SAMPLE = 1000  # documents of --texts


def calibrate(
    model: options.Model,
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS", help="Held-out documents with gold entities, not the training data."
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="New folder for the calibrated pipeline.")
    ],
    f_beta: Annotated[
        float | None,
        typer.Option(
            "--f-beta",
            help="Also choose entities for the best F-score, with recall beta times as important "
            "as precision; 1 for F1.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT",
            help="Texts like those to annotate, without gold: --f-beta is for the best F-score on "
            "them, not on CORPUS. In the formats of `predict`; may be repeated.",
        ),
    ] = None,
    text_column: options.TextField = "text",
    doc_per_file: options.DocPerFile = False,
    gpu_id: options.GpuId = -1,
    dtype: options.Dtype = None,
    component: options.Component = None,
) -> None:
    """Calibrate the confidences of entities.

    Fits the temperature, one number that divides all scores, to the gold entities, and then
    Platt scaling, a slope and an intercept for log odds, to which probable spans are entities.
    A few entities change little, and with fewer than 200, the temperature is at least 1 and the
    slope at most 1. The highest confidence depends on their number: 0.997 for 36.
    Predicted entities do not change, unless thresholds drop those with low confidence, or
    the pipeline chooses entities by --f-beta: give it again then.
    Only what was fitted differs in the saved pipeline; --dtype is not saved.
    With --f-beta, entities are chosen by their probabilities instead of the most probable tag
    sequence: those over the threshold with the best expected F-score on 1000 of the --texts, or
    on CORPUS.

    The saved pipeline has no promises: earlier ones were for another calibration. Use
    `promise fit` afterwards, on other documents: those of CORPUS and --texts do not count.

    \b
    Prints, without calibration, as it was and now, over the predicted entities:
      ECE        expected calibration error, in 15 bins
      by chance  the ECE of as many entities if every confidence were right
      Brier      mean of (confidence - correct)^2, with correct = 0 or 1

    \b
    Examples:
      spacy-crf-ner calibrate training/model-best corpus/dev.spacy calibrated
      spacy-crf-ner calibrate model dev.spacy best --f-beta 1 --texts new/
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.sample import read_sample
    from ..annotate.settings import Settings
    from ..evaluation.calibration import calibrate as fit
    from ..evaluation.guarantees import save_fitted
    from ..pipeline.calibration import calibration_of
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer, recognizer_name

    check_new_folder(target)
    if texts and f_beta is None:
        raise InputError("--texts: expected --f-beta with it, got none. Add --f-beta 1 for F1.")
    nlp = load(model, gpu_id, dtype)
    docs = None
    if texts:
        settings = Settings(text_column=text_column, doc_per_file=doc_per_file)
        docs = read_sample(nlp, recognizer_name(nlp, component), texts, settings, SAMPLE)
    examples = read_examples(nlp, corpus, component)
    warn_if_trained_on(nlp, model, examples)
    shown = tracked(examples, "Calibrating", len(examples))
    with plain_warnings():
        result = fit(nlp, shown, component, f_beta=f_beta, docs=docs)
    pipe = recognizer(save_fitted(model, nlp, target), component)
    _print_measures(result, f_beta)
    typer.echo(calibration_of(pipe))
    if f_beta is not None:
        typer.echo(f"F-score threshold: {result['f_score_threshold']:.2f}")
    typer.echo(f"Pipeline: {target}")
    report = f"spacy-crf-ner report {shlex.quote(str(target))} CORPUS OUTPUT"
    note(f"Next: {report}, with a CORPUS of test documents")


def _print_measures(result: dict[str, Any], f_beta: float | None) -> None:
    columns = {"uncalibrated": "uncalibrated", "as it was": "before", "now": "after"}
    if result["before"] is result["uncalibrated"]:
        del columns["as it was"]
    table = Table("", *right(*columns))
    measures = {"ECE": "ece", "by chance": "ece_by_chance", "Brier": "brier"}
    if f_beta is not None:
        measures |= {"precision": "precision", "recall": "recall", f"F{f_beta:g}": "f_beta"}
    for name, key in measures.items():
        scores = (result[each][key] for each in columns.values())
        table.add_row(name, *("none" if x is None else f"{x:.4f}" for x in scores))
    print_table(table)
    before = result["before"]
    typer.echo(
        f"Entities: {before['entities']}; {before['left_out']} were left out because gold "
        "annotation is missing"
    )
    typer.echo(
        f"Temperature: {result['temperature']:.3f}. Platt scaling: slope "
        f"{result['platt_slope']:.3f}, intercept {result['platt_intercept']:.3f}, ceiling "
        f"{result['platt_ceiling']:.4f}"
    )
