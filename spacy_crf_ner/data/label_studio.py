"""Label Studio's JSON exports: an array of annotated tasks."""

import json
from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .json_records import (
    Record,
    is_text,
    json_array,
    pop_typed,
    records_to_docs,
    shorten,
    store_meta,
)
from .offsets import RawSpan, raw_span, set_entities, set_incorrect_spans, tokenize, trim_whitespace
from .repair_log import ConversionLog, error

# Keys of a task in JSON-MIN: one of the first three shows that it was annotated.
ANNOTATED = ("annotation_id", "annotator", "lead_time")
# Key of a task for the span that it asks about, and the name of the choices for the answer.
QUESTION, ANSWER = "asked_span", "answer"
OF_TASK = (*ANNOTATED, "id", "created_at", "updated_at")


def is_label_studio(head: str) -> bool:
    """Return whether these first characters of a file begin a JSON array of objects."""
    head = head.removeprefix("\ufeff").lstrip()
    return head.startswith("[") and head[1:].lstrip()[:1] in ("{", "]")


def read_label_studio(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read Label Studio's JSON or JSON-MIN export of a project that labels text.

    Args:
        path: File, UTF-8, which is read into memory: see `json_records.MAX_ARRAY_BYTES`. If a task
            has several annotations, the ground truth is read; without one, they must agree.
            Cancelled ones, tasks without other ones, results other than labels, and predictions are
            skipped. A result with several labels is an entity of each, if there is a spans key. The
            text is the one that the results refer to; without results, it is "text", or the only
            string of the data. Of a task of `spacy-crf-ner suggest --unit spans`, which has an
            "asked_span", the choice "yes" or "no" is read: only this span is annotated.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one. Kinds:
            those of `set_entities`; "contradiction": annotations of a task that do not agree, where
            the first is kept; and "utf16": old versions of Label Studio count in UTF-16, where an
            emoji is two characters. A span whose text matches by that count is repaired. A task
            that cannot be read is left out, but invalid JSON makes the whole file unreadable.

    Yields:
        A Doc for each task, with unknown sentence boundaries. The id of the task, and its data
        except the text, are in `doc.user_data["meta"]`.

    Raises:
        CorpusError: For an invalid file.
    """
    log = log or ConversionLog()

    def to_doc(where: str, task: Record) -> Doc | None:
        full = "data" in task or "annotations" in task or "completions" in task
        found = _annotation(where, task, log) if full else _short_form(where, task)
        if found is None:
            return None
        text, values, meta, answer = found
        doc = tokenize(text, nlp, where)
        store_meta(where, doc, meta)
        if answer is not None:
            asked = [raw_span(value, "start", "end", "label") for value in values]
            set_entities(doc, asked if answer else [], log, where, partial=True)
            if not answer:
                set_incorrect_spans(doc, asked, log, where)
            return doc
        content = doc.text  # computed at each access
        spans = [
            _span(where, content, each, log) for value in values for each in _by_label(value, log)
        ]
        return set_entities(doc, spans, log, where)

    return records_to_docs(json_array(path), to_doc, log)


# Text, spans, metadata, and the answer about the only span; None for a text without a question.
Found = tuple[object, list[object], Record, bool | None]


def _annotation(where: str, task: Record, log: ConversionLog) -> Found | None:
    """Return text, spans and metadata of a task; None if it is not annotated."""
    data = pop_typed(where, task, "data", dict)
    key = "annotations" if "annotations" in task else "completions"
    annotations = _pop_objects(where, task, key)
    keys = "was_cancelled", "skipped"  # of annotations, and of completions
    valid = [each for each in annotations if not any(pop_typed(where, each, k, bool) for k in keys)]
    truth = [each for each in valid if pop_typed(where, each, "ground_truth", bool)]
    for each in valid:
        if each.get("result") is None:
            fix = "Export the project again, as JSON"
            raise error(where, "a list for 'result'", shorten(each), fix)
    results = [_pop_objects(where, each, "result") for each in truth or valid]
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
    _check_agreement(where, [_spans(where, text, each) for each in results], others, log)
    return text, [result.get("value") for result in labels], _meta(task, data), None


def _check_agreement(where: str, said: list[list[str]], others: int, log: ConversionLog) -> None:
    """Compare what annotations say with the first one, and count all `others`."""
    differing = [each for each in said if each != said[0]]
    log.skipped("annotation", others - len(differing))
    for other in differing:
        got = f"{shorten(said[0])} and {shorten(other)}"
        fix = "Mark one of them as the ground truth, or keep the first with --repair"
        log.rejected("contradiction", error(where, "annotations that agree", got, fix))


def _choices(results: list[Record]) -> list[object]:
    values = [each.get("value") for each in results if each.get("from_name") == ANSWER]
    return [value.get("choices") for value in values if isinstance(value, dict)]


def _is_asked(result: Record, data: Record) -> bool:
    """Whether a result is the span of the question, which the task has brought along."""
    value, asked = result.get("value"), data[QUESTION]
    if not isinstance(value, dict) or not isinstance(asked, dict):
        return False
    place = value.get("start"), value.get("end"), value.get("labels")
    return place == (asked.get("start"), asked.get("end"), [asked.get("label")])


def _spans(where: str, text: object, results: list[Record]) -> list[str]:
    """Describe the spans of an annotation as they are read: trimmed, by label, each one once."""
    said: set[str] = set()
    content = text if isinstance(text, str) and is_text(text) else ""  # `tokenize` refuses others
    log = ConversionLog(repair=True, spans_key="")
    for value in (each.get("value") for each in results if each.get("type") == "labels"):
        for part in _by_label(value, log):
            start, end, label, *_ = _span(where, content, part, log)
            if type(start) is type(end) is int and 0 <= start < end <= len(content):
                start, end = trim_whitespace(content, start, end)
            said.add(json.dumps([start, end, label]))
    return sorted(said)


def _meta(task: Record, data: Record) -> Record:
    meta = {"id": task.get("id"), "data": data or None}
    return {key: value for key, value in meta.items() if value is not None}


def _answer(where: str, task: Record, data: Record, choice: object) -> Found:
    """Return the asked span and its answer."""
    if choice not in (["yes"], ["no"]):
        raise error(where, "the answer yes or no", shorten(choice), "Answer the question again")
    asked = data.pop(QUESTION)
    return data.pop("text", None), [asked], _meta(task, data), choice == ["yes"]


def _pop_objects(where: str, record: Record, key: str) -> list[Record]:
    values = pop_typed(where, record, key, list)
    if others := [value for value in values if not isinstance(value, dict)]:
        fix = "Export the project again, as JSON"
        raise error(where, f"only objects in {key!r}", shorten(others[0]), fix)
    return values


def _text_key(where: str, data: Record, labels: list[Record]) -> str:
    """Return the key of the text that was annotated."""
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


def _short_form(where: str, task: Record) -> Found:
    """Return text, spans and metadata of a task in JSON-MIN."""
    if QUESTION in task:
        fix = "Export the project again, as JSON"
        raise error(where, "an answer about a span, which only JSON has", "JSON-MIN", fix)
    keys = [
        key
        for key, value in task.items()
        if isinstance(value, list)
        and any(isinstance(span, dict) and "labels" in span for span in value)
    ]
    if not keys and task.keys().isdisjoint(ANNOTATED):
        fix = "Export the project again, as JSON"
        raise error(where, "a task with annotations", shorten(sorted(task)), fix)
    spans = [span for key in keys for span in task.pop(key)]
    data = {key: value for key, value in task.items() if key not in OF_TASK}
    key = "text" if "text" in task else _text_key(where, data, [])
    return task.pop(key), spans, task, None


def _by_label(value: object, log: ConversionLog) -> list[object]:
    """Divide a result with several labels, if entities may overlap."""
    labels = value.get("labels") if isinstance(value, dict) else None
    if log.spans_key is None or not isinstance(value, dict) or not isinstance(labels, list):
        return [value]
    return [{**value, "labels": [label]} for label in labels] or [value]


def _span(where: str, text: str, value: object, log: ConversionLog) -> RawSpan:
    """Read the value of a result; if it is not a span, return invalid offsets."""
    if not isinstance(value, dict):
        return RawSpan(value, None, None)
    start, end, labels, covered = (value.get(key) for key in ("start", "end", "labels", "text"))
    # `set_entities` rejects several labels, and shows them.
    label = labels[0] if isinstance(labels, list) and len(labels) == 1 else labels or ""
    span = RawSpan(start, end, label)
    if not isinstance(covered, str):
        return span
    if not (type(start) is int and type(end) is int and 0 <= start < end):
        return span
    given = covered.split(), covered.replace("\\n", " ").split()  # a line feed may be escaped
    if text[start:end].split() in given:
        return span
    units = text.encode("utf-16-le")  # half a character counts as one
    first, last = (len(units[: 2 * at].decode("utf-16-le", "replace")) for at in (start, end))
    if text[first:last].split() in given:
        got, fix = f"offsets {start}:{end} in UTF-16", "Convert them with --repair"
        log.repaired("utf16", error(where, f"the text {shorten(covered)}", got, fix))
        return span._replace(start=first, end=last)
    return span._replace(text=covered)
