"""The command `predict`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..input_error import InputError
from . import options
from .console import annotation_progress
from .predictions import PRINTED_TOGETHER, print_predictions
from .startup import leave_out_torch_if_exported

if TYPE_CHECKING:
    from ..annotate import Summary

# Options that have an effect only with --output, or only without it.
WITH_OUTPUT = (
    "format",
    "no_text",
    "workers",
    "shard_size",
    "resume",
    "restart",
    "engine",
    "ray_address",
)
WITHOUT_OUTPUT = ("accept", "alternatives")


def predict(
    context: typer.Context,
    model: options.Model,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Texts in quotes, files, globs in quotes, folders; - for stdin, a text a line.",
        ),
    ],
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON also on a terminal; with --output, a summary in JSON."
        ),
    ] = False,
    accept: Annotated[
        float,
        typer.Option(min=0, max=1, help="Lowest confidence of entities that nobody has to check."),
    ] = 0.9,
    alternatives: Annotated[
        bool, typer.Option("--alternatives", help="Show what else entities could be. Takes longer.")
    ] = False,
    text_column: options.TextField = "text",
    id_column: options.IDField = "id",
    doc_per_file: options.DocPerFile = False,
    batch_size: Annotated[
        int, typer.Option(min=0, help="Documents per batch; 0: depends on their length.")
    ] = 0,
    gpu_id: options.GpuIds = "-1",
    dtype: options.Dtype = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Folder to write to. The options below need it."),
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="jsonl|parquet|spacy", help="Format of the shards.")
    ] = "jsonl",
    no_text: Annotated[bool, typer.Option("--no-text", help="Do not write the texts.")] = False,
    workers: options.Workers = 0,
    shard_size: Annotated[
        int, typer.Option(min=1, help="Maximum number of documents in a shard.")
    ] = 2000,
    resume: options.Resume = False,
    restart: options.Restart = False,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Processes on this machine, or Ray.")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; without it, start Ray on this machine."),
    ] = None,
) -> None:
    """Find the entities of texts and files, each with its label and its confidence.

    Prints a table on a terminal, and JSON lines elsewhere: for each document its columns and
    "entities", the start, end, label and confidence of each, in characters; all entities if they
    overlap. The confidence is the probability that the label and both boundaries are correct.
    With --output, writes the same into files, for corpora of any size.

    \b
    Input formats, by file extension; all but the last two also with .gz or .zst:
      .txt         one document per line; with --doc-per-file, one per file
      .jsonl       one object per line
      .csv, .tsv   the first line has the column names
      .parquet
      .spacy       the tokens are kept, the entities are ignored

    A document that cannot be read or annotated is left out and named, in errors.jsonl of the
    folder or on stderr, and the exit code is 2. If a run with --output is interrupted or
    fails, its finished shards are complete, and --resume continues after them.

    \b
    Examples:
      spacy-crf-ner predict training/model-best "Tim Cook visited Hanoi."
      spacy-crf-ner predict training/model-best news.txt > entities.jsonl
      zcat log.gz | spacy-crf-ner predict training/model-best - --alternatives
      spacy-crf-ner predict training/model-best texts/ --output entities
      spacy-crf-ner predict model "logs/*.jsonl.gz" -o out --text-column message
      spacy-crf-ner predict model s3://mine/news/ -o s3://mine/out --engine ray
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.inputs import FILES, kind_of
    from ..annotate.settings import Settings

    _check_options(context, output)
    settings = Settings(
        format=format,
        text_column=text_column,
        id_column=id_column,
        doc_per_file=doc_per_file,
        keep_text=not no_text,
        shard_size=PRINTED_TOGETHER if output is None else shard_size,
        batch_size=batch_size,
        dtype=dtype,
    )
    gpu_ids = options.gpu_numbers(gpu_id)
    if output is None:
        if len(gpu_ids) > 1:
            raise InputError(f"--gpu-id {gpu_id}: several GPUs need --output. Name one of them.")
        gpu = gpu_ids[0] if gpu_ids else -1
        failed = print_predictions(model, inputs, settings, gpu, as_json, accept, alternatives)
    else:
        for given in inputs:
            if (kind := kind_of(given)) != FILES:
                got = f"{given[:60]!r} is {kind}"
                raise InputError(f"{got}, but --output is for files. Leave out one.")
        again = {"workers": workers, "resume": resume, "restart": restart}
        with options.resumable(resume, restart), annotation_progress("Predicting") as on_progress:
            run = _engine(engine, gpu_ids, ray_address)
            summary = run(model, inputs, output, settings, on_progress=on_progress, **again)
        _print_summary(summary, as_json)
        failed = summary["errors"]
    if failed:
        raise typer.Exit(2)


def _check_options(context: typer.Context, output: str | None) -> None:
    """Raise InputError for an option that has no effect with, or without, an output."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        option = parameter.opts[0]
        if output is None and name in WITH_OUTPUT:
            raise InputError(f"{option} is for files that are written. Add --output FOLDER.")
        if output is not None and name in WITHOUT_OUTPUT:
            raise InputError(f"{option} is for what is printed. Leave out that, or --output.")


def _engine(engine: str, gpu_ids: list[int], ray_address: str | None) -> Callable[..., "Summary"]:
    from ..annotate import annotate, annotate_on_ray

    engines = {
        "local": partial(annotate, gpu_ids=gpu_ids),
        "ray": partial(annotate_on_ray, address=ray_address, gpus=bool(gpu_ids)),
    }
    if engine not in engines:
        expected = ", ".join(engines)
        raise InputError(f"--engine: expected one of {expected}, got {engine!r}. Choose one.")
    return engines[engine]


def _print_summary(summary: "Summary", as_json: bool) -> None:
    import srsly

    if as_json:
        typer.echo(srsly.json_dumps(summary, indent=2))
        return
    found = "Documents: {out:,} of {in:,}\nWords: {words:,}\nEntities: {entities:,}\n"
    found += "Shards: {shards:,} in {output}"
    if summary["resumed_shards"]:
        found += ", {resumed_shards:,} of them kept"
    if summary["errors"]:
        found += "\nLeft out: {errors:,}, see {output}/errors.jsonl"
    if summary["ignored_files"]:
        found += "\nFiles of other kinds, not read: {ignored_files:,}"
    if summary["words_per_second"]:
        found += "\nTime: {seconds:,.1f} s, {words_per_second:,.0f} words per second"
    typer.echo(found.format(**summary))
