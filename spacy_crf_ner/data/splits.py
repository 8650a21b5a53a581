"""Random division of a corpus into parts."""

import random
from itertools import accumulate, pairwise
from typing import List, Sequence, Tuple

from spacy.tokens import Doc

from ..input_error import InputError


def split(
    docs: Sequence[Doc], shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> Tuple[List[Doc], ...]:
    """Divide docs at random; equal numbers of docs, shares and seeds give equal divisions.

    docs: N Docs.
    shares: Fraction of N for each part. In the shuffled order, part k ends at N times the sum of
        the first k shares, rounded.

    Returns a list for each share; the docs in it keep their order.
    Raises InputError for shares that are negative or do not sum to 1.
    """
    parts: Tuple[List[Doc], ...] = tuple([] for _ in shares)
    for part, doc in zip(split_indices(len(docs), shares, seed), docs):
        parts[part].append(doc)
    return parts


def split_indices(n: int, shares: Sequence[float], seed: int) -> List[int]:
    """Return the index of the part that `split` puts each of n docs into."""
    require_shares(shares)
    draw = random.Random(seed).random  # Python guarantees this sequence in all versions
    order = sorted(range(n), key=lambda _: draw())
    ends = [round(n * total) for total in accumulate(shares)]
    parts = [0] * n
    for part, (start, end) in enumerate(pairwise([0, *ends])):
        for i in order[start:end]:
            parts[i] = part
    return parts


def require_shares(shares: Sequence[float]) -> None:
    """Raise InputError for shares that are negative or do not sum to 1."""
    if not all(share >= 0 for share in shares) or not abs(sum(shares) - 1) < 1e-9:
        got = ",".join(map(str, shares))
        raise InputError(f"shares: expected fractions that sum to 1, as 0.8,0.1,0.1, got {got}.")
