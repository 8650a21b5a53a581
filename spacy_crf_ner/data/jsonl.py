"""JSON lines of annotated text, of spaCy, Prodigy and `write_jsonl`."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..atomic import atomic_write
from ..docbin import META
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.gold import gold_entities
from .counting import counting_of_file, n_units, repair_counting
from .json_records import (
    Record,
    is_text,
    json_lines,
    pop_typed,
    records_to_docs,
    shorten,
    store_meta,
)
from .offsets import (
    INCORRECT,
    RawSpan,
    raw_span,
    set_annotated_labels,
    set_entities,
    set_incorrect_spans,
    tokenize,
)
from .other_shapes import unannotated
from .repair_log import ConversionLog, error

SPAN = ("start", "end", "label", "kb_id", "id")
ANNOTATION = ("spans", "entities", "answer", "missing", "incorrect")


def is_jsonl(record: object) -> bool:
    """Return whether a JSON value, the first line of a file, is a record for `read_jsonl`.

    This may also be true for a doccano record with `entities`: call `is_doccano` first.
    """
    if isinstance(record, list):
        return len(record) == 2 and isinstance(record[0], str) and isinstance(record[1], dict)
    return (
        isinstance(record, dict) and "text" in record and not record.keys().isdisjoint(ANNOTATION)
    )


def read_jsonl(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read JSON lines of spaCy, Prodigy, and `write_jsonl`.

    Args:
        path: File, UTF-8, one record per line, with these keys:
            - "text": the text,
            - "spans": entities, {"start": 0, "end": 8, "label": "PER"}, with "kb_id" and "id" if
                known,
            - "entities": entities, [0, 8, "PER"]; a record may also be ["text", {"entities":
                [...]}],
            - "tokens": tokens, {"text": "Tim", "ws": true}, instead of those of the tokenizer,
                which is not called for a text of more than nlp.max_length characters,
            - "answer": "accept"; "ignore": the record is skipped; or "reject": its spans are
                incorrect, and nothing else is annotated,
            - "_is_binary" or, without it, "_view_id": whether the answer applies only to the spans
                (true, "ner"), so that the rest of an accepted record is not annotated, or to the
                whole text (false, "ner_manual"), so that a rejected record is skipped. Without
                both, "accept" applies to the text, and "reject" to the spans. A record with a
                "_view_id" and without an answer is a task for Prodigy, and skipped,
            - "missing": [[9, 17]], the parts of the text that are not annotated,
            - "incorrect": spans that are known to be incorrect,
            - "annotated_labels": ["PER"], the labels that are annotated; all if it is missing,
            - "sent_starts": [0, 18], the starts of sentences; unknown if it is missing,
            - "has_unknown_spaces": true if the spaces between the tokens are unknown,
            - "id": no two records may have the same.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one. Kinds:
            those of `set_entities`, and "utf16" and "nfc" of `counting`. A record that cannot be
            read is left out.

    Yields:
        A Doc for each record. All other keys, and those of "meta", are in `doc.user_data["meta"]`;
        if a key is in both, "meta" is kept as a key. Incorrect spans are in
        `doc.spans["incorrect_spans"]`.

    Raises:
        CorpusError: For an invalid record, or one without annotation.
    """
    log = log or ConversionLog()

    def records() -> Iterator[tuple[str, object]]:
        return ((where, _as_object(value)) for where, value in json_lines(path))

    def parse(where: str, record: Record) -> tuple[Doc, list[RawSpan]]:
        spans = [span for spans in _spans(where, record) for span in spans]
        return _tokenized(where, record, nlp), spans

    counting = counting_of_file(path, records(), parse)
    return records_to_docs(
        records(), lambda where, each: _to_doc(where, each, nlp, log, counting), log
    )


