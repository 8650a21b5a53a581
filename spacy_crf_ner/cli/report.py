"""The command `report`."""

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from .. import evaluation
from ..report import markdown as reports
from .gold_corpus import predict_corpus
from .options import Precision


def report(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[Path, typer.Argument(help="Documents with gold entities: a .spacy file.")],
    out: Annotated[Path, typer.Argument(help="Folder for the report; one in it is replaced.")],
    compare: Annotated[
        Optional[str], typer.Option(metavar="MODEL", help="Another pipeline, to compare with.")
    ] = None,
    training_log: Annotated[
        Optional[Path],
        typer.Option(help="What spacy train printed, or the output_file of ConsoleLogger.v3."),
    ] = None,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, where there are several.")
    ] = None,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
) -> None:
    """Say how good a pipeline is, where it errs, and how sure it can be believed.

    Any pipeline that sets doc.ents will do. What of this is known of a crf_ner
    component alone (confidences, transitions) is left out for others.

    \b
    Writes into the folder:
      report.html  a page of it all, with the errors to browse, for a browser
      report.md    the figures as tables in Markdown, and the surest errors
      report.json  the figures, and all errors, for programs

    \b
    Example:
      spacy-crf-ner report training/model-best corpus/test.spacy report
    """
    reports.require_report()
    reports.require_folder(out)
    training = evaluation.read_training_log(training_log) if training_log else None
    nlp, examples = predict_corpus(model, corpus, gpu_id, precision)
    with Console().status("Measuring"):
        figures = evaluation.evaluate(
            examples, model=model, data=str(corpus), nlp=nlp, component=component, training=training
        )
    if compare is not None:
        other, others = predict_corpus(compare, corpus, gpu_id, precision)
        named = component if component in other.pipe_names else None
        with Console().status("Measuring"):
            against = evaluation.evaluate(
                others, model=compare, data=str(corpus), nlp=other, component=named
            )
            figures = evaluation.compare(figures, examples, against, others)
    paths = reports.write_report(figures, out)
    f1, interval = figures["matching"]["strict"]["micro"]["f1"], figures["intervals"]["micro"]["f1"]
    typer.echo(f"Micro F1: {reports.with_interval(f1, interval)}")
    for path in paths:
        typer.echo(path)
