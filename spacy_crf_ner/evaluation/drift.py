"""Are new documents like those that a guarantee was fitted to?"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ..pipeline.network import computed_once

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

SAMPLE = 500  # documents that are compared: with many, any difference is significant
BATCH = 64
SIGNIFICANT = 0.01  # of all tests together
EQUAL = 1e-4  # values that differ by less are equal: batches, saving and rounding change them


class Difference(NamedTuple):
    """The two-sample Kolmogorov-Smirnov test for a statistic of documents.

    Attributes:
        before: Its median on the documents to calibrate on.
        now: Its median on new documents.
        distance: The largest difference between the two distribution functions, 0 to 1.
        p: The probability of such a distance if both were of one source.
    """

    statistic: str
    before: float
    now: float
    distance: float
    p: float


def describe(pipe: "CRFEntityRecognizer", docs: Iterable[Doc]) -> dict[str, list[float]]:
    """Compute statistics of a random sample of docs that the earlier components have processed.

    Returns, with a value for each doc that has it: its "tokens"; the "surprise", minus the log
    probability of its best labeling, per token; and the "confidence", the mean of its entities.
    """
    filled = [doc for doc in docs if len(doc)]
    sample = random.Random(0).sample(filled, min(SAMPLE, len(filled)))
    found: dict[str, list[float]] = {"tokens": [], "surprise": [], "confidence": []}
    for i in range(0, len(sample), BATCH):
        batch = sample[i : i + BATCH]
        with computed_once(pipe):
            best = [first for (first,) in pipe.nbest(batch, 1)]
            known = [[ent for ent in each.ents if ent.label_ in pipe.labels] for each in best]
            confidences = pipe.span_posteriors_of(batch, known)
        found["tokens"] += [float(len(doc)) for doc in batch]
        found["surprise"] += [-each.log_probability / len(doc) for doc, each in zip(batch, best)]
        found["confidence"] += [sum(of_doc) / len(of_doc) for of_doc in confidences if of_doc]
    return found


def compare(
    before: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]
) -> list[Difference]:
    """Test for each statistic whether two samples are of one source.

    Args:
        before: The result of `describe` for the documents to calibrate on.
        now: The result of `describe` for new documents; statistics that either lacks are left out.
    """
    rows = []
    for name in before:
        x, y = np.array(before[name]), np.array(now[name])
        if len(x) and len(y):
            nearest = x[np.abs(x - y[:, None]).argmin(axis=1)]
            y = np.where(np.abs(y - nearest) < EQUAL, nearest, y)
            medians = float(np.median(x)), float(np.median(y))
            rows.append(Difference(name, *medians, *kolmogorov_smirnov(x, y)))
    return rows


def different(rows: Sequence[Difference]) -> list[str]:
    """Return the statistics that differ: all tests together err once in a hundred times.

    By Bonferroni's correction.
    """
    return [row.statistic for row in rows if row.p < SIGNIFICANT / len(rows)]


def kolmogorov_smirnov(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Compute the distance of two samples, and its asymptotic p-value.

    Source: Press et al. (2007), "Numerical Recipes", section 14.3.3.
    """
    at = np.concatenate([x, y])
    shares = [np.searchsorted(np.sort(each), at, side="right") / len(each) for each in (x, y)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    root = math.sqrt(len(x) * len(y) / (len(x) + len(y)))
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series below does not converge
        return distance, 1.0
    k = np.arange(1, 101)
    series = 2 * ((-1.0) ** (k - 1) * np.exp(-2 * (k * scaled) ** 2)).sum()
    return distance, float(min(max(series, 0.0), 1.0))
