"""Split a corpus into train, dev and test."""

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from ..input_error import InputError
from .files import SPLITS


def plan_splits(
    files: Mapping[str, list[Path]], shares: Sequence[float]
) -> dict[str, dict[str, float]]:
    """Return the parts to write from each part that is read, with their shares."""
    if len(shares) > len(SPLITS):
        raise InputError(f"shares: expected at most 3 ({', '.join(SPLITS)}), got {len(shares)}.")
    _require_shares(shares)
    wanted = {name: share for name, share in zip(SPLITS, shares) if share}
    if "corpus" in files:
        return {"corpus": wanted}
    plan = {name: {name: 1.0} for name in files}
    if "dev" not in files and {"train", "dev"} <= wanted.keys():
        total = wanted["train"] + wanted["dev"]
        plan["train"] = {name: wanted[name] / total for name in ("train", "dev")}
    return plan


def split_indices(n: int, shares: Sequence[float], seed: int = 0) -> list[int]:
    """Split n docs at random; the same number of docs, shares and seed give the same split.

    shares: Fraction of n for each part. In the shuffled order, part k ends at n times the sum of
        the first k shares, rounded.

    Returns, for each doc, the index of its part.
    Raises InputError for shares that are negative or do not sum to 1.
    """
    _require_shares(shares)
    draw = random.Random(seed).random  # Python guarantees this sequence in all versions
    order = sorted(range(n), key=lambda _: draw())
    ends = [round(n * total) for total in accumulate(shares)]
    parts = [0] * n
    for part, (start, end) in enumerate(pairwise([0, *ends])):
        for i in order[start:end]:
            parts[i] = part
    return parts


def _require_shares(shares: Sequence[float]) -> None:
    if not all(share >= 0 for share in shares) or not abs(sum(shares) - 1) < 1e-9:
        got = ",".join(map(str, shares))
        raise InputError(
            f"shares: expected fractions that sum to 1, such as 0.8,0.1,0.1, got {got}."
        )
