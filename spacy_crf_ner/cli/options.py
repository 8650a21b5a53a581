"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from ..input_error import InputError

PRECISIONS = "auto|fp32|bf16|fp16|int8"


def _known_precision(value: str | None) -> str | None:
    if value is not None and value not in PRECISIONS.split("|"):
        raise typer.BadParameter(f"expected one of {PRECISIONS}, got {value}")
    return value


Model = Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")]
GoldCorpus = Annotated[Path, typer.Argument(help="Documents with gold entities: a .spacy file.")]
Texts = Annotated[
    list[str], typer.Argument(metavar="INPUT", help="Files, globs in quotes, or folders.")
]
TextField = Annotated[str, typer.Option(help="Column with the texts.")]
IDField = Annotated[
    str, typer.Option(help="Column with the ids; a missing id becomes file and line.")
]
WholeFiles = Annotated[
    bool, typer.Option("--whole-files", help="One document per .txt file, not per line.")
]
GpuId = Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")]
Component = Annotated[
    str | None, typer.Option(help="Name of the crf_ner component, if there are several.")
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar=PRECISIONS,
        callback=_known_precision,
        help="Precision of fast prediction; auto: a fast one on this hardware. Default: as saved "
        "with the pipeline.",
    ),
]
TeacherPrecision = Annotated[
    str,
    typer.Option(
        metavar=PRECISIONS,
        callback=_known_precision,
        help="Precision of the teachers; auto: a fast one on this hardware. fp32 changes no score.",
    ),
]


def numbers(option: str, text: str) -> list[int]:
    """Read the numbers of an option, such as 0,1,2."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option}: expected numbers such as 0,1,2, got {text!r}.") from error
