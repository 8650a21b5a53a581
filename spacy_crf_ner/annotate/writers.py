"""Write annotated documents as JSON lines, .parquet, or spaCy's binary format."""

import base64
import json
import math
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from ..data.json_records import store_meta
from ..input_error import CorpusError
from .readers import Row
from .settings import ENTITIES

if TYPE_CHECKING:
    from pyarrow import DataType, Schema, Table

# Metadata of a field with JSON values.
AS_JSON = {b"content": b"json"}
# The content of a file, and by position, the reasons why rows could not be written.
Written = tuple[bytes, dict[int, str]]


def to_jsonl(rows: list[Row], docs: list[bytes], schema: "Schema | None") -> Written:
    """Write one row per line, as an object of its columns."""
    return b"".join(map(json_line, rows)), {}


def to_parquet(rows: list[Row], docs: list[bytes], schema: "Schema | None") -> Written:
    """Write rows as a table, with the types of the input, and "entities" as a list of structs."""
    import pyarrow
    from pyarrow import parquet

    entity = {"start": pyarrow.int64(), "end": pyarrow.int64(), "label": pyarrow.string()}
    entities = pyarrow.list_(pyarrow.struct({**entity, "confidence": pyarrow.float64()}))
    schema = schema if schema is not None else pyarrow.schema([])
    # The metadata of the input may describe other columns of pandas.
    schema = schema.remove_metadata().append(pyarrow.field(ENTITIES, entities))
    table, mismatches = to_table(rows, schema)
    file = BytesIO()
    parquet.write_table(table, file)
    return file.getvalue(), mismatches


def to_docbin(rows: list[Row], docs: list[bytes], schema: "Schema | None") -> Written:
    """Write Docs, with their columns except the entities in `doc.user_data["meta"]`."""
    vocab = Vocab()
    packed = DocBin(store_user_data=True)
    unwritten: dict[int, str] = {}
    for i, (row, content) in enumerate(zip(rows, docs)):
        doc = Doc(vocab).from_bytes(content)
        meta = {name: value for name, value in row.items() if name != ENTITIES}
        try:
            store_meta("its columns", doc, json.loads(json_line(meta)))
        except CorpusError as problem:
            unwritten[i] = str(problem)
        else:
            packed.add(doc)
    return packed.to_bytes(), unwritten


def infer_schema(rows: list[Row], text_column: str) -> "Schema":
    """Infer the types of the columns of rows that come from JSON.

    A column of objects, or of values of several types, becomes JSON strings; a column without
    values becomes strings.
    """
    import pyarrow
    from pyarrow import types

    names = dict.fromkeys(key for row in rows for key in row if key != ENTITIES)  # it is added
    fields = []
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        kind = pyarrow.string()
        if values and name != text_column:
            found = _array(values)
            kind = pyarrow.null() if found is None else found.type
        inner = kind.value_type if types.is_list(kind) else kind
        if types.is_nested(inner) or types.is_null(inner):
            fields.append(pyarrow.field(name, pyarrow.string(), metadata=AS_JSON))
        else:
            fields.append(pyarrow.field(name, kind))
    return pyarrow.schema(fields)


def to_table(rows: list[Row], schema: "Schema") -> tuple["Table", dict[int, str]]:
    """Make a table of the rows that match the schema; also return why the others do not.

    Missing values are null; the other rows are numbered by position.
    """
    import pyarrow

    mismatches = {
        i: f"unexpected column {name!r}: the first documents have {schema.names}"
        for i, row in enumerate(rows)
        for name in row
        if name not in schema.names
    }
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if field.metadata == AS_JSON:
            values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
        columns.append(_array(values, field.type))
        if columns[-1] is None:
            expected = f"column {field.name!r}: expected {field.type}, as in the first documents"
            for i, value in enumerate(values):
                if _array([value], field.type) is None:
                    mismatches.setdefault(i, f"{expected}, got {str(value)[:100]!r}")
    if mismatches:
        matching = [row for i, row in enumerate(rows) if i not in mismatches]
        return to_table(matching, schema)[0], mismatches
    return pyarrow.Table.from_arrays(columns, schema=schema), {}


def _array(values: list[Any], kind: "DataType | None" = None) -> Any:
    """Make an array; None if the values do not have this type, or any."""
    import pyarrow

    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None


# Writers take rows, their Docs for the format "spacy", and the schema of the input columns.
WRITERS: dict[str, Callable[[list[Row], list[bytes], "Schema | None"], Written]] = {
    "jsonl": to_jsonl,
    "parquet": to_parquet,
    "spacy": to_docbin,
}


def json_line(row: Row) -> bytes:
    """Write an object as a line of JSON.

    Values that JSON lacks become text: times in ISO 8601, bytes in Base64. NaN becomes null.
    """
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        line = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair needs an escape
        return json.dumps(json.loads(line)).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
