"""Which predicted entity was meant for which gold one, and in what it is wrong."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from .entities import Entity, Judged

KINDS = ("wrong type", "wrong boundary", "wrong type and boundary", "missed", "spurious")
CONTEXT = 60  # characters on either side, at most
Pair = Tuple[Optional[Entity], Optional[Entity]]
Posteriors = Dict[Tuple[int, int, str], float]


def pair(gold: Sequence[Entity], predicted: Sequence[Entity]) -> List[Pair]:
    """Pair the gold entities of a doc with the predicted ones, one to one.

    The two with the most characters in common come first, then the two of those that are left, and
    so on; of equals those of the same label, then the first in the text. An entity that overlaps
    none of those that are left is paired with None. Two that are equal are always a pair, since
    entities of one doc do not overlap each other.

    Returns the pairs (gold, predicted) in order of the text; each entity is in one of them.
    """
    ranked = sorted(_overlaps(gold, predicted), key=lambda pair: (-_common(*pair), _differ(*pair)))
    mate: Dict[Entity, Entity] = {}
    taken = set()
    for g, p in ranked:
        if g not in mate and p not in taken:
            mate[g] = p
            taken.add(p)
    pairs: List[Pair] = [(g, mate.get(g)) for g in gold]
    pairs += [(None, p) for p in predicted if p not in taken]
    return sorted(pairs, key=lambda pair: min(ent.span for ent in pair if ent))


def confusion(pairs: Sequence[Sequence[Pair]], labels: Sequence[str]) -> Dict[str, Any]:
    """Count pairs by their labels.

    Returns the "labels", and "counts": a row for each gold label, and one for spurious entities; a
    column for each predicted label, and one for missed entities. The diagonal counts the pairs
    of one label, also those whose boundaries differ. A row sums to the gold entities of its label,
    a column to the predicted ones.
    """
    index: Dict[Optional[str], int] = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels) + 1, len(labels) + 1), dtype=np.int64)
    for g, p in (both for of_doc in pairs for both in of_doc):
        counts[index[g.label] if g else -1, index[p.label] if p else -1] += 1
    return {"labels": list(labels), "counts": counts.tolist()}


def errors(
    docs: Sequence[Judged],
    pairs: Sequence[Sequence[Pair]],
    posteriors: Optional[Sequence[Posteriors]] = None,
) -> Dict[str, Any]:
    """List the pairs that are not equal.

    posteriors: Of each doc, the probability that the model gave to missed gold entities; None
        where it is not known.

    Returns the "counts" of each kind, and the "list", the surest mistakes first: wrong entities
    from the highest confidence to the lowest and to those without, then missed ones from the lowest
    probability to the highest and to those without, both else in order of the docs.
    """
    found = []
    for i, (doc, of_doc) in enumerate(zip(docs, pairs)):
        known = posteriors[i] if posteriors is not None else {}
        for g, p in of_doc:
            kind = _kind(g, p)
            if kind is not None:
                confidence = p.confidence if p else known.get((*g.span, g.label)) if g else None
                place = {"kind": kind, "confidence": confidence, "doc": i}
                found.append({**place, **_context(doc.text, g, p)})
    return {
        "counts": {kind: sum(error["kind"] == kind for error in found) for kind in KINDS},
        "list": sorted(found, key=_surest_first),
    }


def missed(pairs: Sequence[Pair]) -> List[Entity]:
    """The gold entities that are paired with none."""
    return [g for g, p in pairs if g and p is None]


def _overlaps(
    gold: Sequence[Entity], predicted: Sequence[Entity]
) -> Iterator[Tuple[Entity, Entity]]:
    """Yield those that share a character, in order; each side is in order without overlaps."""
    g = p = 0
    while g < len(gold) and p < len(predicted):
        if _common(gold[g], predicted[p]) > 0:
            yield gold[g], predicted[p]
        if gold[g].end < predicted[p].end:
            g += 1
        else:
            p += 1


def _common(g: Entity, p: Entity) -> int:
    return min(g.end, p.end) - max(g.start, p.start)


def _differ(g: Entity, p: Entity) -> bool:
    return g.label != p.label


def _kind(g: Optional[Entity], p: Optional[Entity]) -> Optional[str]:
    if g is None or p is None:
        return "missed" if p is None else "spurious"
    wrong = [name for name, a, b in (("type", g.label, p.label), ("boundary", g.span, p.span))
             if a != b]  # fmt: skip
    return "wrong " + " and ".join(wrong) if wrong else None


def _context(text: str, g: Optional[Entity], p: Optional[Entity]) -> Dict[str, Any]:
    """Both entities, and the text from the first character of either to the last."""
    start = min(ent.start for ent in (g, p) if ent)
    end = max(ent.end for ent in (g, p) if ent)
    return {
        "gold": g and _dict(g, text),
        "predicted": p and _dict(p, text),
        "before": _near(text[max(0, start - CONTEXT - 1) : start]),
        "text": text[start:end],
        "after": _near(text[end : end + CONTEXT + 1][::-1])[::-1],
        "offset": start,
    }


def _near(text: str) -> str:
    """The end of a text: so many characters at most, and no part of a longer word."""
    context = text[-CONTEXT:]
    if len(text) > CONTEXT and not text[0].isspace():
        _, space, rest = context.partition(" ")
        return space + rest if rest.strip() else context
    return context


def _dict(ent: Entity, text: str) -> Dict[str, Any]:
    return {
        "start": ent.start,
        "end": ent.end,
        "label": ent.label,
        "text": text[ent.start : ent.end],
    }


def _surest_first(error: Dict[str, Any]) -> Tuple[bool, float]:
    """That a missed entity has little probability is as sure as that a wrong one has much."""
    is_missed, p = error["kind"] == "missed", error["confidence"]
    wrong_by = float("-inf") if p is None else 1 - p if is_missed else p
    return is_missed, -wrong_by
