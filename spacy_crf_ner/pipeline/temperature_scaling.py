"""Temperature scaling: the most probable temperature, given gold tags and a prior."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import crf
from ..extras import required

# Potentials of legal tag sequences, gold tags, and the tags that "O" may stand for.
Batch = tuple[crf.Chain, NDArray[np.int64], NDArray[np.bool_] | None]

LOWEST, HIGHEST = 0.05, 20.0
# Of the normal prior of the temperature's logarithm, around no change. Chosen, as those of Platt
# scaling, by the likelihood on the test parts of five corpora: see docs/benchmarks.md.
VARIANCE = 0.03
FEW = 200  # with fewer entities, scores are never sharpened


def most_probable_temperature(batches: Sequence[Batch], entities: int) -> float:
    """Find the temperature with the highest posterior probability, 0.05 to 20.

    Its logarithm has a normal prior around 0, so that a few docs change it little. Below 200
    entities it is at least 1. Illegal transitions are forbidden in the potentials of the batches.
    Source: Guo et al. (2017), ICML, for the likelihood.
    """

    def slope(log_temperature: float) -> float:
        """Differentiate the negative log posterior by the temperature's logarithm."""
        temperature = math.exp(log_temperature)
        slopes = (
            crf.nll_slope(chain.divided_by(temperature), gold, ambiguous)
            for chain, gold, ambiguous in batches
        )
        return log_temperature / VARIANCE - sum(slopes)

    with required("calibrate"):
        from scipy.optimize import brentq
    low, high = 0.0 if entities < FEW else math.log(LOWEST), math.log(HIGHEST)
    if slope(low) >= 0:
        return math.exp(low)
    if slope(high) <= 0:
        return HIGHEST
    return math.exp(brentq(slope, low, high, xtol=1e-6))
