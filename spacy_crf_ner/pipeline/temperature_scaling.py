"""Temperature scaling: the most probable temperature, given gold tags and a prior."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import crf

# Potentials of legal tag sequences, gold tags, and the tags that "O" may stand for.
Batch = tuple[crf.Chain, NDArray[np.int64], NDArray[np.bool_] | None]

LOWEST, HIGHEST = 0.05, 20.0
# Of the normal prior of the temperature's logarithm, around no change. Chosen, as those of Platt
# scaling, by the likelihood on the test parts of five corpora: see docs/confidence.md.
VARIANCE = 0.03
FEW = 200  # with fewer entities, scores are never sharpened


def most_probable_temperature(batches: Sequence[Batch], entities: int) -> float:
    """Find the temperature with the highest posterior probability, 0.05 to 20.

    Its logarithm has a normal prior around 0, so that a few docs change it little. Below 200
    entities it is at least 1. Source: Guo et al. (2017), ICML, for the likelihood.

    Args:
        batches: Potentials of docs, with illegal transitions forbidden; their gold tags, negative
            where they are missing; and the tags that the gold tag "O" may stand for.
        entities: The number of gold entities in these docs.
    """

    def slope(log_temperature: float) -> float:
        """Differentiate the negative log posterior by the temperature's logarithm."""
        temperature = math.exp(log_temperature)
        slopes = (
            crf.nll_slope(chain.divided_by(temperature), gold, ambiguous)
            for chain, gold, ambiguous in batches
        )
        return log_temperature / VARIANCE - sum(slopes)

    low = 0.0 if entities < FEW else math.log(LOWEST)
    return math.exp(_find_root(slope, low, math.log(HIGHEST)))


def _find_root(slope: Callable[[float], float], low: float, high: float) -> float:
    """Find where the slope of a function with one valley is 0, or the end of its range, to 1e-6.

    It brackets the root in growing steps from 0, and then takes secants: the Illinois method.
    """
    left, at_left = 0.0, slope(0.0)
    limit, step = (low, -0.1) if at_left > 0 else (high, 0.1)
    right, at_right = left, at_left
    while at_right * at_left > 0:
        if right == limit:
            return limit
        left, at_left = right, at_right
        right = max(low, min(right + step, high))
        at_right, step = slope(right), 3 * step
    while at_right and abs(right - left) > 1e-6:
        middle = (left * at_right - right * at_left) / (at_right - at_left)
        at_middle = slope(middle)
        if at_middle * at_right < 0:
            left, at_left = right, at_right
        else:
            at_left /= 2
        right, at_right = middle, at_middle
    return right
