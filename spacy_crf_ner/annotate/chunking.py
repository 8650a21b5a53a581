"""Split long texts into overlapping chunks at sentence ends, so that no entity is lost."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

MAX_CHARACTERS = 100_000
OVERLAP = 2_000  # characters; a longer entity may be lost at a cut
NO_SPACES = "expected spaces in a long text, got none: it cannot be split between tokens"

_SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’»)\]]*\s+|\n\s*|(?<=[。！？])")  # noqa: RUF001
_SPACE = re.compile(r"\s+")


class FoundEntity(NamedTuple):
    """An entity, in characters of its text. The confidence is None if the component has none."""

    start: int
    end: int
    label: str
    confidence: float | None
    alternatives: list[dict[str, Any]] | None = None  # what else the span could be, if requested


class Chunk(NamedTuple):
    """A chunk of a text, in characters: `start` to `end`, with context `left` to `right`."""

    start: int
    end: int
    left: int
    right: int


def chunk_text(
    text: str, max_characters: int = MAX_CHARACTERS, overlap: int = OVERLAP
) -> Iterator[Chunk]:
    """Split a text into chunks of at most `max_characters`, with up to `overlap` on both sides.

    Each character belongs to one chunk. A chunk ends at the last sentence end that begins in its
    last quarter, else at the last space there, else anywhere.
    """
    start = 0
    while start < len(text) or start == 0:
        end = len(text)
        if end - start > max_characters:
            low = max(start + 1, start + max_characters * 3 // 4)
            end = _last_end(text, low, start + max_characters)
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
    chunks: Iterable[tuple[Chunk, Sequence[FoundEntity]]], overlapping: bool = False
) -> list[FoundEntity]:
    """Merge the entities of the chunks of a text; offsets refer to the text.

    An entity is kept from the chunk that its first character belongs to, unless it overlaps with an
    earlier one, and overlapping ones are not kept.
    """
    merged: list[FoundEntity] = []
    for chunk, entities in chunks:
        for entity in entities:
            end_before = merged[-1][1] if merged else 0
            disjoint = overlapping or entity[0] >= end_before
            if chunk.start <= entity[0] < chunk.end and disjoint:
                merged.append(entity)
    return merged


def _last_end(text: str, low: int, high: int) -> int:
    """Return the last sentence end between two offsets, else the last word end, else `high`."""
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text, low, high)]
        if ends:
            return ends[-1]
    return high
