"""Records match those of other readers, and each record that is skipped has a reason."""

import csv
import gzip
import io
import json
import os
import random
import re
import tracemalloc
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin, Span

from spacy_crf_ner.annotate import Settings, files, readers
from spacy_crf_ner.annotate.files import Source, StorageError, find_sources, locate
from spacy_crf_ner.annotate.readers import Item, check_text_column, schema_of
from spacy_crf_ner.data import lines as text_lines

FUZZ = 3 * settings.default.max_examples
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": gzip.compress,
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}
LINES = ["Ada met Tim.", "", "  🎉 Hà Nội\u2028\x85\x0b here ", "\0", 'a "b", c\td', "x" * 5000]

# A folder serves all examples: each writes the file anew.
drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def make(path: Path, content: bytes) -> Source:
    """Write a file, compressed according to its name, and find it."""
    ending = path.suffix.lstrip(".")
    path.write_bytes(PACKERS[ending if ending in PACKERS else ""](content))
    return find(path)


def find(path: Path) -> Source:
    (source,) = find_sources([path], locate(str(path.parent / "output"))).sources
    return source


def read(source: Source, **settings: Any) -> Iterator[Item]:
    return readers.read(source, Settings(**settings))


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> int:
    """Read and skip so few bytes at once that a file of a megabyte is large."""
    monkeypatch.setattr(files, "BUFFER", 2**14)
    monkeypatch.setattr(text_lines, "SKIPPED_BYTES", 2**14)
    return 2**14


def rows(source: Source, **settings: Any) -> list[Any]:
    """The rows of a file without errors."""
    items = checked(source, **settings)
    assert not [item for item in items if item.reason]
    return [item.row for item in items]


def checked(source: Source, **settings: Any) -> list[Item]:
    """All items of a file; asserts the invariants of items."""
    items = list(read(source, **settings))
    positions = [item.position for item in items]
    assert positions == sorted(positions) and all(0 <= at <= source.size for at in positions)
    for item in items:
        assert item.file == source.name
        assert not (item.row and item.reason)
        assert item.row is None or {"text", settings.get("id_column", "id")} <= item.row.keys()
    ends = [item for item in items if item.line is None]
    assert ends == items[len(items) - len(ends) :] and len(ends) <= 1
    numbers = [item.line for item in items if item.line is not None]
    assert numbers == sorted(set(numbers))
    return items


def numbered(source: Source) -> dict[int | None, tuple[Any, str]]:
    return {item.line: (item.row, item.reason) for item in checked(source)}


# Plain text

characters = st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])


@pytest.mark.parametrize("packed", PACKERS)
@drawn
@given(
    texts=st.lists(st.text(characters), min_size=1),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    closed=st.booleans(),
)
def test_read_txt_returns_one_document_per_line(tmp_path, packed, texts, end, mark, closed) -> None:
    content = end.join(texts) + (end if closed or not texts[-1] else "")
    path = tmp_path / f"a.txt.{packed}".rstrip(".")
    # Without a byte order mark, a leading U+FEFF of the text would be read as one.
    mark = mark or content.startswith("\ufeff")
    source = make(path, BOM_UTF8 * mark + content.encode())
    expected = [{"text": text, "id": f"{path}:{i}"} for i, text in enumerate(texts, 1)]
    assert rows(source) == expected


@pytest.mark.parametrize("content", [b"", BOM_UTF8])
def test_read_txt_empty_file_returns_no_rows(tmp_path: Path, content: bytes) -> None:
    assert rows(make(tmp_path / "a.txt", content)) == []


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("text", ["", "a\r\nb\n\n", "\ufeff inside \ufeff", "🎉\0\u2028", "\n"])
def test_read_txt_doc_per_file_keeps_content(tmp_path: Path, packed: str, text: str) -> None:
    path = tmp_path / f"a.txt.{packed}".rstrip(".")
    for mark in (b"", BOM_UTF8):
        source = make(path, mark + text.encode())
        (item,) = checked(source, doc_per_file=True)
        expected = text if mark else text.removeprefix("\ufeff")
        row = {"text": expected, "id": str(path)}
        assert item == Item(None, row, "", source.size, str(path))


