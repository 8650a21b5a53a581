"""The command `calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from ..atomic import atomic_write, require_new_folder
from ..input_error import InputError
from .console import plain_warnings, print_table
from .gold_corpus import read_examples
from .options import (
    Component,
    GpuId,
    Model,
    Precision,
    TextField,
    WholeFiles,
)
from .raw_texts import read_sample

SAMPLE = 1000  # documents of --texts
COSTS = {
    "recall": "{:.1f} / entity",
    "precision": "recall {:.1%}",
    "analyses": "{:.1f} / doc",
}


def calibrate(
    model: Model,
    corpus: Annotated[
        Path, typer.Argument(help="Held-out documents with gold entities, not the training data.")
    ],
    target: Annotated[Path, typer.Argument(help="New folder for the calibrated pipeline.")],
    train: Annotated[
        Path | None,
        typer.Option(help="Training data: leave out documents of CORPUS that are in it too."),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="State that no document was trained on, where the pipeline does not know. The "
            "promise repeats it.",
        ),
    ] = False,
    count_dev: Annotated[
        bool,
        typer.Option(
            "--count-dev",
            help="Use documents that chose the checkpoint, too. The promise is then too good, and "
            "says so.",
        ),
    ] = False,
    folds: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train this many times on all folds of --train but one, and fit to the entities "
            "of this one too: for a CORPUS of fewer than 200 entities. 0 does not.",
        ),
    ] = 0,
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
            "them, not on CORPUS. In the formats of `annotate`; may be repeated.",
        ),
    ] = None,
    text_column: TextField = "text",
    whole_files: WholeFiles = False,
    recall: Annotated[
        float | None,
        typer.Option(help="Promise that candidates contain this share of the gold entities."),
    ] = None,
    ents_precision: Annotated[
        float | None, typer.Option(help="Promise that this share of the found entities is right.")
    ] = None,
    analyses: Annotated[
        float | None,
        typer.Option(help="Promise analysis sets that contain the right one this often."),
    ] = None,
    certainty: Annotated[
        float | None,
        typer.Option(help="Of --recall (else it holds on average) and --ents-precision (0.95)."),
    ] = None,
    by_label: Annotated[bool, typer.Option("--by-label", help="--recall for each label.")] = False,
    gpu_id: GpuId = -1,
    precision: Precision = None,
    component: Component = None,
) -> None:
    """Calibrate the confidences of entities.

    Fits the temperature, one number that divides all scores, to the gold entities, and then
    Platt scaling, a slope and an intercept for log odds, to which probable spans are entities.
    A few entities change little, and with fewer than 200, the temperature is at least 1 and the
    slope at most 1. The highest confidence depends on their number: 0.997 for 36.
    Predicted entities do not change, unless thresholds drop those with low confidence, or
    the pipeline chooses entities by --f-beta: give it again then.
    Only what was fitted differs in the saved pipeline; --precision is not saved.
    With --f-beta, entities are chosen by their probabilities instead of the most probable tag
    sequence: those over the threshold with the best expected F-score on 1000 of the --texts, or
    on CORPUS.

    \b
    Prints, without calibration, as it was and now, over the predicted entities:
      ECE        expected calibration error, in 15 bins
      by chance  the ECE of as many entities if every confidence were right
      Brier      mean of (confidence - correct)^2, with correct = 0 or 1

    The pipeline keeps its promises on new documents from the source of CORPUS. Documents
    that it was trained on, or that chose the checkpoint, as dev.spacy does, are left out
    and counted: a pipeline keeps hashes of them. A half of the others serves the promises,
    the other half all else. Prints for each its certainty, or
    that it holds in the mean over corpora; the errors on halves of these documents if
    fitted to the other half, the mean and the worst of 20; and its cost: candidates per
    gold entity, the recall that is left, or analyses per document. Promises need flat
    entities; all else works for overlapping ones too.

    \b
    Examples:
      spacy-crf-ner calibrate training/model-best corpus/dev.spacy calibrated
      spacy-crf-ner calibrate training/model-best corpus/dev.spacy best --f-beta 1 --texts new/
      spacy-crf-ner calibrate training/model-best few.spacy best --train train.spacy --folds 5
      spacy-crf-ner calibrate training/model-best corpus/new.spacy careful --recall 0.98
    """
    from ..annotate.settings import Settings
    from ..evaluation.calibration import calibrate as fit
    from ..evaluation.guarantees import fitted_settings, restore_fitted
    from ..evaluation.held_out import new_examples
    from ..evaluation.promises import Promises
    from ..pipeline.calibration import calibration_of
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer, require_recognizer
    from ..training.cross_validation import train_held_out

    require_new_folder(target)
    if texts and f_beta is None:
        raise InputError("--texts: expected --f-beta with it, got none. Add --f-beta 1 for F1.")
    if folds == 1 or (folds and train is None):
        raise InputError(
            f"--folds: expected 2 or more, with --train, got {folds}"
            f"{'' if train else ' without it'}. Use 5, and name the training data."
        )
    nlp = load(model, gpu_id, precision)
    docs = None
    if texts:
        settings = Settings(text_column=text_column, whole_files=whole_files)
        docs = read_sample(nlp, require_recognizer(nlp, component), texts, settings, SAMPLE)
    examples = read_examples(nlp, corpus, component)
    trained = read_examples(nlp, train, component) if train is not None else []
    of_folds: Any = ()
    if folds:
        steps = nlp.config["training"]["max_steps"]
        typer.echo(
            f"Training {folds} pipelines, each as the config of {model} says: max_steps = {steps}.",
            err=True,
        )
        of_folds = train_held_out(nlp, trained, folds, component, gpu_id)
        of_folds = track(of_folds, "Training folds", folds, console=Console(stderr=True))
    trained_on = [eg.text for eg in trained] if train is not None else None
    promises = Promises(
        recall, ents_precision, analyses, certainty, by_label, trained_on, held_out, count_dev
    )
    with plain_warnings():
        if not promises and trained_on is not None:
            name = require_recognizer(nlp, component)
            examples, _ = new_examples(nlp, name, examples, trained_on=trained_on, count_dev=True)
        result = fit(
            nlp,
            track(examples, "Calibrating", console=Console(stderr=True)),
            component,
            f_beta=f_beta,
            docs=docs,
            promises=promises,
            folds=of_folds,
        )
    fitted = recognizer(nlp, component)
    # Load the pipeline again, to save it without the words of the corpus and settings for speed.
    nlp = load(model)
    pipe = recognizer(nlp, component)
    restore_fitted(pipe, fitted_settings(fitted))
    pipe.cfg["guarantees"] = fitted.cfg["guarantees"]
    with atomic_write(target) as folder:
        nlp.to_disk(folder)
    columns = {"uncalibrated": "uncalibrated", "as it was": "before", "now": "after"}
    if result["before"] is result["uncalibrated"]:
        del columns["as it was"]
    table = Table("")
    for name in columns:
        table.add_column(name, justify="right")
    measures = [("ECE", "ece"), ("by chance", "ece_by_chance"), ("Brier", "brier")]
    if f_beta is not None:
        measures += [("precision", "precision"), ("recall", "recall"), (f"F{f_beta:g}", "f_beta")]
    for name, key in measures:
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
    typer.echo(calibration_of(pipe))
    if f_beta is not None:
        typer.echo(f"Threshold of spans: {result['span_threshold']:.2f}")
    if result["guarantees"]:
        print_table(_promises(result["guarantees"]))
        about = next(iter(fitted.cfg["guarantees"].values()))
        typer.echo(
            f"Promised for a document, of {about['tokens']:.0f} tokens on average, and the labels "
            f"{', '.join(about['labels'])}"
        )
        if about["counts_dev"]:
            typer.echo(
                "Warning: documents that chose the weights count. The promise is too good.",
                err=True,
            )
        if repeated := about["texts"] - about["different_texts"]:
            typer.echo(
                f"Warning: {repeated} of the {about['texts']} documents for promises are "
                "repetitions. If they are copies of a file, and not new documents with the same "
                "text, leave them out: they prove less.",
                err=True,
            )
    typer.echo(f"Pipeline: {target}")


def _promises(rows: list[dict[str, Any]]) -> Table:
    table = Table(Column("promise", no_wrap=True))
    for title in ("certain", "docs", "threshold", "errors, worst", "cost"):
        table.add_column(title, justify="right")
    for row in rows:
        what = row["kind"] if row["label"] is None else f"{row['kind']} of {row['label']}"
        tried = "few documents"
        if row["on_halves"] is not None:
            tried = f"{row['on_halves']:.1%}, {row['worst']:.1%}"
        certain = "mean" if row["certainty"] is None else f"{row['certainty']:.3g}"
        table.add_row(
            f"{what}: {row['level']:.3g}",
            certain,
            f"{row['documents']}",
            f"{row['threshold']:.3g}",
            tried,
            COSTS[row["kind"]].format(row["cost"]),
        )
    return table
