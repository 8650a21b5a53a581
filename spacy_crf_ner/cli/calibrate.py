"""The command `calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from ..atomic import check_new_folder
from ..input_error import InputError
from . import options
from .console import plain_warnings, print_table, right
from .gold_corpus import read_examples

SAMPLE = 1000  # documents of --texts
COSTS = {
    "recall": "{:.1f} / entity",
    "precision": "recall {:.1%}",
    "set_coverage": "{:.1f} / doc",
}


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
    train: Annotated[
        Path | None,
        typer.Option(help="Training data: leave out documents of CORPUS that are in it too."),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="State that no document was trained on, where the pipeline does not know. The "
            "guarantee repeats it.",
        ),
    ] = False,
    count_dev: Annotated[
        bool,
        typer.Option(
            "--count-dev",
            help="Use documents that chose the checkpoint, too. The guarantee is then too good, "
            "and says so.",
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
    text_column: options.TextField = "text",
    doc_per_file: options.DocPerFile = False,
    recall: Annotated[
        float | None,
        typer.Option(help="Guarantee that candidates contain this share of the gold entities."),
    ] = None,
    ents_precision: Annotated[
        float | None, typer.Option(help="Guarantee that this share of the found entities is right.")
    ] = None,
    set_coverage: Annotated[
        float | None,
        typer.Option(help="Guarantee prediction sets that contain the right one this often."),
    ] = None,
    confidence_level: Annotated[
        float | None,
        typer.Option(help="Of --recall (else it holds on average) and --ents-precision (0.95)."),
    ] = None,
    by_label: Annotated[bool, typer.Option("--by-label", help="--recall for each label.")] = False,
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

    \b
    Prints, without calibration, as it was and now, over the predicted entities:
      ECE        expected calibration error, in 15 bins
      by chance  the ECE of as many entities if every confidence were right
      Brier      mean of (confidence - correct)^2, with correct = 0 or 1

    The pipeline keeps its guarantees on new documents from the source of CORPUS. Documents
    that it was trained on, or that chose the checkpoint, as dev.spacy does, are left out
    and counted: a pipeline keeps hashes of them. A half of the others serves the guarantees,
    the other half all else. Prints for each its confidence level, or
    that it holds in the mean over corpora; the errors on halves of these documents if
    fitted to the other half, the mean and the 95 % quantile; and its cost: candidates per
    gold entity, the recall that is left, or labelings per document. Guarantees need flat
    entities; all else works for overlapping ones too.

    \b
    Examples:
      spacy-crf-ner calibrate training/model-best corpus/dev.spacy calibrated
      spacy-crf-ner calibrate model dev.spacy best --f-beta 1 --texts new/
      spacy-crf-ner calibrate model few.spacy best --train train.spacy --folds 5
      spacy-crf-ner calibrate model new.spacy careful --recall 0.98
    """
    from ..annotate.sample import read_sample
    from ..annotate.settings import Settings
    from ..evaluation.calibration import calibrate as fit
    from ..evaluation.guarantees import save_fitted
    from ..evaluation.targets import Targets
    from ..pipeline.calibration import calibration_of
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer, recognizer_name
    from ..training.cross_validation import train_held_out

    check_new_folder(target)
    if texts and f_beta is None:
        raise InputError("--texts: expected --f-beta with it, got none. Add --f-beta 1 for F1.")
    if folds == 1 or (folds and train is None):
        raise InputError(
            f"--folds: expected 2 or more, with --train, got {folds}"
            f"{'' if train else ' without it'}. Use 5, and name the training data."
        )
    nlp = load(model, gpu_id, dtype)
    docs = None
    if texts:
        settings = Settings(text_column=text_column, doc_per_file=doc_per_file)
        docs = read_sample(nlp, recognizer_name(nlp, component), texts, settings, SAMPLE)
    examples = read_examples(nlp, corpus, component)
    trained = None if train is None else read_examples(nlp, train, component)
    of_folds: Any = ()
    if folds and trained is not None:
        steps = nlp.config["training"]["max_steps"]
        typer.echo(
            f"Training {folds} pipelines, each as the config of {model} says: max_steps = {steps}.",
            err=True,
        )
        of_folds = train_held_out(nlp, trained, folds, component, gpu_id)
        of_folds = track(of_folds, "Training folds", folds, console=Console(stderr=True))
    trained_on = None if trained is None else [eg.text for eg in trained]
    stated = trained_on, held_out, count_dev
    targets = Targets(recall, ents_precision, set_coverage, confidence_level, by_label, *stated)
    with plain_warnings():
        result = fit(
            nlp,
            track(examples, "Calibrating", console=Console(stderr=True)),
            component,
            f_beta=f_beta,
            docs=docs,
            targets=targets,
            folds=of_folds,
        )
    pipe = recognizer(save_fitted(model, nlp, target), component)
    _print_measures(result, f_beta)
    typer.echo(calibration_of(pipe))
    if f_beta is not None:
        typer.echo(f"F-score threshold: {result['f_score_threshold']:.2f}")
    if result["guarantees"]:
        _print_guarantees(result["guarantees"], next(iter(fitted.cfg["guarantees"].values())))
    typer.echo(f"Pipeline: {target}")


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


def _print_guarantees(rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Print the rows of `fit_guarantees`, and what one of the guarantees is about."""
    numbers = right("confidence", "docs", "threshold", "errors, p95", "cost")
    table = Table(Column("guarantee", no_wrap=True), *numbers)
    for row in rows:
        what = row["kind"] if row["label"] is None else f"{row['kind']} of {row['label']}"
        tried = "few documents"
        if row["on_halves"] is not None:
            tried = f"{row['on_halves']:.1%}, {row['p95']:.1%}"
        table.add_row(
            f"{what}: {row['level']:.3g}",
            "mean" if row["confidence_level"] is None else f"{row['confidence_level']:.3g}",
            f"{row['documents']}",
            f"{row['threshold']:.3g}",
            tried,
            COSTS[row["kind"]].format(row["cost"]),
        )
    print_table(table)
    typer.echo(
        f"Guaranteed for a document, of {about['tokens']:.0f} tokens on average, and the "
        f"labels {', '.join(about['labels'])}"
    )
    if about["counts_dev"]:
        typer.echo(
            "Warning: documents that chose the weights count. The guarantee is too good.", err=True
        )
    if repeated := about["texts"] - about["different_texts"]:
        typer.echo(
            f"Warning: {repeated} of the {about['texts']} documents for guarantees are "
            "repetitions. If they are copies of a file, and not new documents with the same "
            "text, leave them out: they prove less.",
            err=True,
        )
