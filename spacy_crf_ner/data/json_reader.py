"""JSON of annotated texts: the one reader of all shapes of records, one a line or in an array."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import DOCUMENT
from ..input_error import CorpusError
from .docs import make_docs
from .iob import OUTSIDE, is_tag
from .json_records import (
    JsonObject,
    decode_json,
    is_pair,
    is_text,
    json_values,
    pop_objects,
    pop_typed,
    shorten,
)
from .label_studio import ANNOTATED, is_label_studio, label_studio_record
from .record import CHARACTERS, UTF16, RawSpan, Record
from .repair_log import ConversionLog, error

# The usual keys, the first one that a record has. Of spans, `OURS` are read together.
TEXTS = ("text", "data", "content", "sentence")
WORDS = ("tokens", "words")
OURS = ("spans", "entities")
SPANS = ("ents", "label", "labels", "annotations", "annotation")
TAGS = ("ner_tags", "ner", "tags", "labels", "label")
OF_ENTITIES = TAGS[:2]  # by their names; others may be of something else
ANNOTATION = (*OURS, "answer", "missing", "incorrect")  # in JSON lines of spaCy, Prodigy, and ours
# Keys of a span.
STARTS = ("start", "start_offset", "start_char", "begin")
ENDS = ("end", "end_offset", "end_char", "stop")
LABELS = ("label", "labels", "tag", "type", "entity", "entity_type", "entity_group")
# Keys of a token.
WORD = ("text", "orth", "word")
WORD_TAGS = ("ner", "ner_tag", "tag")
# Keys of an object that holds records.
CONTAINERS = ("examples", "annotations", "data", "documents", "rasa_nlu_data", "common_examples")
UNITS, IN_UTF16 = "offsets_in", "utf-16"  # of the tasks of `suggest` for doccano, and its exports
ARRAY = re.compile(r'\[\s*(?:[{\]]|\[\s*")')  # of objects, or of pairs
LINE_PAIR = re.compile(r'\["')
TASK = re.compile(
    r'"(?:data"\s*:\s*\{|(?:annotations|completions|annotation_id|annotator|lead_time)")'
)
NOT_ANNOTATED = ("-", None, -1, -100)  # tags: of spaCy 2, and of the library datasets
OTHERS = (*NOT_ANNOTATED, *OUTSIDE, 0)  # tags that are of no entity
LABEL_FILES = ("labels.json", "label.json", "label_config.json")  # doccano exports them


@dataclass(frozen=True)
class Keys:
    """The keys that were chosen; None for the usual ones."""

    text: str | None = None
    spans: str | None = None
    words: str | None = None
    tags: str | None = None


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
        path: File, UTF-8, with a record a line, or one array or object that holds records. A record
            is an object, or ["text", {"entities": [...]}], with

            - the text, a key of `TEXTS`; or only tokens,
            - the tokens, a key of `WORDS`: strings, or {"text": "Tim", "ws": true},
            - the entities, `OURS` or a key of `SPANS`: [0, 8, "PER"], {"start": 0, "end": 8,
                "label": "PER"}, also with "kb_id" and "id", or {"PER": {"Tim": [[0, 3]]}}; or, of
                tokens, a tag for each, a key of `TAGS`,
            - "id": no two records may have the same,
            - "relations": skipped and counted, but not in records with "spans",
            - "offsets_in": "utf-16" if the offsets certainly count in it. A record with it that has
                no "id" is a task of `suggest` that doccano has not exported, and skipped.

            Entities under two keys are an error. Also what Prodigy and `write_jsonl` add:

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
            - "has_unknown_spaces": true if the spaces between the tokens are unknown.

            Also tasks of Label Studio, documents of spaCy 2, exports of Dataturks, and of doccano
            before 1.0, beside a file of its labels.
        text_column: The key of the text, instead of the usual ones. So for the others.

    Yields:
        A Doc for each record, of a document of spaCy 2 for each sentence. All other keys, and those
        of "meta", are in `doc.user_data["meta"]`.
    """
    keys = Keys(text_column, spans_column, token_column, tag_column)
    labels = _label_names(path)
    return make_docs(path, nlp, log, lambda log: read_values(json_values(path), keys, labels, log))


def detect_array(head: str) -> str | None:
    """Return the name of the format of an array of JSON, by its first characters, or None."""
    head = head.removeprefix("\ufeff").lstrip()
    if not ARRAY.match(head) or LINE_PAIR.match(head):
        return None
    return "label_studio" if TASK.search(head) or len(head) < 20 else "jsonl"


