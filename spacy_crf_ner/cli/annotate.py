"""The command `annotate`."""

from functools import partial
from typing import Annotated, Callable, List, Optional

import srsly
import typer

from .. import annotate as annotation
from .console import (
    annotation_bar,
)
from .options import Precision, numbers


def annotate(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    inputs: Annotated[
        List[str], typer.Argument(metavar="INPUT", help="Files, globs in quotes, or folders.")
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder for the shards.")],
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Processes of this machine, or Ray.")
    ] = "local",
    format: Annotated[
        str, typer.Option(metavar="jsonl|parquet|spacy", help="Of the shards.")
    ] = "jsonl",
    text_column: Annotated[str, typer.Option(help="Name of the column of texts.")] = "text",
    id_column: Annotated[
        str, typer.Option(help="Name of that of ids; where there is none, file and line.")
    ] = "id",
    whole_files: Annotated[
        bool,
        typer.Option("--whole-files", help="A .txt file is a document, not each of its lines."),
    ] = False,
    no_text: Annotated[bool, typer.Option("--no-text", help="Do not write the texts.")] = False,
    workers: Annotated[
        int,
        typer.Option(min=0, help="Processes, each with a copy of the model; 0: one a core, to 8."),
    ] = 0,
    gpu_id: Annotated[
        str, typer.Option(help="GPUs, with commas: a worker for each; -1 for the CPU.")
    ] = "-1",
    precision: Precision = None,
    batch_size: Annotated[
        str, typer.Option(help="Documents that are annotated together; auto: by their length.")
    ] = "auto",
    shard_size: Annotated[int, typer.Option(min=1, help="Most documents of a shard.")] = 2000,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an earlier run has left.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Remove what an earlier run has left.")
    ] = False,
    ray_address: Annotated[
        Optional[str], typer.Option(help="Ray: address of a cluster; none starts one here.")
    ] = None,
) -> None:
    """Find the entities of many documents, and write them in shards.

    
    Input, told by the ending, .gz and .zst too but for the last two:
      .txt         a line a document; with --whole-files a file
      .jsonl       an object a line
      .csv, .tsv   the first line has the names of the columns
      .parquet
      .spacy       its tokens are kept, its entities are not read

    Each record of the output has the columns of the input, and "entities": start, end,
    label and confidence of each, in characters. The shards have the order of the input.

    A document that cannot be read or annotated stops no other: it is in errors.jsonl,
    with file, line and reason, and the exit code is 2. Ctrl-C, and whatever else ends
    a run, leaves whole shards: --resume goes on after them.

    
    Examples:
      spacy-crf-ner annotate training/model-best texts/ annotated/
      spacy-crf-ner annotate model "logs/**/*.jsonl.gz" out --text-column message
      spacy-crf-ner annotate model news.parquet out --format parquet --gpu-id 0,1
      spacy-crf-ner annotate model s3://bucket/news/ s3://bucket/out --engine ray
    """
    annotation.require_annotate()
    if engine not in annotation.ENGINES:
        expected = ", ".join(annotation.ENGINES)
        raise ValueError(f"--engine: expected one of {expected}, got {engine!r}. Choose one.")
    if resume and restart:
        raise ValueError("expected one of --resume and --restart, got both. Choose one.")
    settings = annotation.Settings(
        format=format,
        text_column=text_column,
        id_column=id_column,
        whole_files=whole_files,
        keep_text=not no_text,
        shard_size=shard_size,
        batch_size=0 if batch_size == "auto" else numbers("--batch-size", batch_size)[0],
        precision=precision,
    )
    gpu_ids = [gpu for gpu in numbers("--gpu-id", gpu_id) if gpu >= 0]
    start: Callable[..., annotation.Summary]
    if engine == "ray":
        if resume:
            raise ValueError(
                "--resume: expected the engine local, got ray, which runs again by itself what "
                "fails within a run. Leave it out, or begin anew by --restart."
            )
        start = partial(annotation.annotate_on_ray, address=ray_address, gpus=bool(gpu_ids))
        again = "--restart begins anew"
    else:
        start = partial(annotation.annotate, gpu_ids=gpu_ids, resume=resume)
        again = "--resume goes on after the finished shards"
    try:
        with annotation_bar() as watch:
            summary = start(
                model, inputs, output, settings, workers=workers, restart=restart, watch=watch
            )
    except KeyboardInterrupt:
        typer.echo(f"Interrupted: {again}.", err=True)
        raise typer.Exit(130) from None
    typer.echo(srsly.json_dumps(summary, indent=2))
    if summary["errors"]:
        raise typer.Exit(2)
