"""Tables with the names of their columns in the first row: CSV and spreadsheets."""

import csv
import json
from ast import literal_eval
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc

from ..input_error import CorpusError, did_you_mean
from . import json_keys as usual
from .columns import is_columns, read_columns
from .docs import make_docs
from .iob import MISSING, TAG
from .json_reader import read_values
from .json_records import decode_json, shorten
from .label_studio import ANNOTATED, is_label_studio
from .layout import Column, has_names_of_columns, plain_name
from .lines import MAX_LINE_BYTES, Line, read_lines
from .other_shapes import unknown_table
from .record import Record
from .repair_log import ConversionLog, error
from .rows import CSV, SPREADSHEET, TAB, Rows, rows_of_table

TEXTS, ANNOTATION = (*usual.TEXTS, *usual.WORDS), (*usual.OURS, *usual.SPANS, *usual.TAGS)
FIRST = 20  # number of rows that show what they have


def is_table(lines: list[str]) -> bool:
    """Return whether lines are those of a CSV file, with names of columns, or with tags."""
    if lines and lines[0].lstrip().startswith(("{", "[")):
        return False  # JSON
    for separator in (*CSV, TAB):
        with suppress(csv.Error):
            rows = [*islice(csv.reader(lines, delimiter=separator), FIRST)] or [[]]
            is_long = separator != TAB and has_names_of_columns(rows[0])
            if is_long or _columns_of_texts(rows, None, None) or _columns_of_entities(rows, None):
                return True
    counts = {separator: {line.count(separator) for line in lines} for separator in CSV}
    return any(len(n) == 1 and n != {0} and is_columns(lines, each) for each, n in counts.items())


def _columns_of_entities(rows: list[list[str]], text: Column) -> list[int] | None:
    """Return the columns of texts, starts, ends and labels of rows of an entity each, or None."""
    header = rows[0] if rows else []
    plain = [*map(plain_name, header)]
    found = [header.index(str(text))] if text in header else []
    for names in (TEXTS, usual.STARTS, usual.ENDS, usual.LABELS)[len(found) :]:
        found += [plain.index(name) for name in names if name in plain][:1]
    if len(found) < 4 or has_names_of_columns(header):
        return None
    return None if any(row[found[3] :][:1] == ["O"] for row in rows) else found  # O: of tokens


def _has_tags(rows: list[list[str]]) -> bool:
    """Return whether some cells are tags, or a column has those of another spelling."""
    tagged = any(TAG.fullmatch(cell) for row in rows for cell in row)
    return tagged or is_columns([*map(TAB.join, rows)], TAB)


def has_separators(line: str) -> bool:
    """Return whether a line is rather CSV than cells separated by tabs or spaces."""
    return max(map(line.count, CSV)) >= max(len(line.split()), 1)


def _columns_of_texts(
    rows: list[list[str]], text: Column, annotation: Column
) -> tuple[int, int] | None:
    """Return the columns of texts and of their annotation; None for rows of a token each."""
    header, *others = rows or [[]]
    plain = [*map(plain_name, header)]
    found: list[int] = []
    for chosen, names in ((text, TEXTS), (annotation, ANNOTATION)):
        named = [plain.index(name) for name in names if name in plain]
        found += [header.index(str(chosen))] if chosen in header else named[:1]
    if len(found) < 2:
        return None
    cells = [row[found[1]] for row in others if len(row) > found[1]]
    is_of_text = any(
        cell.startswith(("[", "{")) or any(map(TAG.fullmatch, cell.split()[1:])) for cell in cells
    )
    return (found[0], found[1]) if is_of_text else None


def read_table(
    path: Path,
    nlp: Language,
    log: ConversionLog | None = None,
    *,
    token_column: Column = None,
    tag_column: Column = None,
    text_column: str | None = None,
    spans_column: str | None = None,
) -> Iterator[Doc]:
    """Read a table with a token, a text or an entity in each row.

    Args:
        path: File of CSV, with commas, semicolons or tabs, or the first sheet of an .xlsx file.
            CSV is UTF-8, or Windows-1252 (Latin-1) if it has no byte order mark, and most lines
            that are not ASCII are not UTF-8. With a token in each row, columns are found as in
            `read_conll`; with a text, a cell has the entities in any form of `read_json`, or a tag
            for each of the tokens, which spaces separate. With an entity in each row, columns such
            as `text`, `start`, `end` and `label` have it; rows of equal texts, and of the same id
            if there is one, are one text, and those without an entity one that has none.
        token_column: The number or name of the column of the tokens, tag_column that of the tags.
        text_column: The name of the column of the texts, spans_column that of the entities.

    Yields:
        A Doc for each sentence, or text.
    """
    rows = rows_of_table(path)
    first = [row.cells for row in islice(rows.read(), FIRST)]
    with suppress(CorpusError):  # a cell may have several lines
        first = [cells for _, cells in islice(_cells(rows), FIRST)]
    header = first[0] if first else []
    for name in (text_column, spans_column):
        if name is not None and name not in header:
            fix, hint = "Choose a name in the first row", did_you_mean(name, header)
            raise error(str(path), f"a column {name!r}", shorten(header), fix, hint)
    columns = _columns_of_texts(first, text_column or token_column, spans_column or tag_column)
    of_entities = None
    if not (columns or spans_column or token_column or tag_column):
        of_entities = _columns_of_entities(first, text_column)
    if of_entities:
        return make_docs(path, nlp, log, partial(_records_of_entities, rows, of_entities))
    if columns is None:
        has_no_tags = not (
            token_column or tag_column or has_names_of_columns(header) or _has_tags(first)
        )
        if text_column or spans_column or has_no_tags:
            raise unknown_table(str(path), header)
        return read_columns(rows, nlp, log, token_column, tag_column)
    return make_docs(path, nlp, log, partial(_records, rows, *columns))