def test_read_jsonl_ignores_doc_per_file(tmp_path: Path) -> None:
    source = make(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": "b"}\n')
    assert [row["text"] for row in rows(source, doc_per_file=True)] == ["a", "b"]


@pytest.mark.parametrize("content", [b"a\xff", b"a" * 101])
def test_read_txt_doc_per_file_unreadable_file_returns_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 100)
    (item,) = checked(make(tmp_path / "a.txt", content), doc_per_file=True)
    assert item.line is None and item.row is None and "expected" in item.reason


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_read_txt_utf_16_returns_reason(tmp_path: Path, encoding: str, whole: bool) -> None:
    content = (
        "\ufeffa\nb\n".encode(encoding) if encoding == "utf-16-be" else "a\nb\n".encode(encoding)
    )
    (item,) = checked(make(tmp_path / "a.txt", content), doc_per_file=whole)
    assert item.line is None
    assert item.reason == "the file is unreadable: expected UTF-8, got UTF-16"


# JSON lines

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
records = st.fixed_dictionaries(
    {"text": st.text()}, optional={"id": values, "a": values, "": values, "🎉": values}
)


@pytest.mark.parametrize("packed", PACKERS)
@drawn
@given(st.lists(records), st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n", " \t\n"]))
def test_read_jsonl_matches_json_loads(tmp_path, packed, objects, ascii_only, end) -> None:
    written = [json.dumps(each, ensure_ascii=ascii_only) for each in objects]
    path = tmp_path / f"a.jsonl.{packed}".rstrip(".")
    source = make(path, "".join(each + end for each in written).encode())
    apart = end.count("\n")
    expected = [json.loads(each) for each in written]
    for i, row in enumerate(expected):
        if row.get("id") is None:
            row["id"] = f"{path}:{1 + i * apart}"
    found = [row for row in rows(source) if row is not None]
    # As text: True is equal to 1, and 1 to 1.0.
    assert [repr(sorted(row.items())) for row in found] == [
        repr(sorted(row.items())) for row in expected
    ]


@pytest.mark.parametrize(
    "line, reason",
    [
        (b'{"text": "a"', "expected JSON, got '{\"text\": \"a\"' ("),
        (b'{"text": "a"} {"text": "b"}', "expected JSON"),
        (b"null", "expected an object, got None"),
        (b'{"body": "a"}', "expected a column 'text', got the columns body"),
        (b"{}", "expected a column 'text', got the columns none"),
        (b'{"text": null}', "expected text in 'text', got None"),
        (b'{"text": "\\ud83c"}', "expected text in 'text', got '\\ud83c'"),
        (b'{"text": "a", "\\ud83d": 1}', "expected names of columns in Unicode"),
        (b'{"text": "a", "n": NaN}', "(a number that is not finite, 'NaN')"),
        (b'{"text": "a", "n": %s}' % (b"9" * 5000), "expected JSON"),
        (b'{"text": "a", "text": "b"}', "(a key twice among ['text', 'text'])"),
        (b'{"text": "a", "n": %s}' % (b"[" * 100_000), "more than 200"),
        (b'{"text": "\xff"}', "expected UTF-8, got 'utf-8' codec"),
        (b"x" * 1_000_000, "expected JSON, got 'xxxxxxx"),
        (b" \t\r", ""),
    ],
    ids=range(15),
)  # fmt: skip
def test_read_jsonl_invalid_line_returns_reason_and_keeps_others(tmp_path, line, reason) -> None:
    good = b'{"text": "before"}\n', b'{"text": "after", "n": [[[1]]]}\n'
    source = make(tmp_path / "a.jsonl", line.join([good[0], b"\n" + good[1]]))
    first, bad, last = checked(source)
    assert first.row and first.row["text"] == "before"
    assert last.row and last.row["text"] == "after" and last.line == 3
    assert bad.row is None and bad.line == 2
    assert reason in bad.reason and len(bad.reason) < 300


def test_read_jsonl_accepts_nesting_up_to_limit(tmp_path: Path) -> None:
    content = b'{"text": "a", "n": %s%s}' % (b"[" * 199, b"]" * 199)
    assert len(rows(make(tmp_path / "a.jsonl", content))) == 1
    # Many brackets are not deep.
    assert len(rows(make(tmp_path / "a.jsonl", b'{"text": "%s"}' % (b"[{" * 999)))) == 1


# Tables as text


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("kind, delimiter", [("csv", ","), ("tsv", "\t")])
@drawn
@given(
    cells=st.lists(st.tuples(st.text(), st.text(), st.text())),
    quoting=st.sampled_from([(csv.QUOTE_ALL, "\n"), (csv.QUOTE_MINIMAL, "\r\n")]),
    mark=st.booleans(),
)
def test_read_csv_matches_written_table(
    tmp_path: Path,
    kind: str,
    delimiter: str,
    packed: str,
    cells: list[tuple[str, str, str]],
    quoting: tuple[int, str],
    mark: bool,
) -> None:
    quote, end = quoting
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, quoting=quote, lineterminator=end)  # type: ignore[arg-type]
    writer.writerow(["", "text", "🎉"])
    begins = []
    for row in cells:
        begins.append(1 + file.getvalue().count("\n"))
        writer.writerow(row)
    path = tmp_path / f"a.{kind}.{packed}".rstrip(".")
    source = make(path, BOM_UTF8 * mark + file.getvalue().encode())
    assert rows(source) == [
        {"": a, "text": b, "🎉": c, "id": f"{path}:{line}"}
        for (a, b, c), line in zip(cells, begins)
    ]


