"""A batch without its padding, for recursions."""

import math
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .chain import Chain

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Packed:
    """The N tokens of a batch in one row: all first tokens, then all second ones, and so on.

    Docs are sorted by length, the longest first. So the docs with a token t come first, and a
    recursion reads one slice for each t. Docs without tokens are left out; D docs remain.

    mask: (B, T) bool, as in a chain.
    docs: (D,), the docs that have tokens, rows of the batch, longest first.
    lengths: (D,), their numbers of tokens.
    counts: For each token t of the longest doc, the number of docs that have it; descending.
    """

    def __init__(self, mask: Bools) -> None:
        self.shape: tuple[int, ...] = mask.shape
        lengths = mask.sum(1)
        self.docs: Ints = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        self.lengths: Ints = lengths[self.docs]
        self._counts: Ints = mask.sum(0)[: lengths.max(initial=0)]
        self._ends = self._counts.cumsum()
        self._begins = self._ends - self._counts
        self.counts: list[int] = self._counts.tolist()

    @cached_property
    def tokens(self) -> list[slice]:
        """The rows of the tokens t of all docs, for each t."""
        return list(map(slice, self._begins.tolist(), self._ends.tolist()))

    @cached_property
    def last(self) -> Ints:
        """The row of the last token of each doc: (D,)."""
        last: Ints = self._begins[self.lengths - 1] + np.arange(len(self.docs))
        return last

    @cached_property
    def before(self) -> Ints:
        """The row of the token before each token that is not the first: (N - D,)."""
        rows: Ints = np.arange(len(self.docs), self._ends[-1])
        return rows - np.repeat(self._counts[:-1], self._counts[1:])

    @cached_property
    def rank_of(self) -> Ints:
        """The doc of each token, an index of the sorted docs: (N,)."""
        rank: Ints = np.arange(self._ends[-1]) - np.repeat(self._begins, self._counts)
        return rank

    @cached_property
    def doc_of(self) -> Ints:
        """The doc of each token, a row of the batch: (N,)."""
        doc_of: Ints = self.docs[self.rank_of]
        return doc_of

    @cached_property
    def padded(self) -> Ints:
        """The index of each token in the padded batch of B * T: (N,)."""
        return self.doc_of * self.shape[1] + np.repeat(np.arange(len(self.counts)), self._counts)

    @cached_property
    def rank(self) -> Ints:
        """The index of each doc among the sorted docs: (B,)."""
        rank = np.empty(self.shape[0], dtype=np.int64)
        rank[self.docs] = np.arange(len(self.docs))
        return rank

    def row(self, docs: Ints, tokens: Ints) -> Ints:
        """Return the rows of tokens of docs (rows of the batch): all (S,)."""
        rows: Ints = self._begins[tokens] + self.rank[docs]
        return rows

    def pack(self, padded: NDArray[Any]) -> NDArray[Any]:
        """(B, T) -> (N,), or (B, T, C) -> (N, C)."""
        flat = padded.reshape(math.prod(self.shape), *padded.shape[2:])
        return flat.take(self.padded, axis=0)

    def pad(self, packed: NDArray[Any]) -> NDArray[Any]:
        """(N, C) -> (B, T, C), zeros in the padding."""
        padded = np.zeros((math.prod(self.shape), packed.shape[1]), packed.dtype)
        padded[self.padded] = packed
        return padded.reshape(*self.shape, -1)

    def sort(self, padded: NDArray[Any]) -> NDArray[Any]:
        """(B, T, C) -> (D, longest, C)."""
        return padded[self.docs, : len(self.counts)]

    def own(self, scores: NDArray[Any], dim: int) -> NDArray[Any]:
        """Sort scores by doc, if docs have their own: (B, ...) -> (D, ...); dim: without B."""
        return scores if scores.ndim == dim else scores[self.docs]

    def unsort(self, values: NDArray[Any]) -> NDArray[Any]:
        """(D,) -> (B,), or (D, longest) -> (B, T); zeros elsewhere."""
        result = np.zeros(self.shape[: values.ndim], values.dtype)
        at: tuple[Any, ...] = (self.docs, *map(slice, values.shape[1:]))
        result[at] = values
        return result

    def score(self, chain: Chain, tags: Ints) -> NDArray[np.float64]:
        """Score one tag sequence of each doc, (B, T), as `path_score`: (B,)."""
        E, A, start, end = chain[:4]
        B, _, C = E.shape
        docs, D, tag = self.docs, len(self.docs), self.pack(tags)
        emitted = E.reshape(-1)[self.padded * C + tag]
        moved = np.broadcast_to(A, (B, C, C))[self.doc_of[D:], tag[self.before], tag[D:]]
        arrived = np.concatenate([np.broadcast_to(start, (B, C))[docs, tag[:D]], moved])
        score: Any = np.bincount(self.doc_of, emitted, B)
        score += np.bincount(self.doc_of, arrived, B)
        score[docs] += np.broadcast_to(end, (B, C))[docs, tag[self.last]]
        return cast(NDArray[np.float64], score)