def _cells(rows: Rows) -> Iterator[tuple[str, list[str]]]:
    """Read the place and the cells of each row; a cell in quotes may have several lines."""
    if rows.separator == SPREADSHEET:
        yield from ((row.where, row.cells) for row in rows.read())
        return
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = read_lines(rows.path, rows.encoding)
    reader = csv.reader(map(_text, lines), delimiter=rows.separator, strict=True)
    try:
        yield from ((f"{rows.path}, line {reader.line_num}", cells) for cells in reader)
    except csv.Error as bad:
        fix = 'Put a cell with a quote in quotes, and write it as ""'
        where = f"{rows.path}, line {reader.line_num}"
        raise error(where, "CSV", str(bad), fix) from None


def _text(line: Line) -> str:
    if line.problem:
        raise line.problem[1]
    return line.text + "\n"


def _checked(rows: Rows) -> Iterator[tuple[str, list[str], Record | None]]:
    """Read the rows that are not blank; one of another length comes with a record that says so."""
    width = 0
    for where, row in _cells(rows):
        width = width or len(row)
        if any(row):
            got, fix = f"{len(row)}: {row}", "Put a cell with a separator in quotes"
            bad = Record(where, problem=("columns", error(where, f"{width} columns", got, fix)))
            yield where, row, bad if len(row) != width else None


def _records(rows: Rows, text: int, annotation: int, log: ConversionLog) -> Iterator[Record]:
    found = _checked(rows)
    _, header, _ = next(found)
    for where, row, bad in found:
        if bad:
            yield bad
        else:
            value = _value(dict(zip(map(plain_name, header), row)), row[text], row[annotation])
            yield from read_values([(where, value)], usual.Keys(), {}, log)


def _records_of_entities(rows: Rows, columns: list[int], log: ConversionLog) -> Iterator[Record]:
    (_, header, _), *found = _checked(rows)
    yield from (bad for _, _, bad in found if bad)
    plain = [*map(plain_name, header)]
    whole = [(where, row) for where, row, bad in found if not bad]
    # An id that no two rows share counts the entities, not the texts.
    ids = (i for i, name in enumerate(plain) if name.split("_")[-1] == "id")
    id = next((i for i in ids if len({row[i] for _, row in whole}) < len(whole)), columns[0])
    texts: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
    for where, row in whole:
        texts.setdefault((row[columns[0]], row[id]), []).append((where, row))
    for (text, _), group in texts.items():
        where, first = group[0]
        common = {
            name: decoded(cell)
            for i, (name, cell) in enumerate(zip(plain, first))
            if i not in columns and name not in (*TEXTS, *ANNOTATION)
            if cell and all(row[i] == cell for _, row in group)
        }
        spans = dict.fromkeys(tuple(row[i] for i in columns[1:]) for _, row in group)
        entities = [
            [_offset(start), _offset(end), label]
            for start, end, label in spans
            if not {start, end, label} <= {*MISSING}
        ]
        value = {**common, "text": text, "entities": entities}
        yield from read_values([(where, value)], usual.Keys(), {}, log)


def _offset(cell: str) -> int | str:
    """Return the number in a cell; pandas writes 4.0 where a column has empty cells."""
    number = cell.removesuffix(".0")
    return int(number) if number.isdecimal() else cell


def _value(row: dict[str, str], text: str, annotation: str) -> dict[str, Any]:
    """Return the record of a row as JSON has it."""
    found = decoded(annotation)
    record: dict[str, Any] = {name: decoded(cell) for name, cell in row.items() if cell}
    for name in (*TEXTS, *ANNOTATION):
        record.pop(name, None)
    if isinstance(found, str):  # tags
        return {**record, "tokens": text.split(), "tags": found.split()}
    if isinstance(words := decoded(text), list):
        return {**record, "tokens": words, "tags": found}
    # A list without the objects of Label Studio is ours, whatever the other columns are.
    is_plain = isinstance(found, dict) and record.keys().isdisjoint(("answer", *ANNOTATED))
    is_other = is_plain or found == [] or is_label_studio({"label": found})
    return {**record, "text": text, "label" if is_other else "entities": found}


def decoded(cell: str) -> Any:
    """Decode a cell with a list or object of JSON, or of Python, as pandas writes them."""
    if not cell.startswith(("[", "{")):
        return cell
    with suppress(ValueError):
        return decode_json(cell)
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return decode_json(json.dumps(literal_eval(cell)))
    return cell