def test_read_csv_ignores_csv_field_size_limit(tmp_path: Path) -> None:
    before = csv.field_size_limit(1000)
    try:
        source = make(tmp_path / "a.csv", b"text\n" + b"x" * 10**6)
        assert rows(source) == [{"text": "x" * 10**6, "id": f"{source.name}:2"}]
    finally:
        csv.field_size_limit(before)


def test_read_csv_bad_row_reports_its_first_line(tmp_path: Path) -> None:
    content = (
        b'text,n\r\n"a\r\n\r\nb",1\r\n\r\nshort\r\nlong,1,2\r\n"c"d,1\r\n'
        b'e,\xff\r\n"f\n\xff\n",1\r\ng,"h\r\n"\r\n'
    )
    found = numbered(make(tmp_path / "a.csv", content))
    assert {line: row and (row["text"], row["n"]) for line, (row, _) in found.items()} == {
        2: ("a\r\n\r\nb", "1"), 5: None, 6: None, 7: None, 8: None, 9: None, 10: None,
        13: ("g", "h\r\n"),
    }  # fmt: skip
    reasons = {line: reason for line, (_, reason) in found.items()}
    assert reasons[5] == ""
    assert reasons[6] == "expected 2 cells, as the first line has, got 1"
    assert reasons[7] == "expected 2 cells, as the first line has, got 3"
    assert reasons[8].startswith("expected a record, got ")
    assert "expected UTF-8" in reasons[9] and "expected UTF-8" in reasons[10]


@pytest.mark.parametrize("content", [b"", b"\n", b"text,text\nb,c\n", b"text,\xff\na,b\n"])
def test_read_csv_without_valid_header_returns_reason(tmp_path: Path, content: bytes) -> None:
    (item,) = checked(make(tmp_path / "a.csv", content))
    assert item.line is None
    assert item.reason.startswith("the file is unreadable: expected a first line of distinct")


