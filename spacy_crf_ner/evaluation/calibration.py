"""Calibration: do the confidences of entities match their accuracy?"""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..extras import require
from ..input_error import InputError
from ..pipeline.calibration import Scored, forget_calibration, is_calibrated, score_examples
from ..pipeline.gold import count_entities
from ..pipeline.lookup import recognizer, recognizer_name, run_upstream
from ..pipeline.network import computed_once
from ..pipeline.settings import FITS
from .bootstrap import wilson
from .guarantees import SETTINGS_OF, restored_on_error
from .matching import DocEntities, annotated, collect_entities
from .scores import mean

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

BINS = 15


def calibrate(
    nlp: Language,
    examples: Iterable[Example],
    name: str | None = None,
    *,
    f_beta: float | None = None,
    docs: Iterable[Doc] | None = None,
) -> dict[str, Any]:
    """Fit temperature and Platt scaling of a `crf_ner` component; measure calibration around it.

    The components before it run on copies of the predicted docs. The pipeline remembers the texts:
    no guarantee can be fitted to them. Guarantees of the component are dropped, with a warning, as
    they were given for another calibration.

    Args:
        examples: Held-out examples, not used for training.
        name: The component in the pipeline; None for the only one.
        f_beta: If not None, also switch `decode` to "max_expected_f", and find the
            `f_score_threshold` with the best expected F-score, in which recall weighs beta times as
            much as precision.
        docs: Docs such as those to annotate, for this threshold; they need no gold, and the
            components before it must have processed them. None for the predicted docs of the
            examples. Without f_beta, they are not read.

    Returns:
        The "temperature", "platt_slope", "platt_intercept" and "platt_ceiling"; how many entities
        they were fitted to, "calibrated_on"; the "f_score_threshold", None if it was not asked for;
        and the `reliability`, with "precision", "recall" and "f_beta", "uncalibrated", "before" and
        "after".

    Raises:
        InputError: If the pipeline has no such component, or several and none is named; if
            `confidence` is false and entities do not overlap; if f_beta is not over 0; if no
            example has an entity of a label that is predicted; if a predicted and a gold doc differ
            in text; and if scipy is not installed. The component is then as before.
    """
    require("calibrate")
    if f_beta is not None and not 0 < f_beta < math.inf:
        raise InputError(f"f_beta: expected a number over 0, got {f_beta}. Use 1 for F1.")
    name = recognizer_name(nlp, name)
    pipe = recognizer(nlp, name)
    if not pipe.confidence and pipe.entities_key is None:  # overlapping ones have scores
        raise InputError(
            f"[{name}] confidence: expected true, got false. Without it, entities have no "
            "confidence to calibrate: set it to true."
        )
    read = run_upstream(nlp, name, examples)
    if not count_entities(read, pipe.entities_key, pipe.excluded):
        raise InputError(
            f"[{name}] expected examples with annotated entities, got {len(read)} without one of "
            f"{[*pipe.enabled_labels]}. Calibrate on docs such as those to annotate, with gold "
            "where the component reads it."
        )
    docs = None if docs is None or f_beta is None else [*docs]
    with restored_on_error(pipe), computed_once(pipe):
        fitted = _fit(pipe, read, f_beta, docs)
    pipe.seen_texts.remember("dev", [each.text for each in (*read, *(docs or ()))])
    if promised := [kind for kind in SETTINGS_OF if kind in pipe.cfg["guarantees"]]:
        message = (
            f"[{name}] The promises of {', '.join(promised)} were for another calibration and are "
            "dropped. Promise again, on other documents: spacy-crf-ner promise fit."
        )
        if "precision" in promised and pipe.threshold:
            message += (
                f" The threshold of the promised precision, {pipe.threshold:g}, still drops "
                "entities: set the setting threshold to 0 to get them back."
            )
        warnings.warn(message, stacklevel=2)
    pipe.cfg["guarantees"] = {}
    return fitted


def calibrate_on_folds(
    nlp: Language, folds: Iterable[tuple[Language, Iterable[Example]]]
) -> dict[str, Any]:
    """Calibrate the component on what pipelines with the same settings predict for their folds.

    Args:
        folds: Pipelines, each with the examples that it was not trained on.

    Returns:
        The `reliability` of the pooled predictions, "before" and "after"; and the "scores" of
        spaCy's scorer.

    Raises:
        InputError: If no example has an entity, for examples that cannot be learned, and if scipy
            is not installed.
    """
    require("calibrate")
    pipe = recognizer(nlp)
    scored = [each for trained, held in folds for each in _score(trained, pipe.name, held)]
    before = _pooled(pipe, scored)
    pipe.fit_temperature((), scored)
    pipe.fit_platt_scaling((), scored)
    after = _pooled(pipe, scored)
    return {
        "before": reliability(collect_entities(before, pipe.entities_key)),
        "after": reliability(collect_entities(after, pipe.entities_key)),
        "scores": pipe.score(after),
    }


def _pooled(pipe: "CRFEntityRecognizer", scored: Iterable[Scored]) -> list[Example]:
    """Annotate examples by what the pipelines of their folds have computed for them."""
    found: list[Example] = []
    for batch in scored:
        with computed_once(pipe) as computed:
            computed.add([eg.predicted for eg in batch.examples], batch.potentials)
            found += annotated(pipe, batch.examples)
    return found


