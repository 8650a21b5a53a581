"""Tag schemes: the tags of a set of labels, which may follow which, and the spans they spell.

Axes: C tags, T tokens.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

# How each scheme writes the four positions of a token in an entity: (B)egin, (I)nside, (L)ast,
# and (U)nit, the only token. Tags, constraints and spans all follow from this table.
POSITIONS = "BILU"
SCHEMES = {"biluo": "BILU", "bio": "BIIB", "io": "IIII"}

# The grammar, in BILUO, of which every scheme is an image. Inside an entity of one label:
CONTINUES = {"BI", "BL", "II", "IL"}
# From outside or one entity's end to outside or the next entity's beginning:
CLOSED = {"O", "L", "U"}
OPENS = {"O", "B", "U"}

OUTSIDE = 0  # id of the tag "O"
MISSING = -1  # in the place of a tag id: no annotation

SpanOffsets = Tuple[int, int, str]


class Constraints(NamedTuple):
    """Which tags may follow which, and stand first and last.

    transitions: bool (C, C), indexed [from, to].
    start: bool (C,).
    end: bool (C,).
    """

    transitions: NDArray[np.bool_]
    start: NDArray[np.bool_]
    end: NDArray[np.bool_]


class Spans(NamedTuple):
    """S spans of tokens.

    starts: (S,) first tokens.
    ends: (S,) last tokens + 1.
    labels: (S,) their labels, as indices among those of the scheme.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]

    def where(self, rows: NDArray[Any]) -> "Spans":
        """Take some of them: (S,) bool, or their indices."""
        return Spans(*(column[rows] for column in self))


