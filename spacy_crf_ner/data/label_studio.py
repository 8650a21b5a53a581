"""Annotated text in one JSON array, as Label Studio exports it: a task an item."""

from pathlib import Path
from typing import Iterator, List, Optional, Set, Tuple

from spacy.language import Language
from spacy.tokens import Doc

from .json_records import Identities, Record, docs_of, json_array, keep, require_record, shown, take
from .offsets import Mark, mark, tokenize
from .repair_log import Journal, error

# Of a task in the short form: with one of these it has been annotated, if with nothing.
ANNOTATED = ("annotation_id", "annotator", "lead_time")
OF_TASK = (*ANNOTATED, "id", "created_at", "updated_at")


def looks_like_label_studio(head: str) -> bool:
    """Tell whether a file begins, with these characters, as an array of objects in JSON."""
    head = head.removeprefix("\ufeff").lstrip()
    return head.startswith("[") and head[1:].lstrip()[:1] in ("{", "]")


def read_label_studio(
    path: Path, nlp: Language, journal: Optional[Journal] = None
) -> Iterator[Doc]:
    """Read what Label Studio exports as JSON, or as JSON-MIN, from a project that labels text.

    path: File, UTF-8; one task at a time is in memory. Of several annotations of a task the one
        that is the ground truth is read, or else the first; those that were cancelled, and tasks
        without another, are left out, and so are all results but labels. The text is what the
        results were made on; in their absence "text", or the only string of the data. Predictions
        are no annotation.
    nlp: Pipeline whose tokenizer is used.
    journal: What becomes of mistakes; without one, the first is raised. Those of spans are as for
        `mark`, and "text" for a span that has another text than its result says, but for
        whitespace. Old versions of Label Studio count UTF-16, in which an emoji is two characters:
        a span that has its text by that count is "utf16", and is repaired. A task that cannot be
        read is left out; but what comes behind a mistake in JSON cannot be read at all.

    Yields a Doc a task; where sentences start in it is unknown. The data that is not the text, and
    the id of the task, are in `doc.user_data["meta"]`. Raises CorpusError for what is not as above.
    """
    journal = journal or Journal()
    identities = Identities()

    def to_doc(where: str, value: object) -> Optional[Doc]:
        task = require_record(where, value)
        identities.require_new(where, task.get("id"))
        full = "data" in task or "annotations" in task or "completions" in task
        found = _annotation(where, task, journal) if full else _short_form(where, task)
        if found is None:
            return None
        text, spans, meta = found
        doc = tokenize(text, nlp, where)
        keep(where, doc, meta)
        content = doc.text  # made anew each time that it is asked for
        marks = [_mark(where, content, span, journal) for span in spans]
        return mark(doc, filter(None, marks), journal, where)

    return docs_of(json_array(path), to_doc, journal)


Found = Tuple[object, List[object], Record]  # text, spans, metadata


def _annotation(where: str, task: Record, journal: Journal) -> Optional[Found]:
    """Find text and spans in a task; None if nobody has annotated it."""
    data = take(where, task, "data", dict, {})
    results = _results(where, task, journal)
    if results is None:
        return None
    labels = [result for result in results if result.get("type") == "labels"]
    kinds = {str(result.get("type")) for result in results} - {"labels"}
    if others := sorted(kind for kind in kinds if kind.endswith("labels")):
        fix = "Export a project that labels plain text"
        raise error(where, "labels of text", shown(others), fix)
    key = _text_key(where, data, labels)
    for _ in range(len(results) - len(labels)):
        journal.left_out("result")
    text = data.pop(key)
    meta = {"id": task.get("id"), "data": data or None}
    spans = [result.get("value") for result in labels]
    return text, spans, {key: value for key, value in meta.items() if value is not None}


