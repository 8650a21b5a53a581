"""JSON records; each one becomes a Doc or is counted as rejected."""

import json
import reprlib
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import srsly
from spacy.tokens import Doc

from ..docbin import META
from ..input_error import CorpusError, InputError
from .lines import read_lines
from .repair_log import ConversionLog, error

MAX_ARRAY_BYTES = 512 * 2**20  # a parsed array takes several times this size in memory
MAX_DEPTH = 200  # nested lists and objects; deeper ones cannot be stored safely
TYPES = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}

Record = dict[str, Any]
Value = TypeVar("Value")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shorten(value: object) -> str:
    """Shorten a value of any size and depth for a message."""
    return _short.repr(value)


def records_to_docs(
    records: Iterable[tuple[str, object]],
    to_doc: Callable[[str, Record], Doc | None],
    log: ConversionLog,
) -> Iterator[Doc]:
    """Make a Doc of each record, one at a time; no two records may have the same id.

    Args:
        records: The place of each record, such as "corpus.jsonl, line 5", and its value, or the
            CorpusError of reading it. For each id, a hash and the last part of its place are kept:
            about 150 bytes.
        to_doc: Makes a Doc, or returns None for a record that it has counted as skipped. It raises
            CorpusError for a record that cannot be read, before it counts any entity.
        log: Decides whether such a record is an error, or is left out and counted.
    """
    places: dict[int, str] = {}
    for where, record in records:
        try:
            if isinstance(record, CorpusError):
                raise record
            if not isinstance(record, dict):
                raise error(where, "an object of JSON", shorten(record), "Write {...}, with a text")
            _check_new_id(where, record.get("id"), places)
            doc = to_doc(where, record)
        except CorpusError as problem:
            log.read()
            log.rejected("record", problem, records=1)
            continue
        if doc is not None:
            log.read()
            yield doc


def _check_new_id(where: str, identity: object, places: dict[int, str]) -> None:
    if identity is None:
        return
    if type(identity) not in (str, int):
        raise error(where, "a string or a whole number for 'id'", shorten(identity))
    place = where.rpartition(", ")[2]
    # Hash the repr, because hash(-1) == hash(-2).
    first = places.setdefault(hash(repr(identity)), place)
    if first != place:
        fix = "Keep one of the two, or give them different ids"
        raise error(where, "an id that is new", f"{shorten(identity)}, as in {first}", fix)


# JSON


def decode_json(text: str) -> object:
    """Parse JSON strictly.

    Raises:
        ValueError: For invalid JSON, including NaN and Infinity, and for a duplicate key, a number
            too large for a float, or more than `MAX_DEPTH` levels.
    """
    try:
        value: object = _decoder.decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise RecursionError
    except RecursionError as problem:
        raise ValueError(f"more than {MAX_DEPTH} levels of lists and objects") from problem
    return value


def json_lines(path: Path) -> Iterator[tuple[str, object]]:
    """Read the value of each line that is not blank, or a CorpusError if it is not JSON."""
    for where, text, problem in read_lines(path):
        if problem:
            yield where, problem[1]
        elif text.strip():
            try:
                yield where, decode_json(text)
            except ValueError as bad:
                got, fix = f"{shorten(text)} ({bad})", "Write one JSON object per line"
                yield where, error(where, "JSON", got, fix)


def json_array(path: Path) -> Iterator[tuple[str, object]]:
    """Read the items of a file that is one JSON array of at most `MAX_ARRAY_BYTES`.

    Raises:
        CorpusError: For any other file.

    This is never repaired, because the number of lost records is unknown.
    """
    size = path.stat().st_size
    if size > MAX_ARRAY_BYTES:
        fix = "Export the project in several files, and convert all of them"
        raise error(str(path), f"at most {MAX_ARRAY_BYTES:,} bytes", f"{size:,}", fix)
    try:
        values = decode_json(path.read_text(encoding="utf-8-sig"))
        if not isinstance(values, list):
            raise ValueError(shorten(values))
    except ValueError as bad:
        expected, fix = "an array of JSON, in UTF-8", "Export the file again"
        raise error(str(path), expected, str(bad), fix) from bad
    return ((f"{path}, record {number}", value) for number, value in enumerate(values, 1))


def _depth(value: object) -> int:
    """Count the levels of lists and objects, without recursion."""
    depth, level = 0, [value]
    while level := [value for value in level if isinstance(value, (list, dict))]:
        depth += 1
        values = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for each in values for value in each]
    return depth


def _object(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError(f"a key twice among {shorten([key for key, _ in pairs])}")
    return record


def _finite(text: str) -> float:
    """Parse a number; the decoder also passes NaN and Infinity."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"a number that is not finite, {shorten(text)}")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite)


# Contents of a record


def pop_typed(where: str, record: Record, key: str, kind: type[Value]) -> Value:
    """Remove a key and return its value, or an empty one if it is null or missing.

    Raises:
        CorpusError: For a value of another type.
    """
    value = record.pop(key, None)
    if value is None:
        return kind()
    if type(value) is not kind:
        raise error(where, f"{TYPES[kind]} for {key!r}", shorten(value))
    return value


def is_text(value: object) -> bool:
    """Return whether a value is a string without lone surrogates."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def check_unicode(what: str, value: str) -> None:
    """Raise InputError for a string with lone surrogates, such as bytes that are not UTF-8."""
    if not is_text(value):
        raise InputError(f"{what}: expected UTF-8, got {shorten(value)}. Correct or rename it.")


def store_meta(where: str, doc: Doc, meta: Record) -> None:
    """Store the other values of a record as `doc.user_data["meta"]`.

    Raises:
        CorpusError: For values that cannot be stored in a .spacy file.
    """
    try:
        srsly.msgpack_dumps(meta)
    except (ValueError, OverflowError, RecursionError) as problem:
        fix = "Remove lone surrogates and integers of more than 64 bits"
        raise error(where, "metadata that can be stored", str(problem), fix) from problem
    if meta:
        doc.user_data[META] = meta
