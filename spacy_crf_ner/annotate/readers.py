"""Read the records of files, and what of them cannot be read.

A file has bad data, or the machine fails. Bad data is an Item with a reason, and counted; an error
of the machine (StorageError, MemoryError) is raised, because a later attempt may succeed.
"""

import csv
import json
from contextlib import closing, contextmanager
from math import isinf
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
)

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from ..data.json_records import META, is_text, shorten
from ..input_error import InputError
from . import lines
from .inputs import Source
from .lines import Line
from .settings import Settings
from .storage import BUFFER, StorageError

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyarrow.parquet import FileMetaData, ParquetFile

Row = Dict[str, Any]  # the columns of a record, by their names

MAX_DEPTH = 200  # nested lists and objects of JSON; deeper ones may not be picklable or writable
DELIMITERS = {"csv": ",", "tsv": "\t"}
# Rows of Parquet that are in memory together, and their bytes.
BATCH_ROWS = 1000
BATCH_BYTES = 16 * 2**20


class Item(NamedTuple):
    """A record of a file, or why there is none.

    file: Path or URI, as it was found.
    line: The line on which it begins, from 1; in .parquet and .spacy its number; None for a whole
        file.
    row: The record; None if it could not be read, and for a blank line.
    reason: Why it could not be read; "" for a record, and for a blank line.
    position: Bytes of the file, as stored, that have been read, about.
    """

    file: str
    line: Optional[int]
    row: Optional[Row]
    reason: str
    position: int


def read(source: Source, settings: Settings) -> Iterator[Item]:
    """Read the records of a file. Few are in memory at a time; of .spacy all, packed.

    In .txt a line is a text, or the whole file; in .spacy a text is a Doc, as bytes, without
    annotation. A record without an id gets one of file and line.

    Yields an Item for each record, in order, also for each that cannot be read, and for each blank
    line of .jsonl, .csv and .tsv. If a file, or the rest of one, is damaged, the last Item says so,
    without a line. Raises StorageError and MemoryError.
    """
    part = "the file"
    try:
        for item in _records(source, settings):
            yield _with_columns(source, item, settings)
            part = "the rest of the file"
        return
    except (StorageError, MemoryError):
        raise
    # zlib, Arrow, msgpack, numpy and spaCy raise errors of all types for damaged bytes.
    except Exception as problem:
        # A ValueError of our own has a message for users; of others the type says more.
        why = str(problem) if type(problem) is ValueError else shorten(problem)
    yield Item(source.name, None, None, f"{part} is unreadable: {why}", source.size)


def require_text_column(source: Source, text_column: str) -> None:
    """Require that the first record of a file, or its header, has a column with this name.

    Raises InputError if not. A file without columns, or without a readable record, passes.
    """
    try:
        columns = _columns(source)
    except (StorageError, MemoryError):
        raise
    except Exception:  # `read` says what is wrong
        return
    if columns is not None and text_column not in columns:
        raise InputError(
            f"{source.name}: expected a column {text_column!r}, got the columns "
            f"{', '.join(columns) or 'none'}. Name it with --text-column."
        )


def schema_of(source: Source) -> Optional["Schema"]:
    """Read the columns and types of a .parquet file; None for any other, and a damaged one."""
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


def _records(source: Source, settings: Settings) -> Iterator[Item]:
    match source.kind:
        case "txt" if settings.whole_files:
            return _read_whole(source, settings.text_column)
        case "txt":
            return _read_text(source, settings.text_column)
        case "jsonl":
            return _read_json_lines(source)
        case "csv" | "tsv":
            return _read_table(source)
        case "parquet":
            return _read_parquet(source)
    assert source.kind == "spacy"
    return _read_docbin(source, settings.text_column)


def _with_columns(source: Source, item: Item, settings: Settings) -> Item:
    """Require the text of a row, and give it an id if it has none."""
    row, column = item.row, settings.text_column
    if row is None:
        return item
    if column not in row:
        reason = f"expected a column {column!r}, got {shorten([*row])}"
        return item._replace(row=None, reason=reason)
    if source.kind != "spacy" and not is_text(row[column]):
        reason = f"expected text in {column!r}, got {shorten(row[column])}"
        return item._replace(row=None, reason=reason)
    place = item.file if item.line is None else f"{item.file}:{item.line}"
    row.setdefault(settings.id_column, place)
    return item


def _columns(source: Source) -> Optional[List[str]]:
    """Read the names of the columns; None if there are none."""
    if source.kind == "jsonl":
        rows = (item.row for item in _read_json_lines(source) if item.row is not None)
        return next(([*row] for row in rows), None)
    if source.kind in DELIMITERS:
        with _opened_table(source) as (columns, _, _):
            return columns
    schema = schema_of(source)
    return None if schema is None else [*schema.names]


# Text


def _read_text(source: Source, text_column: str) -> Iterator[Item]:
    """Read a document a line; an empty line is an empty document."""
    for line in lines.read_lines(source):
        text = line.text.removesuffix("\n").removesuffix("\r")
        row = None if line.reason else {text_column: text}
        yield Item(source.name, line.number, row, line.reason, line.position)


def _read_whole(source: Source, text_column: str) -> Iterator[Item]:
    """Read a file as one document, all its characters as they are."""
    with lines.decompressed(source) as (file, _):
        text, reason = lines.decode(file.read(lines.MAX_LINE + 1), begins=True)
    row = None if reason else {text_column: text}
    yield Item(source.name, None, row, reason, source.size)


# JSON


def _read_json_lines(source: Source) -> Iterator[Item]:
    """Read an object a line, and go on after a line that is none."""
    for line in lines.read_lines(source):
        row, reason = None, line.reason
        if not reason and line.text.strip(" \t\r\n"):
            row, reason = _parse(line.text)
        yield Item(source.name, line.number, row, reason, line.position)


