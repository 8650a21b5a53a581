"""Evaluate the entities of a pipeline against gold entities."""

from collections.abc import Iterable, Sequence
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.calibration import calibration_of
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import (
    entity_labels,
    find_entities_key,
    recognizer,
    recognizer_name_or_none,
)
from .bootstrap import RESAMPLES, confidence_intervals, paired_bootstrap
from .calibration import precision_at, reliability
from .error_analysis import confusion, errors, missed_probabilities
from .matching import DocEntities, as_left_by, collect_entities, match_entities
from .monitoring import coverage
from .scores import count_entities, nesting, score_matchings, score_strictly
from .training_log import read_training_log

__all__ = ["check_gold", "check_shared_label", "compare", "evaluate", "read_training_log"]

THRESHOLDS = (*(i / 20 for i in range(20)), 0.99)
SHOWN = 10  # labels in a message


def evaluate(
    examples: Iterable[Example],
    *,
    model: str = "",
    data: str = "",
    nlp: Language | None = None,
    component: str | None = None,
    training: list[dict[str, Any]] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure predicted entities against gold ones.

    Args:
        examples: Examples whose `predicted` docs a component that sets `doc.ents` has annotated.
        model: Name of the pipeline, for a heading, as `data` is that of the corpus.
        nlp: The pipeline that annotated them. If it has a `crf_ner` component, the result has its
            transitions, and the probabilities of the entities that it missed. If entities of the
            component overlap, they are those in `doc.spans`. None for none of that.
        component: The name of that component; None for the only one.
        training: The result of `read_training_log`.

    Returns:
        Plain JSON:
        - "model", "data", "docs", "tokens": Names, and the size of the gold docs.
        - "entities_key": The key of overlapping entities in `doc.spans`, or None.
        - "gold", "predicted", "left_out": Numbers of entities. Entities predicted where gold
            annotation is missing are left out of all scores.
        - "matching": Precision, recall and F1 under four rules, from `score_matchings`; for
            overlapping entities under the strict one alone, from `score_strictly`.
        - "nesting": The result of `nesting` for overlapping entities, or None.
        - "intervals": Intervals of the strict scores, from `confidence_intervals`.
        - "confusion": Gold against predicted labels, missed and spurious, from `confusion`.
        - "errors": The mistakes, the most confident first, from `errors`.
        - "calibration": How the confidences are calibrated, in words; None without the component.
        - "reliability", "thresholds": The results of `reliability` and `precision_at`; None if no
            entity has a confidence.
        - "coverage": The result of `coverage`; None without candidates and guarantees, and for
            overlapping entities.
        - "transitions": Those of the component, or None. "training": As given. "comparison": None.

    Raises:
        InputError: If there are no examples, if no component has annotated the docs, if a predicted
            and a gold doc differ in their text, if the pipeline has several components or not the
            named one, and if a package of the extra `report` is not installed.
    """
    examples = list(examples)
    key = None if nlp is None else find_entities_key(nlp, component)
    _check_annotated(examples, nlp, key)
    docs = collect_entities(examples, key)
    labels = _labels(docs)
    counts = count_entities(docs, labels)
    matches = [match_entities(doc.gold, doc.predicted) for doc in docs]
    probabilities = transitions = covered = nested = calibration = None
    if nlp is not None and (name := recognizer_name_or_none(nlp, component)) is not None:
        left = as_left_by(nlp, name, examples)
        probabilities = missed_probabilities(nlp, name, [eg.predicted for eg in left], matches)
        pipe = recognizer(nlp, name)
        transitions = pipe.transitions().to_dict()
        calibration = calibration_of(pipe)
        if key is None:
            covered = coverage(nlp, name, left, docs)
        else:
            nested = nesting(docs, labels, pipe.max_nesting)
    scores = score_matchings(docs, labels) if key is None else score_strictly(counts, labels)
    has_confidence = any(ent.confidence is not None for doc in docs for ent in doc.predicted)
    return {
        "model": model,
        "data": data,
        "docs": len(docs),
        "tokens": sum(len(eg.reference) for eg in examples),
        "entities_key": key,
        "gold": sum(len(doc.gold) for doc in docs),
        "predicted": sum(len(doc.predicted) for doc in docs),
        "left_out": sum(len(doc.left_out) for doc in docs),
        "matching": scores,
        "nesting": nested,
        "intervals": confidence_intervals(counts, labels, resamples, seed),
        "confusion": confusion(matches, labels),
        "errors": errors(docs, matches, probabilities),
        "calibration": calibration,
        "reliability": reliability(docs) if has_confidence else None,
        "thresholds": precision_at(docs, THRESHOLDS) if has_confidence else None,
        "coverage": covered,
        "transitions": transitions,
        "training": training,
        "comparison": None,
    }


def check_gold(examples: Sequence[Example], data: str, key: str | None = None) -> None:
    """Raise InputError if no example has a gold entity.

    Args:
        key: The key of overlapping entities in `doc.spans`; None for those in `doc.ents`.
    """
    if not any(gold_entities(eg.reference, key) for eg in examples):
        raise InputError(
            f"{data}: expected docs with gold entities, got {len(examples)} without. Use a corpus "
            f"with annotation in doc.ents{'' if key is None else f' or doc.spans[{key!r}]'}."
        )


def check_shared_label(
    docs: Iterable[Doc], data: str, nlp: Language, component: str | None = None
) -> None:
    """Raise InputError if no label of gold entities is one that the pipeline can find.

    A corpus without entities, and a pipeline whose labels are unknown, are accepted.
    """
    key = find_entities_key(nlp, component)
    known = entity_labels(nlp, component)
    gold = {ent.label_ for doc in docs for ent in gold_entities(doc, key)}
    if gold and known is not None and gold.isdisjoint(known):
        corpus, pipeline = (
            f"{len(labels)} ({', '.join(sorted(labels)[:SHOWN])}{', ...' * (len(labels) > SHOWN)})"
            for labels in (gold, known)
        )
        raise InputError(
            f"{data}: none of its labels is one of the pipeline. The corpus has {corpus}; "
            f"the pipeline has {pipeline}. Use a corpus with the labels of the pipeline, or "
            "rename them."
        )


def compare(
    results: dict[str, Any],
    examples: Iterable[Example],
    other: dict[str, Any],
    other_examples: Iterable[Example],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Add a "comparison" with another, newer model to the results of `evaluate` for an old one.

    It has the newer "model", its results as "other", and the "difference" from `paired_bootstrap`.
    Each model has annotated its examples. Raises InputError if the gold docs of the two differ.
    """
    docs = collect_entities(examples, results["entities_key"])
    others = collect_entities(other_examples, other["entities_key"])
    if [(doc.text, doc.gold) for doc in docs] != [(doc.text, doc.gold) for doc in others]:
        raise InputError(
            f"expected two models on the same gold docs, got {len(docs)} and {len(others)} that "
            "differ. Evaluate both on one corpus."
        )
    labels = _labels([*docs, *others])
    old, new = (count_entities(each, labels) for each in (docs, others))
    comparison = {
        "model": other["model"],
        "other": other,
        "difference": paired_bootstrap(old, new, labels, resamples, seed),
        "test": "paired bootstrap over docs",
        "resamples": resamples,
    }
    return {**results, "comparison": comparison}


def _labels(docs: Sequence[DocEntities]) -> list[str]:
    return sorted({ent.label for doc in docs for ent in (*doc.gold, *doc.predicted)})


def _check_annotated(examples: Sequence[Example], nlp: Language | None, key: str | None) -> None:
    if not examples:
        raise InputError("expected examples, got none. Check that the corpus has docs.")
    docs = [eg.predicted for eg in examples if len(eg.predicted)]
    annotated = (doc.has_annotation("ENT_IOB") if key is None else key in doc.spans for doc in docs)
    if docs and not any(annotated):
        components = f" by {nlp.pipe_names}" if nlp is not None else ""
        raise InputError(
            f"expected docs with predicted entities, got {len(docs)}{components} without any. "
            "Use a pipeline with a component that sets "
            f"{'doc.ents' if key is None else f'doc.spans[{key!r}]'}."
        )