@pytest.mark.parametrize("rest", [b'"d,2\ne,3\n', b'd,"2\ne,3\n', b'd,2\ne,"3', b'd,2\ne,"\n'])
def test_read_csv_unclosed_quote_reports_rest_as_unreadable(tmp_path: Path, rest: bytes) -> None:
    items = checked(make(tmp_path / "a.csv", b"text,n\na,1\n" + rest))
    last = items.pop()
    assert last.line is None and last.position == 10 + len(rest) + 1
    line = 3 + rest[: rest.index(b'"')].count(b"\n")
    quote = f"the quote is never closed in the record of line {line}"
    assert last.reason == f"the rest of the file is unreadable: {quote}"
    assert [item.row["n"] for item in items if item.row] == ["1", "2"][: line - 2]


@pytest.mark.parametrize("long", [b'"%s",1\n' % (b"x\n" * 60), b"%s,1\n" % (b"x" * 120)])
def test_read_csv_record_over_max_length_returns_reason(tmp_path, monkeypatch, long) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 100)
    fine = b'"%s",1\n' % (b"x\n" * 40)
    items = checked(make(tmp_path / "a.csv", b"text,n\n" + 2 * fine + long + b"a,1\n"))
    assert [bool(item.row) for item in items] == [True, True, False]
    assert "expected at most 100 characters in the record of line 84" in items[-1].reason


# Parquet

TEXT_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


def column(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(texts, kind.value_type).dictionary_encode()
    return pa.array(texts, kind)


NO_STRING_VIEW = pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 21, reason="pyarrow writes string_view from 21.0"
)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=NO_STRING_VIEW if "view" in k else ()) for k in TEXT_TYPES]
)
@drawn
@given(st.lists(st.text()), st.integers(1, 5))
def test_read_parquet_matches_arrow(tmp_path, kind, texts, group) -> None:
    numbers = np.arange(len(texts))
    table = pa.table(
        {
            "text": column([*texts], TEXT_TYPES[kind]),
            "id": numbers * 10**15,
            "time": pa.array(numbers, pa.timestamp("ms")),
            "list": pa.array([[{"a": None}]] * len(texts), pa.list_(pa.struct({"a": pa.int8()}))),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=group)
    assert rows(find(path)) == table.to_pylist()
    schema = schema_of(find(path), "id")
    assert schema is not None and schema.equals(pq.read_schema(path))


def test_read_parquet_row_without_text_returns_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None, "b"]}), path)
    assert [item.reason for item in checked(find(path))] == [
        "", "expected text in 'text', got None", "",
    ]  # fmt: skip
    for other in ([1, 2], [b"a", b"b"], [["a"], ["b"]]):
        pq.write_table(pa.table({"text": other}), path)
        assert [item.row for item in checked(find(path))] == [None, None]


def test_read_parquet_invalid_utf8_keeps_other_rows(tmp_path: Path) -> None:
    offsets = np.array([0, 1, 3, 4], "int32").tobytes()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xff\xfeb")]
    texts = pa.Array.from_buffers(pa.string(), 3, buffers)
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    first, bad, last = checked(find(tmp_path / "a.parquet"))
    assert first.row and first.row["text"] == "a" and last.row and last.row["text"] == "b"
    assert bad.row is None and "utf-8" in bad.reason and bad.line == 2


def test_read_parquet_duplicate_column_returns_reason(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    (item,) = checked(find(tmp_path / "a.parquet"))
    assert "expected columns with distinct names" in item.reason


def test_read_parquet_damaged_file_returns_rows_before_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text {i}" for i in range(4000)]})
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    *items, last = checked(find(path))
    texts = [item.row["text"] for item in items if item.row]
    assert texts == table["text"].to_pylist()[: len(items)] and len(items) == 2000
    assert last.line is None and "the rest of the file is unreadable" in last.reason


def test_read_parquet_does_not_load_whole_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["x" * 4000 + str(i) for i in range(10_000)]})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    size = table.nbytes
    del table
    before, most = pa.total_allocated_bytes(), 0
    for _ in read(find(path)):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < size / 3