@dataclass(frozen=True)
class TagScheme:
    """The tags that spell entities of some labels.

    name: "biluo" (also known as BIOES), "bio" (IOB2) or "io". IO cannot tell two adjacent
        entities of one label from a single longer one.
    labels: Entity labels, in the order of their tags.

    Raises ValueError for an unknown name.
    """

    name: str
    labels: Tuple[str, ...]

    def __post_init__(self) -> None:
        if self.name not in SCHEMES:
            raise ValueError(f"scheme: expected one of {sorted(SCHEMES)}, got {self.name!r}.")

    @cached_property
    def tags(self) -> Tuple[str, ...]:
        """The C tags, "O" first; a tag's id is its index."""
        prefixes = dict.fromkeys(SCHEMES[self.name])
        return ("O", *(f"{prefix}-{label}" for label in self.labels for prefix in prefixes))

    @cached_property
    def numbers(self) -> Dict[str, int]:
        """The index of each label."""
        return {label: i for i, label in enumerate(self.labels)}

    @cached_property
    def constraints(self) -> Constraints:
        """The legal tag sequences: exactly those that spell some set of entities."""
        # Of BILUO tags: (n, n), and their images in this scheme: (C, C).
        _, position = self._biluo
        closed = np.isin(position, list(CLOSED))
        opens = np.isin(position, list(OPENS))
        follows = (closed[:, None] & opens[None, :]) | self._biluo_continues
        start = np.zeros(len(self.tags), dtype=bool)
        end = np.zeros(len(self.tags), dtype=bool)
        start[self._image[opens]] = True
        end[self._image[closed]] = True
        return Constraints(self._project(follows), start, end)

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """Whether the second of two tokens belongs to the first's entity: (C, C), [from, to]."""
        return self._project(self._biluo_continues)

    def write(self, labels: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Spell entities of one token or more: the ids of their tags.

        labels: (S,) indices. lengths: (S,) numbers of tokens, the longest L.

        Returns (S, L), MISSING (-1) beyond their ends.
        """
        steps, last = np.arange(lengths.max(initial=1)), lengths[:, None] - 1
        first = np.where(last == 0, POSITIONS.index("U"), POSITIONS.index("B"))
        inside = np.where(steps == last, POSITIONS.index("L"), POSITIONS.index("I"))
        tags = self._of_position[labels[:, None], np.where(steps == 0, first, inside)]
        return np.where(steps > last, MISSING, tags)

    @cached_property
    def onward(self) -> Tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tag by which an entity, whole as it is, may go on to the left, and to the right.

        Where there is one, what goes on is another entity: in BIO, P(B I) - P(B I I) is the
        probability of one of two tokens.

        Returns (C,) by the entity's first tag, and (C,) by its last; MISSING (-1) for none.
        """
        left = self.continues.T & self.constraints.start[:, None]
        right = self.continues & self.constraints.end[:, None]
        # Of those that go on with a whole entity there is one at most, in any scheme.
        assert max(left.sum(1).max(), right.sum(1).max()) <= 1
        to_left, to_right = (np.where(x.any(1), x.argmax(1), MISSING) for x in (left, right))
        return to_left, to_right

    def only(self, start: int, end: int, label: str, T: int) -> NDArray[np.bool_]:
        """Allow of all tag sequences those with one entity: (T, C), False forbids.

        Raises KeyError for a label that is not in the scheme.
        """
        (tags,) = self.write(np.array([self.numbers[label]]), np.array([end - start]))
        allowed = np.ones((T, len(self.tags)), dtype=bool)
        allowed[start:end] = False
        allowed[np.arange(start, end), tags] = True
        if start > 0:
            allowed[start - 1] &= ~self.continues[:, tags[0]]
        if end < T:
            allowed[end] &= ~self.continues[tags[-1]]
        return allowed

    def outside(self, start: int, end: int, T: int) -> NDArray[np.bool_]:
        """Allow of all tag sequences those without entity at some tokens: (T, C)."""
        allowed = np.ones((T, len(self.tags)), dtype=bool)
        allowed[start:end] = np.arange(len(self.tags)) == OUTSIDE
        return allowed

    def ids(self, biluo: Sequence[Optional[str]]) -> NDArray[np.int64]:
        """Translate BILUO tags, as spaCy's `Example.get_aligned_ner` gives them, to tag ids.

        biluo: One tag a token; None or "-" where the annotation is missing.

        Returns (T,), MISSING (-1) where the annotation is missing.
        Raises KeyError for a tag of a label that is not in the scheme.
        """
        ids = self._ids_of_biluo
        return np.fromiter((ids[tag] for tag in biluo), dtype=np.int64, count=len(biluo))

    def spans(self, ids: NDArray[np.int64], breaks: Optional[NDArray[np.bool_]] = None) -> Spans:
        """Read the entities, in order, off a legal tag sequence, or off several in a row.

        ids: (T,) tag ids, none of them missing.
        breaks: (T,) True at tokens that continue no entity; None for none.
        """
        inside = ids != OUTSIDE
        # joined[t]: tokens t - 1 and t are of one entity.
        joined = np.zeros(len(ids) + 1, dtype=bool)
        joined[1:-1] = self.continues[ids[:-1], ids[1:]]
        if breaks is not None:
            joined[:-1] &= ~breaks
        starts = np.flatnonzero(inside & ~joined[:-1])
        ends = np.flatnonzero(inside & ~joined[1:]) + 1
        return Spans(starts, ends, self._label_of[ids[starts]])

    def offsets(self, spans: Spans) -> List[SpanOffsets]:
        """Write spans as plain values: first token, last token + 1, label."""
        labels = [self.labels[i] for i in spans.labels.tolist()]
        return list(zip(spans.starts.tolist(), spans.ends.tolist(), labels))

    def is_legal(self, ids: NDArray[np.int64]) -> bool:
        """Tell whether a tag sequence, (T,), spells a set of entities."""
        if not len(ids):
            return True
        follows, start, end = self.constraints
        return bool(start[ids[0]] and end[ids[-1]] and follows[ids[:-1], ids[1:]].all())

    @cached_property
    def _biluo(self) -> Tuple[NDArray[np.int64], NDArray[np.str_]]:
        """Label index and position of each BILUO tag; O comes first, with a label of its own."""
        label = np.repeat(np.arange(-1, len(self.labels)), [1] + [4] * len(self.labels))
        position = np.array(["O"] + list(POSITIONS) * len(self.labels))
        return label, position

    @cached_property
    def _biluo_continues(self) -> NDArray[np.bool_]:
        label, position = self._biluo
        pairs = np.char.add(position[:, None], position[None, :])
        same: NDArray[np.bool_] = label[:, None] == label[None, :]
        return same & np.isin(pairs, list(CONTINUES))

    @cached_property
    def _image(self) -> NDArray[np.int64]:
        """The tag id that each BILUO tag has in this scheme."""
        return self.ids([tag for tag in self._ids_of_biluo if tag not in (None, "-")])

    @cached_property
    def _of_position(self) -> NDArray[np.int64]:
        """The tag id of each label at each position, in the order of POSITIONS: (labels, 4)."""
        return self._image[1:].reshape(-1, len(POSITIONS))

    @cached_property
    def _label_of(self) -> NDArray[np.int64]:
        """The index of the label of each tag, -1 for that of "O": (C,)."""
        label_of = np.empty(len(self.tags), dtype=np.int64)
        label_of[self._image] = self._biluo[0]
        return label_of

    @cached_property
    def _ids_of_biluo(self) -> Dict[Optional[str], int]:
        written = dict(zip(POSITIONS, SCHEMES[self.name]))
        ids: Dict[Optional[str], int] = {None: MISSING, "-": MISSING, "O": OUTSIDE}
        for label in self.labels:
            for position in POSITIONS:
                ids[f"{position}-{label}"] = self.tags.index(f"{written[position]}-{label}")
        return ids

    def _project(self, follows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Carry a relation between BILUO tags, (n, n), over to the tags of this scheme, (C, C)."""
        projected = np.zeros((len(self.tags), len(self.tags)), dtype=bool)
        before, after = np.nonzero(follows)
        projected[self._image[before], self._image[after]] = True
        return projected
