"""A batch without its padding, for recursions on a CPU."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


class Packed:
    """The N tokens of a batch in one row: first all first tokens, then all second ones, and so on.

    Docs are sorted by falling length, so that the docs that have a token t are the first of them:
    what a recursion needs at t is one slice. The docs without tokens, if any, are left out: D stay.

    mask: (B, T) bool, as in a chain, on the CPU.
    docs: (D,), the docs that have tokens, rows of the batch, longest first.
    lengths: (D,), how many tokens each has.
    counts: For each token t of the longest doc, how many docs have it; falling.
    """

    def __init__(self, mask: Tensor) -> None:
        self.shape = mask.shape
        lengths = mask.numpy().sum(1)
        self.docs: Ints = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        self.lengths: Ints = lengths[self.docs]
        self._counts: Ints = mask.numpy().sum(0)[: lengths.max(initial=0)]
        self._ends = self._counts.cumsum()
        self._begins = self._ends - self._counts
        self.counts: list[int] = self._counts.tolist()

    @cached_property
    def tokens(self) -> list[slice]:
        """Where the tokens t of all docs lie."""
        return list(map(slice, self._begins.tolist(), self._ends.tolist()))

    @cached_property
    def last(self) -> Ints:
        """Where the last token of each doc lies: (D,)."""
        last: Ints = self._begins[self.lengths - 1] + np.arange(len(self.docs))
        return last

    @cached_property
    def before(self) -> Ints:
        """Where the token before lies, for all but first tokens: (N - D,)."""
        rows: Ints = np.arange(len(self.docs), self._ends[-1])
        return rows - np.repeat(self._counts[:-1], self._counts[1:])

    @cached_property
    def doc_of(self) -> Ints:
        """The doc of each token, a row of the batch: (N,)."""
        rank = np.arange(self._ends[-1]) - np.repeat(self._begins, self._counts)
        doc_of: Ints = self.docs[rank]
        return doc_of

    @cached_property
    def padded(self) -> Ints:
        """Where the tokens lie among all B * T, padding included: (N,)."""
        return self.doc_of * self.shape[1] + np.repeat(np.arange(len(self.counts)), self._counts)

    @cached_property
    def _rank(self) -> Ints:
        """Which of the sorted docs each doc is: (B,)."""
        rank = np.empty(self.shape[0], dtype=np.int64)
        rank[self.docs] = np.arange(len(self.docs))
        return rank

    def row(self, docs: Ints, tokens: Ints) -> Ints:
        """Where tokens of docs, rows of the batch, lie: all (S,)."""
        rows: Ints = self._begins[tokens] + self._rank[docs]
        return rows

    def pack(self, padded: Tensor) -> Tensor:
        """(B, T, C) -> (N, C)."""
        return torch.from_numpy(padded.flatten(0, 1).numpy().take(self.padded, axis=0))

    def pad(self, packed: NDArray[Any]) -> Tensor:
        """(N, C) -> (B, T, C), zeros in the padding."""
        padded = np.zeros((self.shape.numel(), packed.shape[1]), packed.dtype)
        padded[self.padded] = packed
        return torch.from_numpy(padded.reshape(*self.shape, -1))

    def sort(self, padded: Tensor) -> NDArray[Any]:
        """(B, T, C) -> (D, longest, C)."""
        return padded.numpy()[self.docs, : len(self.counts)]

    def unsort(self, values: NDArray[Any]) -> Tensor:
        """(D,) -> (B,), or (D, longest) -> (B, T); zeros elsewhere."""
        result = np.zeros(self.shape[: values.ndim], values.dtype)
        at: tuple[Any, ...] = (self.docs, *map(slice, values.shape[1:]))
        result[at] = values
        return torch.from_numpy(result)
