"""The recall of entities that overlap others, and what the levels of a component make impossible.

Axes: L labels, 5 counts: gold and found entities that overlap no other gold entity; gold and found
ones that do; and those nested too deep.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..pipeline.interval_scheduling import nesting_levels
from .matching import DocEntities, overlaps


def nesting(docs: Sequence[DocEntities], labels: Sequence[str], max_nesting: int) -> dict[str, Any]:
    """Compute the recall of gold entities that overlap another gold entity, and of the others.

    "flat" entities overlap no other one; "overlapping" ones are inside, around or crossing one.
    "lost" ones are nested in more levels of their label than the component has (max_nesting), and
    the "ceiling" is the recall if all others are found. A recall is None without gold entities.
    """
    row_of = {label: i for i, label in enumerate(labels)}
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
        "micro": _row(total),
        "per_type": {label: _row(row) for label, row in zip(labels, counts.tolist())},
    }


def _row(counts: Sequence[int]) -> dict[str, Any]:
    *pairs, lost = counts[:2], counts[2:4], counts[4]
    recalls = [{"gold": gold, "recall": found / gold if gold else None} for gold, found in pairs]
    return {"flat": recalls[0], "overlapping": recalls[1], "lost": lost}
