"""Tasks of Label Studio, in JSON and JSON-MIN."""

import json

from .counting import matched_in_utf16
from .json_keys import STARTS, first_key
from .json_records import JsonObject, is_text, pop_objects, pop_typed, shorten
from .offsets import trim_whitespace
from .record import RawSpan, Record
from .repair_log import ConversionLog, error

# Keys of a task in JSON-MIN: one of them shows that it was annotated.
ANNOTATED = ("annotation_id", "annotator", "lead_time")
# Key of a task for the span that it asks about, and the name of the choices for the answer.
QUESTION, ANSWER = "asked_span", "answer"
EXPORT = "Export the project again, as JSON"
OF_TASK = (*ANNOTATED, "id", "created_at", "updated_at")


def is_label_studio(record: object) -> bool:
    """Return whether a JSON value is surely a task of Label Studio, in JSON or JSON-MIN."""
    if not isinstance(record, dict) or "spans" in record or "entities" in record:
        return False
    if not isinstance(record.get("text"), str) and isinstance(record.get("data"), dict):
        return True
    lists = (value for value in record.values() if isinstance(value, list))
    labeled = any(isinstance(each, dict) and "labels" in each for value in lists for each in value)
    return labeled or "completions" in record or QUESTION in record


def is_empty_task(record: JsonObject) -> bool:
    """Whether a record is a task of Label Studio in JSON-MIN that has no entity."""
    items = [item for value in record.values() if isinstance(value, list) for item in value]
    has_spans = any(
        isinstance(item, list) or (isinstance(item, dict) and first_key(item, STARTS))
        for item in items
    )
    return not (record.keys().isdisjoint(ANNOTATED) or has_spans)


def label_studio_record(where: str, task: JsonObject, log: ConversionLog) -> Record | None:
    """Read a task of a project that labels text; None for one that is not annotated.

    If a task has several annotations, the ground truth is read; without one, they must agree.
    Cancelled ones, tasks without other ones, results other than labels, and predictions are
    skipped. A result with several labels is an entity of each, if there is a spans key. The text is
    the one that the results refer to; without results, it is "text", or the only string of the
    data. Of a task of `spacy-crf-ner suggest --unit spans`, which has an "asked_span", the choice
    "yes" or "no" is read: only this span is annotated.

    The log decides about annotations that do not agree, "contradiction": the first is kept.
    """
    if "data" in task or "annotations" in task or "completions" in task:
        return _annotation(where, task, log)
    return _short_form(where, task, log)


def _annotation(where: str, task: JsonObject, log: ConversionLog) -> Record | None:
    data = {**pop_typed(where, task, "data", dict)}
    key = "annotations" if "annotations" in task else "completions"
    annotations = pop_objects(where, task, key, EXPORT)
    keys = "was_cancelled", "skipped"  # of annotations, and of completions
    valid = [each for each in annotations if not any(pop_typed(where, each, k, bool) for k in keys)]
    truth = [each for each in valid if pop_typed(where, each, "ground_truth", bool)]
    for each in valid:
        if each.get("result") is None:
            raise error(where, "a list for 'result'", shorten(each), EXPORT)
    results = [pop_objects(where, each, "result", EXPORT) for each in truth or valid]
    kind = "choices" if QUESTION in data else "labels"
    if kind == "choices":  # somebody may have seen the question without an answer
        results = [each for each in results if _choices(each)]
    log.skipped("cancelled", len(annotations) - len(valid))
    log.skipped("task", not results)
    if not results:
        return None
    others = len(valid) - 1
    if kind == "choices":
        choices = [_choices(each) for each in results]
        said = [sorted(map(json.dumps, each)) for each in choices]
        _check_agreement(where, said, others, log)
        beside = [each for each in results[0] if each.get("from_name") != ANSWER]
        log.skipped("result", sum(not _is_asked(each, data) for each in beside))
        return _answer(where, task, data, choices[0][0])
    labels = [result for result in results[0] if result.get("type") == "labels"]
    kinds = {str(result.get("type")) for result in results[0]} - {"labels"}
    if unread := sorted(kind for kind in kinds if kind.endswith("labels")):
        fix = "Export a project that labels plain text"
        raise error(where, "labels of text", shorten(unread), fix)
    log.skipped("result", len(results[0]) - len(labels))
    text = data.pop(_text_key(where, data, labels))
    _check_agreement(where, [_said(text, each) for each in results], others, log)
    spans = [span for result in labels for span in _spans(result.get("value"), log)]
    return Record(where, text, spans=spans, meta=_meta(task, data))


