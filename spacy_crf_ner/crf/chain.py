"""The potentials of a batch of docs, constraints on them, and the order of recursions.

Axes: B docs, D of them with tokens, N tokens of the batch, T tokens of the longest doc, C tags,
K selected tags.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# The score of forbidden tags and transitions. It is finite, because inf - inf is NaN, and so low
# that any sequence with one of them scores at most half of it.
FORBIDDEN = -1e30


class Chain(NamedTuple):
    """The potentials of a linear-chain CRF for each doc of a batch, or a gradient for them.

    Docs share transitions, start and end; or each has its own, in a first axis B.

    Attributes:
        emissions: Scores of the tags at the tokens of all docs, one doc after the other: (N, C)
            float32 or float64.
        lengths: Numbers of tokens of the docs: (B,) int64. They sum to N, and some may be 0.
        transitions: Scores of tag pairs, indexed [from, to]: (C, C) or (B, C, C).
        start: Scores of first tags: (C,) or (B, C).
        end: Scores of last tags: (C,) or (B, C).
    """

    emissions: Floats
    lengths: Ints
    transitions: Floats
    start: Floats
    end: Floats

    @property
    def begins(self) -> Ints:
        """The row of the first token of each doc: (B,)."""
        begins: Ints = self.lengths.cumsum() - self.lengths
        return begins

    @property
    def doc_of(self) -> Ints:
        """The doc of each token: (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def per_doc(self) -> bool:
        """Whether each doc has transitions, start and end of its own."""
        return self.start.ndim == 2

    @property
    def scores(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Emissions, transitions, start and end."""
        return self.emissions, *self.transition_scores

    @property
    def transition_scores(self) -> tuple[Floats, Floats, Floats]:
        """Transitions, start and end."""
        return self.transitions, self.start, self.end

    def map(self, function: Callable[..., Floats], *others: "Chain") -> "Chain":
        """Apply a function to each array of scores, together with those of chains of its shapes."""
        E, A, start, end = map(function, self.scores, *(chain.scores for chain in others))
        return Chain(E, self.lengths, A, start, end)

    def divided_by(self, temperature: float) -> "Chain":
        """Divide all scores but those that are FORBIDDEN by a temperature, in float64."""

        def divide(scores: Floats) -> Floats:
            divided = scores.astype(np.float64) / temperature
            return np.where(scores > FORBIDDEN / 2, divided, FORBIDDEN)

        return self.map(divide)

    def to_float64(self) -> "Chain":
        """Convert the scores to float64."""
        return self.map(lambda scores: scores.astype(np.float64))

    def astype_of(self, other: "Chain") -> "Chain":
        """Convert the scores to the types of those of another chain of the same shapes."""
        return self.map(lambda scores, others: scores.astype(others.dtype, copy=False), other)

    def select_tags(self, tags: Ints) -> "Chain":
        """Return the potentials of tags, by their indices (K,), which may have a tag repeatedly."""
        E, lengths, A, start, end = self
        A = A[..., tags[:, None], tags]
        return Chain(E[:, tags], lengths, A, start[..., tags], end[..., tags])

    def sum_tags(self, tags: Ints, C: int) -> "Chain":
        """Add the counts of K tags to C tags: the gradient for the chain of `select_tags`.

        `tags`, (K,), are the tags, 0 to C - 1, that each of them is added to.
        """
        to = np.zeros((len(tags), C))
        to[np.arange(len(tags)), tags] = 1.0
        E, lengths, A, start, end = self
        return Chain(E @ to, lengths, to.T @ A @ to, start @ to, end @ to)

    def select(self, docs: Ints) -> "Chain":
        """Select docs by their indices (D,), in this order; a doc may be selected repeatedly."""
        lengths = self.lengths[docs]
        E = self.emissions[ranges(self.begins[docs], lengths)]
        if not self.per_doc:
            return self._replace(emissions=E, lengths=lengths)
        return Chain(E, lengths, *(scores[docs] for scores in self.transition_scores))


def ranges(begins: Ints, lengths: Ints) -> Ints:
    """Concatenate ranges of integers of these lengths."""
    before: Ints = lengths.cumsum() - lengths
    rows: Ints = np.arange(lengths.sum()) + np.repeat(begins - before, lengths)
    return rows


def sum_by(groups: Ints, values: Floats | Bools, n: int) -> NDArray[np.float64]:
    """Sum values by group, 0 to n - 1: (n,)."""
    return np.bincount(groups, values, n).astype(np.float64, copy=False)  # an empty one: integers


def constrain(chain: Chain, transitions: Bools, start: Bools, end: Bools) -> Chain:
    """Forbid transitions, first tags and last tags.

    Args:
        chain: The chain; it is not changed.
        transitions: Allowed tag pairs, [from, to]: (C, C).
        start: Allowed first tags: (C,).
        end: Allowed last tags: (C,).
    """
    return chain._replace(
        transitions=clamp(chain.transitions, transitions),
        start=clamp(chain.start, start),
        end=clamp(chain.end, end),
    )


def clamp(scores: Floats, allowed: Bools) -> Floats:
    """Set scores to FORBIDDEN where `allowed`, of the same shape, is False."""
    return np.where(allowed, scores, scores.dtype.type(FORBIDDEN))


class TimeMajor:
    """The tokens of a batch by their positions: all first tokens, then all second ones, and so on.

    Docs are sorted by length, the longest first. So the docs with a token t come first, and a
    recursion reads one slice for each t.

    Attributes:
        docs: The docs that have tokens, the longest first: (D,).
        rows: The row in the batch of each token in this order: (N,).
        rank: The doc of each token in this order, as an index of `docs`: (N,).
        steps: The tokens t of all docs, for each t: T slices of this order.
        n_docs: The number of docs that have a token t, descending: T integers.
        last: The last token of each doc in this order: (D,).
    """

    def __init__(self, lengths: Ints) -> None:
        self.docs: Ints = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        sorted_lengths = lengths[self.docs]
        T = int(lengths.max(initial=0))
        counts = len(self.docs) - np.searchsorted(sorted_lengths[::-1], np.arange(T), side="right")
        ends = counts.cumsum()
        begins = ends - counts
        self.n_docs: list[int] = counts.tolist()
        self.steps = list(map(slice, begins.tolist(), ends.tolist()))
        self.rank: Ints = ranges(np.zeros_like(counts), counts)
        first = (lengths.cumsum() - lengths)[self.docs]
        self.rows: Ints = first[self.rank] + np.repeat(np.arange(T), counts)
        self.last: Ints = begins[sorted_lengths - 1] + np.arange(len(self.docs))

    @cached_property
    def before(self) -> Ints:
        """The token before each one that is not the first of its doc, in this order: (N - D,)."""
        counts = np.array(self.n_docs)
        rows: Ints = np.arange(len(self.docs), len(self.rows)) - np.repeat(counts[:-1], counts[1:])
        return rows

    @cached_property
    def position(self) -> Ints:
        """The index in this order of each row of the batch: (N,)."""
        position = np.empty_like(self.rows)
        position[self.rows] = np.arange(len(self.rows))
        return position
