"""JSON lines: an object a line."""

import json
from math import isinf
from typing import Any, Iterable, Iterator, List, Optional, Tuple

from ...data.json_records import shorten
from ..inputs import Source
from .item import Item, Place, Row
from .lines import read_lines

# Lists and objects in each other. What reads more may not be able to hand it on, or to write it.
MAX_DEPTH = 200


def read_json_lines(source: Source) -> Iterator[Item]:
    """Read an object a line, and go on after a line that is none."""
    for line in read_lines(source):
        row, reason = None, line.reason
        if not reason and line.text.strip(" \t\r\n"):
            row, reason = _parse(line.text)
        yield Item(Place(str(source.path), line.number), row, reason, line.position)


def _parse(text: str) -> Tuple[Optional[Row], str]:
    try:
        value = _decoder.decode(text)
    except (ValueError, RecursionError) as problem:
        return None, f"expected JSON, got {shorten(text)} ({problem})"
    if not isinstance(value, dict):
        return None, f"expected an object of JSON, got {shorten(value)}"
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth([value]) > MAX_DEPTH:
        return None, f"expected at most {MAX_DEPTH} lists and objects in each other, got more"
    return value, ""


def _depth(values: Iterable[Any]) -> int:
    """Count how deep lists and objects are in each other, with no recursion."""
    depth = 0
    while values := [value for value in values if isinstance(value, (list, dict))]:
        depth += 1
        parts = (value.values() if isinstance(value, dict) else value for value in values)
        values = [value for part in parts for value in part]
    return depth


def _object(pairs: List[Tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"a key twice among {shorten([key for key, _ in pairs])}")
    return row


def _number(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"a number as large as {shorten(text)}")
    return value


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)
