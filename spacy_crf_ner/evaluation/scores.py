"""Precision, recall and F1 of entities, under four matching rules; the recall of nested ones.

Axes: D docs, L labels, 3 counts (correct, predicted, gold) or 3 scores (precision, recall, F1).
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extras import required
from ..pipeline.interval_scheduling import nesting_levels
from .matching import DocEntities, Entity, overlaps

NAMES = ("precision", "recall", "f1")
NERVALUATE_NAMES = {"strict": "strict", "exact": "exact", "partial": "partial", "type": "ent_type"}
Floats = NDArray[np.float64]


def count_entities(docs: Sequence[DocEntities], labels: Sequence[str]) -> NDArray[np.int64]:
    """Count the entities of each doc by label, (D, L, 3); correct: the same span and label."""
    column = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(docs), len(labels), 3), dtype=np.int64)
    for doc, row in zip(docs, counts):
        for ent, correct in zip(doc.predicted, doc.correct()):
            row[column[ent.label]] += (correct, 1, 0)
        for ent in doc.gold:
            row[column[ent.label], 2] += 1
    return counts


def by_label(counts: NDArray[Any]) -> Floats:
    """Compute precision, recall and F1 of counts (..., 3): (..., 3).

    Zero denominators give NaN: precision without predicted, recall without gold entities, F1
    without either. Source: van Rijsbergen (1979), Information Retrieval, chapter 7.
    """
    correct, predicted, gold = np.moveaxis(counts, -1, 0)
    with np.errstate(invalid="ignore"):
        return np.stack(
            [correct / predicted, correct / gold, 2 * correct / (predicted + gold)], axis=-1
        )


def micro(counts: NDArray[Any]) -> Floats:
    """Compute the scores over all labels from counts (..., L, 3): (..., 3)."""
    return by_label(counts.sum(-2))


def macro(counts: NDArray[Any]) -> Floats:
    """Compute the mean over labels that are gold or predicted, from counts (..., L, 3): (..., 3).

    An undefined score counts as 0 in the mean, as in seqeval with `zero_division=0`. The result is
    NaN if no label is gold or predicted.
    """
    present = (counts[..., 1:] > 0).any(-1).sum(-1)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.nan_to_num(by_label(counts)).sum(-2) / present[..., None]
    return mean


def mean(values: Sequence[Any] | NDArray[Any]) -> float | None:
    """Return the mean of numbers; None if there are none."""
    return float(np.mean(values)) if len(values) else None


def score_matchings(docs: Sequence[DocEntities], labels: Sequence[str]) -> dict[str, Any]:
    """Compute precision, recall and F1 under four matching rules, with nervaluate.

    nervaluate matches in text order; for a label, only entities of this label. It ignores overlaps
    of less than a hundredth of the gold entity.

    - "strict": The span and the label are correct, as in the evaluation of CoNLL-2003 (Tjong
        Kim Sang and De Meulder 2003, section 2.3) and in seqeval's strict mode.
    - "exact": The span is correct.
    - "partial": It overlaps a gold entity; half a point if the span is not correct.
    - "type": It overlaps a gold entity of its label.

    Each has "micro", "macro" (the mean over labels) and "per_type", by label. Scores are None if
    undefined; "correct" is the sum of the points.

    Sources: Chinchor and Sundheim (1993), MUC-5; Segura-Bedmar et al. (2013), SemEval-2013 task
    9.1.
    """
    # Docs without entities do not change the scores, but nervaluate expects at least one doc.
    kept = [doc for doc in docs if doc.gold or doc.predicted] or [DocEntities("", [], [], [])]
    gold, predicted = [_dicts(doc.gold) for doc in kept], [_dicts(doc.predicted) for doc in kept]
    with required("report"):
        import nervaluate
    evaluator = nervaluate.Evaluator(gold, predicted, list(labels), loader="dict")
    results: dict[str, Any] = evaluator.evaluate()
    return {
        name: _scores(
            _points(results["overall"][theirs]),
            [_points(results["entities"][label][theirs]) for label in labels],
            labels,
        )
        for name, theirs in NERVALUATE_NAMES.items()
    }


def score_strictly(counts: NDArray[np.int64], labels: Sequence[str]) -> dict[str, Any]:
    """Compute the "strict" scores of entities that may overlap, from their counts (D, L, 3).

    The other rules of `score_matchings` are not defined for them: a predicted entity takes the
    first gold one that it overlaps, so that the order of the entities changes the scores.
    """
    rows = counts.sum(0).astype(np.float64)
    return {"strict": _scores(rows.sum(0), rows, labels)}


def nesting(docs: Sequence[DocEntities], labels: Sequence[str], max_nesting: int) -> dict[str, Any]:
    """Compute the recall of gold entities that overlap another gold entity, and of the others.

    "flat" entities overlap no other one; "overlapping" ones are inside, around or crossing one.
    "lost" ones are nested in more levels of their label than the component has (max_nesting), and
    the "ceiling" is the recall if all others are found. A recall is None without gold entities.
    """
    row_of = {label: i for i, label in enumerate(labels)}
    # Gold and found entities that are flat, those that overlap others, and the lost ones.
    counts = np.zeros((len(labels), 5), dtype=np.int64)
    for doc in docs:
        predicted = {(ent.span, ent.label) for ent in doc.predicted}
        overlapping = {g for g, other in overlaps(doc.gold, doc.gold) if g != other}
        spans = defaultdict[str, list[tuple[int, int]]](list)
        for ent in doc.gold:
            spans[ent.label].append(ent.span)
            first = 2 if ent in overlapping else 0
            is_found = (ent.span, ent.label) in predicted
            counts[row_of[ent.label], first : first + 2] += (1, is_found)
        for label, of_label in spans.items():
            counts[row_of[label], 4] += sum(k >= max_nesting for k in nesting_levels(of_label))
    total = counts.sum(0).tolist()
    gold = total[0] + total[2]
    return {
        "max_nesting": max_nesting,
        "ceiling": 1 - total[4] / gold if gold else None,
        "micro": _recalls(total),
        "per_type": {label: _recalls(row) for label, row in zip(labels, counts.tolist())},
    }


def _recalls(counts: Sequence[int]) -> dict[str, Any]:
    *pairs, lost = counts[:2], counts[2:4], counts[4]
    recalls = [{"gold": gold, "recall": found / gold if gold else None} for gold, found in pairs]
    return {"flat": recalls[0], "overlapping": recalls[1], "lost": lost}


def _dicts(ents: Sequence[Entity]) -> list[dict[str, Any]]:
    # nervaluate's spans include their last character.
    return [{"label": ent.label, "start": ent.start, "end": ent.end - 1} for ent in ents]


def _points(result: Any) -> Floats:
    """Return points, predicted and gold, which nervaluate calls actual and possible."""
    return np.array([result.correct + 0.5 * result.partial, result.actual, result.possible])


def _scores(total: Floats, rows: Sequence[Floats], labels: Sequence[str]) -> dict[str, Any]:
    return {
        "micro": _row(by_label(total), total),
        "macro": _row(macro(np.array(rows).reshape(-1, 3)), total),
        "per_type": {label: _row(by_label(row), row) for label, row in zip(labels, rows)},
    }


def _row(scores: Floats, counts: Floats) -> dict[str, float | None]:
    correct, predicted, gold = counts.tolist()
    named = {name: None if np.isnan(x) else float(x) for name, x in zip(NAMES, scores)}
    return {**named, "gold": int(gold), "predicted": int(predicted), "correct": float(correct)}