def _parse(text: str) -> Tuple[Optional[Row], str]:
    try:
        value = _decoder.decode(text)
    except (ValueError, RecursionError) as problem:
        return None, f"expected JSON, got {shorten(text)} ({problem})"
    if not isinstance(value, dict):
        return None, f"expected an object of JSON, got {shorten(value)}"
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth([value]) > MAX_DEPTH:
        return None, f"expected at most {MAX_DEPTH} lists and objects in each other, got more"
    return value, ""


def _depth(values: Iterable[Any]) -> int:
    """Count how deep lists and objects are nested, without recursion."""
    depth = 0
    while values := [value for value in values if isinstance(value, (list, dict))]:
        depth += 1
        parts = (value.values() if isinstance(value, dict) else value for value in values)
        values = [value for part in parts for value in part]
    return depth


def _object(pairs: List[Tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"a key twice among {shorten([key for key, _ in pairs])}")
    return row


def _number(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"a number as large as {shorten(text)}")
    return value


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)


# Tables as text


def _read_table(source: Source) -> Iterator[Item]:
    """Read rows of strings, and go on after one that cannot be read.

    Raises ValueError for a header without columns, or with a name twice; and for a record whose end
    is unknown: it is too long, or has a quote that is never closed.
    """
    with _opened_table(source) as (columns, rows, record):
        while True:
            record.clear()
            cells, row, reason = None, None, ""
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as problem:
                reason = f"expected a record, got {problem}"
                if str(problem) == "unexpected end of data":
                    quote = f"the quote is never closed in the record of line {record[0].number}"
                    raise ValueError(quote) from problem
            reason = next((line.reason for line in record if line.reason), reason)
            if cells and not reason:
                row = dict(zip(columns, cells))
                if len(cells) != len(columns):
                    expected = f"expected {len(columns)} cells, as the first line has"
                    row, reason = None, f"{expected}, got {len(cells)}"
            yield Item(source.name, record[0].number, row, reason, record[-1].position)


@contextmanager
def _opened_table(source: Source) -> Iterator[Tuple[List[str], Iterator[List[str]], List[Line]]]:
    """Read the header of a table. Yields it, the rows after it, and the lines of the last row."""
    # The limit is that of the process, so it never shrinks; `_feed` stops before it.
    csv.field_size_limit(max(csv.field_size_limit(), lines.MAX_LINE))
    record: List[Line] = []
    with closing(lines.read_lines(source)) as content:
        feed = _feed(content, record)
        rows = csv.reader(feed, delimiter=DELIMITERS[source.kind], strict=True)
        columns = next(rows, [])
        reason = next((line.reason for line in record if line.reason), "")
        if reason or not columns or len({*columns}) < len(columns):
            got = reason or shorten(columns)
            raise ValueError(f"expected a first line of different names, got {got}")
        yield columns, rows, record


def _feed(content: Iterator[Line], record: List[Line]) -> Iterator[str]:
    """Yield lines, each also added to its record, which may have at most MAX_LINE characters."""
    length = 0
    for line in content:
        length = len(line.text) + (length if record else 0)
        record.append(line)
        if length > lines.MAX_LINE or not line.text:
            raise ValueError(
                f"expected at most {lines.MAX_LINE:,} characters in the record of line "
                f"{record[0].number}, got more: a quote may not be closed"
            )
        yield line.text


# Binary files


@contextmanager
def _parquet(source: Source) -> Iterator["ParquetFile"]:
    from pyarrow.parquet import ParquetFile

    # With a buffer, and only without pre_buffer, a group of rows is not in memory whole.
    with source.location.open() as file:
        yield ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)


def _read_parquet(source: Source) -> Iterator[Item]:
    """Read the rows of a table as values of Python. Raises ValueError for a column name twice."""
    number = 0
    with _parquet(source) as table:
        names, rows = table.schema_arrow.names, table.metadata.num_rows
        if len({*names}) < len(names):
            raise ValueError(f"expected columns of different names, got {shorten(names)}")
        for batch in table.iter_batches(_batch_size(table.metadata)):
            for row, reason in _rows(batch):
                number += 1
                position = source.size * number // rows
                yield Item(source.name, number, row, reason, position)


def _batch_size(metadata: "FileMetaData") -> int:
    """Choose how many rows are read at once: fewer if documents are long."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    longest = max([group.total_byte_size // max(group.num_rows, 1) for group in groups], default=0)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(longest, 1)))


def _rows(batch: "RecordBatch") -> List[Tuple[Optional[Row], str]]:
    """Make rows, and reasons for those with a value that Python has not, such as bad UTF-8."""
    try:
        return [(row, "") for row in batch.to_pylist()]
    except MemoryError:
        raise
    except Exception as problem:  # the type depends on that of the value
        if batch.num_rows == 1:
            return [(None, f"expected values that Python has, got {problem}")]
    return [row for i in range(batch.num_rows) for row in _rows(batch.slice(i, 1))]


def _read_docbin(source: Source, text_column: str) -> Iterator[Item]:
    """Read Docs with their tokens and metadata, but without annotation, which may be gold.

    A row has the columns that `convert` keeps, and the Doc as bytes, which `Language.pipe` takes.
    """
    with source.location.open() as file:
        packed = DocBin().from_bytes(file.read())
    for number, doc in enumerate(packed.get_docs(Vocab()), 1):
        meta = doc.user_data.get(META)
        row = {**meta} if isinstance(meta, dict) else {}
        spaces = None if doc.has_unknown_spaces else [bool(token.whitespace_) for token in doc]
        row[text_column] = Doc(doc.vocab, [token.text for token in doc], spaces).to_bytes()
        yield Item(source.name, number, row, "", source.size * number // len(packed))
