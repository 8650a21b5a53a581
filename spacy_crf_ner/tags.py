"""Tag schemes: conversion between labels, tags and spans, and the legal tag sequences.

Axes: C tags, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .input_error import InputError

# The prefix of each scheme for the positions of a token in an entity: (B)egin, (I)nside, (L)ast,
# and (U)nit, the only token. Tags, constraints and spans are derived from this table.
POSITIONS = "BILU"
SCHEMES = {"biluo": "BILU", "bio": "BIIB", "io": "IIII"}

# The grammar of BILUO; the other schemes are images of it. Inside an entity of one label:
CONTINUES = {"BI", "BL", "II", "IL"}
# From outside or the end of an entity to outside or the beginning of the next one:
CLOSED = {"O", "L", "U"}
OPENS = {"O", "B", "U"}

TAG_OUTSIDE = 0  # the id of the tag "O"
TAG_MISSING = -1  # instead of a tag id: no annotation

SpanOffsets = tuple[int, int, str]  # first token, last token + 1, label


class Constraints(NamedTuple):
    """Allowed transitions, (C, C) [from, to], and allowed first and last tags, (C,)."""

    transitions: NDArray[np.bool_]
    start: NDArray[np.bool_]
    end: NDArray[np.bool_]


class Spans(NamedTuple):
    """S spans of tokens: first tokens, last tokens + 1, and indices of labels, all (S,)."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]

    def select(self, rows: NDArray[Any]) -> "Spans":
        """Select spans by a mask (S,) or by indices."""
        return Spans(*(column[rows] for column in self))


class TagMask(NamedTuple):
    """The tags that are allowed at the W tokens from `start` on; all others allow any tag.

    The mask is (W, C), or (R, W, C) for R disjoint sets of tag sequences.
    """

    start: int
    allowed: NDArray[np.bool_]


