"""Tokens of records in JSON, and their tags; documents of spaCy 2 have only these."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..docbin import DOCUMENT
from .iob import OUTSIDE
from .json_annotation import NOT_ANNOTATED, tags_of
from .json_keys import WORD, first_value
from .json_records import JsonObject, is_text, pop_objects, pop_typed, shorten
from .other_shapes import TEMPLATE
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


def read_spacy_2(where: str, document: JsonObject) -> Iterator[Record]:
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
            places = [f"{where}, sentence {number}"] * len(words)
            found = Record(where, spaces=spaces, places=places)
            record = {"tokens": tokens, **named}
            records.append(read_tagged(found, record, None, "tokens", "tokens"))
        entities = len(pop_typed(where, paragraph, "entities", list))
        tags = (tag for each in records for tag in each.tags[0])
        first = [tag for tag in tags if str(tag)[:1] in ("B", "U")]
        if entities and entities != len(first):
            got = f"{entities} in 'entities' and {len(first)} in the tags"
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
