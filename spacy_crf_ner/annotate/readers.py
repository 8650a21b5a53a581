"""Read the records of files.

Bad data becomes an Item with a reason. An error of the machine (StorageError, MemoryError) is
raised, because a later attempt may succeed.
"""

import csv
import gzip
import os
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy.tokens import DocBin
from spacy.vocab import Vocab

from ..data.json_records import decode_json, is_text, shorten
from ..data.lines import split_lines
from ..docbin import META, without_annotation
from ..input_error import InputError
from .inputs import Source, find_sources
from .settings import Settings
from .storage import BUFFER, StorageError, locate

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyarrow.parquet import FileMetaData, ParquetFile

Row = dict[str, Any]  # the columns of a record, by name

MAX_LINE = 256 * 2**20  # bytes; a longer line is rejected, because lines are read into memory
DELIMITERS = {"csv": ",", "tsv": "\t"}
# Rows of Parquet that are read at once, and their bytes.
BATCH_ROWS = 1000
BATCH_BYTES = 16 * 2**20


@dataclass(slots=True)
class Item:
    """A record of a file, or the reason why it cannot be read.

    Attributes:
        line: Its first line, from 1; its number in .parquet and .spacy; None for a whole file.
        row: The record; None if it cannot be read, and for a blank line.
        reason: Why it cannot be read; "" for a record, and for a blank line.
        position: Approximate number of stored bytes of the file read so far.
        file: Path or URI, as it was found.
        id: The id of a record without a text.
    """

    line: int | None
    row: Row | None
    reason: str
    position: int
    file: str = ""
    id: Any = None


def read(source: Source, settings: Settings, annotated: bool = False) -> Iterator[Item]:
    """Read the records of a file, a few at a time; all of a .spacy file are in memory, packed.

    In .txt, a text is a line or the whole file. In .spacy, it is a Doc, as bytes. A record without
    an id gets one from file and line.

    Args:
        annotated: Whether Docs keep their annotation.

    Yields:
        An Item for each record, in order, for each record that cannot be read, and for each blank
        line of .jsonl, .csv and .tsv. If the file, or the rest of it, is damaged, the last Item has
        the reason and no line.

    Raises:
        StorageError: If the machine or the network fails to return the bytes of the file.
        MemoryError: If the machine has too little memory.
    """
    part = "the file"
    reader = READERS[source.kind]
    if source.kind == "txt" and settings.doc_per_file:
        reader = _read_whole
    elif source.kind == "spacy":
        reader = partial(_read_docbin, annotated=annotated)
    try:
        for item in reader(source, settings.text_column):
            item.file = source.name
            if item.row is not None:
                _complete(item, item.row, source.kind, settings)
            yield item
            part = "the rest of the file"
        return
    except (StorageError, MemoryError):
        raise
    # zlib, Arrow, msgpack, numpy and spaCy raise errors of all types for damaged bytes.
    except Exception as problem:
        # Our own ValueErrors have messages for users; of other errors, include the type.
        why = str(problem) if type(problem) is ValueError else shorten(problem)
    yield Item(None, None, f"{part} is unreadable: {why}", source.size, source.name)


def read_texts(
    inputs: Sequence[str | Path],
    settings: Settings,
    output: str = os.devnull,
    quote: bool = True,
    max_length: int = sys.maxsize,
) -> Iterator[tuple[Any, Any]]:
    """Read the texts of files, each with its id; those of .spacy files are Docs, as bytes.

    An id is a string or an integer; file and line replace a missing one.

    Args:
        output: Where the result is written; no input may be in it.
        quote: Whether errors may quote what was read.
        max_length: Maximum length of a text, in characters.

    Raises:
        InputError: For a record that cannot be read, with its file and line; if there is no input
            or a file lacks the text column; and for an output in an input.
    """
    sources = find_sources(inputs, locate(output)).sources
    check_text_column(sources[0], settings.text_column)
    for source in sources:
        for item in read(source, settings):
            text = None if item.row is None else item.row[settings.text_column]
            reason = item.reason if quote or not item.reason else "expected a readable record"
            if isinstance(text, str) and len(text) > max_length:
                reason = f"expected at most {max_length:,} characters, got {len(text):,}"
            if reason:
                line = "" if item.line is None else f", line {item.line}"
                raise InputError(f"{item.file}{line}: {reason}. Correct it, or leave it out.")
            if item.row is not None:
                key = item.row[settings.id_column]
                if key is None or key == "" or key != key:  # NaN is a missing value of pandas
                    key = item.file if item.line is None else f"{item.file}:{item.line}"
                yield text, key if type(key) is int else str(key)


