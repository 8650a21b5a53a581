"""Column types: convert rows to Arrow tables."""

import json
from typing import TYPE_CHECKING, Any

from .readers import Row
from .settings import ENTITIES

if TYPE_CHECKING:
    from pyarrow import DataType, Schema, Table

# Metadata of a field with JSON values.
AS_JSON = {b"content": b"json"}


def infer_schema(rows: list[Row], text_column: str) -> "Schema":
    """Infer the types of the columns of rows that come from JSON.

    A column of objects, or of values of several types, becomes JSON strings; a column without
    values becomes strings.
    """
    import pyarrow

    names = dict.fromkeys(key for row in rows for key in row if key != ENTITIES)  # it is added
    fields = []
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        kind = pyarrow.string() if name == text_column or not values else _infer(values)
        as_json = pyarrow.field(name, pyarrow.string(), metadata=AS_JSON)
        fields.append(as_json if kind is None else pyarrow.field(name, kind))
    return pyarrow.schema(fields)


def to_table(rows: list[Row], schema: "Schema") -> tuple["Table", dict[int, str]]:
    """Make a table of rows; missing values are null.

    Returns:
        The table of the rows that match the schema, and for each other row, by position, the reason
        why it does not match.
    """
    as_json = {field.name for field in schema if field.metadata == AS_JSON}
    for name in as_json:
        rows = [{**row, name: _encode(row[name])} if name in row else row for row in rows]
    table = _table(rows, schema)
    if table is not None:
        return table, {}
    mismatches = {i: why for i, row in enumerate(rows) if (why := _mismatch(row, schema))}
    return _table([row for i, row in enumerate(rows) if i not in mismatches], schema), mismatches


def _encode(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _infer(values: list[Any]) -> "DataType | None":
    """Infer a type; None if values must be stored as JSON."""
    import pyarrow
    from pyarrow import types

    try:
        kind = pyarrow.array(values).type
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None
    inner = kind.value_type if types.is_list(kind) else kind
    return None if types.is_nested(inner) or types.is_null(inner) else kind


def _table(rows: list[Row], schema: "Schema") -> "Table | None":
    """Make a table of rows; None if they do not match the schema."""
    import pyarrow

    if not {name for row in rows for name in row} <= {*schema.names}:
        return None
    try:
        return pyarrow.Table.from_pylist(rows, schema=schema)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _mismatch(row: Row, schema: "Schema") -> str:
    """Return why a row does not match the schema, or ""."""
    import pyarrow

    for name, value in row.items():
        if name not in schema.names:
            return f"unexpected column {name!r}: the first documents have {schema.names}"
        field = schema.field(name)
        if _table([{name: value}], pyarrow.schema([field])) is None:
            return (
                f"column {name!r}: expected {field.type}, as in the first documents, "
                f"got {str(value)[:100]!r}"
            )
    return ""
