"""Tasks for annotation tools, in their import formats, with predicted entities."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from ..annotate.writers import json_line
from ..data.json_keys import IN_UTF16, UNITS
from ..data.label_studio import ANSWER, QUESTION
from ..input_error import InputError
from .selection import Unit

Record = dict[str, Any]
LABELING = "labeling.xml"
MAX_BITS = 63  # of the numbers that a .spacy file stores


def write_tasks(
    folder: Path, name: str, units: Iterable[Unit], tool: str, labels: Sequence[str], binary: bool
) -> None:
    """Write tasks to a file in a folder, .json for Label Studio and .jsonl for other tools.

    For Label Studio, also write its labeling configuration, labeling.xml. Labels are those of the
    model, and of other predicted entities; "binary" tasks are questions about spans.
    """
    records = map(TOOLS[tool], units)
    if tool == "label-studio":
        (folder / f"{name}.json").write_bytes(b"[" + b",".join(map(json_line, records)) + b"]\n")
        (folder / LABELING).write_text(_labeling_config(labels, binary), encoding="utf-8")
        return
    (folder / f"{name}.jsonl").write_bytes(b"".join(map(json_line, records)))


def check_tool(tool: str, binary: bool) -> None:
    """Raise InputError for an unknown tool, and one that cannot ask about spans."""
    if tool not in TOOLS:
        raise InputError(f"tool: expected one of {', '.join(TOOLS)}, got {tool!r}.")
    if binary and tool == "doccano":
        raise InputError(
            "for: expected prodigy, label-studio or jsonl for questions about spans, got doccano, "
            "which cannot ask them. Use another unit or tool."
        )


def _jsonl(unit: Unit) -> Record:
    """Until somebody answers "accept" or "reject", `convert` skips a task."""
    tokens = [{"text": text, "ws": space} for text, space in unit.tokens]
    return {
        "text": unit.text,
        "spans": _spans(unit),
        "tokens": tokens,
        "_is_binary": unit.question is not None,
        "answer": "ignore",
        "meta": _meta(unit),
        **unit.limits,
    }


def _prodigy(unit: Unit) -> Record:
    tokens, at = [], 0
    for i, (text, space) in enumerate(unit.tokens):
        tokens.append({"text": text, "start": at, "end": at + len(text), "id": i, "ws": space})
        at += len(text) + space
    first = {token["start"]: token["id"] for token in tokens}
    last = {token["end"]: token["id"] for token in tokens}
    spans = [
        {**span, "token_start": first[span["start"]], "token_end": last[span["end"]]}
        for span in _spans(unit)
    ]
    taken = sorted((span["start"], span["end"]) for span in spans)
    overlap = any(end > start for (_, end), (start, _) in pairwise(taken))
    view = "ner" if unit.question else "spans_manual" if overlap else "ner_manual"
    return {
        "text": unit.text,
        "tokens": tokens,
        "spans": spans,
        "meta": _meta(unit),
        "_view_id": view,
        **unit.limits,
    }


def _doccano(unit: Unit) -> Record:
    """doccano counts in UTF-16."""

    def utf16(at: int) -> int:
        return len(unit.text[:at].encode("utf-16-le")) // 2

    label = [[utf16(start), utf16(end), label] for (start, end, label), _ in unit.entities]
    meta = _meta(unit)
    if "id" in meta:  # doccano has its own, which it would export with this value
        meta["source_id"] = meta.pop("id")
    return {"text": unit.text, "label": label, **meta, UNITS: IN_UTF16}


def _label_studio(unit: Unit) -> Record:
    results = []
    for i, span in enumerate(_spans(unit)):
        value = {"start": span["start"], "end": span["end"], "labels": [span["label"]]}
        value["text"] = unit.text[span["start"] : span["end"]]
        own = {"score": span["score"]} if "score" in span else {}
        place = {"id": str(i), "from_name": "label", "to_name": "text", "type": "labels"}
        results.append({**place, "value": value, **own})
    data = {"text": unit.text, **_meta(unit)}
    if unit.question:
        start, end, label = unit.question
        data[QUESTION] = {"start": start, "end": end, "label": label}
        data["question"] = f"Is {unit.text[start:end]!r} (highlighted) exactly a {label}?"
    prediction = {"model_version": "spacy-crf-ner", "score": unit.score, "result": results}
    return {"data": data, "predictions": [prediction]}


TOOLS: dict[str, Callable[[Unit], Record]] = {
    "prodigy": _prodigy,
    "label-studio": _label_studio,
    "doccano": _doccano,
    "jsonl": _jsonl,
}


def _spans(unit: Unit) -> list[Record]:
    return [
        {"start": start, "end": end, "label": label} | ({} if p is None else {"score": round(p, 4)})
        for (start, end, label), p in unit.entities
    ]


def _meta(unit: Unit) -> Record:
    meta = {"task_id": unit.id, "score": round(unit.score, 6), **unit.source}
    if type(number := meta.get("id")) is int and number.bit_length() > MAX_BITS:
        meta["id"] = str(number)
    return {key: value for key, value in meta.items() if value is not None}


def _labeling_config(labels: Sequence[str], binary: bool) -> str:
    """Write the configuration of a project in Label Studio that reads the tasks."""
    rows = [f"    <Label value={quoteattr(label)}/>" for label in labels]
    lines = ["<View>", '  <Labels name="label" toName="text">', *rows, "  </Labels>"]
    lines += ['  <Text name="text" value="$text"/>']
    if binary:
        lines += ['  <Header value="$question"/>', f'  <Choices name="{ANSWER}" toName="text">']
        lines += ['    <Choice value="yes"/>', '    <Choice value="no"/>', "  </Choices>"]
    return "\n".join([*lines, "</View>", ""])
