"""Platt scaling: the log odds of a span, stretched and shifted, to match how often it is an entity.

A temperature is fitted to the likelihood of whole tag sequences, and this to single spans, which
confidences are about. Source: Platt (1999), "Probabilistic outputs for support vector machines".
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HIGHEST = 1 - 1e-6  # a posterior of 1.0 is a rounded one
# Of slope and intercept, around no change. A few dozen entities then change little: with a variance
# of 1, calibration on 5 docs of GMB made it worse. On hundreds of entities, there is no difference.
VARIANCE = 0.1


class PlattScaling(NamedTuple):
    """From the posterior probabilities of spans to calibrated ones, in the same order.

    slope: Multiplies the log odds, above 0. intercept: Is added to them.
    """

    slope: float = 1.0
    intercept: float = 0.0

    def apply(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrate probabilities; 0.0 remains."""
        if self == UNCHANGED:
            return p
        return _sigmoid(self.slope * _log_odds(np.minimum(p, HIGHEST)) + self.intercept)

    def invert(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Find the lowest posterior probabilities of calibrated ones."""
        if self == UNCHANGED:
            return p
        return np.minimum(_sigmoid((_log_odds(p) - self.intercept) / self.slope), HIGHEST)


UNCHANGED = PlattScaling()


def fit_platt_scaling(
    p: NDArray[np.float64], correct: NDArray[np.float64], name: str
) -> PlattScaling:
    """Fit it to whether spans are entities, by maximum likelihood with Newton's method.

    A normal prior keeps a few spans from changing much.

    p: Posterior probabilities of S spans (S,), above 0. correct: (S,), 0 or 1.
    name: The name of the component, for messages.
    """
    X = np.stack([_log_odds(np.minimum(p, HIGHEST)), np.ones(len(p))], 1)
    prior = found = np.array(UNCHANGED)

    def loss(w: NDArray[np.float64]) -> float:
        z = X @ w
        return float(
            (np.logaddexp(0.0, z) - correct * z).sum() + ((w - prior) ** 2).sum() / 2 / VARIANCE
        )

    for _ in range(100):
        q = _sigmoid(X @ found)
        gradient = X.T @ (q - correct) + (found - prior) / VARIANCE
        hessian = (X.T * (q * (1 - q))) @ X + np.eye(2) / VARIANCE
        step = np.linalg.solve(hessian, gradient)
        while loss(found - step) > loss(found) + 1e-9:  # a full step can be too long
            step /= 2
        found = found - step
        if abs(step).max() < 1e-8:
            break
    if found[0] <= 0:
        warnings.warn(
            f"[{name}] expected spans with a higher posterior to be entities more often, got the "
            "opposite. Platt scaling changes nothing: calibrate on more examples.",
            stacklevel=3,
        )
        return UNCHANGED
    return PlattScaling(*found.tolist())


def _log_odds(p: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        odds: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return odds


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    p: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -z))
    return p
