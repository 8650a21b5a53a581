"""Strategies that draw chains of a CRF, and oracles that enumerate their paths.

Axes: B docs, T tokens, C tags, P paths, which is C to the power of T.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from spacy_crf_ner import crf

SCORES = st.floats(-1e4, 1e4, width=32)
SMALL_SCORES = st.floats(-8, 8, width=32)
TIES = st.integers(-2, 2).map(float)  # sums of them are exact in float32


def array(draw: st.DrawFn, elements: st.SearchStrategy[float], *shape: int) -> np.ndarray:
    return draw(hnp.arrays(np.float32, shape, elements=elements, fill=st.nothing()))


class Case(NamedTuple):
    """A chain that allows everything, and what shall be forbidden in it.

    follows (C, C), first (C,), last (C,), allowed (N, C): False forbids.
    """

    free: crf.Chain
    follows: np.ndarray
    first: np.ndarray
    last: np.ndarray
    allowed: np.ndarray

    @property
    def chain(self) -> crf.Chain:
        clamped = self.free._replace(emissions=crf.clamp(self.free.emissions, self.allowed))
        return crf.constrain(clamped, self.follows, self.first, self.last)

    @property
    def lengths(self) -> list[int]:
        return self.free.lengths.tolist()

    @property
    def rows(self) -> list[slice]:
        """The tokens of each doc."""
        ends = np.cumsum(self.lengths).tolist()
        return [slice(end - T, end) for end, T in zip(ends, self.lengths)]

    def legal_paths(self, b: int) -> tuple[Tensor, Tensor]:
        """Enumerate the legal paths of doc b, (P, T), and their scores, (P,) in float64."""
        E = self.free.emissions[self.rows[b]]
        paths, scores = scored_paths(*map(torch.from_numpy, (E, *self.free[2:])))
        legal = is_legal(paths, *map(torch.from_numpy, self[1:4]))
        allowed = torch.from_numpy(self.allowed[self.rows[b]])
        legal &= allowed[torch.arange(len(E)), paths].all(1)
        return paths[legal], scores[legal]


@st.composite
def cases(draw: st.DrawFn, scores: st.SearchStrategy[float] = SCORES, forbid: bool = True) -> Case:
    """Draw a batch of 0 to 3 docs of 0 to 4 tokens, with up to 3 tags."""
    C = draw(st.integers(1, 3))
    lengths = np.array(draw(st.lists(st.integers(0, 4), max_size=3)), dtype=np.int64)
    N = int(lengths.sum())

    def permitted(*shape: int) -> np.ndarray:
        """One in four is forbidden."""
        if not forbid:
            return np.ones(shape, dtype=bool)
        return array(draw, st.integers(0, 3).map(float), *shape) > 0

    E, A, start, end = (array(draw, scores, *shape) for shape in ((N, C), (C, C), (C,), (C,)))
    free = crf.Chain(E, lengths, A, start, end)
    return Case(free, permitted(C, C), permitted(C), permitted(C), permitted(N, C))


def tensors(chain: crf.Chain) -> list[Tensor]:
    """Emissions, transitions, start and end, as tensors over the same memory."""
    return [torch.from_numpy(scores) for scores in (chain.emissions, *chain[2:])]


@cache
def all_paths(T: int, C: int) -> Tensor:
    """Enumerate all tag sequences: (P, T); of no tokens there is one, the empty one."""
    return torch.tensor(list(product(range(C), repeat=T)), dtype=torch.int64).reshape(C**T, T)


def scored_paths(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> tuple[Tensor, Tensor]:
    """Score all tag sequences of one doc, emissions (T, C), by the definition, in float64.

    Returns paths (P, T) and scores (P,), 0 for the empty path. Gradients flow.
    """
    T, C = emissions.shape
    paths = all_paths(T, C)
    if T == 0:
        return paths, torch.zeros(1, dtype=torch.float64)
    emitted = emissions.double()[torch.arange(T), paths].sum(1)
    moved = transitions.double()[paths[:, :-1], paths[:, 1:]].sum(1)
    return paths, emitted + moved + start.double()[paths[:, 0]] + end.double()[paths[:, -1]]


def is_legal(paths: Tensor, follows: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Tell the paths (P, T) whose transitions, first and last tags are allowed: (P,)."""
    if paths.shape[1] == 0:
        return torch.ones(len(paths), dtype=torch.bool)
    return follows[paths[:, :-1], paths[:, 1:]].all(1) & first[paths[:, 0]] & last[paths[:, -1]]


def best_path(paths: Tensor, scores: Tensor) -> list[int]:
    """Pick the best path; of several the one whose last tag is lowest, then the one before it."""
    best = paths[scores == scores.max()].tolist()
    return min(best, key=lambda path: path[::-1])


def tolerance(chain: crf.Chain) -> float:
    """Bound what float32 may lose in a sum over a path.

    A path sums 2 T + 1 scores. Each of its additions rounds to 2^-24 = 6e-8 of what it holds.
    """
    highest = max(float(np.abs(scores).max(initial=0.0)) for scores in (chain[0], *chain[2:]))
    terms = 2 * int(chain.lengths.max(initial=0)) + 2
    return 6e-8 * terms * terms * (1 + highest)
