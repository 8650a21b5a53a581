"""What the tests share: strategies that draw, and oracles that enumerate.

Axes: B docs, T tokens, C tags, P paths, which is C to the power of T.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from spacy_crf_ner import crf

Span = tuple[int, int, str]  # first token, last token + 1, label

# Spans and how they are written

SCHEMES = ("biluo", "bio", "io")
LABELS = ("PER", "creative-work", "A-B-C", "Tên người")

# The prefixes of an entity of n tokens.
PREFIXES: dict[str, Callable[[int], str]] = {
    "biluo": lambda n: "U" if n == 1 else "B" + "I" * (n - 2) + "L",
    "bio": lambda n: "B" + "I" * (n - 1),
    "io": lambda n: "I" * n,
}


def span_sets(T: int, labels: Sequence[str]) -> list[tuple[Span, ...]]:
    """Enumerate the sets of spans over T tokens that do not overlap."""
    if T == 0:
        return [()]
    sets = list(span_sets(T - 1, labels))  # the last token is outside
    for start, label in product(range(T), labels):  # or ends the span (start, T, label)
        sets += [(*before, (start, T, label)) for before in span_sets(start, labels)]
    return sets


def write(scheme: str, T: int, spans: Sequence[Span]) -> list[str]:
    """Write spans over T tokens as tags."""
    tags = ["O"] * T
    for start, end, label in spans:
        tags[start:end] = [f"{prefix}-{label}" for prefix in PREFIXES[scheme](end - start)]
    return tags


@st.composite
def annotations(
    draw: st.DrawFn, labels: Sequence[str], max_pieces: int = 5
) -> tuple[int, list[Span]]:
    """Draw a number of tokens, and spans over them."""
    piece = st.tuples(st.integers(1, 4), st.sampled_from([None, *labels]))
    T, spans = 0, []
    for length, label in draw(st.lists(piece, max_size=max_pieces)):
        if label is not None:
            spans.append((T, T + length, label))
        T += length
    return T, spans


# Chains and their paths

SCORES = st.floats(-1e4, 1e4, width=32)
SMALL_SCORES = st.floats(-8, 8, width=32)
TIES = st.integers(-2, 2).map(float)  # sums of them are exact in float32


def array(draw: st.DrawFn, elements: st.SearchStrategy[float], *shape: int) -> np.ndarray:
    return draw(hnp.arrays(np.float32, shape, elements=elements, fill=st.nothing()))


class Case(NamedTuple):
    """A chain that allows everything, and what shall be forbidden in it.

    follows (C, C), first (C,), last (C,), allowed (B, T, C): False forbids.
    """

    free: crf.Chain
    follows: Tensor
    first: Tensor
    last: Tensor
    allowed: Tensor

    @property
    def chain(self) -> crf.Chain:
        clamped = self.free._replace(emissions=crf.clamp(self.free.emissions, self.allowed))
        return crf.constrain(clamped, self.follows, self.first, self.last)

    @property
    def lengths(self) -> list[int]:
        return self.free.mask.sum(1).tolist()

    def legal_paths(self, b: int) -> tuple[Tensor, Tensor]:
        """Enumerate the legal paths of doc b, (P, T), and their scores, (P,) in float64."""
        T = self.lengths[b]
        paths, scores = scored_paths(self.free.emissions[b, :T], *self.free[1:4])
        legal = is_legal(paths, self.follows, self.first, self.last)
        legal &= self.allowed[b, torch.arange(T), paths].all(1)
        return paths[legal], scores[legal]


@st.composite
def cases(draw: st.DrawFn, scores: st.SearchStrategy[float] = SCORES, forbid: bool = True) -> Case:
    """Draw a batch of 0 to 3 docs of 0 to 4 tokens, with up to 3 tags and 2 tokens of padding."""
    C = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, 4), max_size=3))
    B, T = len(lengths), max(lengths, default=0) + draw(st.integers(0, 2))

    def drawn(*shape: int) -> Tensor:
        return torch.from_numpy(array(draw, scores, *shape))

    def permitted(*shape: int) -> Tensor:
        """One in four is forbidden."""
        if not forbid:
            return torch.ones(shape, dtype=torch.bool)
        return torch.from_numpy(array(draw, st.integers(0, 3).map(float), *shape)) > 0

    mask = torch.arange(T)[None, :] < torch.tensor(lengths, dtype=torch.int64)[:, None]
    free = crf.Chain(drawn(B, T, C), drawn(C, C), drawn(C), drawn(C), mask)
    return Case(free, permitted(C, C), permitted(C), permitted(C), permitted(B, T, C))


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
    scores = torch.cat([scores.detach().flatten() for scores in chain[:4]])
    terms = 2 * chain.mask.shape[1] + 2
    return 6e-8 * terms * terms * (1 + float(scores.abs().max()))


Sentence = tuple[list[str], list[tuple[int, int, str]]]  # words; (start, end, label) in tokens

# What each of the files in tests/fixtures says.
GOLDEN: list[Sentence] = [
    (["Anna", "Schmidt", "visited", "Hanoi", "."], [(0, 2, "PER"), (3, 4, "LOC")]),
    (
        ["From", "Paris", "Berlin", "New", "York", "Bob", "rings", "."],
        [(1, 2, "LOC"), (2, 3, "LOC"), (3, 5, "LOC"), (5, 6, "PER")],
    ),
    (["He", "said", ",", '"', "null", "or", "NA", "[", "sic", "]", '"', "."], []),
]
# What a small pipeline learns, with offsets in characters.
LEARNED = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "PER")]),
    ("it came", []),
]

# A sitecustomize.py, without the first line.
BLOCKED = """
import sys
from importlib import metadata

import catalogue


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
version = metadata.version


def installed(name):
    if name.replace("-", "_") in PACKAGES:
        raise metadata.PackageNotFoundError(name)
    return version(name)


metadata.version = installed
found = catalogue.AVAILABLE_ENTRY_POINTS
catalogue.AVAILABLE_ENTRY_POINTS = {
    group: [each for each in found.select(group=group) if "spacy_transformers" not in each.value]
    for group in found.groups
}
"""


def blocking(packages: Iterable[str]) -> str:
    """Return a sitecustomize.py, as of an environment without packages that need not be there."""
    return f"PACKAGES = {tuple(packages)}\n{BLOCKED}"
