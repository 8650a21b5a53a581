"""Bootstrap over docs: confidence intervals and significance of scores.

Axes: R resamples, D docs, L labels, 3 counts (correct, predicted, gold) or 3 scores.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extras import required
from . import scores

LEVEL = 0.95
RESAMPLES = 1000
FEW = 5  # correct or wrong entities, as in the rule of thumb for normal approximations
EQUAL = 1e-9  # scores that differ less are equal but for rounding
MAX_WEIGHTS = 2**22  # in memory at once


def resample(
    counts: NDArray[np.int64], resamples: int = RESAMPLES, seed: int = 0
) -> NDArray[np.float64]:
    """Draw D docs with replacement, R times, and sum their counts: (D, ...) to (R, ...).

    The numbers of draws of each doc are multinomial, so a resample is the product of these weights
    with the counts. The same seed draws the same docs for any counts.

    Source: Efron and Tibshirani (1993), chapter 6.
    """
    D = len(counts)
    flat = counts.reshape(D, -1).astype(np.float64)
    random = np.random.default_rng(seed)
    step = max(1, MAX_WEIGHTS // D)
    sums = [
        random.multinomial(D, np.full(D, 1 / D), size=min(step, resamples - done)) @ flat
        for done in range(0, resamples, step)
    ]
    return np.concatenate(sums).reshape(resamples, *counts.shape[1:])


def confidence_intervals(
    counts: NDArray[np.int64], labels: Sequence[str], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Compute intervals of precision, recall and F1 from counts (D, L, 3).

    An interval is [low, high], the percentiles of the resamples in which the score is defined; None
    if it is defined in none. With fewer than `FEW` correct, or wrong, entities, the bootstrap
    cannot see the ones that this sample lacks: its interval is too narrow, and a point at 0 and 1.
    Then, and if all resamples have the same score, the interval is Wilson's (see `wilson`), of the
    entities. For F1 it is the interval of correct / (gold or predicted entities), a share J, with
    its ends converted by F1 = 2 J / (1 + J). For a macro mean, the distances of the ends for each
    label are added as independent errors are (Zou and Donner 2008, Statistics in Medicine 27(10));
    an end of the bootstrap that is wider stays.
    """
    sums, total = resample(counts, resamples, seed), counts.sum(0)
    per_type = scores.by_label(sums)
    present = total[(total[:, 1:] > 0).any(-1)]
    return {
        "level": LEVEL,
        "resamples": resamples,
        "micro": _intervals(scores.micro(sums), total.sum(0, keepdims=True)),
        "macro": _intervals(scores.macro(sums), present),
        "per_type": {
            label: _intervals(per_type[:, i], total[i : i + 1]) for i, label in enumerate(labels)
        },
    }


def wilson(correct: int, number: int) -> tuple[float, float]:
    """Return Wilson's interval of a share, at `LEVEL` (Wilson 1927, JASA 22); exact at 0 and 1."""
    with required("report"):
        from scipy.stats import binomtest
    low, high = binomtest(correct, number).proportion_ci(LEVEL, method="wilson")
    return float(low), float(high)


def _intervals(columns: scores.Floats, counts: NDArray[np.int64]) -> dict[str, list[float] | None]:
    """Return the interval of each score, from its resamples (R, 3), and counts by label (L, 3)."""
    found = {name: _interval(column) for name, column in zip(scores.NAMES, columns.T)}
    correct, predicted, gold = counts.T
    for name, number in zip(scores.NAMES, (predicted, gold, predicted + gold - correct)):
        interval = found[name]
        if interval is not None and (
            np.minimum(correct, number - correct).min() < FEW or interval[1] - interval[0] < EQUAL
        ):
            low, high = _wilson_of_mean(correct, number, name == "f1")
            if len(counts) > 1:  # labels that are confused with others are not independent
                low, high = min(low, interval[0]), max(high, interval[1])
            found[name] = [low, high]
    return found


def _wilson_of_mean(correct: NDArray[np.int64], number: NDArray[np.int64], f1: bool) -> list[float]:
    """Return the interval of the mean of shares (L,), or of their F1; one of 0 entities is 0."""
    shares = np.array([(c / n, *wilson(c, n)) if n else (0, 0, 0) for c, n in zip(correct, number)])
    found, low, high = (2 * shares / (1 + shares) if f1 else shares).T
    below, above = np.hypot.reduce(found - low), np.hypot.reduce(high - found)
    mean = found.mean()
    return [max(0.0, mean - below / len(found)), min(1.0, mean + above / len(found))]


def paired_bootstrap(
    counts: NDArray[np.int64],
    others: NDArray[np.int64],
    labels: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare an old and a new model on the same docs, from counts (D, L, 3) of each.

    Each resample draws the same docs for both (Koehn 2004, EMNLP). It draws docs, not entities,
    because errors in one doc are correlated.

    Each score has its "difference" d (the second model minus the first), the percentile "interval"
    of d, and "p": the share of resamples with |d' - d| >= |d|. This is a two-sided version of the
    test of Berg-Kirkpatrick et al. (2012, EMNLP, figure 1), which counts d' > 2 d; one is added to
    both counts, so that p is never 0 (Davison and Hinkley 1997, equation 4.11). All three are None
    if the score of a model is undefined; the interval is None too if all resamples have the same d.
    """
    both = np.stack([counts, others])
    sums = np.moveaxis(resample(np.moveaxis(both, 0, 1), resamples, seed), 1, 0)
    micro = _compare(scores.micro(both.sum(1)), scores.micro(sums))
    per_type = _compare(scores.by_label(both.sum(1)), scores.by_label(sums))
    return {
        "micro": dict(zip(scores.NAMES, micro)),
        "per_type": {label: {"f1": row[2]} for label, row in zip(labels, per_type)},
    }


def _compare(found: scores.Floats, drawn: scores.Floats) -> Any:
    """Compare scores (2, ...) with those of resamples (2, R, ...); return nested lists of dicts."""
    difference, differences = found[1] - found[0], drawn[1] - drawn[0]
    if difference.ndim:
        return [_compare(found[:, i], drawn[:, :, i]) for i in range(len(difference))]
    if np.isnan(difference):
        return {"difference": None, "interval": None, "p": None}
    defined = differences[~np.isnan(differences)]
    extreme = np.abs(defined - difference) >= abs(difference)
    return {
        "difference": float(difference),
        "interval": _interval(defined) if np.ptp(defined) > EQUAL else None,
        "p": (1 + int(extreme.sum())) / (1 + len(defined)),
    }


def _interval(values: NDArray[np.float64]) -> list[float] | None:
    """Return the percentile interval of the values that are not NaN; None without any."""
    if np.isnan(values).all():
        return None
    outside = 100 * (1 - LEVEL) / 2
    return np.nanpercentile(values, [outside, 100 - outside]).tolist()  # type: ignore[no-any-return]
