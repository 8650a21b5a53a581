"""Calibration: how well the confidences of entities agree with how often they are right."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.lookup import require_recognizer
from .matching import DocEntities, collect_entities

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

BINS = 15


def calibrate(
    nlp: Language, examples: Iterable[Example], name: str | None = None
) -> dict[str, Any]:
    """Fit the temperature of a `crf_ner` component to examples, and measure what it changes.

    The components before it run on copies of the predicted docs, which stay as they are.

    examples: Held-out ones, not those of the training.
    name: The component in the pipeline; None for the only one.

    Returns the "temperature", and the `reliability` "before" and "after".
    Raises InputError where there is no such component, several and no name, where the component
    gives no confidence, where no example has annotation, and where a predicted and a gold doc
    differ in their text.
    """
    name = require_recognizer(nlp, name)
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(name))
    if not pipe.confidence:
        raise InputError(
            f"[{name}] confidence: expected true, got false. Without it no entity has a "
            "confidence to calibrate: change the setting."
        )
    names = nlp.pipe_names
    pairs = ((eg.predicted.copy(), eg.reference) for eg in examples)
    with nlp.select_pipes(disable=names[names.index(name) :]):
        read = [Example(doc, gold) for doc, gold in nlp.pipe(pairs, as_tuples=True)]
    before = _measure(pipe, read)
    temperature = pipe.fit_temperature(read)
    return {"temperature": temperature, "before": before, "after": _measure(pipe, read)}


def reliability(docs: Iterable[DocEntities]) -> dict[str, Any]:
    """Compare the confidences of predicted entities with how often they are right.

    docs: What `collect_entities` returns. Entities without a confidence come from other components
        and do not count.

    Returns:
        "entities": The number E of entities that count.
        "left_out": How many more were predicted where the gold annotation is missing.
        "ece": Expected calibration error, in 15 bins of equal width: the sum over bins of
            their share of E times |mean confidence - share correct|; None for E = 0.
            Source: Guo et al. (2017), ICML, equation 3.
        "brier": The mean of (confidence - correct)^2; None for E = 0.
        "bins": For each bin, in order, its "count", mean "confidence" and share "correct", None
            where it is empty. Bin i covers confidences over i/15 up to (i+1)/15.
    """
    docs = list(docs)
    p, correct = _confidences(docs)
    left_out = sum(ent.confidence is not None for doc in docs for ent in doc.left_out)
    bin_of = (np.ceil(p * BINS).astype(np.int64) - 1).clip(0, BINS - 1)
    inside = [bin_of == i for i in range(BINS)]
    bins: list[dict[str, Any]] = [
        {"count": int(i.sum()), "confidence": _mean(p[i]), "correct": _mean(correct[i])}
        for i in inside
    ]
    gaps = [b["count"] * abs(b["confidence"] - b["correct"]) for b in bins if b["count"]]
    return {
        "entities": len(p),
        "left_out": left_out,
        "ece": sum(gaps) / len(p) if len(p) else None,
        "brier": _mean((p - correct) ** 2),
        "bins": bins,
    }


def precision_at(
    docs: Iterable[DocEntities], thresholds: Sequence[float]
) -> list[dict[str, float | None]]:
    """Compute precision and recall of the entities whose confidence reaches a threshold.

    docs: As for `reliability`.

    Returns for each "threshold": "entities", how many reach it; "precision", the share of them that
    is right; "recall", the share of all gold entities that is among them; None for a zero
    denominator.
    """
    docs = list(docs)
    p, correct = _confidences(docs)
    gold = sum(len(doc.gold) for doc in docs)
    rows: list[dict[str, float | None]] = []
    for threshold in thresholds:
        kept = correct[p >= threshold]
        recall = int(kept.sum()) / gold if gold else None
        row = {"entities": len(kept), "precision": _mean(kept), "recall": recall}
        rows.append({"threshold": threshold, **row})
    return rows


def _measure(pipe: "CRFEntityRecognizer", examples: Sequence[Example]) -> dict[str, Any]:
    """Measure the reliability of a component on docs that the components before it have read."""
    docs = [eg.predicted.copy() for eg in examples]
    for _ in pipe.pipe(docs):  # sets their entities; with an error handler it may yield fewer docs
        pass
    annotated = (Example(doc, eg.reference) for doc, eg in zip(docs, examples))
    return reliability(collect_entities(annotated))


def _confidences(
    docs: Sequence[DocEntities],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The confidences of predicted entities, and whether each has an equal gold entity: (E,)."""
    found = [
        (ent.confidence, correct)
        for doc in docs
        for ent, correct in zip(doc.predicted, doc.correct())
        if ent.confidence is not None
    ]
    table = np.array(found, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1].astype(bool)


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