@dataclass(frozen=True)
class TagScheme:
    """The tags that encode entities of some labels, in this order.

    Its name is "biluo" (also known as BIOES), "bio" (IOB2) or "io". IO cannot distinguish two
    adjacent entities of one label from one longer entity.
    """

    name: str
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.name not in SCHEMES:
            raise InputError(f"scheme: expected one of {sorted(SCHEMES)}, got {self.name!r}.")

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The C tags, "O" first; a tag's id is its index."""
        return ("O", *(f"{prefix}-{label}" for label in self.labels for prefix in self._prefixes))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The index of each label."""
        return {label: i for i, label in enumerate(self.labels)}

    @cached_property
    def label_of(self) -> NDArray[np.int64]:
        """The index of the label of each tag, -1 for "O": (C,)."""
        return (np.arange(len(self.tags)) - 1) // len(self._prefixes)

    @cached_property
    def constraints(self) -> Constraints:
        """The legal tag sequences: exactly those that encode some set of entities."""
        _, position = self._biluo
        closed, opens = (np.isin(position, list(kind)) for kind in (CLOSED, OPENS))
        follows = (closed[:, None] & opens) | self._biluo_continues
        ids = np.arange(len(self.tags))
        start, end = (np.isin(ids, self.from_biluo[kind]) for kind in (opens, closed))
        return Constraints(self._project(follows), start, end)

    @cached_property
    def in_biluo(self) -> Constraints:
        """The legal BILUO tag sequences of the entities that this scheme can express.

        `from_biluo` maps them one to one to the legal tag sequences of this scheme: in IO, no two
        entities of one label are adjacent.
        """
        legal = TagScheme("biluo", self.labels).constraints
        same = self.continues[self.from_biluo][:, self.from_biluo] == self._biluo_continues
        return legal._replace(transitions=legal.transitions & same)

    @cached_property
    def from_biluo(self) -> NDArray[np.int64]:
        """The tag id that each BILUO tag has in this scheme: (1 + 4 * labels,)."""
        return np.append(TAG_OUTSIDE, self._of_position)

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """Whether a tag continues the entity of the tag before it: (C, C), [from, to]."""
        return self._project(self._biluo_continues)

    def encode(self, labels: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Encode S entities as the ids of their tags, (S, L), TAG_MISSING (-1) after their ends."""
        steps, last = np.arange(lengths.max(initial=1)), lengths[:, None] - 1
        first = np.where(last == 0, POSITIONS.index("U"), POSITIONS.index("B"))
        inside = np.where(steps == last, POSITIONS.index("L"), POSITIONS.index("I"))
        tags = self._of_position[labels[:, None], np.where(steps == 0, first, inside)]
        return np.where(steps > last, TAG_MISSING, tags)

    @cached_property
    def extensions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tags that extend a complete entity to a longer one, on its left and on its right.

        In BIO, the tags B I of two tokens are also the beginning of a longer entity, B I I. So
        P(B I) - P(B I I) is the probability of the entity of exactly two tokens. Both are (C,), by
        the entity's first or last tag; TAG_MISSING for none.
        """
        left = self.continues.T & self.constraints.start[:, None]
        right = self.continues & self.constraints.end[:, None]
        # In each scheme at most one tag extends a complete entity to a longer complete one.
        assert max(left.sum(1).max(), right.sum(1).max()) <= 1
        to_left, to_right = (np.where(x.any(1), x.argmax(1), TAG_MISSING) for x in (left, right))
        return to_left, to_right

    def entity_mask(self, start: int, end: int, label: str, T: int) -> TagMask:
        """Allow only the tag sequences of T tokens in which start:end is an entity of the label.

        The mask is (W, C), over the entity and the token on either side.
        """
        (tags,) = self.encode(np.array([self.numbers[label]]), np.array([end - start]))
        first, last = max(start - 1, 0), min(end + 1, T)
        allowed = np.ones((last - first, len(self.tags)), dtype=bool)
        inside = np.arange(start, end) - first
        allowed[inside] = False
        allowed[inside, tags] = True
        if first < start:
            allowed[0] &= ~self.continues[:, tags[0]]
        if last > end:
            allowed[-1] &= ~self.continues[tags[-1]]
        return TagMask(first, allowed)

    def exclusion_mask(self, start: int, end: int, label: str, T: int) -> TagMask:
        """Allow only the tag sequences of T tokens in which start:end is no entity of the label.

        The mask is (R, W, C), the sequences as R disjoint sets. Label "" stands for any label; "O"
        excludes that all of these tokens are outside of entities.
        """
        if label == self.tags[TAG_OUTSIDE] and label not in self.labels:
            outside = np.arange(len(self.tags)) == TAG_OUTSIDE
            return TagMask(start, _complement([np.tile(outside, (end - start, 1))]))
        labels = [label] if label else self.labels
        masks = [self.entity_mask(start, end, each, T) for each in labels]
        return TagMask(masks[0].start, _complement([mask.allowed for mask in masks]))

    def ids(self, biluo: Sequence[str | None]) -> NDArray[np.int64]:
        """Convert BILUO tags, as spaCy's `Example.get_aligned_ner` gives them, to tag ids: (T,).

        None or "-", which stand for a missing annotation, become TAG_MISSING.
        """
        ids = self._ids_of_biluo
        return np.fromiter((ids[tag] for tag in biluo), dtype=np.int64, count=len(biluo))

    def decode(self, ids: NDArray[np.int64], boundaries: NDArray[np.bool_] | None = None) -> Spans:
        """Decode the entities, in order, of a legal tag sequence, or of several in a row, (T,).

        Boundaries, (T,), are True at tokens that cannot continue an entity; None for none.
        """
        inside = ids != TAG_OUTSIDE
        # joined[t]: tokens t - 1 and t are in one entity.
        joined = np.zeros(len(ids) + 1, dtype=bool)
        joined[1:-1] = self.continues[ids[:-1], ids[1:]]
        if boundaries is not None:
            joined[:-1] &= ~boundaries
        starts = np.flatnonzero(inside & ~joined[:-1])
        ends = np.flatnonzero(inside & ~joined[1:]) + 1
        return Spans(starts, ends, self.label_of[ids[starts]])

    def offsets(self, spans: Spans) -> list[SpanOffsets]:
        """Convert spans to tuples: first token, last token + 1, label."""
        labels = [self.labels[i] for i in spans.labels.tolist()]
        return list(zip(spans.starts.tolist(), spans.ends.tolist(), labels))

    @cached_property
    def _biluo(self) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
        """Label index and position of each BILUO tag; O comes first, with label index -1."""
        label = np.repeat(np.arange(-1, len(self.labels)), [1] + [4] * len(self.labels))
        return label, np.array(["O", *POSITIONS * len(self.labels)])

    @cached_property
    def _biluo_continues(self) -> NDArray[np.bool_]:
        label, position = self._biluo
        pairs = np.char.add(position[:, None], position)
        same: NDArray[np.bool_] = label[:, None] == label
        return same & np.isin(pairs, list(CONTINUES))

    @cached_property
    def _prefixes(self) -> tuple[str, ...]:
        return (*dict.fromkeys(SCHEMES[self.name]),)

    @cached_property
    def _of_position(self) -> NDArray[np.int64]:
        """The tag id of each label at each position, in the order of POSITIONS: (labels, 4)."""
        order = [self._prefixes.index(prefix) for prefix in SCHEMES[self.name]]
        first: NDArray[np.int64] = 1 + len(self._prefixes) * np.arange(len(self.labels))
        return first[:, None] + order

    @cached_property
    def _ids_of_biluo(self) -> dict[str | None, int]:
        tags = [f"{position}-{label}" for label in self.labels for position in POSITIONS]
        ids: dict[str | None, int] = dict(zip(["O", *tags], self.from_biluo.tolist()))
        return ids | {None: TAG_MISSING, "-": TAG_MISSING}

    def _project(self, follows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Map a relation between BILUO tags, (n, n), to the tags of this scheme, (C, C)."""
        projected = np.zeros((len(self.tags), len(self.tags)), dtype=bool)
        before, after = np.nonzero(follows)
        projected[self.from_biluo[before], self.from_biluo[after]] = True
        return projected


def _complement(masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Divide the tag sequences that match none of the masks (W, C) into disjoint sets, (R, W, C).

    A sequence in X that does not match M differs at a first token: X without M is the sum
    over tokens k of (X and M before k; X and not M at k; X after k). All terms are sums of
    probabilities: nothing cancels, even where the probability of the masks is close to 1.
    """
    parts = [np.ones_like(masks[0])]
    for mask in masks:
        # Tokens with the fewest tags come first: there the masks of other labels differ, and their
        # parts need no more division.
        order = np.argsort(mask.sum(1), kind="stable")
        divided = []
        for part in parts:
            if not (part & mask).any(1).all():
                divided.append(part)
                continue
            matching = part.copy()
            for t in order:
                leaving = matching.copy()
                leaving[t] &= ~mask[t]
                matching[t] &= mask[t]
                if leaving[t].any():
                    divided.append(leaving)
        parts = divided
    return np.stack(parts)
