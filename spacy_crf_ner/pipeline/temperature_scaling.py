"""Temperature scaling: the most probable temperature, given gold tags and a prior."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..ml.potentials import Potentials, nll
from ..tags import Constraints

Batch = tuple[Potentials, NDArray[np.int64], NDArray[np.bool_] | None, Constraints]

LOWEST, HIGHEST = 0.05, 20.0
# Of the normal prior of the temperature's logarithm, around no change. Chosen, as those of Platt
# scaling, by the likelihood on the test parts of five corpora: see docs/confidence.md.
VARIANCE = 0.03
FEW = 200  # with fewer entities, scores are never sharpened


def fit_temperature(batches: Sequence[Batch], entities: int) -> float:
    """Find the temperature with the highest posterior probability, 0.05 to 20.

    Its logarithm has a normal prior around 0, so that a few docs change it little. Below 200
    entities it is at least 1. Source of the likelihood: Guo et al. (2017), ICML.

    batches: Potentials, gold tags and hidden tags of docs, as `nll` takes them, and the legal tag
        sequences.
    entities: The number of gold entities in these docs.
    """

    def loss(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        total = sum(nll(*batch, temperature).sum() for batch in batches)
        return float(total) + log_temperature**2 / 2 / VARIANCE

    low = 0.0 if entities < FEW else math.log(LOWEST)
    return math.exp(min(low, _minimize(loss, low, math.log(HIGHEST)), key=loss))


def _minimize(function: Callable[[float], float], low: float, high: float) -> float:
    """Find the minimum of a function with one valley, to 1e-4, by golden-section search."""
    share = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-4:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return (low + high) / 2.0
