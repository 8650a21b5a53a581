"""Rows of cells: of text with separators, of CSV, and of spreadsheets."""

import csv
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from ..input_error import InputError
from .iob import TAG
from .lines import MAX_LINE_BYTES, Problem, read_lines
from .repair_log import error

TAB, SPACES, BARS, SPREADSHEET = "\t", " ", "|", "xlsx"
CSV = ",", ";"
MARKS = "#", ";"  # a comment begins with one
DOCUMENT_START = "-DOCSTART-"
ZIP = b"PK\x03\x04"  # the first bytes of a spreadsheet
BYTE_ORDER_MARKS = BOM_UTF8, BOM_UTF16_LE, BOM_UTF16_BE
LAYOUT_LINES = 1000  # number of rows from which the layout is detected
LAYOUT_CHARACTERS = 10_000  # longer rows say nothing about it


class Row(NamedTuple):
    """A row of a file; `problem` is why it cannot be read.

    Attributes:
        text: The line, also of a row that cannot be divided into cells.
        cells: Its cells; none for a blank line, or one of separators alone.
    """

    where: str
    text: str
    cells: list[str]
    problem: Problem | None = None

    @property
    def starts_document(self) -> bool:
        """Whether a document begins after this row."""
        return self.text.startswith(DOCUMENT_START) and not self.problem

    @property
    def ends_sentence(self) -> bool:
        """Whether a row is blank, or begins a document."""
        return self.starts_document or not (self.cells or self.problem)


class Rows(NamedTuple):
    """A file of rows. `separator` is one of the constants of this module."""

    path: Path
    separator: str
    encoding: str = "utf-8"

    def read(self) -> Iterator[Row]:
        """Read all rows."""
        if self.separator == SPREADSHEET:
            for number, values in enumerate(spreadsheet(self.path), 1):
                cells = ["" if value is None else str(value) for value in values]
                where = f"{self.path}, row {number}"
                yield Row(where, "\t".join(cells), cells if any(cells) else [])
            return
        blank = " \t\r" + self.separator * (self.separator in CSV)
        for where, text, problem in read_lines(self.path, self.encoding):
            if not (problem or text.strip(blank).strip()):
                yield Row(where, text, [])
                continue
            if "\r" in text and not problem:
                expected, fix = "a line without carriage returns", "Save the file with line feeds"
                problem = "columns", error(where, expected, f"{text[:80]!r}", fix)
            if self.separator == BARS:
                yield from (Row(where, text, each.split("|"), problem) for each in text.split())
                yield Row(where, "", [])
            elif self.separator in CSV and '"' in text and not problem:
                yield _quoted(where, text, self.separator)
            else:
                cells = text.split(self.separator)
                if self.separator == SPACES:
                    cells = [*filter(None, cells)]
                yield Row(where, text, cells, problem)

    def first(self) -> Iterator[Row]:
        """Read the rows from which the layout is detected."""
        rows = islice(self.read(), LAYOUT_LINES)
        return (row for row in rows if len(row.text) < LAYOUT_CHARACTERS)


def _quoted(where: str, text: str, separator: str) -> Row:
    try:
        (cells,) = csv.reader([text], delimiter=separator, strict=True)
    except csv.Error as bad:
        problem = error(where, "CSV", str(bad), 'Write a cell that is a quote as """"')
        return Row(where, text, text.split(separator), ("csv", problem))
    return Row(where, text, cells)


def spreadsheet(path: Path) -> Iterator[tuple[Any, ...]]:
    """Read the values of the first sheet of an .xlsx file."""
    try:
        from openpyxl import load_workbook
    except ModuleNotFoundError:
        raise InputError(
            f"{path}: expected the package openpyxl, which reads spreadsheets, got none. Install "
            "it: pip install openpyxl. Or save the sheet as CSV, in UTF-8."
        ) from None
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        yield from book.worksheets[0].iter_rows(values_only=True)
    except (BadZipFile, KeyError, ValueError, IndexError) as bad:
        raise error(str(path), "a spreadsheet", str(bad), "Save it as CSV, in UTF-8") from None


def has_bars(line: str) -> bool:
    """Return whether a line is a sentence of spaCy's .iob, as `Ann|NNP|B-PER left|VBD|O`."""
    return all("|" in each and TAG.fullmatch(each.split("|")[-1]) for each in line.split())


def rows_of_text(path: Path) -> Rows:
    """Find the separator of most of the first lines: tabs, spaces, or the bars of .iob."""
    found = Counter[str]()
    for line in islice(read_lines(path), LAYOUT_LINES):
        if line.text.strip() and not line.text.startswith(DOCUMENT_START):
            separator = TAB if TAB in line.text else BARS if has_bars(line.text) else SPACES
            found[separator] += not line.text.startswith(MARKS)
    return Rows(path, max(found, key=found.__getitem__, default=SPACES))


def rows_of_table(path: Path) -> Rows:
    """Find the separator of a CSV file, and its encoding: UTF-8, or that of Windows."""
    with path.open("rb") as file:
        head = file.read(4)
    if head == ZIP:
        return Rows(path, SPREADSHEET)
    found = Counter[str]()
    for line in islice(read_lines(path), LAYOUT_LINES):
        found.update({separator: line.text.count(separator) > 0 for separator in (*CSV, TAB)})
    encoding = "utf-8" if head.startswith(BYTE_ORDER_MARKS) or _is_utf8(path) else "cp1252"
    return Rows(path, max((TAB, ";", ","), key=found.__getitem__), encoding)


def _is_utf8(path: Path) -> bool:
    """Return whether at least half of the lines that are not ASCII are in UTF-8."""
    found, others = 0, 0
    with path.open("rb") as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
            others += not line.isascii()
            with suppress(UnicodeDecodeError):
                line.decode()
                found += not line.isascii()
    return found >= others / 2
