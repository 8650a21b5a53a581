"""Spans of records in JSON, in the shapes of several tools."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .json_keys import ANNOTATION, ENDS, LABELS, STARTS, first_value
from .json_records import decode_json, pop_typed, shorten
from .record import RawSpan
from .repair_log import ConversionLog, error

LABEL_FILES = ("labels.json", "label.json", "label_config.json")  # doccano exports them


def read_spans(
    where: str, value: object, key: str, labels: Mapping[int, str], log: ConversionLog
) -> list[RawSpan]:
    """Read the entities of a record; what is no span has invalid offsets, and is rejected later."""
    if isinstance(value, dict) and key not in ANNOTATION:
        # {"PER": {"Tim": [[0, 3]]}}, or {"PER": [[0, 3]]}
        return [
            _of_place(place, label, text)
            for label, each in value.items()
            for text, places in (each.items() if isinstance(each, dict) else [(None, each)])
            for place in (places if isinstance(places, list) else [places])
        ]
    items = pop_typed(where, {key: value}, key, list)
    return [span for item in items for span in _of_item(where, item, labels, log)]


def has_points(item: object) -> bool:
    """Whether an entity is one of Dataturks, whose ends are inclusive."""
    return isinstance(item, dict) and isinstance(item.get("points"), list)


def _of_place(place: object, label: str, text: str | None) -> RawSpan:
    if isinstance(place, list) and len(place) == 2:
        return RawSpan(place[0], place[1], label, text=text)
    return RawSpan(place, None, label, text=text)


def _of_item(
    where: str, item: object, labels: Mapping[int, str], log: ConversionLog
) -> list[RawSpan]:
    """Read [0, 8, "PER"], or an object; each of its labels is a span, if they may overlap."""
    if isinstance(item, list) and len(item) == 3:
        first, second, third = item
        is_label_first = isinstance(first, str) and type(third) is int
        span = RawSpan(second, third, first) if is_label_first else RawSpan(*item)
    elif not isinstance(item, dict):
        span = RawSpan(item, None, None)
    elif has_points(item):
        points = [each for each in item["points"] if isinstance(each, dict)]
        given = [{**item, **each, "points": None} for each in points]
        return [span for each in given for span in _of_item(where, each, labels, log)]
    else:
        start, end, label = (first_value(item, keys) for keys in (STARTS, ENDS, LABELS))
        ids = (item.get("kb_id"), item.get("id")) if "start" in item else (None, None)
        if re.match("[BI]-.", str(item.get("entity"))):
            got, fix = shorten(item), 'Join the tokens, as aggregation_strategy="simple" does'
            raise error(where, "whole entities, instead of tagged tokens", got, fix)
        text = item.get("text")
        span = RawSpan(start, end, label, *ids, text=text if isinstance(text, str) else None)
    if type(span.label) is int and (labels or isinstance(item, dict)):
        if span.label not in labels:
            fix = (
                "It looks like doccano before version 1.0: export it with labels as texts, or put "
                f"its file of labels beside this one, as {LABEL_FILES[0]}"
            )
            raise error(where, "labels that are texts", f"the number {span.label}", fix)
        return [span._replace(label=labels[span.label])]
    return span.of_each_label(log.spans_key is not None)


def label_names(path: Path) -> dict[int, str]:
    """Read the labels that doccano exports, by their numbers, from a file beside another one."""
    for file in map(path.with_name, LABEL_FILES):
        if file.is_file() and file != path:
            with suppress(ValueError, TypeError, KeyError):
                values: Any = decode_json(file.read_text(encoding="utf-8-sig"))
                return {value["id"]: str(value["text"]) for value in values}
    return {}