def _check_agreement(where: str, said: list[list[str]], others: int, log: ConversionLog) -> None:
    """Compare what annotations say with the first one, and count all `others`."""
    differing = [each for each in said if each != said[0]]
    log.skipped("annotation", others - len(differing))
    for other in differing:
        got = f"{shorten(said[0])} and {shorten(other)}"
        fix = "Mark one of them as the ground truth, or keep the first with --repair"
        log.rejected("contradiction", error(where, "annotations that agree", got, fix))


def _choices(results: list[JsonObject]) -> list[object]:
    values = [each.get("value") for each in results if each.get("from_name") == ANSWER]
    return [value.get("choices") for value in values if isinstance(value, dict)]


def _is_asked(result: JsonObject, data: JsonObject) -> bool:
    """Whether a result is the span of the question, which the task has brought along."""
    value, asked = result.get("value"), data[QUESTION]
    if not isinstance(value, dict) or not isinstance(asked, dict):
        return False
    place = value.get("start"), value.get("end"), value.get("labels")
    return place == (asked.get("start"), asked.get("end"), [asked.get("label")])


def _said(text: object, results: list[JsonObject]) -> list[str]:
    """Describe the spans of an annotation as they are read: trimmed, by label, each one once."""
    said: set[str] = set()
    content = text if isinstance(text, str) and is_text(text) else ""  # `tokenize` refuses others
    each_label = ConversionLog(spans_key="sc")
    for value in (each.get("value") for each in results if each.get("type") == "labels"):
        for span in _spans(value, each_label):
            start, end, label = (matched_in_utf16(content, span) or span)[:3]
            if type(start) is type(end) is int and 0 <= start < end <= len(content):
                start, end = trim_whitespace(content, start, end)
            said.add(json.dumps([start, end, label]))
    return sorted(said)


def _meta(task: JsonObject, data: JsonObject) -> JsonObject:
    meta = {"id": task.get("id"), "data": data or None}
    return {key: value for key, value in meta.items() if value is not None}


def _answer(where: str, task: JsonObject, data: JsonObject, choice: object) -> Record:
    if choice not in (["yes"], ["no"]):
        raise error(where, "the answer yes or no", shorten(choice), "Answer the question again")
    asked = data.pop(QUESTION)
    keys = asked if isinstance(asked, dict) else {"start": asked}
    span = RawSpan(keys.get("start"), keys.get("end"), keys.get("label"))
    text, meta = data.pop("text", None), _meta(task, data)
    record = Record(where, text, partial=True, meta=meta)
    (record.spans if choice == ["yes"] else record.incorrect).append(span)
    return record


def _text_key(where: str, data: JsonObject, labels: list[JsonObject]) -> str:
    keys: set[str] = set()
    for result in labels:
        # "source" is "$review"; "to_name" is the name of a widget, which is often the key.
        names = str(result.get("source", "")).removeprefix("$"), str(result.get("to_name"))
        keys.update([name for name in names if name in data][:1])
    texts = {key for key, value in data.items() if isinstance(value, str)}
    candidates = keys or texts & {"text"} or texts
    if len(candidates) != 1:
        fix = "Export a project that labels one text per task"
        raise error(where, "one text", shorten(sorted(candidates or data)), fix)
    return candidates.pop()


def _short_form(where: str, task: JsonObject, log: ConversionLog) -> Record:
    if QUESTION in task:
        raise error(where, "an answer about a span, which only JSON has", "JSON-MIN", EXPORT)
    keys = [
        key
        for key, value in task.items()
        if isinstance(value, list)
        and any(isinstance(span, dict) and "labels" in span for span in value)
    ]
    values = [value for key in keys for value in task.pop(key)]
    data = {key: value for key, value in task.items() if key not in OF_TASK}
    text = task.pop("text" if "text" in task else _text_key(where, data, []))
    spans = [span for value in values for span in _spans(value, log)]
    return Record(where, text, spans=spans, meta=task)


def _spans(value: object, log: ConversionLog) -> list[RawSpan]:
    """Read the value of a result: a span, or several; what is none is rejected later."""
    if not isinstance(value, dict):
        return [RawSpan(value, None, None)]
    start, end, labels, text = (value.get(key) for key in ("start", "end", "labels", "text"))
    span = RawSpan(start, end, labels or "", text=text if isinstance(text, str) else None)
    return span.of_each_label(log.spans_key is not None)
