"""Plain text: a document a line, or a file."""

from typing import Iterator

from ..inputs import Source
from . import lines
from .compression import unpacked
from .item import Item, Place


def read_plain(source: Source, text_column: str) -> Iterator[Item]:
    """Read a document a line; an empty line is an empty document."""
    for line in lines.read_lines(source):
        text = line.text.removesuffix("\n").removesuffix("\r")
        row = None if line.reason else {text_column: text}
        yield Item(Place(str(source.path), line.number), row, line.reason, line.position)


def read_whole(source: Source, text_column: str) -> Iterator[Item]:
    """Read a file as one document, all its characters as they are."""
    with unpacked(source) as (file, _):
        text, reason = lines.decode(file.read(lines.MAX_LINE + 1), begins=True)
    row = None if reason else {text_column: text}
    yield Item(Place(str(source.path), None), row, reason, source.size)