def _results(where: str, task: Record, journal: Journal) -> Optional[List[Record]]:
    """Choose one of the annotations of a task; the results of it, None if there is none."""
    key = "annotations" if "annotations" in task else "completions"
    annotations = [_object(where, each) for each in take(where, task, key, list, [])]
    valid = [each for each in annotations if not take(where, each, "was_cancelled", bool, False)]
    truth = [each for each in valid if take(where, each, "ground_truth", bool, False)]
    chosen = (truth or valid)[:1]
    results = [take(where, each, "result", list, []) for each in chosen]
    objects = [_object(where, result) for result in results[0]] if results else None
    for _ in range(len(annotations) - len(valid)):
        journal.left_out("cancelled")
    for _ in valid[1:]:
        journal.left_out("annotation")
    if objects is None:
        journal.left_out("task")
    return objects


def _object(where: str, value: object) -> Record:
    if isinstance(value, dict):
        return value
    fix = "Export the project again, as JSON"
    raise error(where, "annotations and results that are objects", shown(value), fix)


def _text_key(where: str, data: Record, labels: List[Record]) -> str:
    """Tell which of the data is the text that was annotated."""
    keys: Set[str] = set()
    for result in labels:
        # "source" is "$review"; "to_name" is the name of a widget, most often the same as the key.
        source, name = str(result.get("source", "")).removeprefix("$"), str(result.get("to_name"))
        keys.update([source] if source in data else [name] if name in data else [])
    texts = [key for key, value in data.items() if isinstance(value, str)]
    candidates = keys or ({"text"} if "text" in texts else set(texts))
    if len(candidates) != 1:
        fix = "Export a project that labels one text a task"
        raise error(where, "one text", shown(sorted(candidates or data)), fix)
    return candidates.pop()


def _short_form(where: str, task: Record) -> Found:
    """Find text and spans in a task as JSON-MIN has it."""
    keys = [key for key, value in task.items() if _is_labels(value)]
    if not keys and not any(key in task for key in ANNOTATED):
        fix = "Export the project again, as JSON"
        raise error(where, "a task with annotations", shown(sorted(task)), fix)
    spans = [span for key in keys for span in task.pop(key)]
    texts = [key for key, value in task.items() if isinstance(value, str) and key not in OF_TASK]
    texts = ["text"] if "text" in task else texts
    if len(texts) != 1:
        raise error(where, "one text", shown(sorted(texts)), "Export the project as JSON")
    return task.pop(texts[0]), spans, task


def _is_labels(value: object) -> bool:
    return isinstance(value, list) and any(
        isinstance(span, dict) and "labels" in span for span in value
    )


def _mark(where: str, text: str, value: object, journal: Journal) -> Optional[Mark]:
    """Read the value of a result, of any type; what is no span is refused for its offsets."""
    if not isinstance(value, dict):
        return Mark(value, None, None)
    start, end, labels, said = (value.get(key) for key in ("start", "end", "labels", "text"))
    # Several labels are no label: `mark` refuses them, and shows them.
    label = labels[0] if isinstance(labels, list) and len(labels) == 1 else labels or ""
    given = Mark(start, end, label)
    if not isinstance(said, str) or type(start) is not int or type(end) is not int:
        return given
    if not 0 <= start < end or _same(text[start:end], said):
        return given
    fix = "Correct the offsets, which count the characters of the text"
    got = f"{shown(text[start:end])} at {start}:{end}"
    problem = error(where, f"the text {shown(said)}", got, fix)
    first, last = _from_utf16(text, start, end)
    if _same(text[first:last], said):
        journal.repaired("utf16", problem)
        return Mark(first, last, label)
    journal.read(records=0, entities=1)
    journal.rejected("text", problem, entities=1)
    return None


def _same(covered: str, said: str) -> bool:
    r"""Compare two texts but for their whitespace, which may have become `\n`, or a space."""
    return "".join(covered.split()) == "".join(said.replace("\\n", " ").split())


def _from_utf16(text: str, start: int, end: int) -> Tuple[int, int]:
    """Count in characters what is counted in units of UTF-16; half a character counts as one."""
    units = text.encode("utf-16-le")
    first, last = (len(units[: 2 * at].decode("utf-16-le", "replace")) for at in (start, end))
    return first, last
