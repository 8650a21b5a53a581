"""Arguments and options that several commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..input_error import InputError

DTYPE_NAMES = "auto|fp32|bf16|fp16|int8"


def _known_dtype(value: str | None) -> str | None:
    if value is not None and value not in DTYPE_NAMES.split("|"):
        raise typer.BadParameter(f"expected one of {DTYPE_NAMES}, got {value}")
    return value


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Pipeline: a folder, or the name of a package.")
]
GoldCorpus = Annotated[
    Path,
    typer.Argument(
        metavar="CORPUS",
        help="Documents with gold entities: a .spacy file, a folder, any format of `convert`.",
    ),
]
Texts = Annotated[
    list[str], typer.Argument(metavar="INPUT", help="Files, globs in quotes, or folders.")
]
TextField = Annotated[str, typer.Option(help="Column with the texts.")]
IDField = Annotated[
    str, typer.Option(help="Column with the ids; a missing id becomes file and line.")
]
DocPerFile = Annotated[
    bool, typer.Option("--doc-per-file", help="One document per .txt file, not per line.")
]
GpuId = Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")]
GpuIds = Annotated[str, typer.Option(help="GPU numbers, comma-separated; -1 for the CPU.")]
Workers = Annotated[
    int,
    typer.Option(
        min=0,
        help="Processes, each with its own model; 0: one per shard of the input, at most one per "
        "core, and 8 for each device. 1 on the CPU starts none.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an earlier run, and keep what is finished.")
]
Restart = Annotated[bool, typer.Option("--restart", help="Remove the output of an earlier run.")]
Lang = Annotated[str, typer.Option(help="Language code of spaCy, such as en or vi.")]
Seed = Annotated[int, typer.Option(help="Seed of what is drawn at random.")]
Tool = Annotated[
    str,
    typer.Option(metavar="prodigy|label-studio|doccano|jsonl", help="The tool to annotate with."),
]
Repair = Annotated[
    bool,
    typer.Option("--repair", help="Fix mistakes, leave out what cannot be fixed, count both."),
]
MAX_LOSS = 0.05  # as in `data`, which takes a second to import
MaxLoss = Annotated[
    float,
    typer.Option(
        help="With --repair: largest share of the documents, and of the entities, to leave out."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Component = Annotated[
    str | None, typer.Option(help="Name of the crf_ner component, if there are several.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar=DTYPE_NAMES,
        callback=_known_dtype,
        help="Dtype of fast prediction; auto: a fast one on this hardware. Default: as saved "
        "with the pipeline.",
    ),
]
TeacherDtype = Annotated[
    str,
    typer.Option(
        metavar=DTYPE_NAMES,
        callback=_known_dtype,
        help="Dtype of the teachers; auto: a fast one on this hardware. fp32 changes no score.",
    ),
]


@contextmanager
def resumable(resume: bool, restart: bool) -> Iterator[None]:
    """Run in shards: refuse both options together, and explain how an interrupted run continues."""
    if resume and restart:
        raise InputError("expected one of --resume and --restart, got both. Choose one.")
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted: --resume continues after what is finished.", err=True)
        raise typer.Exit(130) from None


def gpu_numbers(text: str) -> list[int]:
    """Read the GPUs of --gpu-id, such as 0,1,2; none for the CPU."""
    try:
        return [gpu for gpu in map(int, text.split(",")) if gpu >= 0]
    except ValueError as error:
        raise InputError(f"--gpu-id: expected numbers such as 0,1,2, got {text!r}.") from error
