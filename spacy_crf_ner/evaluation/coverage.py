"""Were promises kept on annotated documents, and what do candidates cover?"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.lookup import recognizer
from .guarantees import guarantees
from .matching import DocEntities, Entity

# The thresholds of candidates that are compared.
LEVELS = (*(i / 10 for i in range(9, 0, -1)), 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 1e-4, 1e-5)


def coverage(
    nlp: Language, name: str, examples: Sequence[Example], docs: Sequence[DocEntities]
) -> dict[str, Any] | None:
    """Measure what a pipeline promises, and what its candidates cover.

    Only docs with complete gold annotation count.

    name: The `crf_ner` component that annotated the predicted docs.
    docs: The result of `collect_entities` for the examples.

    Returns plain JSON, or None if the component has neither promises nor candidates:
        "docs": The number of docs that count.
        "promises": For each kind, what `guarantees` returns, and what was "found": the mean share
            over docs, None if there is nothing to judge.
        "curve": For each "threshold" of candidates down to theirs, the mean "coverage" of the gold
            entities of a doc, and the number of candidates "per_entity".
    Warns if promises no longer hold, and leaves them out.
    """
    pipe = recognizer(nlp, name)
    try:
        promises = guarantees(nlp, name)
    except InputError as error:
        warnings.warn(str(error), stacklevel=2)
        promises = {}
    if not promises and pipe.spans_key is None:
        return None
    complete = [
        (eg.predicted, doc)
        for eg, doc in zip(examples, docs)
        if eg.reference.has_annotation("ENT_IOB", require_complete=True)
    ]
    covered = [_candidates(doc, gold, pipe.spans_key) for doc, gold in complete]
    found: dict[str, float | None] = {
        "recall": _mean([np.mean(p > 0) for p, _ in covered if len(p)]),
        "precision": _mean([np.mean(gold.correct()) for _, gold in complete if gold.predicted]),
    }
    if "analyses" in promises:
        bare = [doc.copy() for doc, _ in complete]
        for doc in bare:
            doc.set_ents([], default="missing")
        sets = pipe.analysis_sets(bare)
        found["analyses"] = _mean(
            [
                any(_entities(each.ents) == set(gold.gold) for each in of_doc)
                for of_doc, (_, gold) in zip(sets, complete)
            ]
        )
    entities = sum(len(p) for p, _ in covered)
    scores = np.concatenate([np.zeros(0), *(scores for _, scores in covered)])
    lowest = min([pipe.candidate_threshold, *pipe.candidate_thresholds.values()])
    curve = [
        {
            "threshold": level,
            # Scores are in float32.
            "coverage": _mean([np.mean(p >= level * (1 - 1e-6)) for p, _ in covered if len(p)]),
            "per_entity": float((scores >= level * (1 - 1e-6)).sum() / entities),
        }
        for level in sorted({*(x for x in LEVELS if x > lowest), lowest}, reverse=True)
        if pipe.spans_key is not None and entities
    ]
    return {
        "docs": len(complete),
        "promises": {kind: {**promise, "found": found[kind]} for kind, promise in promises.items()},
        "curve": curve,
    }


def _candidates(doc: Doc, gold: DocEntities, key: str | None) -> tuple[Any, Any]:
    """Return the scores of gold entities, 0.0 if they are no candidates, and of all candidates."""
    group = doc.spans[key] if key is not None and key in doc.spans else ()
    scores = np.array(group.attrs["scores"] if group else [], dtype=np.float64)
    of_span = {
        Entity(span.start_char, span.end_char, span.label_): p for span, p in zip(group, scores)
    }
    return np.array([of_span.get(ent, 0.0) for ent in gold.gold]), scores


def _entities(spans: Sequence[Span]) -> set[Entity]:
    return {Entity(span.start_char, span.end_char, span.label_) for span in spans}


def _mean(values: Sequence[Any]) -> float | None:
    return float(np.mean(values)) if values else None
