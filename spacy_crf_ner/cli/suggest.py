"""The command `suggest`."""

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .console import annotation_progress, print_summary
from .startup import leave_out_torch_if_exported


def suggest(
    model: options.Model,
    inputs: options.Texts,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="New folder for the tasks.")],
    n: Annotated[int, typer.Option(min=1, help="Number of tasks, with the random ones.")] = 200,
    unit: Annotated[
        str,
        typer.Option(metavar="docs|sentences|spans", help="What a task is about."),
    ] = "docs",
    tool: options.Tool = "jsonl",
    strategy: Annotated[
        str,
        typer.Option(metavar="entropy|errors|random", help="How tasks are ranked."),
    ] = "entropy",
    budget: Annotated[
        int | None, typer.Option(min=1, help="Tokens of all tasks together, at most.")
    ] = None,
    max_per_surface: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tasks whose most uncertain span has the same text, at most; numbers are alike. "
            "0: no limit.",
        ),
    ] = 3,
    random_share: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Share of the tasks that are a random sample, for evaluation."
        ),
    ] = 0.1,
    seed: options.Seed = 0,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            help="Corpus, .spacy: what it annotates is left out, see below. Name the annotated "
            "random sample too. May be repeated."
        ),
    ] = None,
    text_column: options.TextField = "text",
    id_column: options.IDField = "id",
    doc_per_file: options.DocPerFile = False,
    workers: options.Workers = 0,
    gpu_id: options.GpuIds = "-1",
    dtype: options.Dtype = None,
    component: options.Component = None,
    as_json: options.Json = False,
) -> None:
    """Choose the texts that are most worth annotating next, as tasks for a tool.

    Reads what `predict` reads. The tasks have the predicted entities, to be corrected.

    \b
    Units:
      docs       whole documents
      sentences  sentences of documents; short ones with a neighbor
      spans      questions such as "is this span a PERSON?"; not for doccano,
                 nor for overlapping entities

    \b
    Strategies:
      entropy    entropy of the distribution over all labelings, per token
      errors     expected number of wrong and missed entities, per token
      random     at random, to compare with
    For spans, the first two are the same: probabilities near 0.5 come first.

    \b
    Writes into the folder:
      tasks         the tasks, the most valuable first: .jsonl, or .json for
                    Label Studio
      sample        random tasks, to evaluate on: never train on them
      labeling.xml  the labeling configuration, for Label Studio
      errors.jsonl  documents that cannot be read or scored
      summary.json  the number of documents, and where each of their units is

    `merge ANSWERS OUTPUT --into CORPUS` adds the answers to a corpus.

    \b
    --exclude compares texts, without whitespace at their ends, and leaves out:
      docs       documents that are completely annotated
      sentences  sentences whose tokens are all annotated, in any document
      spans      the same, and questions whose span has an annotated token, or is
                 known to be incorrect
    A document that has only entities in doc.spans is completely annotated. One
    that annotates only some labels is not: the others are asked.

    \b
    Examples:
      spacy-crf-ner suggest training/model-best texts/ tasks --tool prodigy
      spacy-crf-ner suggest model texts/ questions --unit spans --n 500
    """
    leave_out_torch_if_exported(model, dtype)
    from .. import active_learning
    from ..active_learning.ranking import MIN_TOKENS
    from ..annotate import Settings

    settings = Settings(
        text_column=text_column,
        id_column=id_column,
        doc_per_file=doc_per_file,
        dtype=dtype,
    )
    wanted = active_learning.Options(
        n, unit, strategy, budget, max_per_surface, random_share, seed, component=component
    )
    with annotation_progress("Scoring") as on_progress:
        summary = active_learning.suggest(
            model,
            inputs,
            output,
            wanted,
            settings,
            exclude=exclude or (),
            tool=tool,
            workers=workers,
            gpu_ids=options.gpu_numbers(gpu_id),
            on_progress=on_progress,
        )
    if summary["tasks"] and summary["median_tokens"] < MIN_TOKENS:
        typer.echo(
            f"Warning: half of the tasks have fewer than {MIN_TOKENS} tokens, so little that it is "
            f"hard to judge. Use larger texts{'' if unit == 'docs' else ', or --unit docs'}.",
            err=True,
        )
    # else a larger number adds none
    if summary["over_max_per_surface"] and not summary["over_budget"]:
        typer.echo(
            f"Warning: {summary['tasks'] + summary['sample']} of {n} tasks. --max-per-surface "
            f"{max_per_surface} left out {summary['over_max_per_surface']} more, whose most "
            "uncertain span has the text of another. Use a larger number, or 0 for no limit.",
            err=True,
        )
    text = (
        "Documents: {documents:,}\n"
        f"Tasks: {{tasks:,}} of {{units:,}} {unit}, and {{sample:,}} in a random sample\n"
        "Tokens: {tokens:,}\n"
        "Left out: {excluded:,} that are annotated, {duplicates:,} repetitions"
    )
    print_summary(summary, text, as_json, output / "errors.jsonl", sorted(output.iterdir()))
