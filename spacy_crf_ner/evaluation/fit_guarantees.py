"""Fit thresholds that bound the errors on new documents: of their entities, 2 % are missed.

The documents that a threshold is fitted to must not have been used for training.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from ..extras import require
from ..input_error import InputError
from ..pipeline.annotated_labels import annotated_labels, is_complete
from ..pipeline.annotation import SPANS_KEY
from ..pipeline.calibration import log_likelihoods, platt_scaling
from ..pipeline.checks import check_own_key
from ..pipeline.gold import gold_tags
from ..pipeline.lookup import recognizer, run_upstream
from ..pipeline.network import computed_once
from . import matching, risk_control
from .guarantees import restored_on_error, store
from .held_out import NOT_COUNTED, new_examples
from .monitoring import describe

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

T = TypeVar("T")
Row = dict[str, Any]

# The lowest thresholds on posteriors: there may be their reciprocal of candidates at a token, and
# of labelings.
LOWEST = {"recall": 1e-5, "precision": 0.0, "set_coverage": 1e-3}
CONFIDENCE_LEVEL = 0.95  # of precision, unless one is given: it has no bound on average
HALVES = 50  # how often a guarantee is tried on random halves of the documents
STORED = ("level", "confidence_level", "documents", "threshold")  # of a row
USED = {
    "recall": "with such entities",
    "precision": "with found entities",
    "set_coverage": "with complete annotation",
}


@dataclass(frozen=True)
class Targets:
    """What to guarantee for new documents, and from which documents; None for nothing of a kind.

    Attributes:
        recall: Share of the entities of a document that are among its candidates.
        precision: Share of the entities of a document that are right, of those that the component
            adds.
        set_coverage: Share of documents whose right labeling is in `prediction_sets`.
        confidence_level: Confidence level of recall and precision; None for recall on average, and
            a precision of 95 %.
        by_label: Guarantee the recall of each label.
        trained_on: Texts of the training data, of a pipeline that does not know them. As those that
            it knows, they are left out.
        held_out: State that a pipeline that does not know its training data has seen no document.
        count_dev: Use documents that chose the weights, or served the calibration, too; the
            guarantee is then too good.

    Raises:
        InputError: If nothing is to be guaranteed, for a number that is not between 0 and 1, and
            for `by_label` or a confidence level without what it is for.
    """

    recall: float | None = None
    precision: float | None = None
    set_coverage: float | None = None
    confidence_level: float | None = None
    by_label: bool = False
    trained_on: Sequence[str] | None = None
    held_out: bool = False
    count_dev: bool = False

    def __post_init__(self) -> None:
        for name in ("recall", "precision", "set_coverage", "confidence_level"):
            number = getattr(self, name)
            if number is not None and not 0 < number < 1:
                what = name.replace("_", " ")
                raise InputError(f"The {what} must be between 0 and 1, got {number}.")
        if (self.recall, self.precision, self.set_coverage) == (None, None, None):
            raise InputError(
                "There is nothing to promise. Name a recall, a precision or a set coverage, as "
                "--recall 0.95 does."
            )
        if self.recall is None and self.by_label:
            raise InputError("A promise by label is of a recall. Name one, as --recall 0.95 does.")
        if self.recall is None and self.precision is None and self.confidence_level is not None:
            raise InputError(
                "A confidence level is of a recall or a precision. Name one, as --recall 0.95 does."
            )


def fit_guarantees(
    nlp: Language, name: str, examples: Iterable[Example], targets: Targets
) -> list[Row]:
    """Fit the thresholds that keep guarantees, and store both in the component.

    A row of the result has the mean error "on_halves" of the documents if fitted to the other half,
    and "p95", the 95 % quantile over 50 halves; both None if a half has too few; and the "cost":
    candidates per gold entity, the recall that is left, or labelings per document.

    Args:
        examples: Examples to which nothing else was fitted; the components before this one run on
            copies of their predicted docs. Those of texts that the pipeline has seen are left out,
            with a warning, see `new_examples`; gold entities of labels that the component does not
            predict do not count.

    Raises:
        InputError: For overlapping entities, too few documents, no new ones, unknown training data,
            and a guarantee that would need too many candidates or labelings. The component is then
            as before. If scipy is not installed.
    """
    require("calibrate")
    pipe = recognizer(nlp, name)
    if pipe.entities_key is not None:
        raise InputError(
            f"[{pipe.name}] Nothing can be promised of entities that overlap. Expected overlap = "
            "false, got true. Train a pipeline without overlap."
        )
    new, compared_with = new_examples(nlp, name, examples, targets)
    rows: list[Row] = []
    with restored_on_error(pipe), computed_once(pipe):
        read = matching.without_disabled(pipe, run_upstream(nlp, name, new))
        if targets.recall is not None:
            rows += _fit_recall(nlp, pipe, read, targets)
        if targets.precision is not None:
            rows.append(_fit_precision(pipe, read, targets))
        if targets.set_coverage is not None:
            rows.append(_fit_set_coverage(pipe, read, targets))
        docs = [eg.predicted for eg in read]
        about = {
            "unit": "document",
            "texts": len(read),
            "different_texts": len({eg.text for eg in read}),
            "tokens": float(np.mean([len(doc) for doc in docs])),
            "labels": [*pipe.enabled_labels],
            "compared_with": compared_with,
            "counts_dev": targets.count_dev,
        }
        kept = {row["kind"]: {name: row[name] for name in STORED} | about for row in rows}
        if targets.recall is not None:
            kept["recall"] |= {
                "by_label": targets.by_label,
                "documents": min(row["documents"] for row in rows if row["kind"] == "recall"),
                "threshold": dict(pipe.candidate_thresholds) or pipe.candidate_threshold,
            }
        store(nlp, name, kept, describe(pipe, docs))
        if targets.set_coverage is not None:  # the sets use the stored threshold
            rows[-1]["cost"] = float(np.mean([len(each) for each in pipe.prediction_sets(docs)]))
    return rows


def _fit_recall(
    nlp: Language, pipe: "CRFEntityRecognizer", examples: Sequence[Example], targets: Targets
) -> list[Row]:
    """Guarantee the recall of each label; the label None stands for all together."""
    pipe.spans_key = key = pipe.spans_key or SPANS_KEY
    check_own_key(nlp, pipe, key)
    found = _gold_probabilities(pipe, examples)
    rows = []
    for label in pipe.enabled_labels if targets.by_label else (None,):
        of_label = [[p for ent, p in doc.items() if label in (None, ent.label)] for doc in found]
        documents = [np.array(ps) for ps in of_label if ps]
        rows.append(
            _row(
                pipe,
                targets,
                "recall",
                documents,
                risk_control.recall_threshold,
                lambda ps, threshold: float((ps < threshold).mean()),
                label,
            )
        )
    thresholds = {row["label"]: row["threshold"] for row in rows}
    pipe.candidate_threshold = thresholds.pop(None, pipe.candidate_threshold)
    pipe.candidate_thresholds = thresholds
    candidates = [
        span.label_
        for eg in matching.annotated(pipe, examples)
        if key in eg.predicted.spans
        for span in eg.predicted.spans[key]
        if (known := annotated_labels(eg.reference)) is None or span.label_ in known
    ]
    gold = [ent.label for doc in found for ent in doc]
    for row in rows:
        number, entities = (
            sum(row["label"] in (None, label) for label in each) for each in (candidates, gold)
        )
        row["cost"] = number / entities
    return rows


def _fit_precision(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], targets: Targets
) -> Row:
    found = _correct_by_threshold(pipe, examples)
    documents = [document for document in found if len(document[risk_control.GRID[0]])]

    def wrong(document: risk_control.Correct, threshold: float) -> float:
        correct = document[threshold]
        return 1 - float(correct.mean()) if len(correct) else np.nan

    row = _row(pipe, targets, "precision", documents, risk_control.precision_threshold, wrong)
    pipe.threshold = row["threshold"]
    gold = sum(len(doc.gold) for doc in matching.collect_entities(examples))
    return {**row, "cost": sum(int(each[pipe.threshold].sum()) for each in found) / gold}


def _correct_by_threshold(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example]
) -> list[dict[float, NDArray[np.bool_]]]:
    """Find for each doc whether the entities that are predicted at each threshold are correct."""
    found: list[dict[float, NDArray[np.bool_]]] = [{} for _ in examples]
    pipe.thresholds = {}
    for threshold in risk_control.GRID:
        # With "max_expected_f", other entities take the place of those that a threshold drops.
        if threshold == risk_control.GRID[0] or pipe.decode == "max_expected_f":
            pipe.threshold = threshold
            docs = matching.collect_entities(matching.annotated(pipe, examples))
            judged = [doc.judged() for doc in docs]
        for by_threshold, doc in zip(found, judged):
            kept = [is_right for p, is_right in doc if p >= threshold]
            by_threshold[threshold] = np.array(kept, dtype=bool)
    return found


def _fit_set_coverage(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], targets: Targets
) -> Row:
    complete = [eg for eg in examples if is_complete(eg.reference, pipe.enabled_labels)]
    probabilities = _gold_probabilities(pipe, complete)
    known = [
        all(of_doc.values()) and _is_labeling(pipe, eg)
        for eg, of_doc in zip(complete, probabilities)
    ]
    log_p = iter(log_likelihoods(pipe, compress(complete, known)))
    return _row(
        pipe,
        targets,
        "set_coverage",
        [math.exp(next(log_p)) if is_known else 0.0 for is_known in known],
        lambda p, risk, _: risk_control.coverage_threshold(np.array(p), risk),
        lambda p, threshold: float(p < threshold),
    )


def _row(
    pipe: "CRFEntityRecognizer",
    targets: Targets,
    kind: str,
    documents: Sequence[T],
    threshold_of: Callable[[Sequence[T], float, Any], float | None],
    error: Callable[[T, float], float],
    label: str | None = None,
) -> Row:
    """Fit a threshold to documents, and try it on halves of them.

    `threshold_of` gets documents, the risk and the confidence level; `error` returns the share of
    errors in a document, NaN if it has nothing to judge.
    """
    level: float = getattr(targets, kind)
    confidence_level = {
        "recall": targets.confidence_level,
        "precision": targets.confidence_level or CONFIDENCE_LEVEL,
    }.get(kind)

    def fit(some: Sequence[T]) -> float | None:
        return threshold_of(some, 1 - level, confidence_level)

    where = f"[{pipe.name}] {kind if label is None else f'{kind} of {label}'}:"
    tests = len(risk_control.GRID) if kind == "precision" else 1
    needed = risk_control.documents_needed(1 - level, confidence_level, tests)
    if len(documents) < needed:
        raise InputError(
            f"{where} There are too few documents. A promise of {100 * level:g} % needs at least "
            f"{needed}, got {len(documents)} {USED[kind]}. Use more, or promise less. {NOT_COUNTED}"
        )
    threshold = fit(documents)
    if threshold is None:
        raise InputError(
            f"{where} At no threshold is {100 * level:g} % certain, by {len(documents)} documents. "
            f"Promise less, or use more documents. {NOT_COUNTED}"
        )
    lowest = LOWEST[kind]
    if kind == "recall":
        lowest = max(float(platt_scaling(pipe).apply(np.array(lowest))), 1e-9)
    if threshold < lowest:
        raise InputError(
            f"{where} The model does not know these documents well enough for {100 * level:g} %: "
            f"expected a threshold of at least {lowest:.2g}, got {threshold:.2g}. Promise less, or "
            "train on more like them; for sets, split the documents into sentences."
        )
    rng = random.Random(0)
    errors = []
    for _ in range(HALVES):
        shuffled = rng.sample(documents, len(documents))
        half = len(shuffled) // 2
        fitted = fit(shuffled[:half])
        if fitted is not None:
            errors.append(float(np.nanmean([error(each, fitted) for each in shuffled[half:]])))
    return {
        "kind": kind,
        "label": label,
        "level": level,
        "confidence_level": confidence_level,
        "documents": len(documents),
        "threshold": math.floor(threshold * 1e10) / 1e10,  # a saved number has ten decimals
        "on_halves": float(np.mean(errors)) if errors else None,
        "p95": float(np.quantile(errors, 0.95)) if errors else None,
    }


def _gold_probabilities(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example]
) -> list[dict[matching.Entity, float]]:
    gold = [[*map(matching.entity, eg.reference.ents)] for eg in examples]
    return matching.span_probabilities(pipe, [eg.predicted for eg in examples], gold)


def _is_labeling(pipe: "CRFEntityRecognizer", example: Example) -> bool:
    """Whether possible gold entities can be the labeling of a doc, with its preset entities."""
    doc = example.predicted
    gold = set()
    for ent in example.reference.ents:
        span = doc.char_span(ent.start_char, ent.end_char)
        assert span is not None  # it has a probability
        gold.add((span.start, span.end, ent.label_))
    preset = () if pipe.overwrite else doc.ents
    # In the scheme IO, adjacent entities of one label are read as one.
    read = pipe.scheme.decode(gold_tags(example, pipe.scheme, pipe.name))
    return set(pipe.scheme.offsets(read)) == gold >= {(e.start, e.end, e.label_) for e in preset}