def detect_json_lines(lines: Iterable[str]) -> str | None:
    """Return the name of the format of lines, by the first record without a mistake, or None."""
    for line in lines:
        with suppress(ValueError):
            if found := _format(decode_json(line)):
                return found
    return None


def _format(record: object) -> str | None:
    if is_label_studio(record) or (isinstance(record, dict) and _is_empty_task(record)):
        return "label_studio"
    if isinstance(record, list):
        return "jsonl" if is_pair(record) else None
    if not isinstance(record, dict) or record.keys().isdisjoint((*TEXTS, *WORDS, *CONTAINERS)):
        return None
    lists = {key for key, value in record.items() if isinstance(value, list)}
    is_doccano = not lists.isdisjoint(("label", "labels")) and "tokens" not in record
    is_doccano |= "entities" in lists and ("relations" in record or "Comments" in record)
    return "doccano" if is_doccano and "spans" not in record else "jsonl"


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
                yield from _of_spacy_2(where, value)
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
    text_key = keys.text or _first(record, TEXTS)
    words_key = keys.words or _first(record, WORDS)
    if not (text_key or words_key):
        raise unannotated(where, record)
    span_keys, tag_key = _annotation_keys(where, record, text_key, words_key, keys)
    if not (span_keys or tag_key):
        if _is_empty_task(record):
            return label_studio_record(where, record, log)
        _check_annotated(where, record)
    answer = _answer(found, record, is_tagged=bool(tag_key))
    if answer == "ignore":
        log.skipped("answer")
        return None
    found.labels = _annotated_labels(where, record)
    if tag_key:
        return _tagged(found, record, text_key, words_key or "", tag_key)
    if not text_key and words_key:
        fix = "Add the text whose characters they count, or write a tag for each token"
        raise error(where, "a text for the spans", f"the keys {shorten(sorted(record))}", fix)
    found.text = record.pop(text_key or "text", None)
    _set_words(found, record, None if {*span_keys}.difference(OURS) else words_key)
    for key in span_keys:
        value = record.pop(key)
        found.inclusive |= isinstance(value, list) and any(map(_has_points, value))
        found.spans += _spans(where, value, key, labels, log)
    found.incorrect = _spans(where, record.pop("incorrect", None), "incorrect", {}, log)
    if answer == "reject":
        found.spans, found.incorrect = [], found.spans + found.incorrect
    found.missing = pop_typed(where, record, "missing", list)
    found.sent_starts = pop_typed(where, record, "sent_starts", list)
    if record.get(UNITS) == IN_UTF16:
        found.counts_in = UTF16
    record.pop(UNITS, None)
    if has_relations:
        log.skipped("relation", len(pop_typed(where, record, "relations", list)))
    _set_meta(found, record)
    return found


def _first(record: JsonObject, keys: Iterable[str]) -> str | None:
    return next((key for key in keys if record.get(key) is not None), None)


def _annotation_keys(
    where: str, record: JsonObject, text_key: str | None, words_key: str | None, keys: Keys
) -> tuple[list[str], str | None]:
    """Return the keys of the entities, or that of the tags; CorpusError if others have some too."""
    if chosen := keys.spans or keys.tags:
        has_words = isinstance(record.get(words_key or ""), list)
        if chosen not in record or not (keys.spans or has_words):
            raise unannotated(where, record)
        return ([chosen], None) if keys.spans else ([], chosen)
    tags = _tag_keys(record, words_key)
    named = [key for key in (*SPANS, *OF_ENTITIES) if key not in tags]
    lists = [key for key in named if isinstance(record.get(key), (list, dict))]
    others = [key for key in lists if _holds_entities(record[key])]
    tagged = [key for key in tags or OF_ENTITIES if _have_entities(key, _tags(record, key))]
    tagged = [key for key in tagged if key not in others]
    # Without a text, no spans are only that.
    has_spans = text_key or not tags or any(map(record.get, OURS))
    ours = [key for key in OURS if has_spans and record.get(key) is not None]
    if ours or others:
        if len(found := ours[:1] + others + tagged) > 1:
            option = f"--spans-column {found[0]}" + f" or --tag-column {found[-1]}" * bool(tagged)
            raise _doubt(where, found, option)
        return ours or others, None
    if any(_tags(record, key) != _tags(record, tags[0]) for key in tags):
        raise _doubt(where, tags, f"--tag-column {tags[0]}")
    lists = sorted((key for key in lists if key in SPANS), key=lambda key: len(record[key]))
    return ([], tags[0]) if tags else (lists[:1], None)


