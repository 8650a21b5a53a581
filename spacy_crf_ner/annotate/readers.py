"""Read the records of files, and what of them cannot be read.

A file has bad data, or the machine fails. Bad data is an Item with a reason, and counted; an error
of the machine (StorageError, MemoryError) is raised, because a later attempt may succeed.
"""

import csv
import gzip
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from ..data.json_records import META, decode_json, is_text, shorten
from ..data.lines import split_lines
from ..input_error import InputError
from .inputs import Source
from .settings import Settings
from .storage import BUFFER, StorageError

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyarrow.parquet import FileMetaData, ParquetFile

Row = Dict[str, Any]  # the columns of a record, by their names
Record = Tuple[Optional[int], Optional[Row], str, int]  # line, row, reason, position of an Item

MAX_LINE = 256 * 2**20  # bytes; a longer line is no document, and would be in memory whole
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
    whole = source.kind == "txt" and settings.whole_files
    reader = _read_whole if whole else READERS[source.kind]
    try:
        for record in reader(source, settings.text_column):
            yield _with_columns(source, Item(source.name, *record), settings)
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
    columns: Optional[List[str]] = None
    try:
        if source.kind == "jsonl":
            rows = (row for _, row, _, _ in _read_json_lines(source, "") if row is not None)
            columns = next(([*row] for row in rows), None)
        elif source.kind in DELIMITERS:
            _, text, reason, _ = next(_lines(source))
            cells = next(csv.reader([text], delimiter=DELIMITERS[source.kind], strict=True))
            columns = None if reason else cells or None
        elif (schema := schema_of(source)) is not None:
            columns = schema.names
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


def _with_columns(source: Source, item: Item, settings: Settings) -> Item:
    """Require the text of a row, and give it an id if it has none."""
    row, column = item.row, settings.text_column
    if row is None:
        return item
    if column not in row:
        return item._replace(
            row=None, reason=f"expected a column {column!r}, got {shorten([*row])}"
        )
    if source.kind != "spacy" and not is_text(row[column]):
        reason = f"expected text in {column!r}, got {shorten(row[column])}"
        return item._replace(row=None, reason=reason)
    place = item.file if item.line is None else f"{item.file}:{item.line}"
    row.setdefault(settings.id_column, place)
    return item


# Text


@contextmanager
def _decompressed(source: Source) -> Iterator[Tuple[Any, Callable[[], int]]]:
    """Open a file, decompressed. Yields also a function for the position of an Item.

    Raises ValueError for UTF-16; reading raises OSError, EOFError or zlib.error for damage.
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


def _lines(source: Source) -> Iterator[Tuple[int, str, str, int]]:
    """Read the number, text, reason and position of each line, and go on after a bad one."""
    with _decompressed(source) as (file, position):
        if file.peek(len(BOM_UTF8) + 1) == BOM_UTF8:
            return  # there is nothing but the mark
        for number, line in enumerate(split_lines(file, source.name, MAX_LINE), 1):
            reason = ""
            if line.problem and line.problem[0] != "nul":  # a document may have any character
                reason = str(line.problem[1]).removeprefix(f"{line.where}: ")
            yield number, line.text, reason, position()


def _read_text(source: Source, text_column: str) -> Iterator[Record]:
    """Read a document a line; an empty line is an empty document."""
    for number, text, reason, position in _lines(source):
        yield number, None if reason else {text_column: text}, reason, position


def _read_whole(source: Source, text_column: str) -> Iterator[Record]:
    """Read a file as one document, all its characters as they are."""
    with _decompressed(source) as (file, _):
        content = file.read(MAX_LINE + 1)
    if len(content) > MAX_LINE:
        raise ValueError(f"expected at most {MAX_LINE:,} bytes, got more")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ValueError(f"expected UTF-8, got {problem}") from problem
    yield None, {text_column: text}, "", source.size


def _read_json_lines(source: Source, text_column: str) -> Iterator[Record]:
    """Read an object a line, and go on after a line that is none."""
    for number, text, reason, position in _lines(source):
        row = None
        if not reason and text.strip(" \t\r"):
            try:
                value = decode_json(text)
            except ValueError as problem:
                reason = f"expected JSON, got {shorten(text)} ({problem})"
            else:
                row = value if isinstance(value, dict) else None
                reason = "" if row is not None else f"expected an object, got {shorten(value)}"
        yield number, row, reason, position


# Tables as text


def _read_table(source: Source, text_column: str) -> Iterator[Record]:
    """Read rows of strings, and go on after one that cannot be read.

    Raises ValueError for a header without columns, or with a name twice; and for a record whose end
    is unknown: it is too long, or has a quote that is never closed.
    """
    # The limit is that of the process, so it never shrinks; `_feed` stops before it.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    record: List[int] = []
    with _decompressed(source) as (file, position):
        # Lines keep their ends, which may be within a cell.
        text = TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="\n")
        rows = csv.reader(_feed(text, record), delimiter=DELIMITERS[source.kind], strict=True)
        columns = next(rows, [])
        if not columns or len({*columns}) < len(columns) or not all(map(is_text, columns)):
            got = shorten(columns)
            raise ValueError(f"expected a first line of different names in UTF-8, got {got}")
        while True:
            record.clear()
            cells, reason = [], ""
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as problem:
                if str(problem) == "unexpected end of data":
                    quote = f"the quote is never closed in the record of line {record[0]}"
                    raise ValueError(quote) from problem
                reason = f"expected a record, got {problem}"
            if not all(map(is_text, cells)):
                reason = f"expected UTF-8, got {shorten(cells)}"
            elif cells and len(cells) != len(columns):
                reason = f"expected {len(columns)} cells, as the first line has, got {len(cells)}"
            row = dict(zip(columns, cells)) if cells and not reason else None
            yield record[0], row, reason, position()


def _feed(text: TextIOWrapper, record: List[int]) -> Iterator[str]:
    """Yield lines, and note their numbers. A record may have at most MAX_LINE characters."""
    length = 0
    for number, line in enumerate(iter(lambda: text.readline(MAX_LINE + 1), ""), 1):
        length = len(line) + (length if record else 0)
        record.append(number)
        if length > MAX_LINE:
            raise ValueError(
                f"expected at most {MAX_LINE:,} characters in the record of line {record[0]}, got "
                "more: a quote may not be closed"
            )
        yield line


# Binary files


@contextmanager
def _parquet(source: Source) -> Iterator["ParquetFile"]:
    from pyarrow.parquet import ParquetFile

    # With a buffer, and only without pre_buffer, a group of rows is not in memory whole.
    with source.location.open() as file:
        yield ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)


def _read_parquet(source: Source, text_column: str) -> Iterator[Record]:
    """Read the rows of a table as values of Python. Raises ValueError for a column name twice."""
    number = 0
    with _parquet(source) as table:
        names, rows = table.schema_arrow.names, table.metadata.num_rows
        if len({*names}) < len(names):
            raise ValueError(f"expected columns of different names, got {shorten(names)}")
        for batch in table.iter_batches(_batch_size(table.metadata)):
            for row, reason in _rows(batch):
                number += 1
                yield number, row, reason, source.size * number // rows


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


def _read_docbin(source: Source, text_column: str) -> Iterator[Record]:
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
        yield number, row, "", source.size * number // len(packed)


READERS: Dict[str, Callable[[Source, str], Iterator[Record]]] = {
    "txt": _read_text,
    "jsonl": _read_json_lines,
    "csv": _read_table,
    "tsv": _read_table,
    "parquet": _read_parquet,
    "spacy": _read_docbin,
}
