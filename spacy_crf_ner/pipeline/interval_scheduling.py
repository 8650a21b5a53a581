"""Interval scheduling: sets of spans that do not overlap."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..tags import SpanOffsets

Candidate = tuple[SpanOffsets, float]


def best_disjoint(candidates: Iterable[Candidate], threshold: float) -> list[Candidate]:
    """Choose disjoint spans, in order, with the largest sum of probability minus threshold.

    Spans chosen this way have the highest expected F-beta if the threshold is F / (1 + beta^2),
    F the value reached. Source: Kleinberg and Tardos (2006), "Algorithm design", section 6.1, for
    the algorithm; Lewis (1995), SIGIR, and Ye et al. (2012), ICML, for the threshold.
    """
    spans = sorted((c for c in candidates if c[1] > threshold), key=lambda c: c[0][1])
    ends = [end for (_, end, _), _ in spans]
    # The best sum among the first i spans, and its spans: the others, and the last one.
    best: list[tuple[float, Any]] = [(0.0, ())]
    for i, span in enumerate(spans):
        (start, _, _), p = span
        total, others = best[bisect_right(ends, start, 0, i)]
        taken = total + p - threshold
        best.append((taken, (others, span)) if taken > best[i][0] else best[i])
    chosen = []
    _, left = best[-1]
    while left:
        left, span = left
        chosen.append(span)
    return chosen[::-1]


def best_threshold(
    docs: Sequence[Sequence[Candidate]],
    choose: Callable[[Sequence[Candidate], float], list[Candidate]],
    gold: float,
    kept: int,
    beta: float,
) -> float:
    """Find the threshold that chooses the spans with the highest expected F-beta, without gold.

    F = (1 + beta^2) sum of p chosen / (number chosen + beta^2 gold), and the threshold is
    F / (1 + beta^2). Each one chooses spans with a higher F, until it is the best. Source:
    Dinkelbach (1967), "On nonlinear fractional programming", Management Science 13.

    Args:
        docs: The candidates of each doc.
        choose: Chooses the spans of a doc at a threshold, as `best_disjoint` does.
        gold: The expected number of entities: the sum of p of all spans, also of those kept.
        kept: The number of spans that are chosen already, with a probability of 1.
        beta: Recall is beta times as important as precision.
    """
    before, threshold = -1.0, 0.0
    while threshold > before:
        ps = [p for of_doc in docs for _, p in choose(of_doc, threshold)]
        number = len(ps) + kept + beta**2 * gold
        before, threshold = threshold, (sum(ps) + kept) / (number or 1.0)
    return before


def nesting_levels(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Find the level of each span (start, end), 0 for the outermost.

    In a level, spans do not overlap. From left to right, longer spans first, each span takes the
    first level where it overlaps none. That needs the fewest levels. Source: Kleinberg and Tardos
    (2006), "Algorithm design", section 4.1.
    """
    given = list(spans)
    levels, ends = [0] * len(given), list[int]()
    for i in sorted(range(len(given)), key=lambda i: (given[i][0], -given[i][1])):
        start, end = given[i]
        levels[i] = next((k for k, last in enumerate(ends) if last <= start), len(ends))
        ends[levels[i] : levels[i] + 1] = [end]
    return levels