def _as_object(value: object) -> object:
    """Convert ["text", {"entities": [...]}] to an object."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
        return {**value[1], "text": value[0]}
    return value


def _spans(where: str, record: Record) -> tuple[list[RawSpan], list[RawSpan]]:
    """Return the entities, and the incorrect spans."""
    spans, entities, incorrect = (
        [raw_span(span, *SPAN) for span in pop_typed(where, record, key, list)]
        for key in ("spans", "entities", "incorrect")
    )
    return spans + entities, incorrect


def _to_doc(
    where: str, record: Record, nlp: Language, log: ConversionLog, counting: str
) -> Doc | None:
    given = [record[key] for key in ANNOTATION[:2] if key in record]
    is_null = bool(given) and all(value is None for value in given)
    is_null &= record.get("answer") != "ignore"
    if is_null or all(record.get(key) is None for key in ANNOTATION):
        if is_null:
            fix = "Annotate the text, or leave the record out"
            expected = f"annotation, one of the keys {', '.join(ANNOTATION)}"
            raise error(where, expected, "null as the spans", fix)
        raise unannotated(where, record, ANNOTATION)
    default = "ignore" if "_view_id" in record else "accept"  # Prodigy exports answers alone
    answer = pop_typed(where, record, "answer", str) or default
    if answer not in ("accept", "reject", "ignore"):
        raise error(where, "the answer accept, reject or ignore", shorten(answer))
    # Whether the answer applies only to the spans; None if unknown.
    binary = None if (view := record.get("_view_id")) is None else view == "ner"
    if record.get("_is_binary") is not None:
        binary = pop_typed(where, {**record}, "_is_binary", bool)
    if answer == "ignore" or (answer == "reject" and binary is False):
        log.skipped("answer")
        return None
    spans, incorrect = _spans(where, record)
    doc = _tokenized(where, record, nlp)
    length = n_units(doc.text, counting)
    parts = [_range(where, length, part) for part in pop_typed(where, record, "missing", list)]
    starts = pop_typed(where, record, "sent_starts", list)
    places = [RawSpan(at, at + 1 if type(at) is int else None, "") for at in starts]
    given_spans = [spans, incorrect, [RawSpan(*part, "") for part in parts], places]
    found = iter(repair_counting(doc, [*chain(*given_spans)], counting, log, where))
    spans, incorrect, unannotated_parts, places = ([*islice(found, len(s))] for s in given_spans)
    missing = [(part.start, part.end) for part in unannotated_parts]
    if answer == "reject":
        spans, incorrect = [], spans + incorrect
    has_labels = record.get("annotated_labels") is not None
    labels = pop_typed(where, record, "annotated_labels", list)
    if not all(is_text(label) and label for label in labels):
        raise error(where, "a list of labels for 'annotated_labels'", shorten(labels))
    # Merge the keys of "meta" with the others, unless a key is in both.
    meta = pop_typed(where, record, "meta", dict)
    disjoint = record.keys().isdisjoint(meta)
    store_meta(where, doc, {**record, **(meta if disjoint else {"meta": meta})})
    partial = answer == "reject" or bool(binary)
    set_entities(doc, spans, log, where, partial=partial, missing=missing)
    if has_labels:
        set_annotated_labels(doc, labels, log, where)
    if incorrect:
        set_incorrect_spans(doc, incorrect, log, where)
    if starts:
        _set_sentence_starts(where, doc, [place.start for place in places], log)
    return doc


def _range(where: str, length: int, part: object) -> tuple[int, int]:
    if isinstance(part, list) and len(part) == 2 and all(type(at) is int for at in part):
        start, end = part
        if 0 <= start < end <= length:
            return start, end
    expected = f"[start, end] within the {length} characters of the text for 'missing'"
    raise error(where, expected, shorten(part))


def _tokenized(where: str, record: Record, nlp: Language) -> Doc:
    """Make the Doc of a record, with its own tokens or those of the tokenizer."""
    own_tokens = record.get("tokens") is not None
    tokens = pop_typed(where, record, "tokens", list)
    unknown = pop_typed(where, record, "has_unknown_spaces", bool)
    text = record.pop("text", None)
    is_long = is_text(text) and len(text) > nlp.max_length  # too long for the tokenizer
    doc = Doc(nlp.vocab) if own_tokens and is_long else tokenize(text, nlp, where)
    if not own_tokens:
        return doc
    fix = "Correct the tokens, their 'ws' (a space comes after), or leave them out"
    at = 0
    words: list[str] = []
    spaces: list[bool] = []
    for token in tokens:
        word = token.get("text") if isinstance(token, dict) else None
        if not isinstance(word, str) or not word or not text.startswith(word, at):
            got = f"{shorten(token)} at the character {at}, {shorten(text[at : at + 20])}"
            raise error(where, "tokens of the text, one after the other", got, fix)
        at += len(word)
        # "ws" is whether a space follows; without it, use the text.
        space = text[at : at + 1] == " "
        if token.get("ws") is not None:
            space = pop_typed(where, token, "ws", bool)
        words.append(word)
        spaces.append(space)
        at += space
    if at == len(text) + 1:  # Prodigy says that a space comes after the last one
        spaces[-1] = False
    given = [*zip(words, spaces)]
    is_same = given == [(token.text, bool(token.whitespace_)) for token in doc]
    if unknown or doc.has_unknown_spaces or not is_same:  # otherwise keep norms of exceptions
        doc = Doc(nlp.vocab, words, spaces=None if unknown else spaces)
    if doc.text != text:
        raise error(where, f"tokens that make up {shorten(text)}", shorten(doc.text), fix)
    return doc


def _set_sentence_starts(where: str, doc: Doc, starts: list[Any], log: ConversionLog) -> None:
    """Set sentence starts at these characters; remove those inside tokens."""
    tokens = {token.idx: token for token in doc}
    for token in doc:
        token.is_sent_start = False
    for start in starts:
        if type(start) is int and start in tokens:
            tokens[start].is_sent_start = True
        else:
            fix = "Correct 'sent_starts', or use the tokenizer of the corpus"
            problem = error(where, "a sentence that begins with a token", shorten(start), fix)
            log.repaired("sentence", problem)


# Writing


def write_jsonl(
    docs: Iterable[Doc], path: Path, nlp: Language | None = None, spans_key: str | None = None
) -> int:
    """Write Docs as JSON lines, from which `read_jsonl` makes the same Docs.

    Args:
        docs: Docs. The file has their text, entities with kb_id and id, parts without annotation,
            `doc.spans["incorrect_spans"]`, the labels that are annotated, sentence starts if they
            are known for all tokens, and `doc.user_data["meta"]`. A blocked token is written as
            outside. Other annotation, such as tags, is not written.
        path: File to write; it is created, or replaced, when all Docs are written.
        nlp: The pipeline whose tokenizer will read them. The tokens of a Doc are written if spaces
            are unknown, or it makes others; without it, always.
        spans_key: Write `doc.spans[spans_key]` instead of doc.ents.

    Returns:
        The number of Docs.

    Raises:
        CorpusError: For metadata that JSON cannot represent.
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


