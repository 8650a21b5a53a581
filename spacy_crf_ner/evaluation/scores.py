"""Precision, recall and F1 of counts.

Axes: L labels, 3 counts (correct, predicted, gold) or 3 figures (precision, recall, F1).
"""

from typing import Any, Dict, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from .entities import Judged

NAMES = ("precision", "recall", "f1")
Floats = NDArray[np.float64]


def count(doc: Judged, labels: Sequence[str]) -> NDArray[np.int64]:
    """Count the entities of a doc by label, (L, 3): correct are those of one span and label."""
    rows = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), 3), dtype=np.int64)
    gold = {(ent.span, ent.label) for ent in doc.gold}
    for ent in doc.predicted:
        counts[rows[ent.label]] += ((ent.span, ent.label) in gold, 1, 0)
    for ent in doc.gold:
        counts[rows[ent.label], 2] += 1
    return counts


def by_label(counts: NDArray[Any]) -> Floats:
    """Compute precision, recall and F1 of counts (..., 3): (..., 3).

    A share of nothing is NaN: precision where nothing is predicted, recall where nothing is gold,
    F1 where neither is. Source: van Rijsbergen (1979), Information Retrieval, chapter 7.
    """
    correct, predicted, gold = np.moveaxis(counts, -1, 0)
    with np.errstate(invalid="ignore"):
        return np.stack(
            [correct / predicted, correct / gold, 2 * correct / (predicted + gold)], axis=-1
        )


def micro(counts: NDArray[Any]) -> Floats:
    """Compute the figures of all labels as one, of counts (..., L, 3): (..., 3)."""
    return by_label(counts.sum(-2))


def macro(counts: NDArray[Any]) -> Floats:
    """Compute the mean over the labels that are gold or predicted, of counts (..., L, 3): (..., 3).

    A share of nothing counts as 0 in the mean, as in seqeval with `zero_division=0`; with
    `zero_division=1` it would count as 1. NaN where no label is gold or predicted.
    """
    present = (counts[..., 1:] > 0).any(-1).sum(-1)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.nan_to_num(by_label(counts)).sum(-2) / present[..., None]
    return mean


def named(figures: Floats) -> Dict[str, Optional[float]]:
    """Name figures (3,); NaN is None."""
    return {name: None if np.isnan(x) else float(x) for name, x in zip(NAMES, figures)}
