"""Options that several commands share."""

from typing import Annotated, List, Optional

import typer

from ..input_error import InputError

PRECISIONS = "auto|fp32|bf16|fp16|int8"


def _known_precision(value: Optional[str]) -> Optional[str]:
    if value is not None and value not in PRECISIONS.split("|"):
        raise typer.BadParameter(f"expected one of {PRECISIONS}, got {value}")
    return value


Precision = Annotated[
    Optional[str],
    typer.Option(
        metavar=PRECISIONS,
        callback=_known_precision,
        help="Predict as fast as can be, in this precision; auto: the cheapest that the hardware "
        "does well. Without: as the pipeline was saved.",
    ),
]


def numbers(option: str, text: str) -> List[int]:
    """Read the numbers of an option, such as 0,1,2; ValueError where they are none."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise InputError(f"{option}: expected numbers such as 0,1,2, got {text!r}.") from error