def _is_empty_task(record: JsonObject) -> bool:
    """Whether a record is a task of Label Studio in JSON-MIN that has no entity."""
    items = [item for value in record.values() if isinstance(value, list) for item in value]
    has_spans = any(
        isinstance(item, list) or (isinstance(item, dict) and _first(item, STARTS))
        for item in items
    )
    return not (record.keys().isdisjoint(ANNOTATED) or has_spans)


def _doubt(where: str, found: list[str], option: str) -> CorpusError:
    got, fix = " and ".join(found), f"Choose the one to read, as in {option}"
    return error(where, "entities under one key", got, fix)


def _holds_entities(value: list[Any] | JsonObject) -> bool:
    """Whether a value has entities, in any shape, and not only strings or numbers."""
    if isinstance(value, list):
        return any(isinstance(each, (list, dict)) for each in value)
    return bool(value) and all(isinstance(each, (list, dict)) for each in value.values())


def _tag_keys(record: JsonObject, words_key: str | None) -> list[str]:
    """Return the keys with a tag for each token that may be of entities, or that of the tokens."""
    words = record.get(words_key or "")
    if not words_key or not isinstance(words, list):
        return []
    named = [key for key in TAGS if _are_tags(record.get(key), words)]
    if all(isinstance(word, dict) for word in words) and any(_tags(record, words_key)):
        named.append(words_key)
    look = [key for key in named if _look_like_tags(_tags(record, key))]
    return look + [key for key in OF_ENTITIES if key in named and key not in look] or named


def _tags(record: JsonObject, key: str) -> list[Any]:
    """Return the values of a key of tags; of tokens, their own tags."""
    values = record.get(key)
    return [
        tag.get(_first(tag, WORD_TAGS) or "") if isinstance(tag, dict) else tag
        for tag in (values if isinstance(values, list) else ())
    ]


def _look_like_tags(tags: list[Any]) -> bool:
    return "O" in tags or all(tag is None or is_tag(str(tag)) for tag in tags)


def _have_entities(key: str, tags: list[Any]) -> bool:
    return (key in OF_ENTITIES or _look_like_tags(tags)) and any(tag not in OTHERS for tag in tags)


def _are_tags(value: object, words: list[Any]) -> bool:
    return (
        isinstance(value, list)
        and len(value) == len(words)
        and all(tag is None or type(tag) in (str, int) for tag in value)
    )


def _tagged(
    found: Record, record: JsonObject, text_key: str | None, words_key: str, tag_key: str
) -> Record:
    """Read tokens and their tags."""
    where = found.where
    values = _tags(record, tag_key) if isinstance(record[tag_key], list) else record[tag_key]
    if tag_key != words_key:
        del record[tag_key]
    if not isinstance(values, list):
        raise error(where, f"a list for {tag_key!r}", shorten(values))
    if any(type(value) is int and value not in NOT_ANNOTATED for value in values):
        got = f"numbers, {shorten(values)}"
        fix = "Write the name of each, or save the dataset by save_to_disk, which keeps the names"
        raise error(where, "tags that are texts", got, fix)
    if parts := [key for key in ("missing", "incorrect") if record.get(key)]:
        fix = "Write spans instead of tags, or - as the tag of a token that is not annotated"
        raise error(where, "a text and spans beside these parts", shorten(parts), fix)
    if text_key:
        found.text = record.pop(text_key, None)
    _set_words(found, record, words_key)
    unknown = (*NOT_ANNOTATED, *OUTSIDE) if found.partial else NOT_ANNOTATED
    found.tags = [[None if tag in unknown else str(tag) for tag in values]]
    found.sent_starts = [0] if values else []
    found.counts_in = CHARACTERS
    _set_meta(found, record)
    return found


def _set_words(found: Record, record: JsonObject, key: str | None) -> None:
    """Read the tokens of a record; without a text, spaces are unknown."""
    if key is None or record.get(key) is None:
        return
    where, text = found.where, found.text
    unknown = pop_typed(where, record, "has_unknown_spaces", bool)
    tokens = pop_typed(where, record, key, list)
    words: list[Any] = [
        token.get(_first(token, WORD) or "") if isinstance(token, dict) else token
        for token in tokens
    ]
    if text is None:
        if not all(map(is_text, words)):
            raise error(where, f"tokens that are texts for {key!r}", shorten(tokens))
        found.words = [word.strip() or word for word in words]
        return
    if not is_text(text):
        raise error(where, "a text, in Unicode", shorten(text))
    at = 0
    found.spaces = []
    for token, word in zip(tokens, words):
        if not is_text(word) or not word or not text.startswith(word, at):
            got = f"{shorten(token)} at the character {at}, {shorten(text[at : at + 20])}"
            fix = "Correct the tokens, their 'ws' (a space comes after), or leave them out"
            raise error(where, "tokens of the text, one after the other", got, fix)
        at += len(word)
        # "ws" is whether a space follows; without it, use the text.
        space = text[at : at + 1] == " "
        if isinstance(token, dict) and token.get("ws") is not None:
            space = pop_typed(where, {**token}, "ws", bool)
        found.spaces.append(space)
        at += space
    if at == len(text) + 1:  # Prodigy says that a space comes after the last one
        found.spaces[-1] = False
    found.words, found.spaces = words, None if unknown else found.spaces


