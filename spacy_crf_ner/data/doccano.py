"""doccano's JSON lines of annotated text."""

from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .json_records import Record, json_lines, pop_typed, records_to_docs, shorten, store_meta
from .offsets import RawSpan, raw_span, set_entities, tokenize, trim_whitespace
from .repair_log import ConversionLog, error

TEXT_KEYS = ("text", "data")
LABEL_KEYS = ("label", "labels", "entities")
SPAN = ("start_offset", "end_offset", "label")
UNITS, UTF16 = "offsets_in", "utf-16"  # of the tasks of `suggest`, and exported with them


def looks_like_doccano(record: object) -> bool:
    """Return whether a JSON value, the first line of a file, is a record of doccano."""
    if not isinstance(record, dict) or "spans" in record or record.keys().isdisjoint(TEXT_KEYS):
        return False
    if isinstance(record.get("label"), list) or isinstance(record.get("labels"), list):
        return True
    entities = record.get("entities")
    return isinstance(entities, list) and ("relations" in record or "Comments" in record)


def read_doccano(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read the JSON lines that doccano exports from a project of sequence labeling.

    path: File, UTF-8, one record per line, with these keys:
        "text", or "data": the text,
        "label", "labels" or "entities": the entities, [0, 8, "PER"] or
            {"start_offset": 0, "end_offset": 8, "label": "PER"}; all other tokens are outside,
        "relations": skipped,
        "offsets_in": "utf-16" if the offsets certainly count in it,
        "id": no two records may have the same. A record with "offsets_in" that has none is a task
            of `suggest` that doccano has not exported, and skipped.
    nlp, log: As for all readers, see `format_detection.Reader`. For spans see `set_entities`; also
        "utf16": doccano counts in UTF-16, where an emoji is two characters. The spans of a text are
        repaired if only by that count all of them are whole tokens. A record that cannot be read is
        left out.

    Yields a Doc for each record, with unknown sentence boundaries. All other keys are in
    `doc.user_data["meta"]`. Raises CorpusError for an invalid record.
    """
    log = log or ConversionLog()

    def to_doc(where: str, record: Record) -> Doc | None:
        if UNITS in record and "id" not in record:
            log.skipped("answer")
            return None
        labels = [key for key in LABEL_KEYS if record.get(key) is not None]
        texts = [key for key in TEXT_KEYS if record.get(key) is not None]
        if len(labels) != 1 or len(texts) != 1:
            expected = f"one of {', '.join(TEXT_KEYS)}, and one of {', '.join(LABEL_KEYS)}"
            fix = "Export the project again, as JSONL"
            raise error(where, expected, shorten(sorted(record)), fix)
        spans = [raw_span(span, *SPAN) for span in pop_typed(where, record, labels[0], list)]
        relations = pop_typed(where, record, "relations", list)
        doc = tokenize(record.pop(texts[0]), nlp, where)
        is_utf16 = record.pop(UNITS, None) == UTF16
        store_meta(where, doc, record)
        log.skipped("relation", len(relations))
        return set_entities(doc, _code_points(doc, spans, log, where, is_utf16), log, where)

    return records_to_docs(json_lines(path), to_doc, log)


def _code_points(
    doc: Doc, spans: list[RawSpan], log: ConversionLog, where: str, is_utf16: bool
) -> list[RawSpan]:
    """Count in Unicode characters, as Python does, what doccano has counted in UTF-16.

    is_utf16: Whether it certainly has; otherwise, if only so all spans are whole tokens.
    """
    text = doc.text
    if not any(ord(character) > 0xFFFF for character in text):
        return spans
    units = [i for i, each in enumerate(text) for _ in range(1 + (ord(each) > 0xFFFF))]
    units.append(len(text))
    edges = {token.idx for token in doc}, {token.idx + len(token) for token in doc}

    def is_aligned(span: RawSpan) -> bool:
        if not 0 <= span.start < span.end <= len(text):
            return False
        start, end = trim_whitespace(text, span.start, span.end)
        return start in edges[0] and end in edges[1]

    def aligned(spans: list[RawSpan]) -> bool:
        return all(map(is_aligned, spans))

    def is_inside(span: RawSpan) -> bool:
        are_numbers = type(span.start) is int and type(span.end) is int
        return are_numbers and 0 <= span.start < span.end < len(units)

    found = [
        span._replace(start=units[span.start], end=units[span.end]) if is_inside(span) else span
        for span in spans
    ]
    if is_utf16:
        return found
    if not all(map(is_inside, spans)) or aligned(spans) or not aligned(found):
        return spans
    problem = error(where, "offsets that count characters", "UTF-16", "Convert them with --repair")
    log.repaired("utf16", problem)
    return found