# spaCy's own

nlp = spacy.blank("xx")


def gold_docs() -> Iterator[Doc]:
    doc = Doc(nlp.vocab, ["Ada", " ", "met", "Tim"], [True, False, True, False])
    doc.ents = [Span(doc, 0, 1, "PERSON", kb_id="Q1")]
    doc.cats, doc.spans["sc"] = {"A": 1.0}, [doc[1:2]]
    doc[2].tag_, doc[0].lemma_ = "VERB", "ada"
    doc.user_data["meta"] = {"id": 7, "source": "news", "tags": {"a": None}}
    doc.user_data["other"] = 1
    yield doc
    yield Doc(nlp.vocab)
    doc = Doc(nlp.vocab, ["a", "b"])
    doc.user_data["meta"] = "none"
    yield doc


def test_read_spacy_returns_docs_without_annotation(tmp_path: Path) -> None:
    path = tmp_path / "a.spacy"
    DocBin(docs=gold_docs(), store_user_data=True).to_disk(path)
    found = rows(find(path))
    assert [{**row, "text": ""} for row in found] == [
        {"id": 7, "source": "news", "tags": {"a": None}, "text": ""},
        {"id": f"{path}:2", "text": ""},
        {"id": f"{path}:3", "text": ""},
    ]
    read_again = list(spacy.blank("xx").pipe([row["text"] for row in found]))
    for doc, gold in zip(read_again, gold_docs(), strict=True):
        assert [(t.text, t.whitespace_) for t in doc] == [(t.text, t.whitespace_) for t in gold]
        assert doc.has_unknown_spaces == gold.has_unknown_spaces
        assert not doc.ents and not doc.cats and not doc.spans and not doc.user_data
        assert not any(t.tag_ or t.lemma_ or t.ent_iob or t.is_sent_start for t in doc[1:])


def test_read_spacy_metadata_does_not_replace_text(tmp_path: Path) -> None:
    doc = nlp.make_doc("Ada")
    doc.user_data["meta"] = {"text": "other", "id": "", "n": 1}
    DocBin(docs=[doc], store_user_data=True).to_disk(tmp_path / "a.spacy")
    (row,) = rows(find(tmp_path / "a.spacy"))
    assert Doc(nlp.vocab).from_bytes(row.pop("text")).text == "Ada"
    assert row == {"id": "", "n": 1}
    (row,) = rows(find(tmp_path / "a.spacy"), id_column="n")
    assert row["n"] == 1


# Unreadable files


