"""Tokens of records in JSON, and their tags."""

from .iob import OUTSIDE
from .json_annotation import NOT_ANNOTATED, tags_of
from .json_keys import WORD, first_value
from .json_records import JsonObject, is_text, pop_typed, shorten
from .record import CHARACTERS, Record
from .repair_log import error


def read_tagged(
    found: Record, record: JsonObject, text_key: str | None, words_key: str, tag_key: str
) -> Record:
    """Read tokens and their tags."""
    where = found.where
    values = tags_of(record, tag_key) if isinstance(record[tag_key], list) else record[tag_key]
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
    set_words(found, record, words_key)
    unknown = (*NOT_ANNOTATED, *OUTSIDE) if found.partial else NOT_ANNOTATED
    found.tags = [[None if tag in unknown else str(tag) for tag in values]]
    found.sent_starts = [0] if values else []
    found.counts_in = CHARACTERS
    set_meta(found, record)
    return found


def set_words(found: Record, record: JsonObject, key: str | None) -> None:
    """Read the tokens of a record; without a text, spaces are unknown."""
    if key is None or record.get(key) is None:
        return
    where, text = found.where, found.text
    unknown = pop_typed(where, record, "has_unknown_spaces", bool)
    tokens = pop_typed(where, record, key, list)
    words = [first_value(token, WORD) for token in tokens]
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


def set_meta(found: Record, record: JsonObject) -> None:
    """Keep the other keys; those of "meta" are merged with them, unless a key is in both."""
    meta = pop_typed(found.where, record, "meta", dict)
    is_new = record.keys().isdisjoint(meta)
    found.meta = {**record, **(meta if is_new else {"meta": meta})}
