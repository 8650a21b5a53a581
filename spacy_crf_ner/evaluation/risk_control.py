"""Thresholds on probabilities that bound the errors on new documents.

The documents that a threshold is fitted to must not have been used for training, and new ones must
be like them: drawn from the same source, in no order. Then the bound holds, however wrong the
probabilities are; with better ones, less is lost to it.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# Candidates for a threshold whose errors can fall and rise, with a test for each.
GRID = tuple(i / 20 for i in range(20))


def documents_needed(risk: float, confidence_level: float | None = None, tests: int = 1) -> int:
    """Return the number of documents from which a bound can be given, if there is no error in them.

    Args:
        tests: The number of thresholds that are tested.
    """
    if confidence_level is None:
        return math.ceil(round(1 / risk, 9)) - 1
    return math.ceil(math.log((1 - confidence_level) / tests) / math.log(1 - risk))


def recall_threshold(
    probabilities: Sequence[NDArray[np.float64]], risk: float, confidence_level: float | None = None
) -> float | None:
    """Find the highest threshold that few gold entities are below.

    Over new documents with entities, the expected share of a document's entities below it is at
    most `risk`.

    Args:
        probabilities: The probabilities of the gold entities of each document, at least one in
            each.
        confidence_level: None if this should hold on average over documents to calibrate on
            (conformal risk control); otherwise it holds with this probability over them.

    Returns:
        The threshold; None if there are too few documents.

    Sources: Angelopoulos et al. (2022), "Conformal Risk Control"; Bates et al. (2021),
    "Distribution-Free, Risk-Controlling Prediction Sets".
    """
    n = len(probabilities)
    if n < documents_needed(risk, confidence_level):
        return None
    flat = np.concatenate(probabilities)
    shares = np.concatenate([np.full(len(each), 1 / len(each)) for each in probabilities])
    thresholds, group = np.unique(flat, return_inverse=True)
    at = np.bincount(group, shares)
    missed = (at.cumsum() - at) / n  # the mean share below each threshold: not falling

    def is_unsafe(mean: float) -> bool:
        if confidence_level is None:
            # A new document may have any loss up to 1.
            return (n * mean + 1) / (n + 1) > risk + 1e-12
        return hoeffding_bentkus(mean, n, risk) > 1 - confidence_level + 1e-12

    return float(thresholds[bisect_left(missed.tolist(), True, key=is_unsafe) - 1])


def precision_threshold(
    documents: Sequence[Mapping[float, NDArray[np.bool_]]], risk: float, confidence_level: float
) -> float | None:
    """Find the lowest threshold at which few predicted entities are wrong.

    Over new documents with such entities, the expected share of a document's entities that are
    wrong is at most `risk`, with this confidence over the documents to calibrate on. This share can
    rise with the threshold, so each one of a grid is tested (learn then test, with Bonferroni's
    correction).

    Args:
        documents: For each, whether its predicted entities are correct, by the threshold of GRID at
            which they are predicted.

    Returns:
        A threshold of GRID; None if none is safe.

    Source: Angelopoulos et al. (2021), "Learn then Test".
    """
    for threshold in GRID:
        kept = [correct[threshold] for correct in documents]
        wrong = [1 - float(each.mean()) for each in kept if len(each)]
        if wrong:
            p_value = hoeffding_bentkus(float(np.mean(wrong)), len(wrong), risk)
            if p_value <= (1 - confidence_level) / len(GRID):
                return threshold
    return None


def coverage_threshold(probabilities: NDArray[np.float64], risk: float) -> float | None:
    """Find the highest threshold that few gold labelings are below.

    The gold labeling of a new document is below it with a probability of at most `risk`.

    Args:
        probabilities: (n,), the probabilities of the gold labelings of n documents.

    Returns:
        The threshold; None if there are too few documents.

    Source: Vovk et al. (2005), "Algorithmic Learning in a Random World": split conformal
    prediction.
    """
    k = math.floor(round((len(probabilities) + 1) * risk, 9))
    return float(np.sort(probabilities)[k - 1]) if k else None


def hoeffding_bentkus(mean: float, n: int, risk: float) -> float:
    """Compute a p-value for the hypothesis that the expected loss is over `risk`.

    Args:
        mean: The mean of n independent losses, each 0 to 1.

    Source: Bates et al. (2021), proposition 6: the smaller one of Hoeffding's and Bentkus' bounds.
    """
    a = min(mean, risk)
    divergence = (a * math.log(a / risk) if a else 0.0) + (
        (1 - a) * math.log((1 - a) / (1 - risk)) if a < 1 else 0.0
    )
    bentkus = 1.0 + _log_binomial_cdf(math.ceil(round(n * mean, 9)), n, risk)
    return math.exp(min(-n * divergence, bentkus, 0.0))


def _log_binomial_cdf(k: int, n: int, p: float) -> float:
    """Compute log P(X <= k) for a binomial X of n draws."""
    i = np.arange(1, min(k, n) + 1)
    log_choose = np.append(0.0, np.log((n - i + 1) / i).cumsum())
    drawn = np.arange(len(log_choose))
    terms = log_choose + drawn * math.log(p) + (n - drawn) * math.log1p(-p)
    return float(np.logaddexp.reduce(terms))