def _complete(item: Item, row: Row, kind: str, settings: Settings) -> None:
    """Add a missing id to a row; reject it if it has no text."""
    column, id_column = settings.text_column, settings.id_column
    if not all(map(is_text, row)):
        item.reason = f"expected names of columns in Unicode, got {shorten([*row])}"
    elif column not in row:
        item.reason = f"expected a column {column!r}, got {shorten([*row])}"
    elif kind != "spacy" and not is_text(row[column]):
        item.reason = f"expected text in {column!r}, got {shorten(row[column])}"
    if item.reason:
        item.id, item.row = row.get(id_column), None
        return
    # A column of a written table has one type, which null fits.
    stays = settings.format == "parquet" and id_column in row
    if row.get(id_column) is None and not stays:
        row[id_column] = item.file if item.line is None else f"{item.file}:{item.line}"


def check_text_column(source: Source, text_column: str) -> None:
    """Raise InputError if the first record or the header of a file lacks a column.

    A file without columns, or without a readable record, is accepted.
    """
    columns: list[str] | None = None
    try:
        if source.kind == "jsonl":
            rows = (item.row for item in _read_lines(source, "") if item.row is not None)
            columns = next(([*row] for row in rows), None)
        elif source.kind in DELIMITERS:
            with _decompressed(source) as (file, _):
                line = next(split_lines(file, source.name, MAX_LINE))
            cells = next(csv.reader([line.text], delimiter=DELIMITERS[source.kind], strict=True))
            columns = None if line.problem else cells or None
        elif (schema := schema_of(source)) is not None:
            columns = schema.names
    except (StorageError, MemoryError):
        raise
    except Exception:  # `read` reports the problem
        return
    if columns is not None and text_column not in columns:
        raise InputError(
            f"{source.name}: expected a column {text_column!r}, got the columns "
            f"{', '.join(columns) or 'none'}. Set --text-column."
        )


# Text