def _set_meta(found: Record, record: JsonObject) -> None:
    """Keep the other keys; those of "meta" are merged with them, unless a key is in both."""
    meta = pop_typed(found.where, record, "meta", dict)
    is_new = record.keys().isdisjoint(meta)
    found.meta = {**record, **(meta if is_new else {"meta": meta})}


# What Prodigy and `write_jsonl` add


def _check_annotated(where: str, record: JsonObject) -> None:
    """Check that a record without entities says that it was annotated, as by an answer."""
    if not record.keys().isdisjoint(OURS) and record.get("answer") != "ignore":
        fix = "Annotate the text, or leave the record out"
        expected = f"annotation, one of the keys {', '.join(ANNOTATION)}"
        raise error(where, expected, "null as the spans", fix)
    if all(record.get(key) is None for key in ANNOTATION):
        raise unannotated(where, record)


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


def _annotated_labels(where: str, record: JsonObject) -> list[str] | None:
    has_labels = record.get("annotated_labels") is not None
    labels = pop_typed(where, record, "annotated_labels", list)
    if not all(is_text(label) and label for label in labels):
        raise error(where, "a list of labels for 'annotated_labels'", shorten(labels))
    return labels if has_labels else None


# Spans


def _spans(
    where: str, value: object, key: str, labels: Mapping[int, str], log: ConversionLog
) -> list[RawSpan]:
    """Read the entities of a record; what is no span has invalid offsets, and is rejected later."""
    if isinstance(value, dict) and key not in ANNOTATION:
        # {"PER": {"Tim": [[0, 3]]}}, or {"PER": [[0, 3]]}
        return [
            _of_place(place, label, text)
            for label, each in value.items()
            for text, places in (each.items() if isinstance(each, dict) else [(None, each)])
            for place in (places if isinstance(places, list) else [places])
        ]
    items = pop_typed(where, {key: value}, key, list)
    return [span for item in items for span in _of_item(where, item, labels, log)]


def _has_points(item: object) -> bool:
    """Whether an entity is one of Dataturks, whose ends are inclusive."""
    return isinstance(item, dict) and isinstance(item.get("points"), list)


def _of_place(place: object, label: str, text: str | None) -> RawSpan:
    is_pair = isinstance(place, list) and len(place) == 2
    start, end = place if is_pair and isinstance(place, list) else (place, None)
    return RawSpan(start, end, label, text=text)


def _of_item(
    where: str, item: object, labels: Mapping[int, str], log: ConversionLog
) -> list[RawSpan]:
    """Read [0, 8, "PER"], or an object; each of its labels is a span, if they may overlap."""
    if isinstance(item, list) and len(item) == 3:
        first, second, third = item
        is_label_first = isinstance(first, str) and type(third) is int
        span = RawSpan(second, third, first) if is_label_first else RawSpan(*item)
    elif not isinstance(item, dict):
        span = RawSpan(item, None, None)
    elif _has_points(item):
        points = [each for each in item["points"] if isinstance(each, dict)]
        given = [{**item, **each, "points": None} for each in points]
        return [span for each in given for span in _of_item(where, each, labels, log)]
    else:
        start, end, label = (item.get(_first(item, keys) or "") for keys in (STARTS, ENDS, LABELS))
        ids = (item.get("kb_id"), item.get("id")) if "start" in item else (None, None)
        if re.match("[BI]-.", str(item.get("entity"))):
            got, fix = shorten(item), 'Join the tokens, as aggregation_strategy="simple" does'
            raise error(where, "whole entities, instead of tagged tokens", got, fix)
        text = item.get("text")
        span = RawSpan(start, end, label, *ids, text=text if isinstance(text, str) else None)
    if type(span.label) is int and (labels or isinstance(item, dict)):
        if span.label not in labels:
            fix = (
                "It looks like doccano before version 1.0: export it with labels as texts, or put "
                f"its file of labels beside this one, as {LABEL_FILES[0]}"
            )
            raise error(where, "labels that are texts", f"the number {span.label}", fix)
        return [span._replace(label=labels[span.label])]
    return span.of_each_label(log.spans_key is not None)


