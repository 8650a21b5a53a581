"""Write Docs as JSON lines, from which `read_json` makes the same ones."""

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..atomic import atomic_write
from ..docbin import META
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.gold import gold_entities
from .json_records import JsonObject, shorten
from .offsets import INCORRECT
from .repair_log import error


def write_jsonl(
    docs: Iterable[Doc], path: Path, nlp: Language | None = None, spans_key: str | None = None
) -> int:
    """Write Docs as JSON lines, from which `read_json` makes the same Docs.

    Args:
        docs: Docs. The file has their text, entities with kb_id and id, parts without annotation,
            `doc.spans["incorrect_spans"]`, the labels that are annotated, sentence starts if they
            are known for all tokens, and `doc.user_data["meta"]`. A blocked token is written as
            outside. Other annotation, such as tags, is not written.
        path: It is created, or replaced, when all Docs are written.
        nlp: The pipeline whose tokenizer will read them. The tokens of a Doc are written if spaces
            are unknown, or it makes others; without it, always.
        spans_key: Write `doc.spans[spans_key]` instead of doc.ents.

    Returns:
        The number of Docs.
    """
    number = 0
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for number, doc in enumerate(docs, 1):
            record = _record(doc, nlp, spans_key)
            try:
                line = json.dumps(record, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as problem:
                where, fix = f"{path}, line {number}", f"Change doc.user_data[{META!r}]"
                got = shorten(doc.user_data[META])
                raise error(where, "metadata of JSON", f"{got} ({problem})", fix) from problem
            file.write(line + "\n")
    return number


def _record(doc: Doc, nlp: Language | None, spans_key: str | None) -> JsonObject:
    unknown, tokens = doc.has_unknown_spaces, _tokens(doc)
    same = nlp is not None and tokens == _tokens(nlp.tokenizer(doc.text))
    sentences = doc.has_annotation("SENT_START", require_complete=True)
    record: JsonObject = {
        "text": doc.text,
        "spans": [_from_span(ent) for ent in gold_entities(doc, spans_key)],
        "tokens": tokens if unknown or not same else None,
        "has_unknown_spaces": unknown or None,
        "sent_starts": [token.idx for token in doc if token.is_sent_start] if sentences else None,
        "incorrect": [_from_span(span) for span in doc.spans.get(INCORRECT, [])] or None,
        **annotated_parts(doc, spans_key),
        "meta": doc.user_data.get(META),
    }
    return {key: value for key, value in record.items() if value is not None}


def annotated_parts(doc: Doc, spans_key: str | None = None) -> JsonObject:
    """Return what of a gold doc is annotated: "missing" and "annotated_labels", if not all is."""
    runs = (list(run) for unknown, run in groupby(doc, lambda t: t.ent_iob == 0) if unknown)
    missing = [[run[0].idx, run[-1].idx + len(run[-1])] for run in runs]
    labels = annotated_labels(doc)
    parts: JsonObject = {} if spans_key in doc.spans or not missing else {"missing": missing}
    return parts if labels is None else {**parts, "annotated_labels": sorted(labels)}


def _tokens(doc: Doc) -> list[JsonObject]:
    return [{"text": token.text, "ws": bool(token.whitespace_)} for token in doc]


def _from_span(span: Span) -> JsonObject:
    record: JsonObject = {"start": span.start_char, "end": span.end_char, "label": span.label_}
    return record | {k: v for k, v in (("kb_id", span.kb_id_), ("id", span.id_)) if v}
