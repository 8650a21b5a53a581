"""Temperature scaling: the temperature that maximizes the likelihood of gold tags."""

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..ml.potentials import Potentials, nll
from ..tags import Constraints

Batch = tuple[Potentials, NDArray[np.int64], NDArray[np.bool_] | None]

LOWEST, HIGHEST = 0.05, 20.0


def fit_temperature(batches: Sequence[Batch], constraints: Constraints, name: str) -> float | None:
    """Find the temperature with the lowest loss, 0.05 to 20. Source: Guo et al. (2017), ICML.

    It is None at an end of this range, as for docs in which the model makes no mistake: nothing is
    known about the temperature for others.

    batches: Potentials, gold tags and hidden tags of docs, as `nll` takes them.
    constraints: The legal tag sequences.
    name: The name of the component, for messages.
    """

    def total(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        return float(sum(nll(*batch, constraints, temperature).sum() for batch in batches))

    low, high = math.log(LOWEST), math.log(HIGHEST)
    found = _minimize(total, low, high)
    if min(found - low, high - found) < 1e-3:
        warnings.warn(
            f"[{name}] expected a best temperature between {LOWEST} and {HIGHEST}, got one at the "
            "end of this range. It stays as it was. There are too few examples, or they were used "
            "for training: calibrate on others.",
            stacklevel=3,
        )
        return None
    return math.exp(found)


def _minimize(function: Callable[[float], float], low: float, high: float) -> float:
    """Find the minimum of a function with one valley, to 1e-4, by golden-section search.

    If the valley is flat up to rounding, as for a loss near 0, this is its leftmost point.
    """
    share = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-4:
        if at_left < at_right + 1e-9:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return (low + high) / 2.0
