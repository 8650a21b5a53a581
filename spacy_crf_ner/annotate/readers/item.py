"""A record of a file, or why there is none."""

from typing import Any, Dict, NamedTuple, Optional

Row = Dict[str, Any]  # the columns of a record, by their names


class Place(NamedTuple):
    """Where a record is.

    file: Path, as it was found.
    line: The line that it begins on, from 1; in .parquet and .spacy its number; None of a whole
        file.
    """

    file: str
    line: Optional[int]


class Item(NamedTuple):
    """What was found at a place.

    row: The record; None where it could not be read, and for a blank line.
    reason: Why it could not be read; "" for a record, and for a blank line.
    position: Bytes of the file, as it lies on the disk, that are read so far, about.
    """

    place: Place
    row: Optional[Row]
    reason: str
    position: int
