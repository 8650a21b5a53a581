"""The command `report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from .console import bar, note, print_table, table_console
from .console import right as columns
from .gold_corpus import predict_corpus, warn_if_trained_on
from .options import Component, Dtype, GoldCorpus, GpuId, Model
from .startup import leave_out_torch_if_exported

if TYPE_CHECKING:
    from ..report.tables import Cell

EDGES = (0.95, 0.9, 0.8, 0.5, 0.0)  # of confidences, some of `evaluation.THRESHOLDS`


def report(
    model: Model,
    corpus: GoldCorpus,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUTPUT", help="Folder for the report; replaces an earlier one."),
    ],
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="NEW",
            help="A new pipeline, to compare with MODEL, the old one: a difference is new minus "
            "old.",
        ),
    ] = None,
    training_log: Annotated[
        Path | None,
        typer.Option(help="Output of spacy train, or the output_file of ConsoleLogger.v3."),
    ] = None,
    component: Component = None,
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
) -> None:
    """Evaluate a pipeline: scores, errors, calibration.

    Works for any pipeline that sets doc.ents. Confidences and transitions need a
    crf_ner component. If its entities overlap, those in doc.spans are evaluated.

    \b
    Writes into the folder:
      report.html     a web page, with all errors and filters
      documents.html  the documents, gold beside predicted entities
      report.md       the tables in Markdown, and the most confident errors
      report.json     all scores and errors, for programs

    \b
    Example:
      spacy-crf-ner report training/model-best corpus/test.spacy report
    """
    if compare is None:
        leave_out_torch_if_exported(model, dtype)
    from .. import evaluation
    from .. import report as reports
    from ..pipeline.lookup import recognizer_names
    from ..report.tables import headline

    reports.check_report(out)
    training = evaluation.read_training_log(training_log) if training_log else None
    status = Console(stderr=True).status("Measuring")
    nlp, examples = predict_corpus(model, corpus, component, gpu_id, dtype)
    every = [examples]
    warn_if_trained_on(nlp, model, examples)
    with status:
        results = evaluation.evaluate(
            examples, model=model, data=str(corpus), nlp=nlp, component=component, training=training
        )
    if compare is not None:
        other, others = predict_corpus(compare, corpus, component, gpu_id, dtype)
        every.append(others)
        named = component if component in recognizer_names(other) else None
        with status:
            against = evaluation.evaluate(
                others, model=compare, data=str(corpus), nlp=other, component=named
            )
            results = evaluation.compare(results, examples, against, others)
    paths = reports.write_report(results, out, *every)
    if compare is None:
        (_, f1), *_ = headline(results)
        typer.echo(f"Micro F1: {_plain(f1)}")
    else:
        for (name, cell), of in zip(headline(results), ("", f"  {model}", f"  {compare}")):
            typer.echo(f"Micro {name}: {_plain(cell)}{of}")
    if results["calibration"]:
        typer.echo(results["calibration"])
    if compare is None and results["thresholds"] is not None:
        _print_by_confidence(results["thresholds"])
    for path in paths:
        typer.echo(path)
    note(f"Next: open {paths[0]} in a browser")


def _print_by_confidence(thresholds: list[dict[str, float]]) -> None:
    """Print how many entities are right, of each range of confidences."""
    rows = {row["threshold"]: row for row in thresholds}
    table = Table("Confidence", *columns("entities", "right"), "share that is right")
    console = table_console()
    above, n_above, right_above = 1.0, 0, 0
    for edge in EDGES:
        n = int(rows[edge]["entities"])
        right = round(n * (rows[edge]["precision"] or 0))
        if edge == EDGES[0]:
            sure = f"a confidence of at least {edge}"
            typer.echo(f"Of the {n:,} entities with {sure}, {right:,} are right.")
        own, own_right = n - n_above, right - right_above
        share = bar(own_right / own, console) if own else "none"
        table.add_row(f"{edge:.2f} to {above:.2f}", str(own), str(own_right), share)
        above, n_above, right_above = edge, n, right
    print_table(table)


def _plain(cell: "Cell") -> str:
    """Format a score and its interval without characters that a terminal may not have."""
    from ..report.tables import UNDEFINED

    shown = f"{cell.text} ({cell.detail})" if cell.detail else cell.text
    return shown.replace(UNDEFINED, " to ").replace("\N{MINUS SIGN}", "-")