def _label_names(path: Path) -> dict[int, str]:
    """Read the labels that doccano exports, by their numbers, from a file beside another one."""
    for file in (path.with_name(name) for name in LABEL_FILES):
        if file.is_file() and file != path:
            try:
                values = decode_json(file.read_text(encoding="utf-8-sig"))
                return {value["id"]: str(value["text"]) for value in values}  # type: ignore[attr-defined]
            except (ValueError, TypeError, KeyError):
                continue
    return {}


# spaCy 2


def _of_spacy_2(where: str, document: JsonObject) -> Iterator[Record]:
    """Read the sentences of a document of spaCy 2."""
    name = document.get("id")
    named = {DOCUMENT: name} if type(name) in (str, int) else {}
    fix = "Write it by spacy convert of spaCy 2, or as in " + TEMPLATE
    for paragraph in pop_objects(where, document, "paragraphs", fix):
        raw, at = paragraph.get("raw"), 0
        if "sentences" not in paragraph:
            got = f"the keys {shorten(sorted(paragraph))}"
            raise error(where, "paragraphs of 'sentences', as in spaCy 2", got, fix)
        records: list[Record] = []
        for number, sentence in enumerate(pop_objects(where, paragraph, "sentences", fix), 1):
            tokens = pop_objects(where, sentence, "tokens", fix)
            words: list[Any] = [token.get("orth") for token in tokens]
            if not words or not all(is_text(word) and word.strip() for word in words):
                raise error(where, "tokens with an 'orth'", shorten(words), fix)
            spaces, at = _spaces(raw, words, at)
            found = Record(
                where, spaces=spaces, places=[f"{where}, sentence {number}"] * len(words)
            )
            record = {"tokens": tokens, **named}
            records.append(_tagged(found, record, None, "tokens", "tokens"))
        entities = len(pop_typed(where, paragraph, "entities", list))
        tagged = [tag for each in records for tag in each.tags[0] if str(tag)[:1] in ("B", "U")]
        if entities and entities != len(tagged):
            got = f"{entities} in 'entities' and {len(tagged)} in the tags"
            raise error(where, "all entities also as tags, 'ner' of the tokens", got, fix)
        yield from records


def _spaces(raw: object, words: Sequence[str], at: int) -> tuple[list[bool] | None, int]:
    """Find words in a text from a place: whether a space follows each, and the place behind."""
    spaces: list[bool] = []
    for word in words:
        if not isinstance(raw, str) or not raw.startswith(word, at):
            return None, at
        at += len(word)
        spaces.append(raw[at : at + 1] == " ")
        at += spaces[-1]
    return spaces, at


# Records without annotation

TEMPLATE = '{"text": "Ann left.", "spans": [{"start": 0, "end": 3, "label": "PER"}]}'
ROWS = '{"tokens": ["Ann", "left"], "ner_tags": ["B-PER", "O"]}'
PAIR = '["Ann left.", {"entities": [[0, 3, "PER"]]}]'


def unannotated(where: str, record: JsonObject) -> CorpusError:
    """Make the error for a record without entities or text: what is nearest, and what it lacks."""
    given = {key: value for key, value in record.items() if value is not None and key != "meta"}
    words = next((key for key in WORDS if isinstance(given.get(key), list)), None)
    text = next((key for key in TEXTS if isinstance(given.get(key), str)), None)
    nested = [key for key in given if isinstance(given[key], (list, dict)) and key != words]
    strings = [key for key in given if isinstance(given[key], str) and key != "id"]
    nearest, option = "JSON lines of a text and spans", "--spans-column"
    lacks, others = f"no entities beside {text!r}", nested
    if words and not text:
        nearest, option = "rows of tokens and tags", "--tag-column"
        lists = {key: len(given[key]) for key in nested if isinstance(given[key], list)}
        lacks = f"{len(given[words])} {words}, and lists of {lists or 'nothing else'}"
    elif not text:
        lacks, option, others = "no text", "--text-column", strings
    fix = "Annotate the text, or leave the record out"
    if key := next(filter(is_text, others), None):
        fix = f"If {shorten(key)} has what is missing, use {option} {shlex.quote(key)}"
    templates = "\n  ".join((TEMPLATE, ROWS, PAIR))
    got = f"{lacks} (the keys {', '.join(map(shorten, sorted(record)))})"
    return error(where, nearest, got, f"{fix}. These would be read:\n  {templates}")
