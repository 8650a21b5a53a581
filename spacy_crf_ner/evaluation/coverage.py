"""Were guarantees kept on annotated documents, and what do candidates cover?"""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.annotated_labels import is_complete
from ..pipeline.checks import check_own_key
from ..pipeline.lookup import recognizer, recognizer_names, sets_entities_alone
from .calibration import mean
from .guarantees import guarantees
from .matching import DocEntities, entity

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

# Scores of the gold entities of a doc, and of its candidates.
Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
# The thresholds of candidates that are compared.
LEVELS = (*(i / 10 for i in range(9, 0, -1)), 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 1e-4, 1e-5)


def coverage(
    nlp: Language, name: str, examples: Sequence[Example], docs: Sequence[DocEntities]
) -> dict[str, Any] | None:
    """Measure what a pipeline guarantees, and what its candidates cover.

    Only docs with complete gold annotation count, and no gold entities of labels that the component
    does not predict.

    Args:
        name: The `crf_ner` component that annotated the predicted docs, see `as_left_by`.
        docs: The result of `collect_entities` for the examples.

    Returns:
        Plain JSON, or None if the component has neither guarantees nor candidates:
        - "docs": The number of docs that count.
        - "guarantees": For each kind, what `guarantees` returns, and what was "found": the mean
            share over docs, or that for each label if guaranteed by label; None if there is nothing
            to judge, for set_coverage if other components set entities too, and for precision if
            one of them is a `crf_ner`.
        - "curve": For each "threshold" of candidates down to theirs, the mean "coverage" of the
            gold entities of a doc, and the number of candidates "per_entity". With thresholds by
            label, the last one is None: it stands for them.

    Warns if guarantees no longer hold, or other components have written to the candidates, and
    leaves them out.
    """
    pipe = recognizer(nlp, name)
    key = pipe.spans_key
    guaranteed = {}
    try:
        check_own_key(nlp, pipe, key)
        guaranteed = guarantees(nlp, name)
    except InputError as error:
        warnings.warn(str(error), stacklevel=2)
        if not _has_scores([eg.predicted for eg in examples], key):
            key = None
    if not guaranteed and key is None:
        return None
    labels = pipe.enabled_labels
    off = {*pipe.labels} - {*labels}
    complete = [
        (eg.predicted, doc._replace(gold=[ent for ent in doc.gold if ent.label not in off]))
        for eg, doc in zip(examples, docs)
        if is_complete(eg.reference, labels)
    ]
    covered = [_candidates(doc, gold, key) for doc, gold in complete]
    label_of = [np.array([ent.label for ent in gold.gold]) for _, gold in complete]
    found: dict[str, Any] = {"recall": mean([np.mean(p > 0) for p, _ in covered if len(p)])}
    if guaranteed.get("recall", {}).get("by_label"):
        found["recall"] = {
            label: mean(
                [
                    np.mean(p[of == label] > 0)
                    for (p, _), of in zip(covered, label_of)
                    if label in of
                ]
            )
            for label in labels
        }
    added = [
        [
            is_right
            for ent, is_right in zip(doc.predicted, doc.correct())
            if ent.confidence is not None
        ]
        for _, doc in complete
    ]
    # preset entities of another one have confidences too
    is_alone = recognizer_names(nlp) == [name]
    found["precision"] = mean([np.mean(of_doc) for of_doc in added if of_doc and is_alone])
    if "set_coverage" in guaranteed:
        found["set_coverage"] = _set_coverage_found(nlp, name, complete)
    return {
        "docs": len(complete),
        "guarantees": {kind: {**each, "found": found[kind]} for kind, each in guaranteed.items()},
        "curve": _curve(pipe, covered) if key is not None else [],
    }


def _has_scores(docs: Iterable[Doc], key: str | None) -> bool:
    """Whether the candidates of docs have scores: other components may have replaced them."""
    groups = [doc.spans[key] for doc in docs if key is not None and key in doc.spans]
    return bool(groups) and all(len(g.attrs.get("scores", ())) == len(g) for g in groups)


def _curve(pipe: "CRFEntityRecognizer", covered: Sequence[Scores]) -> list[dict[str, Any]]:
    entities = sum(len(p) for p, _ in covered)
    if not entities:
        return []
    scores = np.concatenate([scores for _, scores in covered])
    by_label = pipe.candidate_thresholds
    used = [by_label.get(label, pipe.candidate_threshold) for label in pipe.enabled_labels]
    levels = sorted({*(x for x in LEVELS if x > max(used)), max(used)}, reverse=True)
    # Scores are in float32. Below the threshold of a label, its candidates are not known.
    lowest: list[tuple[float | None, float]] = [(x, x * (1 - 1e-6)) for x in levels]
    if min(used) < max(used):
        lowest.append((None, 0.0))
    return [
        {
            "threshold": name,
            "coverage": mean([np.mean((p >= level) & (p > 0)) for p, _ in covered if len(p)]),
            "per_entity": float((scores >= level).sum() / entities),
        }
        for name, level in lowest
    ]


def _set_coverage_found(
    nlp: Language, name: str, complete: Sequence[tuple[Doc, DocEntities]]
) -> float | None:
    """Find how often the gold labeling is in the set; None if other components set entities."""
    if not sets_entities_alone(nlp, name):
        return None
    # The pipeline has failed on docs without annotation: their labeling is not found.
    bare = {i: doc.copy() for i, (doc, _) in enumerate(complete) if doc.has_annotation("ENT_IOB")}
    for doc in bare.values():
        doc.set_ents([], default="missing")
    sets = dict(zip(bare, recognizer(nlp, name).prediction_sets(bare.values())))
    return mean(
        [
            any({*map(entity, each.ents)} == {*gold.gold} for each in sets.get(i, ()))
            for i, (_, gold) in enumerate(complete)
        ]
    )


def _candidates(doc: Doc, gold: DocEntities, key: str | None) -> Scores:
    """Return the scores of gold entities, 0.0 if they are no candidates, and of all candidates."""
    group = doc.spans[key] if key is not None and key in doc.spans else ()
    scores = np.array(group.attrs["scores"] if group else [], dtype=np.float64)
    of_span = {entity(span): p for span, p in zip(group, scores)}
    return np.array([of_span.get(ent, 0.0) for ent in gold.gold]), scores
