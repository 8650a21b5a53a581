"""Documents in the JSON of spaCy 2."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..docbin import DOCUMENT
from .json_records import JsonObject, is_text, pop_objects, pop_typed, shorten
from .json_tokens import read_tagged
from .other_shapes import TEMPLATE
from .record import Record
from .repair_log import error


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
