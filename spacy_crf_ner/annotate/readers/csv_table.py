"""Tables as text, with commas or tabs between their cells: .csv and .tsv."""

import csv
from contextlib import closing, contextmanager
from typing import Iterator, List, Optional, Tuple

from ...data.json_records import shorten
from ..inputs import Source
from . import lines
from .item import Item, Place, Row

DELIMITERS = {"csv": ",", "tsv": "\t"}


def read_table(source: Source) -> Iterator[Item]:
    """Read rows of strings, and go on after one that cannot be read.

    Raises ValueError and csv.Error as a _Table does, and for a record of which nobody knows what of
    the rest it takes: one that is too long, or has a quote that is never closed.
    """
    with _opened(source) as table:
        yield from table.items()


def read_header(source: Source) -> List[str]:
    """Read the names of the columns. Raises as `read_table`."""
    with _opened(source) as table:
        return table.columns


@contextmanager
def _opened(source: Source) -> Iterator["_Table"]:
    with closing(lines.read_lines(source)) as content:
        yield _Table(str(source.path), content, DELIMITERS[source.kind])


class _Table:
    """A table that is read a record at a time, each of at most MAX_LINE characters.

    While it is read, a character takes four bytes.

    columns: Its header.

    Raises ValueError for a header that is not there, or has a name twice, csv.Error for one that
    cannot be read, and what `read_lines` raises.
    """

    def __init__(self, file: str, content: Iterator[lines.Line], delimiter: str) -> None:
        # Of the whole process, so never less; `_feed` stops before it is reached.
        csv.field_size_limit(max(csv.field_size_limit(), lines.MAX_LINE))
        self._file = file
        self._reader = csv.reader(self._feed(content), delimiter=delimiter, strict=True)
        self._first = self._length = self._position = 0
        self._reason, self._ended = "", False
        self.columns = next(self._reader, [])
        if self._reason or not self.columns or len({*self.columns}) < len(self.columns):
            got = self._reason or shorten(self.columns)
            raise ValueError(f"expected a first line of different names, got {got}")

    def items(self) -> Iterator[Item]:
        """Yield the records."""
        while True:
            self._begin()
            try:
                cells = next(self._reader, None)
            except csv.Error as problem:
                if self._ended:
                    raise ValueError(
                        f"the quote is never closed in the record of line {self._first}"
                    ) from problem
                cells, self._reason = [], self._reason or f"expected a record, got {problem}"
            if cells is None:
                return
            row, reason = self._row(cells)
            yield Item(Place(self._file, self._first), row, reason, self._position)

    def _begin(self) -> None:
        """Forget the last record."""
        self._first, self._length, self._reason = 0, 0, ""

    def _feed(self, content: Iterator[lines.Line]) -> Iterator[str]:
        """Yield lines to the reader, and note what is to be known of the record they are of."""
        for line in content:
            self._first = self._first or line.number
            self._length += len(line.text)
            self._reason = self._reason or line.reason
            self._position = line.position
            if self._length > lines.MAX_LINE or not line.text:
                raise ValueError(
                    f"expected at most {lines.MAX_LINE:,} characters in the record of line "
                    f"{self._first}, got more: a quote may not be closed"
                )
            yield line.text
        self._ended = True

    def _row(self, cells: List[str]) -> Tuple[Optional[Row], str]:
        expected = len(self.columns)
        if not cells or self._reason:
            return None, self._reason
        if len(cells) != expected:
            return None, f"expected {expected} cells, as the first line has, got {len(cells)}"
        return dict(zip(self.columns, cells)), ""
