"""Values of JSON: strictly parsed, from lines or one array, and their types."""

import json
import reprlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import srsly
from spacy.tokens import Doc

from ..docbin import META
from ..input_error import InputError
from .lines import read_lines
from .repair_log import error

MAX_ARRAY_BYTES = 512 * 2**20  # a parsed array takes several times this size in memory
MAX_DEPTH = 200  # nested lists and objects; deeper ones cannot be stored safely
TYPES = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}

JsonObject = dict[str, Any]
Value = TypeVar("Value")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shorten(value: object) -> str:
    """Shorten a value of any size and depth for a message."""
    return _short.repr(value)


# JSON


def decode_json(text: str) -> object:
    """Parse JSON strictly: ValueError for NaN, a key twice, and deep levels."""
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


def json_values(path: Path) -> Iterator[tuple[str, object]]:
    """Read the values of a file with their places: of its lines, of one array, or one object."""
    lines = ((text, problem) for _, text, problem in read_lines(path) if problem or text.strip())
    first, second = [*islice(lines, 2), ("", None), ("", None)][:2]
    with path.open("rb") as file:
        begins = file.read(1000).removeprefix(BOM_UTF8).lstrip()[:1]
    size = path.stat().st_size
    value = _value(first[0])
    are_lines = value is not None and _value(second[0]) is not None
    is_array = begins == b"[" and not is_pair(value) and not are_lines
    if not is_array and (begins != b"{" or value is not None or size > MAX_ARRAY_BYTES):
        yield from json_lines(path)
        return
    if size > MAX_ARRAY_BYTES:
        fix = "Export the project in several files, and convert all of them"
        raise error(str(path), f"at most {MAX_ARRAY_BYTES:,} bytes", f"{size:,}", fix)
    try:
        value = decode_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as bad:
        if not is_array:
            yield from json_lines(path)
            return
        expected, fix = "an array of JSON, in UTF-8", "Export the file again"
        raise error(str(path), expected, str(bad), fix) from bad
    if isinstance(value, list):
        yield from ((f"{path}, record {n}", item) for n, item in enumerate(value, 1))
    else:
        yield str(path), value


def _value(line: str) -> object:
    """Return the value of a line, or None if it is not JSON."""
    with suppress(ValueError):
        return decode_json(line)
    return None


def is_pair(value: object) -> TypeGuard[list[Any]]:
    """Return whether a value is a text with its annotation, as ["text", {"entities": [...]}]."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], dict)
    )


def _depth(value: object) -> int:
    """Count the levels of lists and objects, without recursion."""
    depth, level = 0, [value]
    while level := [value for value in level if isinstance(value, (list, dict))]:
        depth += 1
        values = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for each in values for value in each]
    return depth


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
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


def pop_typed(where: str, record: JsonObject, key: str, kind: type[Value]) -> Value:
    """Remove a key and return its value, or an empty one; CorpusError for another type."""
    value = record.pop(key, None)
    if value is None:
        return kind()
    if type(value) is not kind:
        raise error(where, f"{TYPES[kind]} for {key!r}", shorten(value))
    return value


def pop_objects(where: str, record: JsonObject, key: str, fix: str) -> list[JsonObject]:
    """Remove a key and return its value, a list of objects."""
    values = pop_typed(where, record, key, list)
    if others := [value for value in values if not isinstance(value, dict)]:
        raise error(where, f"only objects in {key!r}", shorten(others[0]), fix)
    return values


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


def store_meta(where: str, doc: Doc, meta: JsonObject) -> None:
    """Store other values of a record in `doc.user_data`; CorpusError if .spacy cannot have them."""
    try:
        srsly.msgpack_dumps(meta)
    except (ValueError, OverflowError, RecursionError) as problem:
        fix = "Remove lone surrogates and integers of more than 64 bits"
        raise error(where, "metadata that can be stored", str(problem), fix) from problem
    if meta:
        doc.user_data[META] = meta
