"""Lines of text files, each with its place."""

from pathlib import Path
from typing import Iterator, Tuple

from .journal import error


def read_lines(path: Path, errors: str = "strict") -> Iterator[Tuple[str, str]]:
    """Read (where, text) of the lines of a UTF-8 file, which end at line feeds, not at U+2028."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as problem:
                raise error(where, "UTF-8", str(problem), "Save the file as UTF-8") from problem
            yield where, text.removesuffix("\n").removesuffix("\r")
