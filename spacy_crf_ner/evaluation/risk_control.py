"""Thresholds that bound the errors on new documents, by those on documents to calibrate on.

New documents must be like them: drawn from the same source, in no order. Then a bound holds,
however wrong the probabilities are; with better ones, less is lost to it.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..extras import required

# Whether the predicted entities of a document are correct, by the threshold they are predicted at.
Correct = Mapping[float, NDArray[np.bool_]]

# Candidates for a threshold whose errors can fall and rise, with a test for each.
GRID = tuple(i / 20 for i in range(20))


def documents_needed(risk: float, confidence_level: float | None = None, tests: int = 1) -> int:
    """Return the number of documents, all without an error, from which a bound can be given."""
    if confidence_level is None:
        return math.ceil(round(1 / risk, 9)) - 1
    return math.ceil(math.log((1 - confidence_level) / tests) / math.log(1 - risk))


def recall_threshold(
    probabilities: Sequence[NDArray[np.float64]], risk: float, confidence_level: float | None = None
) -> float | None:
    """Find the highest threshold that few gold entities are below; None for too few documents.

    Over new documents with entities, the expected share of a document's entities below it is at
    most `risk`.

    Args:
        probabilities: Those of the gold entities of each document, at least one in each.
        confidence_level: None if this should hold on average over documents to calibrate on
            (conformal risk control); otherwise it holds with this probability over them.

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
    documents: Sequence[Correct], risk: float, confidence_level: float
) -> float | None:
    """Find the lowest threshold of GRID at which few predicted entities are wrong; None without.

    Over new documents with such entities, the expected share of a document's entities that are
    wrong is at most `risk`, with this confidence over the documents to calibrate on. This share can
    rise with the threshold, so each one of a grid is tested (learn then test, with Bonferroni's
    correction).

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
    """Find the highest threshold that few gold labelings are below; None for too few documents.

    The gold labeling of a new document is below it with a probability of at most `risk`, given
    those of n documents, (n,).

    Source: Vovk et al. (2005), "Algorithmic Learning in a Random World": split conformal
    prediction.
    """
    k = math.floor(round((len(probabilities) + 1) * risk, 9))
    return float(np.sort(probabilities)[k - 1]) if k else None


def hoeffding_bentkus(mean: float, n: int, risk: float) -> float:
    """Compute a p-value for the hypothesis that the expected loss is over `risk`.

    The mean is that of n independent losses, each 0 to 1.

    Source: Bates et al. (2021), proposition 6: the smaller one of Hoeffding's and Bentkus' bounds.
    """
    with required("calibrate"):
        from scipy.special import bdtr, rel_entr
    a = min(mean, risk)
    hoeffding = math.exp(-n * (rel_entr(a, risk) + rel_entr(1 - a, 1 - risk)))
    bentkus = math.e * bdtr(math.ceil(round(n * mean, 9)), n, risk)
    return float(min(hoeffding, bentkus, 1.0))