def _fit(
    pipe: "CRFEntityRecognizer",
    examples: Sequence[Example],
    f_beta: float | None,
    docs: Iterable[Doc] | None,
) -> dict[str, Any]:
    beta = 1.0 if f_beta is None else f_beta
    before = uncalibrated = _measure(pipe, examples, beta)
    if is_calibrated(pipe):
        forget_calibration(pipe)
        uncalibrated = _measure(pipe, examples, beta)
    pipe.fit_temperature(examples)
    pipe.fit_platt_scaling(examples)
    threshold = None
    if f_beta is not None:
        pipe.decode = "max_expected_f"
        own = [eg.predicted for eg in examples]
        threshold = pipe.fit_f_score_threshold(own if docs is None else docs, beta)
    after = _measure(pipe, examples, beta)
    return {
        **{each: getattr(pipe, each) for each in FITS},
        "f_score_threshold": threshold,
        "uncalibrated": uncalibrated,
        "before": before,
        "after": after,
    }


def _score(nlp: Language, name: str, examples: Iterable[Example]) -> list[Scored]:
    """Compute what the likelihood of those examples depends on that the component can learn."""
    pipe = recognizer(nlp, name)
    read = run_upstream(nlp, name, examples)
    return score_examples(pipe, [eg for eg in read if pipe.encoding.is_annotated(eg)])


def reliability(docs: Iterable[DocEntities]) -> dict[str, Any]:
    """Compare the confidences of predicted entities with their accuracy.

    Entities of other components, without a confidence, are ignored.

    Returns:
        - "entities": The number E of entities.
        - "left_out": The number of other entities, predicted where gold annotation is missing.
        - "ece": Expected calibration error, in 15 bins of equal width: the sum over bins of their
            share of E times |mean confidence - share correct|; None for E = 0. Source: Guo et al.
            (2017), ICML, equation 3.
        - "ece_by_chance": What it is on average for E entities if each confidence is the
            probability of being correct, in the normal approximation; None for E = 0.
        - "brier": The mean of (confidence - correct)^2; None for E = 0.
        - "bins": The "count", mean "confidence" and share "correct" of each bin, with Wilson's
            "interval" of this share; None if it is empty. Bin i has the confidences above i/15, up
            to (i+1)/15.
    """
    docs = list(docs)
    p, correct = _judged(docs)
    left_out = sum(ent.confidence is not None for doc in docs for ent in doc.left_out)
    bin_of = (np.ceil(p * BINS) - 1).clip(0, BINS - 1)
    inside = [bin_of == i for i in range(BINS)]
    bins: list[dict[str, Any]] = [
        {
            "count": int(i.sum()),
            "confidence": mean(p[i]),
            "correct": mean(correct[i]),
            "interval": [*wilson(correct[i].sum(), i.sum())] if i.any() else None,
        }
        for i in inside
    ]
    gaps = [b["count"] * abs(b["confidence"] - b["correct"]) for b in bins if b["count"]]
    # A bin's share correct then has a normal distribution around its mean confidence.
    noise = [math.sqrt(2 / math.pi * float((p[i] * (1 - p[i])).sum())) for i in inside]
    return {
        "entities": len(p),
        "left_out": left_out,
        "ece": sum(gaps) / len(p) if len(p) else None,
        "ece_by_chance": sum(noise) / len(p) if len(p) else None,
        "brier": mean((p - correct) ** 2),
        "bins": bins,
    }


def precision_at(
    docs: Iterable[DocEntities], thresholds: Sequence[float]
) -> list[dict[str, float | None]]:
    """Compute precision and recall of the entities with a confidence of at least each "threshold".

    With the number of such "entities"; None for a zero denominator.
    """
    docs = list(docs)
    p, correct = _judged(docs)
    gold = sum(len(doc.gold) for doc in docs)
    kept = {threshold: correct[p >= threshold] for threshold in thresholds}
    return [
        {
            "threshold": threshold,
            "entities": len(each),
            "precision": mean(each),
            "recall": int(each.sum()) / gold if gold else None,
        }
        for threshold, each in kept.items()
    ]


def _judged(docs: Sequence[DocEntities]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the confidences of predicted entities, and whether each is correct: both (E,)."""
    found = [each for doc in docs for each in doc.judged()]
    p, correct = np.array(found, dtype=np.float64).reshape(-1, 2).T
    return p, correct.astype(bool)


def _measure(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], beta: float
) -> dict[str, Any]:
    """Measure the reliability of a component on docs that the earlier components have processed."""
    docs = collect_entities(annotated(pipe, examples), pipe.entities_key)
    correct = sum(sum(doc.correct()) for doc in docs)
    predicted, gold = sum(len(doc.predicted) for doc in docs), sum(len(doc.gold) for doc in docs)
    return {
        **reliability(docs),
        "precision": correct / max(predicted, 1),
        "recall": correct / max(gold, 1),
        "f_beta": (1 + beta**2) * correct / max(predicted + beta**2 * gold, 1),
    }
