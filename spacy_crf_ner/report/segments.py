"""Texts with their entities, one inside another, and the colors of labels."""

from collections.abc import Iterable
from typing import NamedTuple

from ..evaluation.matching import Entity

# Background colors for dark text.
PALETTE = (
    "#aa9cfc", "#7aecec", "#feca74", "#bfe1d9", "#bfeeb7", "#ffeb80",
    "#ff9561", "#f0a3c4", "#9cc9cc", "#d9c7a3", "#a8d08d", "#8fb8ff",
)  # fmt: skip


class Segment(NamedTuple):
    """An entity, and its text as strings and the entities inside."""

    entity: Entity
    parts: list["str | Segment"]
    asked: bool = False  # whether this entity is the one in question


class Side(NamedTuple):
    """A text with its gold or its predicted entities."""

    parts: list[str | Segment]
    others: list[Segment]  # those that cross one of the parts


def draw(text: str, ents: Iterable[Entity], asked: Entity | None = None) -> Side:
    """Split a text at its entities; one of them may be in question, which is always a part."""
    side = Side([], [])
    outer = [Segment(Entity(0, len(text), ""), side.parts)]  # those that have not ended
    done = 0
    last = Entity(len(text), len(text), "")  # ends all others
    for ent in [*sorted(ents, key=lambda ent: (ent.start, -ent.end)), last]:
        while len(outer) > 1 and outer[-1].entity.end <= ent.start:
            ended = outer.pop()
            ended.parts.append(text[done : ended.entity.end])
            done = ended.entity.end
        if ent.end > outer[-1].entity.end or (asked is not None and _cross(ent, asked)):
            side.others.append(Segment(ent, [text[ent.start : ent.end]]))
            continue
        outer[-1].parts.append(text[done : ent.start])
        done = ent.start
        if ent.start < ent.end:  # a span may have no tokens
            outer.append(Segment(ent, [], ent is asked))
            outer[-2].parts.append(outer[-1])
    return side


def _cross(a: Entity, b: Entity) -> bool:
    return a.start < b.start < a.end < b.end or b.start < a.start < b.end < a.end


def colors_of(labels: Iterable[str]) -> dict[str, str]:
    """Return the color of each label, in their order."""
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(sorted(labels))}
