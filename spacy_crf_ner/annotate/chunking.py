"""A long text in pieces: cut at the ends of sentences, with overlap, so that no entity is lost."""

import re
from typing import Iterator, List, NamedTuple, Sequence, Tuple

SIZE = 100_000  # characters
OVERLAP = 2_000  # characters; an entity that is longer may be lost at a cut

_SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’»)\]]*\s+|\n\s*|(?<=[。！？])")  # noqa: RUF001
_SPACE = re.compile(r"\s+")

Found = Tuple[int, int, str, float | None]  # first character, last + 1, label, confidence


class Piece(NamedTuple):
    """A piece of a text, in characters: its own are those from `start` to `end`.

    It is annotated with what is around it, from `left` to `right`.
    """

    start: int
    end: int
    left: int
    right: int


def cut(text: str, size: int = SIZE, overlap: int = OVERLAP) -> Iterator[Piece]:
    """Cut a text into pieces of at most `size` characters, and up to `overlap` on both sides.

    Every character is of one piece. A cut is where a sentence ends, if one does in the last
    quarter of the piece; else at a space; else anywhere.
    """
    start = 0
    while start < len(text) or start == 0:
        end = len(text)
        if end - start > size:
            end = _last_end(text, start + size * 3 // 4, start + size)
        left, right = max(0, start - overlap), min(len(text), end + overlap)
        # What is around a piece begins and ends between words, too.
        if left > 0:
            left = _first_space(text, left, start)
        if right < len(text):
            right = _last_space(text, end, right)
        yield Piece(start, end, left, right)
        if end == len(text):
            return
        start = end


def join(pieces: Sequence[Tuple[Piece, Sequence[Found]]]) -> List[Found]:
    """Join what was found in the pieces of a text, in its own characters.

    An entity is taken from the piece in which it begins, unless it overlaps with one from before.
    """
    found: List[Found] = []
    for piece, entities in pieces:
        for entity in entities:
            end_before = found[-1][1] if found else 0
            if piece.start <= entity[0] < piece.end and entity[0] >= end_before:
                found.append(entity)
    return found


def _last_end(text: str, low: int, high: int) -> int:
    """Find the last end of a sentence in a part of a text; else of a word; else its end."""
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text, low, high)]
        if ends:
            return ends[-1]
    return high


def _first_space(text: str, low: int, high: int) -> int:
    match = _SPACE.search(text, low, high)
    return match.end() if match else low


def _last_space(text: str, low: int, high: int) -> int:
    ends = [match.start() for match in _SPACE.finditer(text, low, high)]
    return ends[-1] if ends else high
