"""Read the records of files.

Bad data becomes an Item with a reason. An error of the machine (StorageError, MemoryError) is
raised, because a later attempt may succeed.
"""

import csv
import gzip
import os
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from spacy.tokens import DocBin
from spacy.vocab import Vocab

from ..data.json_records import decode_json, is_text, shorten
from ..data.lines import split_lines
from ..docbin import META, without_annotation
from ..input_error import InputError
from .files import BUFFER, Source, StorageError, find_sources, locate
from .settings import ENTITIES, Settings

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyarrow.parquet import ParquetFile

Row = dict[str, Any]  # the columns of a record, by name
# Its line, or number in .parquet and .spacy; the record; and why it cannot be read.
Read = tuple[int | None, Row | None, str]

STDIN = "-"
UTF16_MARKS = BOM_UTF16_LE, BOM_UTF16_BE
MAX_LINE = 256 * 2**20  # bytes; a longer line is rejected, because lines are read into memory
DELIMITERS = {"csv": ",", "tsv": "\t"}
# Rows of Parquet that are read at once, and their bytes.
BATCH_ROWS = 1000
BATCH_BYTES = 16 * 2**20


@dataclass(slots=True)
class Item:
    """A record of a file, or the reason why it cannot be read."""

    line: int | None  # the first one; its number in .parquet and .spacy; None for a whole file
    row: Row | None  # None if it cannot be read, and for a blank line
    reason: str  # "" for a record, and for a blank line
    position: int  # about the number of stored bytes of the file read so far
    file: str  # path or URI, as it was found
    id: Any = field(default=None, compare=False)

    @property
    def place(self) -> str:
        """File and line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


def read(source: Source, settings: Settings, annotated: bool = False) -> Iterator[Item]:
    """Read the records of a file, a few at a time; all of a .spacy file are in memory, packed.

    In .txt, a text is a line or the whole file. In .spacy, it is a Doc, as bytes; `annotated` keeps
    its annotation. A record without an id gets one from file and line. Blank lines of .jsonl, .csv
    and .tsv are items too. If the rest of the file is damaged, the last Item has no line.
    """
    part = "the file"
    try:
        with source.location.open() as file:
            records, position = _records(source, file, settings, annotated)
            for line, row, reason in records:
                item = Item(line, row, reason, position(line), source.name)
                yield _completed(item, source.kind, settings)
                part = "the rest of the file"
        return
    except (StorageError, MemoryError):
        raise
    # zlib, Arrow, msgpack, numpy and spaCy raise errors of all types for damaged bytes.
    except Exception as problem:
        # Our own ValueErrors have messages for users; of other errors, include the type.
        why = str(problem) if type(problem) is ValueError else shorten(problem)
    yield Item(None, None, f"{part} is unreadable: {why}", source.size, source.name)


def _records(
    source: Source, file: BufferedReader, settings: Settings, annotated: bool
) -> tuple[Iterator[Read], Callable[[Any], int]]:
    """Choose the reader of a file; also return the position of a line, in stored bytes."""
    # The readers of pyarrow lose the line of a bad record, and all of a block with bad UTF-8.
    column, size = settings.text_column, source.size
    if source.kind == "parquet":
        from pyarrow.parquet import ParquetFile

        # Only with a buffer and without pre_buffer are row groups not read completely into memory.
        table = ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)
        return _read_parquet(table), lambda line: size * line // table.metadata.num_rows
    if source.kind == "spacy":
        records = _read_docbin(file, column, annotated)
    else:
        text = _decompressed(file, source.compression)
        if source.kind in DELIMITERS:
            records = _read_table(text, DELIMITERS[source.kind])
        elif source.kind == "txt" and settings.doc_per_file:
            records = _read_whole(text, column)
        elif text.peek(len(BOM_UTF8) + 1) == BOM_UTF8:
            records = iter(())  # only a byte order mark
        else:
            records = _read_lines(text, source.kind, source.name, column)
    return records, lambda line: min(file.tell(), size)


def read_stream(stream: Any, settings: Settings) -> Iterator[Item]:
    """Read one document per line of an open binary file, the standard input."""
    file = stream if hasattr(stream, "peek") else BufferedReader(stream)
    start = file.peek(len(BOM_UTF8) + 1)
    if start.startswith(UTF16_MARKS):
        raise InputError(f"{STDIN}: expected UTF-8, got UTF-16. Convert it, as iconv does.")
    if start == BOM_UTF8:  # and no more
        return
    for line, row, reason in _read_lines(file, "txt", STDIN, settings.text_column):
        yield _completed(Item(line, row, reason, 0, STDIN), "txt", settings)


def read_given(texts: Iterable[tuple[int, str]], settings: Settings) -> Iterator[Item]:
    """Make items of numbered texts that are in no file."""
    for number, text in texts:
        item = Item(number, {settings.text_column: text}, "", 0, "text")
        yield _completed(item, "txt", settings)


def read_texts(
    inputs: Sequence[str | Path],
    settings: Settings,
    output: str = os.devnull,
    quote: bool = True,
    max_length: int = sys.maxsize,
) -> Iterator[tuple[Any, Any]]:
    """Read the texts of files, each with its id, a string or an integer; or raise InputError.

    Those of .spacy files are Docs, as bytes. No input may be in the output. With `quote`, errors
    may quote what was read.
    """
    sources = find_sources(inputs, locate(output)).sources
    check_text_column(sources[0], settings)
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
                    key = item.place
                yield text, key if type(key) is int else str(key)


def _completed(item: Item, kind: str, settings: Settings) -> Item:
    """Add a missing id to the row of an item; reject it if it has no text."""
    row, column, id_column = item.row, settings.text_column, settings.id_column
    if row is None:
        return item
    if not all(map(is_text, row)):
        item.reason = f"expected names of columns in Unicode, got {shorten([*row])}"
    elif column not in row:
        item.reason = f"{_no_column(column)} {', '.join(row) or 'none'}"
    elif kind != "spacy" and not is_text(row[column]):
        item.reason = f"expected text in {column!r}, got {shorten(row[column])}"
    if item.reason:
        item.row = None
    # A column of a written table has one type, which null fits.
    elif row.get(id_column) is None and not (settings.format == "parquet" and id_column in row):
        row[id_column] = item.place
    item.id = row.get(id_column)
    return item


def _no_column(column: str) -> str:
    return f"expected a column {column!r}, got the columns"


def check_text_column(source: Source, settings: Settings) -> None:
    """Raise InputError if the first record of a file lacks the column of the texts.

    A file without a readable record is accepted: `read` reports its problems.
    """
    if source.kind in ("txt", "spacy"):  # the column is made of the lines, or the Docs
        return
    for item in read(source, settings):
        if item.reason.startswith(_no_column(settings.text_column)):
            raise InputError(f"{source.name}: {item.reason}. Set --text-column.")
        if item.row is not None:
            return


# Text


def _decompressed(packed: BufferedReader, compression: str) -> Any:
    """Decompress a file. Raises ValueError for UTF-16."""
    file: Any = packed
    if compression == "gz":
        file = gzip.GzipFile(fileobj=packed)
    elif compression == "zst":
        from pyarrow import CompressedInputStream

        file = BufferedReader(CompressedInputStream(packed, "zstd"))
    if file.peek(2).startswith(UTF16_MARKS):
        raise ValueError("expected UTF-8, got UTF-16")
    return file


def _read_whole(file: IO[bytes], text_column: str) -> Iterator[Read]:
    """Read a file as one document, with all characters unchanged."""
    content = file.read(MAX_LINE + 1)
    if len(content) > MAX_LINE:
        raise ValueError(f"expected at most {MAX_LINE:,} bytes, got more")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"expected UTF-8, got {problem}") from problem
    yield None, {text_column: text}, ""


def _read_lines(file: BinaryIO, kind: str, name: str, text_column: str) -> Iterator[Read]:
    """Read one document per line: any line of .txt; objects and blank lines of .jsonl."""
    for number, line in enumerate(split_lines(file, name, MAX_LINE), 1):
        row, reason = None, ""
        if line.problem and line.problem[0] != "nul":  # a document may have any character
            reason = str(line.problem[1]).removeprefix(f"{line.where}: ")
        elif kind == "txt":
            row = {text_column: line.text}
        elif line.text.strip(" \t\r"):
            try:
                value = decode_json(line.text)
            except ValueError as problem:
                reason = f"expected JSON, got {shorten(line.text)} ({problem})"
            else:
                row = value if isinstance(value, dict) else None
                reason = "" if row is not None else f"expected an object, got {shorten(value)}"
        yield number, row, reason


# Tables


def _read_table(file: IO[bytes], delimiter: str) -> Iterator[Read]:
    """Read rows of strings, and continue after a bad one, but not if its end is unknown."""
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
    # Lines keep their ends, which may be inside a cell.
    text = TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="\n")
    rows = csv.reader(lines(text), delimiter=delimiter, strict=True)
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
        yield begin, dict(zip(columns, cells)) if cells and not reason else None, reason


def schema_of(source: Source, id_column: str) -> "Schema | None":
    """Read the types of a .parquet file, with an id column; None for other and damaged files."""
    import pyarrow
    from pyarrow.parquet import read_schema

    if source.kind != "parquet":
        return None
    try:
        with source.location.open() as file:
            schema = read_schema(file)
    except StorageError:
        raise
    except (OSError, pyarrow.ArrowException):
        return None
    if ENTITIES in schema.names:  # all rows are refused
        schema = schema.remove(schema.get_field_index(ENTITIES))
    if id_column in schema.names:
        return schema
    return schema.append(pyarrow.field(id_column, pyarrow.string()))


def _read_parquet(table: "ParquetFile") -> Iterator[Read]:
    """Read the rows of a table, fewer at once if documents are long."""
    if len({*table.schema_arrow.names}) < len(table.schema_arrow.names):
        names = shorten(table.schema_arrow.names)
        raise ValueError(f"expected columns with distinct names, got {names}")
    groups = [table.metadata.row_group(i) for i in range(table.num_row_groups)]
    longest = max([group.total_byte_size // max(group.num_rows, 1) for group in groups], default=0)
    number = 0
    for batch in table.iter_batches(max(1, min(BATCH_ROWS, BATCH_BYTES // max(longest, 1)))):
        for row, reason in _rows(batch):
            number += 1
            yield number, row, reason


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


def _read_docbin(file: BufferedReader, text_column: str, annotated: bool) -> Iterator[Read]:
    """Read Docs, as bytes, and as columns the metadata that `convert` keeps."""
    packed = DocBin().from_bytes(file.read())
    for number, doc in enumerate(packed.get_docs(Vocab()), 1):
        meta = doc.user_data.get(META)
        row = {**meta} if isinstance(meta, dict) else {}
        if not annotated:
            doc = without_annotation(doc, doc.vocab)
        row[text_column] = doc.to_bytes(exclude=["user_data"])
        yield number, row, ""
