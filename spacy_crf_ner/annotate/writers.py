"""Annotated documents in a file: JSON lines, .parquet, or spaCy's own."""

import base64
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from ..data.json_records import META
from .dataframes import DOC, ENTITIES
from .readers import Row
from .schema import to_table

if TYPE_CHECKING:
    from pyarrow import Schema

# Why rows could not be written, by their positions.
Unwritten = Dict[int, str]
# Writes rows to a file; the schema is that of their input columns.
Writer = Callable[[Path, List[Row], Optional["Schema"]], Unwritten]


def write_jsonl(path: Path, rows: List[Row], schema: Optional["Schema"] = None) -> Unwritten:
    """Write a row a line, as an object of its columns.

    What JSON has no words for becomes text: times in ISO 8601, bytes in Base64; NaN becomes null.
    """
    with path.open("wb") as file:
        for row in rows:
            file.write(_line(row))
    return {}


def write_parquet(path: Path, rows: List[Row], schema: Optional["Schema"] = None) -> Unwritten:
    """Write rows as a table, with the types of the input, and "entities" as a list of structs."""
    import pyarrow
    from pyarrow import parquet

    entity = pyarrow.struct(
        {
            "start": pyarrow.int64(),
            "end": pyarrow.int64(),
            "label": pyarrow.string(),
            "confidence": pyarrow.float64(),
        }
    )
    schema = schema if schema is not None else pyarrow.schema([])
    # The file may have had other columns of pandas' than these are.
    schema = schema.remove_metadata().append(pyarrow.field(ENTITIES, pyarrow.list_(entity)))
    table, mismatches = to_table(rows, schema)
    parquet.write_table(table, path)
    return mismatches


def write_spacy(path: Path, rows: List[Row], schema: Optional["Schema"] = None) -> Unwritten:
    """Write rows as Docs, their columns in `doc.user_data["meta"]`, but for text and entities."""
    vocab = Vocab()
    docs = DocBin(store_user_data=True)
    for row in rows:
        doc = Doc(vocab).from_bytes(row[DOC])
        meta = {name: value for name, value in row.items() if name not in (DOC, ENTITIES)}
        doc.user_data[META] = json.loads(_line(meta))
        docs.add(doc)
    docs.to_disk(path)
    return {}


WRITERS: Dict[str, Writer] = {"jsonl": write_jsonl, "parquet": write_parquet, "spacy": write_spacy}


def _line(row: Row) -> bytes:
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        line = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can only name
        return json.dumps(json.loads(line)).encode() + b"\n"


def _plain(value: Any) -> Any:
    """Say in JSON what it has no type for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
