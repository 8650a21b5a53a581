"""Bounds on the errors on new documents: by hand, in exact fractions, and by simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest

from spacy_crf_ner.evaluation.risk_control import (
    GRID,
    coverage_threshold,
    documents_needed,
    hoeffding_bentkus,
    precision_threshold,
    recall_threshold,
)

DRAWS = 2000


def draw_documents(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """One to five entities in a document, easy ones or hard ones: not independent of each other."""
    sizes, hard = rng.integers(1, 6, n), rng.random(n) < 0.3
    return [rng.beta(1 if h else 6, 2, size) for size, h in zip(sizes, hard)]


def missed(documents: list[np.ndarray], threshold: float) -> float:
    return float(np.mean([(p < threshold).mean() for p in documents]))


@pytest.mark.parametrize(
    "risk, confidence_level, needed",
    [(0.02, None, 49), (0.1, None, 9), (0.02, 0.95, 149), (0.1, 0.9, 22), (0.07, None, 14)],
)
def test_recall_threshold_too_few_documents_is_none(risk, confidence_level, needed):
    """With no error, the bounds are 1 / (n + 1), and (1 - confidence_level) ** (1 / n)."""
    assert documents_needed(risk, confidence_level) == needed
    smallest = [1 / (n + 1) if confidence_level is None else 1 - (1 - confidence_level) ** (1 / n)
                for n in (needed - 1, needed)]  # fmt: skip
    assert smallest[0] > risk >= smallest[1]
    p = [np.array([0.25 + i / 1000]) for i in range(needed)]
    assert recall_threshold(p[1:], risk, confidence_level) is None
    assert recall_threshold(p, risk, confidence_level) == 0.25  # the lowest: none is below


@pytest.mark.parametrize("confidence_level", [None, 0.9])
@pytest.mark.parametrize("risk", [0.05, 0.2])
def test_recall_threshold_is_highest_safe_threshold(risk, confidence_level):
    rng = np.random.default_rng(0)
    documents = [p.round(2) for p in draw_documents(rng, 120)]  # some are equal
    n = len(documents)
    safe = []
    for threshold in sorted({*np.concatenate(documents)}):
        mean = missed(documents, threshold)
        if confidence_level is None:
            safe.append((threshold, (n * mean + 1) / (n + 1) <= risk))
        else:
            safe.append((threshold, p_value(mean, n, risk) <= 1 - confidence_level))
    expected = max(threshold for threshold, is_safe in safe if is_safe)
    assert recall_threshold(documents, risk, confidence_level) == expected
    assert not safe[-1][1]


def p_value(mean: float, n: int, risk: float) -> float:
    """The smaller one of both bounds: a power instead of logarithms, and a sum of fractions."""
    a, p = min(mean, risk), Fraction(risk)
    power = ((risk / a) ** a * ((1 - risk) / (1 - a)) ** (1 - a)) ** n if 0 < a < 1 else (1 - a)
    hoeffding = (1 - risk) ** n if a == 0 else power
    k = math.ceil(round(n * mean, 9))
    binomial = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(k, n) + 1))
    return min(hoeffding, math.e * float(binomial), 1.0)


@pytest.mark.parametrize("n", [1, 30, 300])
@pytest.mark.parametrize("mean", [0.0, 0.01, 0.05, 0.125, 0.7, 1.0])
def test_hoeffding_bentkus_returns_smaller_bound(mean, n):
    assert hoeffding_bentkus(mean, n, 0.125) == pytest.approx(p_value(mean, n, 0.125), rel=1e-9)


@pytest.mark.parametrize("n, risk", [(49, 0.02), (98, 0.02), (99, 0.02), (39, 0.1)])
def test_thresholds_have_expected_mean_risk(n, risk):
    """One entity in each document, of uniform p: a threshold t misses the share t of new ones.

    The mean of the k-th of n uniform numbers is k / (n + 1), so this fails for n in place of n + 1.
    """
    rng = np.random.default_rng(1)
    found = [recall_threshold([*rng.random((n, 1))], risk) for _ in range(DRAWS)]
    k = math.floor(risk * (n + 1) + 1e-9)
    error = np.std(found) / math.sqrt(DRAWS)
    assert np.mean(found) == pytest.approx(k / (n + 1), abs=4 * error)
    assert error < 0.15 * k / (n + 1) / 4
    same = [coverage_threshold(rng.random(n), risk) for _ in range(DRAWS)]
    assert np.mean(same) == pytest.approx(k / (n + 1), abs=4 * np.std(same) / math.sqrt(DRAWS))


def by_threshold(p: np.ndarray, correct: np.ndarray) -> dict[float, np.ndarray]:
    return {threshold: correct[p >= threshold] for threshold in GRID}


def test_precision_holds_on_new_documents():
    """Entities are correct with the square of their probability: the model is overconfident."""
    rng = np.random.default_rng(3)

    def draw(n: int):
        found = [np.sqrt(rng.beta(3, 1, rng.integers(0, 5))) for _ in range(n)]
        return [by_threshold(p, rng.random(len(p)) < p**2) for p in found]

    sizes = rng.integers(0, 5, 4000)
    of_doc = np.repeat(np.arange(4000), sizes)
    p = np.sqrt(rng.beta(3, 1, sizes.sum()))
    wrong = rng.random(len(p)) >= p**2
    realized = {}
    for threshold in GRID:
        kept, bad = (np.bincount(of_doc[each], minlength=4000)
                     for each in (p >= threshold, (p >= threshold) & wrong))  # fmt: skip
        realized[threshold] = np.mean(bad[kept > 0] / kept[kept > 0])
    found = [precision_threshold(draw(400), 0.2, 0.9) for _ in range(30)]
    assert None not in found and min(found) > 0
    assert np.mean([realized[threshold] > 0.2 for threshold in found]) <= 0.1
    # Not more careful than it has to be: the best one is a few steps lower.
    lowest = min(threshold for threshold in GRID if realized[threshold] <= 0.2)
    assert np.median(found) <= lowest + 0.2
    assert precision_threshold(draw(400), 0.001, 0.9) is None


def test_precision_ignores_documents_without_entities():
    """They would make any precision look better."""
    wrong = by_threshold(np.array([0.9]), np.array([False]))
    empty = by_threshold(np.array([]), np.array([], dtype=bool))
    assert precision_threshold([wrong] * 50 + [empty] * 5000, 0.1, 0.9) is None
    right = by_threshold(np.array([0.9]), np.array([True]))
    needed = documents_needed(0.1, 0.9, len(GRID))
    assert precision_threshold([right] * needed, 0.1, 0.9) == 0.0
    assert precision_threshold([right] * (needed - 1) + [empty] * 50, 0.1, 0.9) is None


def test_coverage_counts_equal_values():
    p = np.array([0.1, 0.1, 0.1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert coverage_threshold(p, 0.09) is None
    assert coverage_threshold(p, 0.1) == 0.1
    assert coverage_threshold(p, 0.4) == 0.5
