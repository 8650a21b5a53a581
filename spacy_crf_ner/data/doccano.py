"""doccano's JSON lines of annotated text."""

from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .counting import CHARACTERS, counting_of_file, in_characters, repair_counting
from .counting import UTF16 as IN_UTF16
from .json_records import Record, json_lines, pop_typed, records_to_docs, shorten, store_meta
from .offsets import RawSpan, raw_span, set_entities, tokenize
from .repair_log import ConversionLog, error

TEXT_KEYS = ("text", "data")
LABEL_KEYS = ("label", "labels", "entities")
SPAN = ("start_offset", "end_offset", "label")
UNITS, UTF16 = "offsets_in", "utf-16"  # of the tasks of `suggest`, and exported with them


def is_doccano(record: object) -> bool:
    """Return whether a JSON value, the first line of a file, is a record of doccano."""
    if not isinstance(record, dict) or "spans" in record or record.keys().isdisjoint(TEXT_KEYS):
        return False
    if isinstance(record.get("label"), list) or isinstance(record.get("labels"), list):
        return True
    entities = record.get("entities")
    return isinstance(entities, list) and ("relations" in record or "Comments" in record)


def read_doccano(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read the JSON lines that doccano exports from a project of sequence labeling.

    Args:
        path: File, UTF-8, one record per line, with these keys:
            - "text", or "data": the text,
            - "label", "labels" or "entities": the entities, [0, 8, "PER"] or {"start_offset": 0,
                "end_offset": 8, "label": "PER"}; all other tokens are outside,
            - "relations": skipped,
            - "offsets_in": "utf-16" if the offsets certainly count in it,
            - "id": no two records may have the same. A record with "offsets_in" that has none is a
                task of `suggest` that doccano has not exported, and skipped.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one. Kinds:
            those of `set_entities`, and "utf16" and "nfc" of `counting`: doccano counts in UTF-16,
            where an emoji is two characters. The spans are repaired if by another count most spans
            of the file are whole tokens, see `find_counting`. A record that cannot be read is left
            out.

    Yields:
        A Doc for each record, with unknown sentence boundaries. All other keys are in
        `doc.user_data["meta"]`.

    Raises:
        CorpusError: For an invalid record.
    """
    log = log or ConversionLog()

    def parse(where: str, record: Record) -> tuple[Doc, list[RawSpan]]:
        labels = [key for key in LABEL_KEYS if record.get(key) is not None]
        texts = [key for key in TEXT_KEYS if record.get(key) is not None]
        if len(labels) != 1 or len(texts) != 1:
            expected = f"one of {', '.join(TEXT_KEYS)}, and one of {', '.join(LABEL_KEYS)}"
            fix = "Export the project again, as JSONL"
            raise error(where, expected, shorten(sorted(record)), fix)
        spans = [raw_span(span, *SPAN) for span in pop_typed(where, record, labels[0], list)]
        doc = tokenize(record.pop(texts[0]), nlp, where)
        is_utf16 = record.pop(UNITS, None) == UTF16
        return doc, in_characters(doc.text, spans, IN_UTF16) if is_utf16 else spans

    others = (
        each for each in json_lines(path) if not (isinstance(each[1], dict) and UNITS in each[1])
    )
    counting = counting_of_file(path, others, parse)

    def to_doc(where: str, record: Record) -> Doc | None:
        if UNITS in record and "id" not in record:
            log.skipped("answer")
            return None
        counts_in = CHARACTERS if record.get(UNITS) == UTF16 else counting
        doc, spans = parse(where, record)
        relations = pop_typed(where, record, "relations", list)
        store_meta(where, doc, record)
        log.skipped("relation", len(relations))
        spans = repair_counting(doc, spans, counts_in, log, where)
        return set_entities(doc, spans, log, where)

    return records_to_docs(json_lines(path), to_doc, log)
