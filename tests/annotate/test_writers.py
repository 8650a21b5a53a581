"""Shards as files; the oracles are json, pyarrow and spaCy themselves."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin

from spacy_crf_ner.annotate.writers import AS_JSON, WRITERS, infer_schema, to_table

ENTITY = {"start": 0, "end": 5, "label": "GPE", "confidence": 0.25}
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)
RECORDS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), max_size=6)


def row(**columns):
    return {"text": "Hanoi", **columns, "entities": [ENTITY]}


def lines(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def write(path, format, rows, schema=None, docs=()):
    content, unwritten = WRITERS[format](rows, [*docs], schema)
    path.write_bytes(content)
    return unwritten


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard"


@given(records=RECORDS)
def test_write_jsonl_round_trip_keeps_values(records, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("shard") / "shard"
    rows = [row(**record) for record in records]
    assert write(path, "jsonl", rows) == {}
    finite = [row(**_without_infinity(record)) for record in records]
    assert lines(path) == finite


def _without_infinity(value):
    if isinstance(value, dict):
        return {key: _without_infinity(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_infinity(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def test_write_jsonl_converts_non_json_types(path) -> None:
    date = datetime(2020, 1, 2, tzinfo=UTC)
    values = {"date": date, "bytes": b"\x00\xff", "decimal": Decimal("1.50"), "nan": [math.nan]}
    values["map"] = [("a", math.inf)]  # of a table
    write(path, "jsonl", [row(**values, half="\ud800")])
    (record,) = lines(path)
    assert record["date"] == "2020-01-02T00:00:00+00:00"
    assert record["bytes"] == "AP8="
    assert record["decimal"] == "1.50"
    assert record["nan"] == [None] and record["map"] == [["a", None]]
    assert record["half"] == "\ud800"


def test_write_jsonl_escapes_line_breaks_in_text(path) -> None:
    write(path, "jsonl", [row(other="a\nb\u2028c\r")])
    assert len(path.read_bytes().splitlines()) == 1


def test_write_parquet_keeps_input_types(path) -> None:
    schema = pa.schema(
        {
            "text": pa.large_string(),
            "small": pa.int8(),
            "when": pa.timestamp("us", tz="UTC"),
            "word": pa.dictionary(pa.int32(), pa.string()),
            "list": pa.list_(pa.float32()),
            "struct": pa.struct({"a": pa.int16()}),
            "empty": pa.null(),
        }
    )
    columns = {
        "text": ["Hanoi", "x"],
        "small": [1, None],
        "when": [datetime(2020, 1, 1, tzinfo=UTC), None],
        "word": ["a", "b"],
        "list": [[1.5], None],
        "struct": [{"a": 1}, None],
        "empty": [None, None],
    }
    table = pa.table(columns, schema=schema)
    rows = [{**each, "entities": []} for each in table.to_pylist()]
    rows[0]["entities"] = [ENTITY, {**ENTITY, "confidence": 0.1}]
    # The metadata of pandas has no column of entities.
    assert write(path, "parquet", rows, schema.with_metadata({"pandas": "{}"})) == {}
    written = pq.read_table(path)
    assert written.drop_columns("entities").equals(table)
    assert written["entities"].to_pylist() == [rows[0]["entities"], []]
    assert not written.schema.metadata


@given(records=RECORDS)
def test_to_table_round_trip_keeps_json_columns(records) -> None:
    """Columns without a single type are written as JSON."""
    rows = [{"text": "x", **record} for record in records]
    schema = infer_schema(rows, "text")
    table, mismatches = to_table(rows, schema)
    assert mismatches == {}
    for name in schema.names:
        for before, after in zip([each.get(name) for each in rows], table[name].to_pylist()):
            if schema.field(name).metadata == AS_JSON and after is not None:
                assert json.loads(after) == before
            else:
                assert after == before


def test_infer_schema_uniform_column_keeps_its_type() -> None:
    rows = [{"text": "a", "i": 1, "f": 0.5, "s": "x", "l": [1], "none": None, "b": True}, {"i": 2}]
    schema = infer_schema(rows, "text")
    assert [str(field.type) for field in schema] == [
        *("string", "int64", "double", "string"),
        *("list<item: int64>", "string", "bool"),
    ]
    assert all(field.metadata is None for field in schema)


def test_write_parquet_returns_rows_that_do_not_fit_schema(path) -> None:
    schema = infer_schema([{"text": "a", "n": 1}], "text")
    rows = [row(n=1), row(n="two"), row(other=1), row(), row(n=2**70)]
    unwritten = write(path, "parquet", rows, schema)
    assert set(unwritten) == {1, 2, 4}
    assert "expected int64" in unwritten[1]
    assert "'other'" in unwritten[2]
    assert pq.read_table(path)["n"].to_pylist() == [1, None]


def test_write_spacy_keeps_columns_and_entities(path) -> None:
    nlp = spacy.blank("en")
    doc = nlp("Hanoi is here.")
    doc.ents = [doc.char_span(0, 5, "GPE")]
    rows = [{"id": 7, "when": datetime(2020, 1, 1), "doc": "mine", "entities": [ENTITY]}]
    assert write(path, "spacy", rows, docs=[doc.to_bytes()]) == {}
    (again,) = DocBin().from_disk(path).get_docs(spacy.blank("en").vocab)
    assert isinstance(again, Doc)
    assert again.text == doc.text
    assert [(ent.text, ent.label_) for ent in again.ents] == [("Hanoi", "GPE")]
    assert again.user_data["meta"] == {"id": 7, "when": "2020-01-01T00:00:00", "doc": "mine"}


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_write_empty_shard_creates_file(path, format) -> None:
    assert write(path, format, []) == {}
    assert path.exists()


def test_write_spacy_returns_docs_with_unstorable_columns(path) -> None:
    doc = spacy.blank("en")("Hanoi")
    rows = [{"id": 10**30}, {"id": 1}, {"note": "half \ud83d"}]
    unwritten = write(path, "spacy", rows, docs=[doc.to_bytes()] * 3)
    assert set(unwritten) == {0, 2} and "metadata that can be stored" in unwritten[0]
    (again,) = DocBin().from_disk(path).get_docs(spacy.blank("en").vocab)
    assert again.user_data["meta"] == {"id": 1}
