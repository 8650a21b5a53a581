"""Cut a long text into chunks at the ends of sentences, with overlap, so that no entity is lost."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

MAX_CHARACTERS = 100_000
OVERLAP = 2_000  # characters; an entity that is longer may be lost at a cut

_SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’»)\]]*\s+|\n\s*|(?<=[。！？])")  # noqa: RUF001
_SPACE = re.compile(r"\s+")


class FoundEntity(NamedTuple):
    """An entity, in characters of its text. The confidence is None if the component has none."""

    start: int
    end: int
    label: str
    confidence: float | None


class Chunk(NamedTuple):
    """A chunk of a text, in characters: it owns those from `start` to `end`.

    The pipeline sees it with its context, from `left` to `right`.
    """

    start: int
    end: int
    left: int
    right: int


def chunk_text(
    text: str, max_characters: int = MAX_CHARACTERS, overlap: int = OVERLAP
) -> Iterator[Chunk]:
    """Cut a text into chunks of at most `max_characters`, with up to `overlap` on both sides.

    Each character belongs to one chunk. A cut is at the end of a sentence, if there is one in the
    last quarter of the chunk; else at a space; else anywhere.
    """
    start = 0
    while start < len(text) or start == 0:
        end = len(text)
        if end - start > max_characters:
            end = _last_end(text, start + max_characters * 3 // 4, start + max_characters)
        left, right = max(0, start - overlap), min(len(text), end + overlap)
        # The context also begins and ends between words.
        if left > 0:
            match = _SPACE.search(text, left, start)
            left = match.end() if match else left
        if right < len(text):
            right = max((m.start() for m in _SPACE.finditer(text, end, right)), default=right)
        yield Chunk(start, end, left, right)
        if end == len(text):
            return
        start = end


def merge_entities(
    chunks: Iterable[tuple[Chunk, Sequence[FoundEntity]]],
) -> list[FoundEntity]:
    """Merge the entities of the chunks of a text; offsets are those of the text.

    An entity is taken from the chunk that owns its first character, unless it overlaps with an
    earlier one.
    """
    merged: list[FoundEntity] = []
    for chunk, entities in chunks:
        for entity in entities:
            end_before = merged[-1][1] if merged else 0
            if chunk.start <= entity[0] < chunk.end and entity[0] >= end_before:
                merged.append(entity)
    return merged


def _last_end(text: str, low: int, high: int) -> int:
    """Find the last end of a sentence in a part of a text; else of a word; else its end."""
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text, low, high)]
        if ends:
            return ends[-1]
    return high
