"""The types of columns, where a format wants to know them: rows as tables of Arrow."""

import json
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Tuple

from .readers import Row

if TYPE_CHECKING:
    from pyarrow import DataType, Schema, Table

# In the metadata of a field: its values are JSON.
AS_JSON = {b"content": b"json"}


def infer_schema(rows: List[Row], text_column: str) -> "Schema":
    """Infer the types of the columns of rows, such as come from JSON.

    A column in which there are objects, or values of several types, is JSON as text; one without
    any value is text.
    """
    import pyarrow

    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        kind = (
            pyarrow.string()
            if name == text_column
            else _infer([row[name] for row in rows if row.get(name) is not None])
        )
        metadata = None if kind is not None else AS_JSON
        fields.append(pyarrow.field(name, kind or pyarrow.string(), metadata=metadata))
    return pyarrow.schema(fields)


def to_table(rows: List[Row], schema: "Schema") -> Tuple["Table", Dict[int, str]]:
    """Make a table of rows.

    rows: What a row has not is null.
    schema: The columns; those that were inferred, of the first rows of a corpus.

    Returns the table, of the rows that fit the schema, and of each other, by its position, why not.
    """
    import pyarrow

    ready = [_encode(row, schema) for row in rows]
    mismatches: Dict[int, str] = {
        i: f"unexpected column {name!r}: the first documents have {schema.names}"
        for i, row in enumerate(rows)
        for name in row
        if name not in schema.names
    }
    if not mismatches:
        try:
            return pyarrow.Table.from_pylist(ready, schema=schema), {}
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
            pass  # one of them: which, is found below
    for i, row in enumerate(ready):
        if i not in mismatches:
            mismatches.update((i, reason) for reason in _mismatches(row, schema))
    kept = [row for i, row in enumerate(ready) if i not in mismatches]
    return pyarrow.Table.from_pylist(kept, schema=schema), mismatches


def _infer(values: List[Any]) -> "DataType | None":
    """Infer a type; None where values have to be JSON."""
    import pyarrow
    from pyarrow import types

    if not values:
        return pyarrow.string()
    try:
        kind = pyarrow.infer_type(values)
        pyarrow.array(values, kind)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        return None
    inner = kind.value_type if types.is_list(kind) else kind
    return None if types.is_nested(inner) or types.is_null(inner) else kind


def _encode(row: Row, schema: "Schema") -> Row:
    as_json = {field.name for field in schema if field.metadata == AS_JSON}
    return {
        name: json.dumps(value, ensure_ascii=False)
        if name in as_json and value is not None
        else value
        for name, value in row.items()
    }


def _mismatches(row: Row, schema: "Schema") -> Iterator[str]:
    import pyarrow

    for field in schema:
        value = row.get(field.name)
        try:
            pyarrow.array([value], field.type)
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
            yield (
                f"column {field.name!r}: expected {field.type}, as the first documents have it, "
                f"got {str(value)[:100]!r}"
            )
