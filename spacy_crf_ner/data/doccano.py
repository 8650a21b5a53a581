"""Annotated text in JSON lines, as doccano exports it: a record a line."""

from pathlib import Path
from typing import Iterator, Optional

from spacy.language import Language
from spacy.tokens import Doc

from .json_records import Identities, docs_of, json_lines, keep, parse, require_record, shown, take
from .lines import Line
from .offsets import Mark, mark, tokenize, triple
from .repair_log import Journal, error

TEXTS = ("text", "data")
LABELS = ("label", "labels", "entities")


def looks_like_doccano(record: object) -> bool:
    """Tell whether a value of JSON, the first line of a file, is a record of doccano."""
    if not isinstance(record, dict) or "spans" in record or record.keys().isdisjoint(TEXTS):
        return False
    if isinstance(record.get("label"), list) or isinstance(record.get("labels"), list):
        return True
    entities = record.get("entities")
    return isinstance(entities, list) and ("relations" in record or "Comments" in record)


def read_doccano(path: Path, nlp: Language, journal: Optional[Journal] = None) -> Iterator[Doc]:
    """Read the JSON lines that doccano exports from a project of sequence labeling.

    path: File, UTF-8, a record a line. Of its keys these are read:
        "text", or "data": the text,
        "label", "labels" or "entities": the entities, [0, 8, "PER"] or
            {"start_offset": 0, "end_offset": 8, "label": "PER"}; all other tokens are outside,
        "relations": they are left out,
        "id": no two records may have the same.
    nlp: Pipeline whose tokenizer is used.
    journal: What becomes of mistakes; without one, the first is raised. Those of spans are as for
        `mark`. A record that cannot be read is left out.

    Yields a Doc a record; where sentences start in it is unknown. All other keys are in
    `doc.user_data["meta"]`. Raises CorpusError for what is not as above.
    """
    journal = journal or Journal()
    identities = Identities()

    def to_doc(where: str, line: Line) -> Doc:
        record = require_record(where, parse(line))
        identities.require_new(where, record.get("id"))
        keys = [key for key in LABELS if record.get(key) is not None]
        texts = [key for key in TEXTS if record.get(key) is not None]
        if len(keys) != 1 or len(texts) != 1:
            expected = f"one of {', '.join(TEXTS)}, and one of {', '.join(LABELS)}"
            fix = "Export the project again, as JSONL"
            raise error(where, expected, shown(sorted(record)), fix)
        marks = [_mark(span) for span in take(where, record, keys[0], list, [])]
        relations = take(where, record, "relations", list, [])
        doc = tokenize(record.pop(texts[0]), nlp, where)
        keep(where, doc, record)
        mark(doc, marks, journal, where)
        for _ in relations:
            journal.left_out("relation")
        return doc

    return docs_of(json_lines(path), to_doc, journal)


def _mark(span: object) -> Mark:
    """A span in either of the two forms."""
    if isinstance(span, dict):
        return Mark(span.get("start_offset"), span.get("end_offset"), span.get("label"))
    return triple(span)
