"""The commands `promise fit` and `promise check`."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from ..atomic import check_new_folder
from . import options
from .console import note, plain_warnings, print_table, right
from .gold_corpus import read_examples
from .startup import leave_out_torch_if_exported

COSTS = {
    "recall": "{:.1f} / entity",
    "precision": "recall {:.1%}",
    "set_coverage": "{:.1f} / doc",
}

promise = typer.Typer(name="promise", no_args_is_help=True)


@promise.callback()
def commands() -> None:
    """Promise a recall, a precision or prediction sets for new documents.

    \b
    Examples:
      spacy-crf-ner promise fit model new.spacy careful --recall 0.98
      spacy-crf-ner promise check careful new-records/
    """


@promise.command()
def fit(
    model: options.Model,
    corpus: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS",
            help="New documents with gold entities, in any format of `convert`: neither train nor "
            "dev.",
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="New folder for the pipeline with promises.")
    ],
    recall: Annotated[
        float | None,
        typer.Option(help="Promise that candidates contain this share of the gold entities."),
    ] = None,
    ents_precision: Annotated[
        float | None, typer.Option(help="Promise that this share of the found entities is right.")
    ] = None,
    set_coverage: Annotated[
        float | None,
        typer.Option(help="Promise prediction sets that contain the right one this often."),
    ] = None,
    confidence_level: Annotated[
        float | None,
        typer.Option(help="Of --recall (else it holds on average) and --ents-precision (0.95)."),
    ] = None,
    by_label: Annotated[bool, typer.Option("--by-label", help="--recall for each label.")] = False,
    train: Annotated[
        Path | None,
        typer.Option(
            help="Training data, where the pipeline does not know it: leave out documents of "
            "CORPUS that are in it too."
        ),
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
            help="Use documents that chose the checkpoint, or served the calibration, too. The "
            "promise is then too good, and says so.",
        ),
    ] = False,
    gpu_id: options.GpuId = -1,
    dtype: options.Dtype = None,
    component: options.Component = None,
) -> None:
    """Find thresholds that keep a promise on new documents.

    The promise is for new documents from the source of CORPUS, and for entities that
    do not overlap. The pipeline keeps hashes of the documents that it was trained on,
    that chose the checkpoint, as dev.spacy does, and that it was calibrated on. These are
    left out and counted; all others serve the promise.

    The calibration stays as it is: `calibrate` first, on other documents, as it drops
    promises. Earlier promises are replaced. Only what was fitted differs in the saved
    pipeline. A promise is for the --dtype that it was fitted in.

    Prints for each promise its confidence level, or that it holds in the mean over
    corpora; the errors on halves of the documents if fitted to the other half, the mean
    and the 95 % quantile; and its cost: candidates per gold entity, the recall that is
    left, or labelings per document.

    \b
    Examples:
      spacy-crf-ner promise fit model new.spacy careful --recall 0.98
      spacy-crf-ner promise fit model new.jsonl careful --ents-precision 0.9
    """
    leave_out_torch_if_exported(model, dtype)
    from ..evaluation.fit_guarantees import Targets, fit_guarantees
    from ..evaluation.guarantees import save_fitted
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer, recognizer_name

    check_new_folder(target)
    targets = Targets(
        recall, ents_precision, set_coverage, confidence_level, by_label, None, held_out, count_dev
    )
    nlp = load(model, gpu_id, dtype)
    name = recognizer_name(nlp, component)
    examples = read_examples(nlp, corpus, name)
    if train is not None:
        texts = [eg.text for eg in read_examples(nlp, train, name)]
        targets = replace(targets, trained_on=texts)
    with plain_warnings():
        rows = fit_guarantees(nlp, name, examples, targets)
    fitted = recognizer(nlp, name)
    save_fitted(model, nlp, target)
    _print_promises(rows, next(iter(fitted.cfg["guarantees"].values())))
    typer.echo(f"Pipeline: {target}")
    note(f"Next: spacy-crf-ner promise check {shlex.quote(str(target))} NEW_TEXTS")


def _print_promises(rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Print the rows of `fit_guarantees`, and what one of the promises is about."""
    numbers = right("confidence", "docs", "threshold", "errors, p95", "cost")
    table = Table(Column("promise", no_wrap=True), *numbers)
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
        f"Promised for a document, of {about['tokens']:.0f} tokens on average, and the "
        f"labels {', '.join(about['labels'])}"
    )
    if about["counts_dev"]:
        typer.echo(
            "Warning: documents that chose the weights or served the calibration count. The "
            "promise is too good.",
            err=True,
        )
    if repeated := about["texts"] - about["different_texts"]:
        typer.echo(
            f"Warning: {repeated} of the {about['texts']} documents for the promise are "
            "repetitions. If they are copies of a file, and not new documents with the same "
            "text, leave them out: they prove less.",
            err=True,
        )


@promise.command()
def check(
    model: options.Model,
    inputs: options.Texts,
    text_column: options.TextField = "text",
    doc_per_file: options.DocPerFile = False,
    gpu_id: options.GpuId = -1,
    dtype: options.Dtype = None,
    component: options.Component = None,
) -> None:
    """Test whether new documents are like those of the promises.

    Compares 500 documents of each: their length, how surprising their best labeling is
    (minus its log probability, per token), and the mean confidence of its entities, with
    the Kolmogorov-Smirnov test. Input formats are those of `predict`.

    If they differ, the exit code is 2: the promises do not hold for the new documents.
    No difference is no proof that they do.

    \b
    Example:
      spacy-crf-ner promise check careful new-records/
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.sample import read_sample
    from ..annotate.settings import Settings
    from ..evaluation.monitoring import SAMPLE, different, drift
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer_name

    nlp = load(model, gpu_id, dtype)
    name = recognizer_name(nlp, component)
    settings = Settings(text_column=text_column, doc_per_file=doc_per_file)
    docs = list(read_sample(nlp, name, inputs, settings, SAMPLE))
    rows = drift(nlp, docs, name)
    table = Table("statistic", *right("median before", "median now", "distance", "p"))
    for row in rows:
        table.add_row(row.statistic, *(f"{x:.3g}" for x in row[1:]))
    print_table(table)
    if differ := different(rows):
        typer.echo(
            "These documents differ from those that the promises were fitted to, in "
            f"{' and '.join(differ)}: the promises do not hold for them. Annotate some of them, "
            "and use promise fit."
        )
        raise typer.Exit(2)
    typer.echo("No difference to the documents that the promises were fitted to.")
