"""Calibration: whether of the entities given a confidence of 0.8, eight in ten are right."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from ..pipeline.lookup import require_recognizer

BINS = 15


class Judged(NamedTuple):
    """Predicted entities that are known to be right or wrong: E of them.

    confidences: (E,).
    correct: (E,), whether the gold entities have one of this span and label.
    left_out: How many more were predicted where the gold annotation is missing.
    gold: How many gold entities there are.
    """

    confidences: NDArray[np.float64]
    correct: NDArray[np.bool_]
    left_out: int
    gold: int


def calibrate(
    nlp: Language, examples: Iterable[Example], name: Optional[str] = None
) -> Dict[str, Any]:
    """Fit the temperature of a `crf_ner` component to examples, and say what it changes.

    The components before it run on copies of the predicted docs, and nothing is set on those.

    examples: Not those of the training.
    name: The component in the pipeline; None for the only one.

    Returns the "temperature", and the `reliability` "before" and "after".
    Raises ValueError where there is no such component, several and no name, where the component
    gives no confidence, and where no example has annotation.
    """
    name = require_recognizer(nlp, name)
    pipe: Any = nlp.get_pipe(name)
    if not pipe.confidence:
        raise ValueError(
            f"[{name}] confidence: expected true, got false. Without it no entity has a "
            "confidence to calibrate: change the setting."
        )
    names = nlp.pipe_names
    pairs = ((eg.predicted.copy(), eg.reference) for eg in examples)
    with nlp.select_pipes(disable=names[names.index(name) :]):
        read = [Example(doc, gold) for doc, gold in nlp.pipe(pairs, as_tuples=True)]

    def measure() -> Dict[str, Any]:
        docs = pipe.pipe(eg.predicted.copy() for eg in read)
        return reliability(Example(doc, eg.reference) for doc, eg in zip(docs, read))

    before = measure()
    temperature = pipe.fit_temperature(read)
    # What is saved as the config of the pipeline says so too.
    nlp.get_pipe_config(name)["temperature"] = temperature
    return {"temperature": temperature, "before": before, "after": measure()}


def reliability(examples: Iterable[Example]) -> Dict[str, Any]:
    """Compare the confidences of predicted entities with how often they are right.

    examples: Their `predicted` docs are annotated by a component that sets `ent._.confidence`;
        entities without one are not its own, and do not count.

    Returns:
        "entities": How many count, E.
        "left_out": How many more there are with tokens that lack gold annotation.
        "ece": Expected calibration error, in 15 bins of equal width: the sum over bins of
            their share of E times |mean confidence - share correct|; None of no entities.
            Source: Guo et al. (2017), ICML, equation 3.
        "brier": The mean of (confidence - correct)^2; None of no entities.
        "bins": Of each bin, in order, its "count", mean "confidence" and share "correct", None
            where it is empty. The first ends at 1/15, which belongs to it.

    """
    judged = _judge(examples)
    p, correct = judged.confidences, judged.correct
    bin_of = (np.ceil(p * BINS).astype(np.int64) - 1).clip(0, BINS - 1)
    bins = [_bin(p[bin_of == i], correct[bin_of == i]) for i in range(BINS)]
    gaps = [b["count"] * abs(b["confidence"] - b["correct"]) for b in bins if b["count"]]
    return {
        "entities": len(p),
        "left_out": judged.left_out,
        "ece": sum(gaps) / len(p) if len(p) else None,
        "brier": _mean((p - correct) ** 2),
        "bins": bins,
    }


def precision_at(examples: Iterable[Example], thresholds: Sequence[float]) -> List[Dict[str, Any]]:
    """Compute what is left of precision and recall where only confident entities are kept.

    examples: As for `reliability`.
    thresholds: The least confidence that is kept.

    Returns for each "threshold": "entities", how many of those that count are kept; "precision",
    the share of them that is right; "recall", the share of the gold entities that is among them;
    None where it is a share of nothing.
    """
    judged = _judge(examples)
    rows = []
    for threshold in thresholds:
        kept = judged.correct[judged.confidences >= threshold]
        rows.append(
            {
                "threshold": threshold,
                "entities": len(kept),
                "precision": _mean(kept),
                "recall": int(kept.sum()) / judged.gold if judged.gold else None,
            }
        )
    return rows


def _judge(examples: Iterable[Example]) -> Judged:
    confidences, correct = [], []
    left_out = gold = 0
    for eg in examples:
        aligned, tags = eg.get_aligned_ents_and_ner()
        known = {(ent.start, ent.end, ent.label_) for ent in aligned}
        gold += len(eg.reference.ents)
        for ent in eg.predicted.ents:
            if ent._.confidence is None:
                continue
            if None in tags[ent.start : ent.end]:
                left_out += 1
                continue
            confidences.append(ent._.confidence)
            correct.append((ent.start, ent.end, ent.label_) in known)
    return Judged(np.array(confidences, dtype=float), np.array(correct, dtype=bool), left_out, gold)


def _bin(confidences: NDArray[np.float64], correct: NDArray[np.bool_]) -> Dict[str, Any]:
    return {"count": len(correct), "confidence": _mean(confidences), "correct": _mean(correct)}


def _mean(values: NDArray[Any]) -> Optional[float]:
    return float(values.mean()) if len(values) else None