def _record(doc: Doc, nlp: Language | None, spans_key: str | None) -> Record:
    unknown, tokens = doc.has_unknown_spaces, _tokens(doc)
    same = nlp is not None and tokens == _tokens(nlp.tokenizer(doc.text))
    sentences = doc.has_annotation("SENT_START", require_complete=True)
    record: Record = {
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


def annotated_parts(doc: Doc, spans_key: str | None = None) -> Record:
    """Return what of a gold doc is annotated, as the keys "missing" and "annotated_labels".

    Without them, all of it is.

    Args:
        spans_key: The key of overlapping entities in `doc.spans`; None for those in `doc.ents`.
    """
    missing, labels = _unannotated(doc), annotated_labels(doc)
    parts: Record = {} if spans_key in doc.spans or not missing else {"missing": missing}
    return parts if labels is None else {**parts, "annotated_labels": sorted(labels)}


def _tokens(doc: Doc) -> list[Record]:
    return [{"text": token.text, "ws": bool(token.whitespace_)} for token in doc]


def _from_span(span: Span) -> Record:
    record: Record = {"start": span.start_char, "end": span.end_char, "label": span.label_}
    return record | {k: v for k, v in (("kb_id", span.kb_id_), ("id", span.id_)) if v}


def _unannotated(doc: Doc) -> list[list[int]]:
    """Return the character offsets of the runs of tokens without annotation."""
    runs = (list(run) for missing, run in groupby(doc, lambda t: t.ent_iob == 0) if missing)
    return [[run[0].idx, run[-1].idx + len(run[-1])] for run in runs]
