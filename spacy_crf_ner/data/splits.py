"""A corpus divided at random into parts."""

import random
from itertools import accumulate, pairwise
from typing import List, Sequence, Tuple

from spacy.tokens import Doc


def split(
    docs: Sequence[Doc], shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> Tuple[List[Doc], ...]:
    """Divide docs at random; the same number of docs, shares and seed give the same division.

    docs: N Docs.
    shares: Fraction of N that each part gets. Part k ends, in the shuffled order, at N times the
        sum of the first k shares, rounded.

    Returns a list for each share; inside it the docs are in their original order.
    Raises ValueError for shares that are negative or do not sum to 1.
    """
    parts: Tuple[List[Doc], ...] = tuple([] for _ in shares)
    for part, doc in zip(divide(len(docs), shares, seed), docs):
        parts[part].append(doc)
    return parts


def divide(n: int, shares: Sequence[float], seed: int) -> List[int]:
    """Tell of each of n docs the part that `split` puts it into, from 0."""
    require_shares(shares)
    draw = random.Random(seed).random  # the one method whose sequence Python never changes
    order = sorted(range(n), key=lambda _: draw())
    ends = [round(n * total) for total in accumulate(shares)]
    parts = [0] * n
    for part, (at, end) in enumerate(pairwise([0, *ends])):
        for i in order[at:end]:
            parts[i] = part
    return parts


def require_shares(shares: Sequence[float]) -> None:
    """Raise ValueError for shares that are negative or do not sum to 1."""
    if not all(share >= 0 for share in shares) or not abs(sum(shares) - 1) < 1e-9:
        got = ",".join(map(str, shares))
        raise ValueError(f"shares: expected fractions that sum to 1, as 0.8,0.1,0.1, got {got}.")
