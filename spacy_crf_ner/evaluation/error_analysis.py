"""Error analysis: confusion of labels, and each error in its context."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc

from ..pipeline.lookup import recognizer, sets_entities_alone
from ..pipeline.network import BATCH_SIZE
from .matching import DocEntities, Entity, Match, span_probabilities, without_entities

KINDS = ("wrong type", "wrong boundary", "wrong type and boundary", "missed", "spurious")
CONTEXT = 60  # characters on either side, at most
Probabilities = dict[Entity, float]


def confusion(matches: Sequence[Sequence[Match]], labels: Sequence[str]) -> dict[str, Any]:
    """Count the matches of each doc by gold (row) and predicted label (column).

    The last row is for spurious entities, the last column for missed ones. The diagonal counts
    matches with equal labels, even if boundaries differ.
    """
    index: dict[str | None, int] = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels) + 1, len(labels) + 1), dtype=np.int64)
    for g, p in (match for of_doc in matches for match in of_doc):
        counts[index[g.label] if g else -1, index[p.label] if p else -1] += 1
    return {"labels": list(labels), "counts": counts.tolist()}


def errors(
    docs: Sequence[DocEntities],
    matches: Sequence[Sequence[Match]],
    probabilities: Sequence[Probabilities] | None = None,
) -> dict[str, Any]:
    """List the matches whose entities are not equal, and count them by kind.

    First are wrong predicted entities, by descending "confidence", then missed ones, by ascending
    "gold_probability" (from `missed_probabilities`). In both, unknown values, None, are last, and
    equal ones in document order. "beside" an error are the other entities of both sides in the
    same context.
    """
    found = []
    for i, (doc, of_doc) in enumerate(zip(docs, matches)):
        known = probabilities[i] if probabilities is not None else {}
        for g, p in of_doc:
            kind = _kind(g, p)
            if kind is not None:
                sure = {
                    "confidence": p.confidence if p else None,
                    "gold_probability": known.get(g) if g else None,
                }
                found.append({"kind": kind, **sure, "doc": i, **_context(doc, g, p)})
    return {
        "counts": {kind: sum(error["kind"] == kind for error in found) for kind in KINDS},
        "list": sorted(found, key=_rank),
    }


def missed_probabilities(
    nlp: Language, name: str, docs: Sequence[Doc], matches: Sequence[Sequence[Match]]
) -> list[Probabilities] | None:
    """Compute the probability that a `crf_ner` component gave to each entity that it missed.

    This runs the model again on each doc with a missed entity, on a copy without entities that
    keeps the features of earlier components. The docs are those of `as_left_by`. A probability is 0
    if the tokens or labels of the model do not allow the entity; there is none for a doc that the
    pipeline failed on. Returns None if other components set entities too: then the preset entities
    of this component are unknown.
    """
    if not sets_entities_alone(nlp, name):
        return None
    pipe = recognizer(nlp, name)
    missed = [
        [g for g, p in of_doc if g and p is None]
        if doc.has_annotation("ENT_IOB") or pipe.entities_key in doc.spans
        else []
        for doc, of_doc in zip(docs, matches)
    ]
    found: list[dict[Entity, float]] = []
    for start in range(0, len(docs), BATCH_SIZE):  # only these docs are copied at once
        batch = slice(start, start + BATCH_SIZE)
        pairs = zip(docs[batch], missed[batch])
        bare = [without_entities(doc) if ents else doc for doc, ents in pairs]
        found += span_probabilities(pipe, bare, missed[batch])
    return found


def _kind(g: Entity | None, p: Entity | None) -> str | None:
    if g is None or p is None:
        return "missed" if p is None else "spurious"
    differences = {"type": g.label != p.label, "boundary": g.span != p.span}
    wrong = [name for name, differs in differences.items() if differs]
    return "wrong " + " and ".join(wrong) if wrong else None


def _context(doc: DocEntities, g: Entity | None, p: Entity | None) -> dict[str, Any]:
    """Return both entities, the text around them, and the other entities in this text."""
    text = doc.text
    start = min(ent.start for ent in (g, p) if ent)
    end = max(ent.end for ent in (g, p) if ent)
    before = _last_words(text[max(0, start - CONTEXT - 1) : start])
    after = _last_words(text[end : end + CONTEXT + 1][::-1])[::-1]
    first, last = start - len(before), end + len(after)
    predicted = sorted(doc.predicted + doc.left_out, key=lambda ent: ent[:3])
    sides = {"gold": doc.gold, "predicted": predicted}
    return {
        "gold": g and _dict(g, text),
        "predicted": p and _dict(p, text),
        "before": before,
        "text": text[start:end],
        "after": after,
        "offset": start,
        "beside": {
            side: [
                _dict(ent, text)
                for ent in ents
                if ent not in (g, p) and ent.start < last and first < ent.end
            ]
            for side, ents in sides.items()
        },
    }


def _last_words(text: str) -> str:
    """Return the last CONTEXT characters of a text, without a partial word if others are left."""
    context = text[-CONTEXT:]
    if len(text) > CONTEXT and not text[0].isspace():
        _, space, rest = context.partition(" ")
        return space + rest if rest.strip() else context
    return context


def _dict(ent: Entity, text: str) -> dict[str, Any]:
    place = {"start": ent.start, "end": ent.end, "label": ent.label}
    return {**place, "text": text[ent.start : ent.end]}


def _rank(error: dict[str, Any]) -> tuple[bool, float]:
    """Sort key: wrong entities before missed ones, and the most confident errors first.

    A missed entity with probability 1 - p is as confident an error as a wrong one with p.
    """
    is_missed = error["kind"] == "missed"
    p = error["gold_probability" if is_missed else "confidence"]
    certainty = float("-inf") if p is None else 1 - p if is_missed else p
    return is_missed, -certainty
