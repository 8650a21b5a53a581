"""Texts as segments, in entities or outside, and the colors of labels."""

from collections.abc import Iterable
from typing import NamedTuple

from ..evaluation.matching import Entity

# Background colors for dark text.
PALETTE = (
    "#aa9cfc", "#7aecec", "#feca74", "#bfe1d9", "#bfeeb7", "#ffeb80",
    "#ff9561", "#f0a3c4", "#9cc9cc", "#d9c7a3", "#a8d08d", "#8fb8ff",
)  # fmt: skip


class Segment(NamedTuple):
    """A part of a text, and the entity that it is, if any."""

    text: str
    entity: Entity | None = None
    asked: bool = False  # whether this entity is the one in question


def segments(text: str, ents: Iterable[Entity], asked: Entity | None = None) -> list[Segment]:
    """Split a text at its entities, which are in order; one of them may be in question."""
    found: list[Segment] = []
    done = 0
    for ent in ents:
        found += [
            Segment(text[done : ent.start]),
            Segment(text[ent.start : ent.end], ent, ent is asked),
        ]
        done = ent.end
    return [*found, Segment(text[done:])]


def colors_of(labels: Iterable[str]) -> dict[str, str]:
    """Return the color of each label, in their order."""
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(sorted(labels))}