@pytest.mark.parametrize("packed", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_read_truncated_archive_returns_records_before_cut(tmp_path, packed, kind) -> None:
    # 800 kB, because zstd packs 128 kB at once.
    texts = [os.urandom(200).hex() for _ in range(2000)]
    form = {"txt": "%s", "jsonl": '{"text": "%s"}', "csv": "%s,"}[kind]
    lines = [*(["text,n"] if kind == "csv" else []), *(form % text for text in texts)]
    path = tmp_path / f"a.{kind}.{packed}"
    whole = make(path, "\n".join(lines).encode() + b"\n")
    assert [row["text"] for row in rows(whole)] == texts
    content, counts = path.read_bytes(), []
    for cut in [1, 10, *(len(content) * i // 10 for i in range(1, 10)), len(content) - 1]:
        path.write_bytes(content[:cut])
        *items, last = checked(find(path))
        assert [item.row and item.row["text"] for item in items] == texts[: len(items)]
        assert last.line is None and last.position == cut
        assert "file is unreadable: " in last.reason
        counts.append(len(items))
    # Of a half, almost a half is read.
    assert counts == sorted(counts) and counts[6] > 0.4 * len(texts)


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_read_concatenated_archives_joins_contents(tmp_path: Path, packed: str) -> None:
    path = tmp_path / f"a.txt.{packed}"
    path.write_bytes(PACKERS[packed](b"a\nb") + PACKERS[packed](b"c\nd\n"))
    assert [row["text"] for row in rows(find(path))] == ["a", "bc", "d"]


def test_read_gzip_wrong_checksum_reports_error_after_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    content = bytearray(gzip.compress(b"a\nb\n"))
    content[-8] ^= 1
    path.write_bytes(content)
    first, second, last = checked(find(path))
    assert first.row and first.row["text"] == "a" and second.row and second.row["text"] == "b"
    assert "CRC" in last.reason


ALL = ["txt", "jsonl", "csv", "tsv", "parquet", "spacy", "txt.gz", "csv.zst"]


@pytest.mark.parametrize("ending", ALL)
def test_read_missing_file_raises(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"words")
    source = find(path)
    path.unlink()
    with pytest.raises(StorageError, match=f"{path}: FileNotFoundError"):
        list(read(source))


class Failing:
    """A file that raises where it is read after a position."""

    def __init__(self, path: Path, end: int, error: Exception) -> None:
        self.file, self.end, self.error = path.open("rb"), end, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def read(self) -> bytes:
        raise self.error

    def readinto(self, buffer: Any) -> int:
        if self.file.tell() + len(buffer) > self.end:
            buffer = memoryview(buffer)[: max(0, self.end - self.file.tell())]
            if not buffer:
                raise self.error
        return self.file.readinto(buffer)


class FailingSystem:
    """A file system that opens every file as `Failing`."""

    type_name = "local"

    def __init__(self, *args: Any) -> None:
        self.args = args

    def open_input_file(self, path: str) -> Failing:
        return Failing(Path(path), *self.args)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "parquet", "spacy", "txt.gz", "csv.zst"])
@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), TimeoutError(), RuntimeError("AWS Error"), None]
)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_read_storage_error_raises(tmp_path, kind, error, share) -> None:
    """As an error of the file, it would count once for all later documents, without a retry."""
    path = tmp_path / f"a.{kind}"
    texts = [os.urandom(200).hex() for _ in range(300)]
    frame = pd.DataFrame({"text": texts})
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=10)
    elif kind == "spacy":
        DocBin(docs=map(nlp.make_doc, texts)).to_disk(path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        header = "text\n" * kind.startswith("csv")
        content = (header + "\n".join(texts)).encode()
        path.write_bytes(PACKERS[kind.partition(".")[2]](content))
    source = find(path)
    failing = FailingSystem(int(share * source.size), error or MemoryError())
    source = source._replace(location=source.location._replace(filesystem=failing))
    found = []
    with pytest.raises(
        StorageError if error else MemoryError,
        match=re.escape(str(error)) if str(error or "") else None,
    ):
        for item in read(source):
            found.append(item)
    assert not [item for item in found if item.reason]
    assert [item.row and item.row["text"] for item in found] == texts[: len(found)]


@pytest.mark.parametrize("ending", ["parquet", "spacy", "txt.gz", "txt.zst"])
@pytest.mark.parametrize("content", [b"words\n", b"", b"PAR1PAR1", b"x\x9c", b"\x1f\x8b"])
def test_read_wrong_format_returns_reason(tmp_path: Path, ending: str, content: bytes) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(content)
    reasons = [item.reason for item in checked(find(path))]
    # gzip and zstd decompress an empty file to an empty one.
    empty = not content and ending.startswith("txt")
    assert len(reasons) == (0 if empty else 1)
    assert all(reason.startswith("the file is unreadable: ") for reason in reasons)
    assert schema_of(find(path), "id") is None


# Long lines


@pytest.mark.parametrize("kind", ["txt", "jsonl", "txt.gz"])
@pytest.mark.parametrize("limit", [3, 100, 2**14, 2**15])
def test_read_line_over_max_length_returns_reason_and_keeps_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_buffers: int, kind: str, limit: int
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", limit)
    for length in (limit - 2, limit - 1, limit, limit + 1, limit + 2, 2 * limit, 3 * small_buffers):
        for mark in (b"", BOM_UTF8):
            line = mark + b" " * length + b"\n"
            items = checked(make(tmp_path / f"a.{kind}", line + b"{}\n" + line[:-1]))
            assert [item.line for item in items] == [1, 2, 3]
            why = f"expected a line of at most {limit:,} bytes, got more. Break it into lines."
            told = [item.reason == why for item in items]
            # The length of a line includes its byte order mark and its line end.
            assert told == [len(line) > limit, False, len(line) - 1 > limit]


def count_in_memory(items: Iterator[Item]) -> tuple[int, int]:
    """Count items; also return the largest number of bytes that reading them takes."""
    tracemalloc.start()
    try:
        return sum(1 for _ in items), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "txt.gz", "txt.zst"])
