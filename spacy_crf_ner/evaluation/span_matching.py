"""Four answers to the question whether a predicted entity is right."""

from typing import Any, Dict, List, Sequence

import numpy as np
from numpy.typing import NDArray

from . import scores
from .entities import Entity, Judged

# Our names and nervaluate's.
LENIENT = {"exact": "exact", "partial": "partial", "type": "ent_type"}
Figures = Dict[str, Any]


def matchings(
    docs: Sequence[Judged], labels: Sequence[str], counts: NDArray[np.int64]
) -> Dict[str, Figures]:
    """Compute precision, recall and F1 under four rules of what is right.

    counts: (L, 3), of all docs.

    Returns:
        "strict": The span and the label are right, as in the evaluation of CoNLL-2003
            (Tjong Kim Sang and De Meulder 2003, section 2.3) and in seqeval's strict mode.
        "exact": The span is right.
        "partial": It overlaps a gold entity; half a point where the span is not right.
        "type": It overlaps a gold entity of its label.
    The last three are counted by nervaluate, which matches in order of the text, and by label
    looks at entities of this label only. What is less than a hundredth of the gold entity is no
    overlap. Sources: Chinchor and Sundheim (1993), MUC-5; Segura-Bedmar et al. (2013), SemEval-2013
    task 9.1.

    Each has "micro", "macro" (the mean over labels) and "per_type", by label; each of these
    "precision", "recall" and "f1", None where it is a share of nothing, the number of entities
    that are "gold" and "predicted", and "correct", the points.
    Raises ValueError where nervaluate is not installed.

    """
    found = _nervaluate(docs, labels)
    figures = {"strict": _figures(counts.sum(0), counts, labels)}
    for name, theirs in LENIENT.items():
        micro = _points(found["overall"][theirs])
        per_type = [_points(found["entities"][label][theirs]) for label in labels]
        figures[name] = _figures(micro, np.array(per_type).reshape(-1, 3), labels)
    return figures


def require_nervaluate() -> Any:
    """Import nervaluate; raises ValueError where it is not installed."""
    try:
        import nervaluate
    except ImportError as error:
        raise ValueError(
            "expected nervaluate, for the lenient figures, got no such package. Install it: "
            'pip install "spacy-crf-ner[report]".'
        ) from error
    return nervaluate


def _figures(micro: NDArray[Any], counts: NDArray[Any], labels: Sequence[str]) -> Figures:
    return {
        "micro": _row(scores.by_label(micro), micro),
        "macro": _row(scores.macro(counts), micro),
        "per_type": {label: _row(scores.by_label(row), row) for label, row in zip(labels, counts)},
    }


def _row(figures: scores.Floats, counts: NDArray[Any]) -> Figures:
    correct, predicted, gold = counts.tolist()
    entities = {"gold": int(gold), "predicted": int(predicted), "correct": float(correct)}
    return {**scores.named(figures), **entities}


def _points(result: Any) -> NDArray[np.float64]:
    """Points, predicted and gold, which nervaluate calls actual and possible."""
    return np.array([result.correct + 0.5 * result.partial, result.actual, result.possible])


def _nervaluate(docs: Sequence[Judged], labels: Sequence[str]) -> Dict[str, Any]:
    # Docs without entities take time and change nothing; but it wants at least one.
    kept = [doc for doc in docs if doc.gold or doc.predicted] or [Judged("", [], [], 0)]
    gold, predicted = ([_dicts(ents) for ents in of_docs] for of_docs in (
        [doc.gold for doc in kept], [doc.predicted for doc in kept]
    ))  # fmt: skip
    evaluator = require_nervaluate().Evaluator(gold, predicted, list(labels), loader="dict")
    found: Dict[str, Any] = evaluator.evaluate()
    return found


def _dicts(ents: Sequence[Entity]) -> List[Dict[str, Any]]:
    # Its spans include their last character.
    return [{"label": ent.label, "start": ent.start, "end": ent.end - 1} for ent in ents]
