"""Which keys of a record have its annotation: spans of its text, or a tag for each token."""

from typing import Any

from ..input_error import CorpusError
from .iob import OUTSIDE, is_tag
from .json_keys import OF_ENTITIES, OURS, SPANS, TAGS, WORD_TAGS, Keys, first_value
from .json_records import JsonObject
from .other_shapes import unannotated
from .repair_log import error

NOT_ANNOTATED = ("-", None, -1, -100)  # tags: of spaCy 2, and of the library datasets
OTHERS = (*NOT_ANNOTATED, *OUTSIDE, 0)  # tags that are of no entity


def annotation_keys(
    where: str, record: JsonObject, text_key: str | None, words_key: str | None, keys: Keys
) -> tuple[list[str], str | None]:
    """Return the keys of the entities, or that of the tags; CorpusError if others have some too."""
    if chosen := keys.spans or keys.tags:
        has_words = isinstance(record.get(words_key or ""), list)
        if chosen not in record or not (keys.spans or has_words):
            raise unannotated(where, record, chosen)
        return ([chosen], None) if keys.spans else ([], chosen)
    tags = _tag_keys(record, words_key)
    named = [key for key in (*SPANS, *OF_ENTITIES) if key not in tags]
    lists = [key for key in named if isinstance(record.get(key), (list, dict))]
    others = [key for key in lists if _holds_entities(record[key])]
    tagged = [key for key in tags or OF_ENTITIES if _have_entities(key, tags_of(record, key))]
    tagged = [key for key in tagged if key not in others]
    # Without a text, no spans are only that.
    has_spans = text_key or not tags or any(map(record.get, OURS))
    ours = [key for key in OURS if has_spans and record.get(key) is not None]
    if ours or others:
        if len(found := ours[:1] + others + tagged) > 1:
            option = f"--spans-column {found[0]}" + f" or --tag-column {found[-1]}" * bool(tagged)
            raise _doubt(where, found, option)
        return ours or others, None
    if any(tags_of(record, key) != tags_of(record, tags[0]) for key in tags):
        raise _doubt(where, tags, f"--tag-column {tags[0]}")
    lists = sorted((key for key in lists if key in SPANS), key=lambda key: len(record[key]))
    return ([], tags[0]) if tags else (lists[:1], None)


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
    if all(isinstance(word, dict) for word in words) and any(tags_of(record, words_key)):
        named.append(words_key)
    look = [key for key in named if _look_like_tags(tags_of(record, key))]
    return look + [key for key in OF_ENTITIES if key in named and key not in look] or named


def tags_of(record: JsonObject, key: str) -> list[Any]:
    """Return the values of a key of tags; of tokens, their own tags."""
    values = record.get(key)
    return [first_value(tag, WORD_TAGS) for tag in (values if isinstance(values, list) else ())]


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