@pytest.mark.parametrize("whole", [False, True])
def test_read_line_over_max_length_memory_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_buffers: int, kind: str, whole: bool
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 2**16)
    source = make(tmp_path / f"a.{kind}", b"text\n" + b"x" * 50 * 2**16 + b"\n{}\n")
    count, peak = count_in_memory(read(source, doc_per_file=whole))
    assert count == (1 if kind == "csv" or (whole and "txt" in kind) else 3)
    assert peak < 8 * 2**16


def test_read_many_lines_memory_stays_bounded(tmp_path: Path, small_buffers: int) -> None:
    source = make(tmp_path / "a.jsonl", b'{"text": "%s"}\n' % (b"x" * 1000) * 2000)
    count, peak = count_in_memory(read(source))
    assert count == 2000 and peak < source.size / 8


# Files that are damaged at random


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Change, cut out or insert some bytes, or cut off the rest."""
    damaged = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(damaged) + 1)
        how = chance.randrange(5)
        if how == 0 and at < len(damaged):
            damaged[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            del damaged[at : at + chance.randint(1, 20)]
        elif how == 2:
            damaged[at:at] = chance.choice([b"\n", b'"', b"\xff", b"\0", b"}{\r", b"[" * 2000])
        elif how == 3:
            damaged[at:at] = chance.randbytes(5)
        elif chance.random() < 0.2:
            del damaged[at:]
    return bytes(damaged)


def samples(tmp_path: Path) -> dict[str, bytes]:
    """A small file of each kind."""
    texts = [f"{text} {i}" for i, text in enumerate(LINES * 3)]
    frame = pd.DataFrame({"text": texts, "n": range(len(texts))})
    frame.to_parquet(tmp_path / "frame")
    plain = "\n".join(texts).encode()
    table = frame.to_csv(index=False).encode()
    return {
        "txt": plain,
        "jsonl": frame.to_json(orient="records", lines=True).encode(),
        "csv": table,
        "tsv": frame.to_csv(index=False, sep="\t").encode(),
        "parquet": (tmp_path / "frame").read_bytes(),
        "spacy": DocBin(docs=gold_docs(), store_user_data=True).to_bytes(),
        "unpacked.spacy": zlib.decompress(DocBin(docs=gold_docs()).to_bytes()),
        "txt.gz": gzip.compress(plain),
        "csv.zst": PACKERS["zst"](table),
    }


@pytest.mark.parametrize("kind", [*ALL, "unpacked.spacy"])
def test_read_randomly_damaged_file_does_not_raise(tmp_path: Path, kind: str) -> None:
    content = samples(tmp_path)[kind]
    chance = random.Random(0)
    path = tmp_path / f"a.{kind}"
    counts = set()
    for _ in range(FUZZ):
        damaged = mutate(content, chance)
        path.write_bytes(zlib.compress(damaged) if kind == "unpacked.spacy" else damaged)
        items = checked(find(path))
        counts.add(len(items))
        try:
            check_text_column(find(path), Settings())
        except ValueError as problem:
            assert "--text-column" in str(problem)
    assert len(counts) > 1


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_read_randomly_damaged_file_keeps_intact_lines(tmp_path: Path, kind: str) -> None:
    content = samples(tmp_path)[kind]
    source = make(tmp_path / f"a.{kind}", content)
    healthy = {
        line: {name: value for name, value in row.items() if name != "id"}
        for line, row in zip(content.split(b"\n"), rows(source), strict=False)
    }
    chance = random.Random(1)
    kept = 0
    for _ in range(FUZZ):
        damaged = mutate(content, chance)
        items = checked(make(Path(source.name), damaged))
        lines = damaged.split(b"\n")
        assert len(items) == len(lines) - (not lines[-1])
        for i, (item, line) in enumerate(zip(items, lines), 1):
            assert item.line == i
            if line in healthy:
                assert item.row == {**healthy[line], "id": f"{source.name}:{i}"}
                kept += 1
            elif kind == "txt":
                whole = line.decode(errors="ignore").encode() == line
                assert (item.row is None) == (not whole)
    assert kept > 5 * FUZZ


# Progress, and the check of the text column


def test_read_position_is_proportional_to_items_read(tmp_path: Path) -> None:
    texts = [os.urandom(500).hex() for _ in range(2000)]
    content = "\n".join(texts).encode() + b"\n"
    for kind in ("txt", "txt.gz", "txt.zst", "parquet"):
        if kind == "parquet":
            pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
            source = find(tmp_path / "a.parquet")
        else:
            source = make(tmp_path / f"a.{kind}", content)
        items = checked(source)
        for part in (0.25, 0.5, 0.75):
            assert abs(items[int(part * len(items))].position / source.size - part) < 0.15


HEADERS = {
    "a.jsonl": b'\n[1]\n{"body": "a", "id": 1}\n{"text": "b"}\n',
    "a.csv": b"body,id\n,\n",
    "a.tsv": b"body\tid\na\t1\n",
    "a.csv.gz": b"body,id\na,1\n",
}


@pytest.mark.parametrize("name", HEADERS)
def test_require_text_column_missing_column_raises(tmp_path: Path, name: str) -> None:
    source = make(tmp_path / name, HEADERS[name])
    with pytest.raises(ValueError) as problem:
        check_text_column(source, Settings())
    assert str(problem.value) == (
        f"{source.name}: expected a column 'text', got the columns body, id. Set --text-column."
    )
    check_text_column(source, Settings(text_column="body"))


def test_read_uses_configured_column_names(tmp_path: Path) -> None:
    names = {"text_column": "body", "id_column": "no"}
    jsonl = make(tmp_path / "a.jsonl", b'{"body": "a", "text": 1}')
    plain = make(tmp_path / "a.txt", b"a")
    DocBin(docs=[nlp.make_doc("a")]).to_disk(tmp_path / "a.spacy")
    (item,) = read(jsonl, **names)
    assert item.row == {"body": "a", "text": 1, "no": f"{jsonl.name}:1"}
    (item,) = read(plain, **names)
    assert item.row == {"body": "a", "no": f"{plain.name}:1"}
    (item,) = read(find(tmp_path / "a.spacy"), **names)
    assert item.row and [*item.row] == ["body", "no"]


def test_read_closed_early_closes_file(tmp_path: Path) -> None:
    for kind, content in samples(tmp_path).items():
        path = tmp_path / f"b.{kind}"
        path.write_bytes(zlib.compress(content) if kind == "unpacked.spacy" else content)
        items = read(find(path))
        next(items)
        items.close()  # type: ignore[attr-defined]
        opened = {os.path.realpath(link) for link in Path("/proc/self/fd").glob("*")}
        assert str(path) not in opened
