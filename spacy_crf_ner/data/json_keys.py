"""The keys of records in JSON: the usual ones, and those that were chosen."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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


class Keys(NamedTuple):
    """The keys that were chosen; None for the usual ones."""

    text: str | None = None
    spans: str | None = None
    words: str | None = None
    tags: str | None = None


def first_key(record: Mapping[str, object], keys: Iterable[str]) -> str | None:
    """Return the first key that has a value."""
    return next((key for key in keys if record.get(key) is not None), None)


def first_value(item: object, keys: Iterable[str]) -> Any:
    """Return the value of the first key that has one; of anything but an object, itself."""
    return item.get(first_key(item, keys) or "") if isinstance(item, dict) else item
