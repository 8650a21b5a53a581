"""JSON of annotated texts: the one reader of all shapes of records, one a line or in an array."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc

from ..input_error import CorpusError
from .docs import make_docs
from .json_annotation import annotation_keys
from .json_keys import CONTAINERS, IN_UTF16, OURS, TEXTS, UNITS, WORDS, Keys, first_key
from .json_records import JsonObject, is_pair, is_text, json_values, pop_typed, shorten
from .json_spans import has_points, label_names, read_spans
from .json_tokens import read_spacy_2, read_tagged, set_meta, set_words
from .label_studio import is_empty_task, is_label_studio, label_studio_record
from .other_shapes import check_annotated, unannotated
from .record import UTF16, Record
from .repair_log import ConversionLog, error


def read_json(
    path: Path,
    nlp: Language,
    log: ConversionLog | None = None,
    *,
    text_column: str | None = None,
    spans_column: str | None = None,
    token_column: str | None = None,
    tag_column: str | None = None,
) -> Iterator[Doc]:
    """Read records of a text and spans, or of tokens and tags, in JSON.

    Args:
        path: File, UTF-8, with a record a line, or one array or object that holds records. The keys
            of a text, tokens, entities and tags are in `json_keys`. No two records may have the
            same "id", and entities under two keys are an error. Records with "relations" have
            these counted. Also what Prodigy and `write_jsonl` add:

            - "answer": "accept"; "ignore": the record is skipped; or "reject": its spans are
                incorrect, and nothing else is annotated; with tags, it is skipped,
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
            - "offsets_in": "utf-16" if the offsets certainly count in it. A record with it that has
                no "id" is a task of `suggest` that doccano has not exported, and skipped.
        text_column: The key of the text, instead of the usual ones. So for the others.

    Yields:
        A Doc for each record, of a document of spaCy 2 for each sentence. All other keys, and those
        of "meta", are in `doc.user_data["meta"]`.
    """
    keys = Keys(text_column, spans_column, token_column, tag_column)
    labels = label_names(path)
    return make_docs(path, nlp, log, lambda log: read_values(json_values(path), keys, labels, log))


def read_values(
    values: Iterable[tuple[str, object]], keys: Keys, labels: Mapping[int, str], log: ConversionLog
) -> Iterator[Record]:
    """Read JSON values with their places: records, or objects that hold records."""
    for where, value in values:
        try:
            if isinstance(value, CorpusError):
                raise value
            if is_pair(value):
                value = {**value[1], "text": value[0]}
            if not isinstance(value, dict):
                raise error(where, "an object of JSON", shorten(value), "Write {...}, with a text")
            if "paragraphs" in value:
                yield from read_spacy_2(where, value)
            elif (held := _held(where, value, keys)) is not None:
                log.skipped("record of null", held.count(None))
                given = ((f"{where}, record {n}", each) for n, each in enumerate(held, 1))
                items = (each for each in given if each[1] is not None)
                yield from read_values(items, keys, labels, log)
            else:
                of_tool = is_label_studio(value)
                read = label_studio_record if of_tool else partial(_record, keys, labels)
                if record := read(where, {**value}, log):
                    yield record
        except CorpusError as problem:
            yield Record(where, problem=("record", problem))


def _held(where: str, value: JsonObject, keys: Keys) -> list[Any] | None:
    """Return the records that an object without a text holds, or None."""
    held: dict[str, list[Any]] = {}
    for key, inner in () if _has_text(value, keys) else value.items():
        if isinstance(inner, dict) and key in CONTAINERS:
            if (records := _held(where, inner, keys)) is not None:
                held[key] = records
        elif isinstance(inner, list) and any(_has_text(i, keys) or is_pair(i) for i in inner):
            held[key] = inner
    if len(held) > 1:
        fix = "Write each list to a file of its own"
        raise error(where, "one list of records", " and ".join(held), fix)
    return next((held[key] for key in held if key in CONTAINERS), None)


def _has_text(value: object, keys: Keys) -> bool:
    if not isinstance(value, dict):
        return False
    texts, words = [keys.text] if keys.text else TEXTS, [keys.words] if keys.words else WORDS
    return any(isinstance(value.get(key), str) for key in texts) or any(
        isinstance(value.get(key), list) for key in words
    )


def _record(
    keys: Keys, labels: Mapping[int, str], where: str, record: JsonObject, log: ConversionLog
) -> Record | None:
    """Read a record; None for one that is skipped. All that is not read remains in `record`."""
    if UNITS in record and "id" not in record:
        log.skipped("answer")
        return None
    found = Record(where, id=record.get("id"), counts_in=None)
    has_relations = "relations" in record and "spans" not in record
    text_key = keys.text or first_key(record, TEXTS)
    words_key = keys.words or first_key(record, WORDS)
    if not (text_key or words_key):
        raise unannotated(where, record)
    span_keys, tag_key = annotation_keys(where, record, text_key, words_key, keys)
    if not (span_keys or tag_key):
        if is_empty_task(record):
            return label_studio_record(where, record, log)
        check_annotated(where, record)
    answer = _answer(found, record, is_tagged=bool(tag_key))
    if answer == "ignore":
        log.skipped("answer")
        return None
    has_labels = record.get("annotated_labels") is not None
    labels_of_record = pop_typed(where, record, "annotated_labels", list)
    if not all(is_text(label) and label for label in labels_of_record):
        expected, got = "a list of labels for 'annotated_labels'", shorten(labels_of_record)
        raise error(where, expected, got)
    found.labels = labels_of_record if has_labels else None
    if tag_key:
        return read_tagged(found, record, text_key, words_key or "", tag_key)
    if not text_key and words_key:
        fix = "Add the text whose characters they count, or write a tag for each token"
        raise error(where, "a text for the spans", f"the keys {shorten(sorted(record))}", fix)
    found.text = record.pop(text_key or "text", None)
    set_words(found, record, None if {*span_keys}.difference(OURS) else words_key)
    if keys.text and found.text is found.words is None:
        raise unannotated(where, record, keys.text)
    for key in span_keys:
        value = record.pop(key)
        found.inclusive |= isinstance(value, list) and any(map(has_points, value))
        found.spans += read_spans(where, value, key, labels, log)
    found.incorrect = read_spans(where, record.pop("incorrect", None), "incorrect", {}, log)
    if answer == "reject":
        found.spans, found.incorrect = [], found.spans + found.incorrect
    found.missing = pop_typed(where, record, "missing", list)
    found.sent_starts = pop_typed(where, record, "sent_starts", list)
    if record.get(UNITS) == IN_UTF16:
        found.counts_in = UTF16
    record.pop(UNITS, None)
    if has_relations:
        log.skipped("relation", len(pop_typed(where, record, "relations", list)))
    set_meta(found, record)
    return found


def _answer(found: Record, record: JsonObject, is_tagged: bool) -> str:
    """Remove and return the answer about a record: accept, reject, or ignore if it is skipped."""
    where = found.where
    default = "ignore" if "_view_id" in record else "accept"  # Prodigy exports answers alone
    answer = default if record.get("answer") is None else record["answer"]
    if answer not in ("accept", "reject", "ignore"):
        raise error(where, "the answer accept, reject or ignore", shorten(answer))
    record.pop("answer", None)
    # Whether the answer applies only to the spans; None if unknown.
    binary = None if (view := record.get("_view_id")) is None else view == "ner"
    if record.get("_is_binary") is not None:
        binary = pop_typed(where, {**record}, "_is_binary", bool)
    if answer == "reject" and (is_tagged or binary is False):
        return "ignore"
    found.partial = answer == "reject" or bool(binary)
    return str(answer)
