"""Platt scaling: the log odds of a span, stretched and shifted, to match how often it is an entity.

A temperature is fitted to the likelihood of whole tag sequences, and this to single spans, which
confidences are about. Source: Platt (1999), "Probabilistic outputs for support vector machines".
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..extras import required

FEW = 200  # with fewer entities, scores are never sharpened
HIGHEST = 1 - 1e-6  # a posterior of 1.0 is a rounded one
# Of the normal prior of slope and intercept, around no change.
VARIANCE = 0.3
# Both parameters of the beta prior of the share of sure entities that are right.
LAPSES = 0.1


class PlattScaling(NamedTuple):
    """From the posterior probabilities of spans to calibrated ones, in the same order.

    Attributes:
        slope: Multiplies the log odds, above 0.
        intercept: Is added to them.
        ceiling: Multiplies the probability that results, up to 1.
    """

    slope: float = 1.0
    intercept: float = 0.0
    ceiling: float = 1.0

    def apply(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrate probabilities; 0.0 remains."""
        if self == UNCHANGED:
            return p
        z = self.slope * _log_odds(np.minimum(p, HIGHEST)) + self.intercept
        return self.ceiling * _sigmoid(z)

    def invert(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Find the lowest posterior probabilities of calibrated ones."""
        if self == UNCHANGED:
            return p
        z = _log_odds(np.minimum(p / self.ceiling, 1.0))
        return np.minimum(_sigmoid((z - self.intercept) / self.slope), HIGHEST)


UNCHANGED = PlattScaling()


def most_probable_scaling(
    p: NDArray[np.float64], correct: NDArray[np.float64], entities: int, name: str
) -> PlattScaling:
    """Find the most probable slope and intercept, given whether spans are entities, and a ceiling.

    A normal prior keeps a few spans from changing much. Below 200 entities, the slope is at most 1.
    The ceiling depends on the number of entities alone: even if the model was sure of all of them,
    and right, some others will be wrong. It is the expected share of right ones after that.

    Warns if spans with a higher posterior are less often entities; then only the ceiling is fitted.

    Args:
        p: Posterior probabilities of S spans (S,), above 0.
        correct: (S,), 0 or 1.
        entities: The number of gold entities in their docs.
        name: The name of the component, for messages.
    """
    z = _log_odds(np.minimum(p, HIGHEST))
    ceiling = 1 - LAPSES / (entities + 2 * LAPSES)
    slope, intercept = _most_probable(z, correct)
    if entities < FEW:
        slope = min(slope, 1.0)
    if slope <= 0:
        warnings.warn(
            f"[{name}] expected spans with a higher posterior to be entities more often, got the "
            "opposite. Platt scaling changes nothing: calibrate on more examples.",
            stacklevel=3,
        )
        slope, intercept = 1.0, 0.0
    return PlattScaling(slope, intercept, ceiling)


def _most_probable(z: NDArray[np.float64], correct: NDArray[np.float64]) -> tuple[float, float]:
    """Find slope and intercept of log odds."""
    with required("calibrate"):
        from scipy.optimize import minimize
    X = np.stack([z, np.ones(len(z))], 1)
    prior = np.array([1.0, 0.0])

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        z, change = X @ w, w - prior
        likelihood = (correct * z - np.logaddexp(0.0, z)).sum()
        gradient = X.T @ (_sigmoid(z) - correct) + change / VARIANCE
        return change @ change / 2 / VARIANCE - likelihood, gradient

    slope, intercept = minimize(loss, prior, jac=True, method="BFGS", options={"gtol": 1e-8}).x
    return float(slope), float(intercept)


def _log_odds(p: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        odds: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return odds


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    p: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -z))
    return p
