"""The records of a file of any format, and what of it cannot be read."""

from typing import TYPE_CHECKING, Iterator, List, Optional

from ...data.json_records import is_text, shorten
from ..inputs import Source
from .csv_table import DELIMITERS, read_header, read_table
from .docbin import read_packed_docs
from .item import Item, Place, Row
from .json_lines import read_json_lines
from .parquet import read_parquet, read_schema
from .text import read_plain, read_whole

if TYPE_CHECKING:
    from pyarrow import Schema

__all__ = ["Item", "Place", "Row", "read", "require_text_column", "schema_of"]


def read(
    source: Source,
    *,
    text_column: str = "text",
    id_column: str = "id",
    whole_files: bool = False,
) -> Iterator[Item]:
    """Read the records of a file, of which few are in memory at a time; of .spacy all, packed.

    source: File, as `find_sources` has found it.
    text_column: Name of the column of the text. In .txt a line is a text; in .spacy it is a Doc, as
        bytes, without annotation.
    id_column: Name of the column that tells the documents apart; where a record has none it is made
        of file and line.
    whole_files: A file of plain text is one document, and not each of its lines.

    Yields an Item for each record, in order, also for each that cannot be read, and each blank line
    of .jsonl, .csv and .tsv. Where a file, or the rest of one, cannot be read, the last Item says
    so, without a line. Raises ValueError for an unknown kind of file, and for one name for both
    columns; nothing for what is in a file.
    """
    if text_column == id_column:
        raise ValueError(
            f"text_column, id_column: expected two names, got {text_column!r} for both. "
            "Name another column."
        )
    records = _records(source, text_column, whole_files)
    return _without_errors(source, _with_columns(source, records, text_column, id_column))


def require_text_column(source: Source, text_column: str) -> None:
    """Require that the first record of a file, or its header, has a column with this name.

    Raises ValueError if not. A file without columns, or without a record that can be read, is fine.
    """
    columns = _columns(source)
    if columns is not None and text_column not in columns:
        raise ValueError(
            f"{source.path}: expected a column {text_column!r}, got the columns "
            f"{', '.join(columns) or 'none'}. Name it with --text-column."
        )


def schema_of(source: Source) -> Optional["Schema"]:
    """Read the columns and types of a .parquet file; None of any other, and of a damaged one."""
    return read_schema(source) if source.kind == "parquet" else None


def _records(source: Source, text_column: str, whole_files: bool) -> Iterator[Item]:
    match source.kind:
        case "txt":
            return (read_whole if whole_files else read_plain)(source, text_column)
        case "jsonl":
            return read_json_lines(source)
        case "csv" | "tsv":
            return read_table(source)
        case "parquet":
            return read_parquet(source)
        case "spacy":
            return read_packed_docs(source, text_column)
    raise ValueError(f"{source.path}: expected a kind of `ENDINGS`, got {source.kind!r}.")


def _with_columns(
    source: Source, items: Iterator[Item], text_column: str, id_column: str
) -> Iterator[Item]:
    """Require the text of each row, and give an id to one that has none."""
    for item in items:
        row = item.row
        if row is None:
            yield item
        elif reason := _missing(source, row, text_column):
            yield item._replace(row=None, reason=reason)
        else:
            file, line = item.place
            row.setdefault(id_column, file if line is None else f"{file}:{line}")
            yield item


def _missing(source: Source, row: Row, text_column: str) -> str:
    """Tell why a row has no text that can be read, or ""."""
    if text_column not in row:
        return f"expected a column {text_column!r}, got {shorten([*row])}"
    text = row[text_column]
    if source.kind != "spacy" and not is_text(text):
        return f"expected text in {text_column!r}, got {shorten(text)}"
    return ""


def _without_errors(source: Source, items: Iterator[Item]) -> Iterator[Item]:
    """Yield what cannot be read any more as the last item, whatever raises it."""
    part = "the file"
    try:
        for item in items:
            yield item
            part = "the rest of the file"
        return
    # What zlib, Arrow, msgpack, numpy and spaCy raise for such bytes is of all types.
    except Exception as problem:
        # Of a ValueError of our own, the message; of others the type tells more.
        why = str(problem) if type(problem) is ValueError else shorten(problem)
    yield Item(Place(str(source.path), None), None, f"{part} is unreadable: {why}", source.size)


def _columns(source: Source) -> Optional[List[str]]:
    """Read the names of the columns; None where there are none, or `read` tells what is wrong."""
    try:
        if source.kind == "jsonl":
            rows = (item.row for item in read_json_lines(source) if item.row is not None)
            return next(([*row] for row in rows), None)
        if source.kind in DELIMITERS:
            return read_header(source)
        schema = schema_of(source)
    except Exception:
        return None
    return None if schema is None else [*schema.names]
