"""Evaluation: figures of how a pipeline's entities differ from the gold ones, as a plain dict."""

from typing import Any, Dict, Iterable, List, Optional, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from ..pipeline.lookup import find_recognizer
from . import introspection as insight
from .bootstrap import RESAMPLES, intervals, paired
from .calibration import precision_at, reliability
from .entities import Judged, judge
from .error_analysis import confusion, errors, missed, pair
from .scores import count
from .span_matching import matchings, require_nervaluate
from .training_log import read_training_log

__all__ = ["compare", "evaluate", "read_training_log", "require_gold", "require_nervaluate"]

THRESHOLDS = (*(i / 20 for i in range(20)), 0.99)
Figures = Dict[str, Any]


def evaluate(
    examples: Iterable[Example],
    *,
    model: str = "",
    data: str = "",
    nlp: Optional[Language] = None,
    component: Optional[str] = None,
    training: Optional[List[Dict[str, Any]]] = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Figures:
    """Measure predicted entities against gold ones.

    examples: Their `predicted` docs are annotated, by any component that sets `doc.ents`.
    model, data: Names, for a heading.
    nlp: The pipeline that has annotated them; with a `crf_ner` component in it there are
        transitions, and probabilities of what it missed. None for neither.
    component: The name of that component; None for the only one.
    training: What `read_training_log` returns.
    resamples: Of the bootstrap over docs.
    seed: Of the bootstrap.

    Returns plain JSON:
        "model", "data", "docs", "tokens": Names, and the size of the gold docs.
        "gold", "predicted", "left_out": Numbers of entities; those left out were predicted where
            the gold annotation is missing, and count nowhere.
        "matching": What `matchings` returns: precision, recall and F1 under four rules.
        "intervals": Of the strict ones, by `intervals`.
        "confusion": Labels against labels, missed and spurious, by `confusion`.
        "errors": The mistakes, the surest first, by `errors`.
        "reliability": What `reliability` returns, and "thresholds", what `precision_at` does; None
            where no entity has a confidence.
        "transitions": Those of the component, or None. "training": As given. "comparison": None.
    Raises ValueError for no examples, for docs that no component has annotated, where predicted and
    gold doc differ in their text, as `find_recognizer`, and where nervaluate is not installed.
    """
    examples = list(examples)
    _require_annotated(examples, nlp)
    name = find_recognizer(nlp, component) if nlp is not None else None
    docs = judge(examples)
    labels = _labels(docs)
    counts = _count(docs, labels)
    pairs = [pair(doc.gold, doc.predicted) for doc in docs]
    posteriors = None
    if nlp is not None and name is not None:
        predicted = [eg.predicted for eg in examples]
        posteriors = insight.posteriors(nlp, name, predicted, [missed(each) for each in pairs])
    sure = any(ent.confidence is not None for doc in docs for ent in doc.predicted)
    return {
        "model": model,
        "data": data,
        "docs": len(docs),
        "tokens": sum(len(eg.reference) for eg in examples),
        "gold": sum(len(doc.gold) for doc in docs),
        "predicted": sum(len(doc.predicted) for doc in docs),
        "left_out": sum(doc.left_out for doc in docs),
        "matching": matchings(docs, labels, counts.sum(0)),
        "intervals": intervals(counts, labels, resamples, seed),
        "confusion": confusion(pairs, labels),
        "errors": errors(docs, pairs, posteriors),
        "reliability": reliability(examples) if sure else None,
        "thresholds": precision_at(examples, THRESHOLDS) if sure else None,
        "transitions": insight.transitions(nlp.get_pipe(name)) if nlp and name else None,
        "training": training,
        "comparison": None,
    }


def require_gold(examples: Sequence[Example], data: str) -> None:
    """Raise ValueError where no example has a gold entity.

    data: The name of the corpus.
    """
    if not any(eg.reference.ents for eg in examples):
        raise ValueError(
            f"{data}: expected docs with gold entities, got {len(examples)} without. Name a corpus "
            "that is annotated."
        )


def compare(
    figures: Figures,
    examples: Iterable[Example],
    other: Figures,
    other_examples: Iterable[Example],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Figures:
    """Compare a model with another one on the same docs.

    figures, other: What `evaluate` returns of each.
    examples, other_examples: What it was given.

    Returns the figures with a "comparison": the "model", its figures as "other", the "difference"
    (what `paired` returns), the name of the "test", and its "resamples".
    Raises ValueError where the docs of the two are not the same.
    """
    docs, others = judge(examples), judge(other_examples)
    if [(doc.text, doc.gold) for doc in docs] != [(doc.text, doc.gold) for doc in others]:
        raise ValueError(
            f"expected two models on the same gold docs, got {len(docs)} and {len(others)} that "
            "differ. Evaluate both on one corpus."
        )
    labels = _labels([*docs, *others])
    difference = paired(_count(docs, labels), _count(others, labels), labels, resamples, seed)
    comparison = {
        "model": other["model"],
        "other": other,
        "difference": difference,
        "test": "paired bootstrap over docs",
        "resamples": resamples,
    }
    return {**figures, "comparison": comparison}


def _labels(docs: Sequence[Judged]) -> List[str]:
    return sorted({ent.label for doc in docs for ent in (*doc.gold, *doc.predicted)})


def _count(docs: Sequence[Judged], labels: Sequence[str]) -> NDArray[np.int64]:
    return np.stack([count(doc, labels) for doc in docs])


def _require_annotated(examples: Sequence[Example], nlp: Optional[Language]) -> None:
    if not examples:
        raise ValueError("expected examples, got none. Check that the corpus has docs.")
    docs = [eg.predicted for eg in examples if len(eg.predicted)]
    if docs and not any(doc.has_annotation("ENT_IOB") for doc in docs):
        components = f" by {nlp.pipe_names}" if nlp is not None else ""
        raise ValueError(
            f"expected docs with predicted entities, got {len(docs)}{components} without any "
            "annotation of these. Give a pipeline with a component that sets doc.ents."
        )
