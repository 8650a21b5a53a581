"""The types of columns, for a format that has types: rows as tables of Arrow."""

import json
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from .readers import Row

if TYPE_CHECKING:
    from pyarrow import Schema, Table

# Metadata of a field whose values are JSON.
AS_JSON = {b"content": b"json"}


def infer_schema(rows: List[Row], text_column: str) -> "Schema":
    """Infer the types of the columns of rows that come from JSON.

    A column with objects, or with values of several types, is JSON as text; one without values is
    text.
    """
    import pyarrow

    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if row.get(name) is not None]
        kind = pyarrow.string() if name == text_column or not values else _infer(values)
        metadata = None if kind is not None else AS_JSON
        fields.append(pyarrow.field(name, kind or pyarrow.string(), metadata=metadata))
    return pyarrow.schema(fields)


def to_table(rows: List[Row], schema: "Schema") -> Tuple["Table", Dict[int, str]]:
    """Make a table of rows; what a row has not is null.

    Returns the table, of the rows that fit the schema, and for each other row, by its position, why
    it does not fit.
    """
    import pyarrow

    as_json = {field.name for field in schema if field.metadata == AS_JSON}
    encoded = [
        {k: _encode(v) if k in as_json and v is not None else v for k, v in row.items()}
        for row in rows
    ]
    mismatches: Dict[int, str] = {}
    if not all(row.keys() <= {*schema.names} for row in rows) or not _fits(encoded, schema):
        mismatches = {i: why for i, row in enumerate(encoded) if (why := _mismatch(row, schema))}
    kept = [row for i, row in enumerate(encoded) if i not in mismatches]
    return pyarrow.Table.from_pylist(kept, schema=schema), mismatches


def _encode(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _infer(values: List[Any]) -> Any:
    """Infer a type; None if values have to be JSON."""
    import pyarrow
    from pyarrow import types

    try:
        kind = pyarrow.infer_type(values)
        pyarrow.array(values, kind)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None
    inner = kind.value_type if types.is_list(kind) else kind
    return None if types.is_nested(inner) or types.is_null(inner) else kind


def _fits(rows: List[Row], schema: "Schema") -> bool:
    import pyarrow

    try:
        pyarrow.Table.from_pylist(rows, schema=schema)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _mismatch(row: Row, schema: "Schema") -> str:
    """Say why a row does not fit, or ""."""
    import pyarrow

    for name in row:
        if name not in schema.names:
            return f"unexpected column {name!r}: the first documents have {schema.names}"
    for field in schema:
        value = row.get(field.name)
        if not _fits([{field.name: value}], pyarrow.schema([field])):
            return (
                f"column {field.name!r}: expected {field.type}, as the first documents have it, "
                f"got {str(value)[:100]!r}"
            )
    return ""
