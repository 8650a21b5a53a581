"""The command `annotate`."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from ..input_error import InputError
from . import options
from .console import annotation_progress, print_summary
from .startup import leave_out_torch_if_exported


def annotate(
    model: options.Model,
    inputs: options.Texts,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder for the shards.")],
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Processes on this machine, or Ray.")
    ] = "local",
    format: Annotated[
        str, typer.Option(metavar="jsonl|parquet|spacy", help="Format of the shards.")
    ] = "jsonl",
    text_column: options.TextField = "text",
    id_column: options.IDField = "id",
    doc_per_file: options.DocPerFile = False,
    no_text: Annotated[bool, typer.Option("--no-text", help="Do not write the texts.")] = False,
    workers: options.Workers = 0,
    gpu_id: options.GpuIds = "-1",
    dtype: options.Dtype = None,
    batch_size: Annotated[
        str, typer.Option(help="Documents per batch; auto: depends on their length.")
    ] = "auto",
    shard_size: Annotated[
        int, typer.Option(min=1, help="Maximum number of documents in a shard.")
    ] = 2000,
    resume: options.Resume = False,
    restart: options.Restart = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; without it, start Ray on this machine."),
    ] = None,
) -> None:
    """Find the entities of many documents, and write them in shards.

    \b
    Input formats, by file extension; all but the last two also with .gz or .zst:
      .txt         one document per line; with --doc-per-file, one per file
      .jsonl       one object per line
      .csv, .tsv   the first line has the column names
      .parquet
      .spacy       the tokens are kept, the entities are ignored

    Each output record has the input columns and "entities": the start, end, label and
    confidence of each entity, in characters; all entities if they overlap. The shards are
    in the order of the input.

    A document that cannot be read or annotated is skipped: errors.jsonl lists its file,
    line and reason, and the exit code is 2. If a run is interrupted or fails, its
    finished shards are complete, and --resume continues after them.

    \b
    Examples:
      spacy-crf-ner annotate training/model-best texts/ annotated/
      spacy-crf-ner annotate model "logs/**/*.jsonl.gz" out --text-column message
      spacy-crf-ner annotate model news.parquet out --format parquet --gpu-id 0,1
      spacy-crf-ner annotate model s3://bucket/news/ s3://bucket/out --engine ray
    """
    leave_out_torch_if_exported(model, dtype)
    from .. import annotate as annotation

    if engine not in annotation.ENGINES:
        expected = ", ".join(annotation.ENGINES)
        raise InputError(f"--engine: expected one of {expected}, got {engine!r}. Choose one.")
    settings = annotation.Settings(
        format=format,
        text_column=text_column,
        id_column=id_column,
        doc_per_file=doc_per_file,
        keep_text=not no_text,
        shard_size=shard_size,
        batch_size=_batch_size(batch_size),
        dtype=dtype,
    )
    gpu_ids = options.gpu_numbers(gpu_id)
    run: Callable[..., annotation.Summary] = partial(annotation.annotate, gpu_ids=gpu_ids)
    if engine == "ray":
        run = partial(annotation.annotate_on_ray, address=ray_address, gpus=bool(gpu_ids))
    again = {"resume": resume, "restart": restart}
    with options.resumable(resume, restart), annotation_progress("Annotating") as on_progress:
        summary = run(
            model, inputs, output, settings, workers=workers, on_progress=on_progress, **again
        )
    print_summary(summary)


def _batch_size(text: str) -> int:
    """Read a batch size, 0 for "auto"."""
    sizes = [0] if text == "auto" else options.numbers("--batch-size", text)
    if len(sizes) > 1:
        raise InputError(f"--batch-size: expected one number, or auto, got {text!r}.")
    return sizes[0]