@contextmanager
def _decompressed(source: Source) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Open and decompress a file; also yield a function that returns the position of an Item.

    Raises:
        ValueError: For UTF-16.

    Reading a damaged file raises OSError, EOFError or zlib.error.
    """
    with source.location.open() as packed:
        file: Any = packed
        if source.compression == "gz":
            file = gzip.GzipFile(fileobj=packed)
        elif source.compression == "zst":
            from pyarrow import CompressedInputStream

            file = BufferedReader(CompressedInputStream(packed, "zstd"))
        if file.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
            raise ValueError("expected UTF-8, got UTF-16")
        yield file, lambda: min(packed.tell(), source.size)


def _read_whole(source: Source, text_column: str) -> Iterator[Item]:
    """Read a file as one document, with all characters unchanged."""
    with _decompressed(source) as (file, _):
        content = file.read(MAX_LINE + 1)
    if len(content) > MAX_LINE:
        raise ValueError(f"expected at most {MAX_LINE:,} bytes, got more")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"expected UTF-8, got {problem}") from problem
    yield Item(None, {text_column: text}, "", source.size)


def _read_lines(source: Source, text_column: str) -> Iterator[Item]:
    """Read one document per line: any line of .txt; objects and blank lines of .jsonl."""
    with _decompressed(source) as (file, position):
        if file.peek(len(BOM_UTF8) + 1) == BOM_UTF8:
            return  # only a byte order mark
        for number, line in enumerate(split_lines(file, source.name, MAX_LINE), 1):
            row, reason = None, ""
            if line.problem and line.problem[0] != "nul":  # a document may have any character
                reason = str(line.problem[1]).removeprefix(f"{line.where}: ")
            elif source.kind == "txt":
                row = {text_column: line.text}
            elif line.text.strip(" \t\r"):
                row, reason = _parse_object(line.text)
            yield Item(number, row, reason, position())


def _parse_object(text: str) -> tuple[Row | None, str]:
    try:
        value = decode_json(text)
    except ValueError as problem:
        return None, f"expected JSON, got {shorten(text)} ({problem})"
    if not isinstance(value, dict):
        return None, f"expected an object, got {shorten(value)}"
    return value, ""


# Tables as text


def _read_table(source: Source, text_column: str) -> Iterator[Item]:
    """Read rows of strings, and continue after a row that cannot be read.

    Raises:
        ValueError: For a header without columns or with a duplicate name, and for a record whose
            end is unknown: a record that is too long or has a quote that is never closed.
    """
    begin, length = 1, 0  # first line and number of characters of a record

    def lines(text: TextIOWrapper) -> Iterator[str]:
        nonlocal length
        while line := text.readline(MAX_LINE + 1):
            length += len(line)
            if length > MAX_LINE:
                raise ValueError(
                    f"expected at most {MAX_LINE:,} characters in the record of line {begin}, got "
                    "more: a quote may not be closed"
                )
            yield line

    # The limit applies to the whole process, so never lower it; `lines` stops before it.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    with _decompressed(source) as (file, position):
        # Lines keep their ends, which may be inside a cell.
        text = TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="\n")
        rows = csv.reader(lines(text), delimiter=DELIMITERS[source.kind], strict=True)
        columns = next(rows, [])
        if not columns or len({*columns}) < len(columns) or not all(map(is_text, columns)):
            got = shorten(columns)
            raise ValueError(f"expected a first line of distinct names in UTF-8, got {got}")
        while True:
            begin, length = rows.line_num + 1, 0
            cells, reason = [], ""
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as problem:
                if str(problem) == "unexpected end of data":
                    quote = f"the quote is never closed in the record of line {begin}"
                    raise ValueError(quote) from problem
                reason = f"expected a record, got {problem}"
            if not all(map(is_text, cells)):
                reason = f"expected UTF-8, got {shorten(cells)}"
            elif cells and len(cells) != len(columns):
                reason = f"expected {len(columns)} cells, as the first line has, got {len(cells)}"
            row = dict(zip(columns, cells)) if cells and not reason else None
            yield Item(begin, row, reason, position())


# Binary files


def schema_of(source: Source) -> "Schema | None":
    """Read the schema of a .parquet file; return None for other and damaged files."""
    from pyarrow import ArrowException

    if source.kind != "parquet":
        return None
    try:
        with _parquet(source) as table:
            return table.schema_arrow
    except StorageError:
        raise
    except (OSError, ArrowException):
        return None


@contextmanager
def _parquet(source: Source) -> Iterator["ParquetFile"]:
    from pyarrow.parquet import ParquetFile

    # Only with a buffer and without pre_buffer are row groups not read completely into memory.
    with source.location.open() as file:
        yield ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)


def _read_parquet(source: Source, text_column: str) -> Iterator[Item]:
    """Read the rows of a table. Raises ValueError for a duplicate column name."""
    number = 0
    with _parquet(source) as table:
        names, rows = table.schema_arrow.names, table.metadata.num_rows
        if len({*names}) < len(names):
            raise ValueError(f"expected columns with distinct names, got {shorten(names)}")
        for batch in table.iter_batches(_batch_size(table.metadata)):
            for row, reason in _rows(batch):
                number += 1
                yield Item(number, row, reason, source.size * number // rows)


def _batch_size(metadata: "FileMetaData") -> int:
    """Choose the number of rows to read at once: fewer if documents are long."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    longest = max([group.total_byte_size // max(group.num_rows, 1) for group in groups], default=0)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(longest, 1)))


def _rows(batch: "RecordBatch") -> list[tuple[Row | None, str]]:
    """Convert to rows, with a reason for each that Python cannot represent, e.g. bad UTF-8."""
    try:
        return [(row, "") for row in batch.to_pylist()]
    except MemoryError:
        raise
    except Exception as problem:  # its type depends on the value
        if batch.num_rows == 1:
            return [(None, f"expected values that Python can represent, got {problem}")]
    return [row for i in range(batch.num_rows) for row in _rows(batch.slice(i, 1))]


def _read_docbin(source: Source, text_column: str, annotated: bool = False) -> Iterator[Item]:
    """Read Docs with their tokens and metadata.

    A row has the columns that `convert` keeps, and the Doc as bytes.
    """
    packed = DocBin().from_bytes(source.location.read())
    for number, doc in enumerate(packed.get_docs(Vocab()), 1):
        meta = doc.user_data.get(META)
        row = {**meta} if isinstance(meta, dict) else {}
        if not annotated:
            doc = without_annotation(doc, doc.vocab)
        row[text_column] = doc.to_bytes(exclude=["user_data"])
        yield Item(number, row, "", source.size * number // len(packed))


READERS: dict[str, Callable[[Source, str], Iterator[Item]]] = {
    "txt": _read_lines,
    "jsonl": _read_lines,
    "csv": _read_table,
    "tsv": _read_table,
    "parquet": _read_parquet,
    "spacy": _read_docbin,
}
