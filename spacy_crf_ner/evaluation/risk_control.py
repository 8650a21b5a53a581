"""Fit thresholds that bound the errors on new documents: of their entities, 2 % are missed.

The documents that a threshold is fitted to must not have been used for training, and new ones must
be like them: drawn from the same source, in no order. Then the bound holds, however wrong the
probabilities are; with better ones, less is lost to it.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from ..extras import require, required
from ..input_error import InputError
from ..pipeline.annotated_labels import annotated_labels, is_complete
from ..pipeline.annotation import SPANS_KEY
from ..pipeline.calibration import log_likelihoods, platt_scaling
from ..pipeline.checks import check_own_key
from ..pipeline.gold import gold_tags
from ..pipeline.lookup import recognizer
from ..pipeline.network import computed_once
from .guarantees import fitted_settings, restore_fitted, store
from .held_out import new_examples
from .matching import (
    Entity,
    annotated,
    collect_entities,
    entity,
    span_probabilities,
    without_disabled,
)
from .monitoring import describe

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

T = TypeVar("T")
Row = dict[str, Any]
# Whether the predicted entities of a document are correct, by the threshold they are predicted at.
Correct = Mapping[float, NDArray[np.bool_]]

# Candidates for a threshold whose errors can fall and rise, with a test for each.
GRID = tuple(i / 20 for i in range(20))
# The lowest thresholds on posteriors: there may be their reciprocal of candidates at a token, and
# of labelings.
LOWEST = {"recall": 1e-5, "precision": 0.0, "set_coverage": 1e-3}
CONFIDENCE_LEVEL = 0.95  # of precision, unless one is given: it has no bound on average
HALVES = 50  # how often a guarantee is tried on random halves of the documents
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
        count_dev: Use documents that chose the weights too; the guarantee is then too good.
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
                raise InputError(f"{name}: expected a number between 0 and 1, got {number}.")
        if self.recall is None and self.by_label:
            raise InputError("by_label: expected a recall to guarantee, got none. Say which.")
        if self.recall is None and self.precision is None and self.confidence_level is not None:
            raise InputError(
                "confidence_level: expected a recall or a precision to guarantee, got none. Say "
                "which."
            )

    def __bool__(self) -> bool:
        return any(level is not None for level in (self.recall, self.precision, self.set_coverage))

    def new(
        self, nlp: Language, name: str, examples: Iterable[Example]
    ) -> tuple[list[Example], list[str]]:
        """Leave out examples of texts that the pipeline has seen; see `new_examples`.

        Without a guarantee, texts that chose the weights are kept.
        """
        count_dev = self.count_dev or not self
        return new_examples(
            nlp,
            name,
            examples,
            trained_on=self.trained_on,
            held_out=self.held_out,
            count_dev=count_dev,
        )


def fit_guarantees(
    nlp: Language, name: str, examples: Sequence[Example], targets: Targets
) -> list[Row]:
    """Fit the thresholds that keep guarantees, and store both in the component.

    A row of the result has the mean error "on_halves" of the documents if fitted to the other half,
    and "p95", the 95 % quantile over 50 halves; both None if a half has too few; and the "cost":
    candidates per gold entity, the recall that is left, or labelings per document.

    Args:
        examples: Examples to calibrate on; nothing else may have been fitted to them. The
            components before this one must have processed their `predicted` docs. Examples of texts
            that the pipeline has seen in training are left out, with a warning; gold entities of
            labels that the component does not predict do not count.

    Raises:
        InputError: For overlapping entities, too few documents, no new ones, unknown training data,
            and a guarantee that would need too many candidates or labelings. The component is then
            as before. If scipy is not installed.
    """
    require("calibrate")
    pipe = recognizer(nlp, name)
    check_flat(pipe)
    new, compared_with = targets.new(nlp, name, examples)
    with restored_on_error(pipe), computed_once(pipe):
        read = without_disabled(pipe, new)
        rows = _fit(nlp, pipe, read, targets)
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
        kept = {kind: {**each, **about} for kind, each in _kept(pipe, rows, targets).items()}
        store(nlp, name, kept, describe(pipe, docs))
        if targets.set_coverage is not None:  # the sets use the stored threshold
            rows[-1]["cost"] = float(np.mean([len(each) for each in pipe.prediction_sets(docs)]))
    return rows


def check_flat(pipe: "CRFEntityRecognizer") -> None:
    """Raise InputError if entities of the component overlap: it can guarantee nothing then."""
    if pipe.entities_key is not None:
        raise InputError(
            f"[{pipe.name}] guarantees: expected a component with overlap = false, got true. "
            "Calibrate without guarantees of recall, precision or set coverage, or train one "
            "without overlap."
        )


@contextmanager
def restored_on_error(pipe: "CRFEntityRecognizer") -> Iterator[None]:
    """Give a component its settings back if fitting others fails, or is interrupted."""
    before = fitted_settings(pipe)
    try:
        yield
    except BaseException:  # also an interrupt: thresholds are settings while they are tried
        restore_fitted(pipe, before)
        raise


def _fit(
    nlp: Language, pipe: "CRFEntityRecognizer", examples: Sequence[Example], targets: Targets
) -> list[Row]:
    rows: list[Row] = []
    if targets.recall is not None:
        pipe.spans_key = pipe.spans_key or SPANS_KEY
        check_own_key(nlp, pipe, pipe.spans_key)
        labels = pipe.enabled_labels if targets.by_label else (None,)
        rows += _fit_recall(pipe, examples, targets.recall, targets.confidence_level, labels)
    if targets.precision is not None:
        confidence_level = targets.confidence_level or CONFIDENCE_LEVEL
        rows.append(_fit_precision(pipe, examples, targets.precision, confidence_level))
    if targets.set_coverage is not None:
        rows.append(_fit_set_coverage(pipe, examples, targets.set_coverage))
    return rows


def _kept(pipe: "CRFEntityRecognizer", rows: Sequence[Row], targets: Targets) -> dict[str, Row]:
    """Return what is stored of the rows of each kind."""
    names = ("level", "confidence_level", "documents", "threshold")
    kept = {row["kind"]: {name: row[name] for name in names} for row in rows}
    if targets.recall is not None:
        kept["recall"] |= {
            "by_label": targets.by_label,
            "documents": min(row["documents"] for row in rows if row["kind"] == "recall"),
            "threshold": dict(pipe.candidate_thresholds) or pipe.candidate_threshold,
        }
    return kept


def _fit_recall(
    pipe: "CRFEntityRecognizer",
    examples: Sequence[Example],
    level: float,
    confidence_level: float | None,
    labels: Sequence[str | None],
) -> list[Row]:
    """Guarantee the recall of each label; the label None stands for all together."""
    found = _gold_probabilities(pipe, examples)
    rows = []
    for label in labels:
        of_label = [[p for ent, p in doc.items() if label in (None, ent.label)] for doc in found]
        row = _row(
            pipe,
            {"kind": "recall", "label": label},
            (level, confidence_level),
            [np.array(ps) for ps in of_label if ps],
            lambda documents: recall_threshold(documents, 1 - level, confidence_level),
            lambda ps, threshold: float((ps < threshold).mean()),
        )
        rows.append(row)
    thresholds = {row["label"]: row["threshold"] for row in rows}
    pipe.candidate_threshold = thresholds.pop(None, pipe.candidate_threshold)
    pipe.candidate_thresholds = thresholds
    key = pipe.spans_key
    candidates = [
        span.label_
        for eg in annotated(pipe, examples)
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
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], level: float, confidence_level: float
) -> Row:
    found = _correct_by_threshold(pipe, examples)

    def wrong(document: Correct, threshold: float) -> float:
        correct = document[threshold]
        return 1 - float(correct.mean()) if len(correct) else np.nan

    row = _row(
        pipe,
        {"kind": "precision", "label": None},
        (level, confidence_level),
        [document for document in found if len(document[GRID[0]])],
        lambda documents: precision_threshold(documents, 1 - level, confidence_level),
        wrong,
    )
    pipe.threshold = row["threshold"]
    gold = sum(len(doc.gold) for doc in collect_entities(examples))
    return {**row, "cost": sum(int(each[pipe.threshold].sum()) for each in found) / gold}


def _correct_by_threshold(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example]
) -> list[dict[float, NDArray[np.bool_]]]:
    """Find for each doc whether the entities that are predicted at each threshold are correct."""
    found: list[dict[float, NDArray[np.bool_]]] = [{} for _ in examples]
    pipe.thresholds = {}
    for threshold in GRID:
        # With "max_expected_f", other entities take the place of those that a threshold drops.
        if threshold == GRID[0] or pipe.decode == "max_expected_f":
            pipe.threshold = threshold
            judged = [doc.judged() for doc in collect_entities(annotated(pipe, examples))]
        for by_threshold, doc in zip(found, judged):
            kept = [is_right for p, is_right in doc if p >= threshold]
            by_threshold[threshold] = np.array(kept, dtype=bool)
    return found


def _fit_set_coverage(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], level: float
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
        {"kind": "set_coverage", "label": None},
        (level, None),
        [math.exp(next(log_p)) if is_known else 0.0 for is_known in known],
        lambda p: coverage_threshold(np.array(p), 1 - level),
        lambda p, threshold: float(p < threshold),
    )


def _row(
    pipe: "CRFEntityRecognizer",
    what: Row,
    levels: tuple[float, float | None],
    documents: Sequence[T],
    fit: Callable[[Sequence[T]], float | None],
    error: Callable[[T, float], float],
) -> Row:
    """Fit a threshold to documents, and try it on halves of them.

    Args:
        what: The "kind" and the "label".
        levels: The level and the confidence level.
        fit: Finds the threshold, None if there is none.
        error: The share of errors in a document, NaN if it has nothing to judge.
    """
    (kind, label), (level, confidence_level) = what.values(), levels
    where = f"[{pipe.name}] {kind if label is None else f'{kind} of {label}'}:"
    tests = len(GRID) if kind == "precision" else 1
    needed = documents_needed(1 - level, confidence_level, tests)
    if len(documents) < needed:
        raise InputError(
            f"{where} expected at least {needed} documents to guarantee {100 * level:g} %, got "
            f"{len(documents)} {USED[kind]}. Calibrate on more (half of them serve the "
            "guarantees), or guarantee less. Documents of train and dev do not count."
        )
    threshold = fit(documents)
    if threshold is None:
        raise InputError(
            f"{where} expected a threshold at which {100 * level:g} % is certain, got none from "
            f"{len(documents)} documents. Guarantee less, or calibrate on more."
        )
    lowest = LOWEST[kind]
    if kind == "recall":
        lowest = max(float(platt_scaling(pipe).apply(np.array(lowest))), 1e-9)
    if threshold < lowest:
        raise InputError(
            f"{where} expected {100 * level:g} % above a probability of {lowest:.2g}, got "
            f"{threshold:.2g}. The model does not know these documents well enough: guarantee "
            "less, or train on more like them; for set_coverage, split the documents into "
            "sentences."
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
        **what,
        "level": level,
        "confidence_level": confidence_level,
        "documents": len(documents),
        "threshold": math.floor(threshold * 1e10) / 1e10,  # a saved number has ten decimals
        "on_halves": float(np.mean(errors)) if errors else None,
        "p95": float(np.quantile(errors, 0.95)) if errors else None,
    }


def _gold_probabilities(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example]
) -> list[dict[Entity, float]]:
    gold = [[*map(entity, eg.reference.ents)] for eg in examples]
    return span_probabilities(pipe, [eg.predicted for eg in examples], gold)


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


def documents_needed(risk: float, confidence_level: float | None = None, tests: int = 1) -> int:
    """Return the number of documents, all without an error, from which a bound can be given."""
    if confidence_level is None:
        return math.ceil(round(1 / risk, 9)) - 1
    return math.ceil(math.log((1 - confidence_level) / tests) / math.log(1 - risk))


def recall_threshold(
    probabilities: Sequence[NDArray[np.float64]], risk: float, confidence_level: float | None = None
) -> float | None:
    """Find the highest threshold that few gold entities are below; None for too few documents.

    Over new documents with entities, the expected share of a document's entities below it is at
    most `risk`.

    Args:
        probabilities: Those of the gold entities of each document, at least one in each.
        confidence_level: None if this should hold on average over documents to calibrate on
            (conformal risk control); otherwise it holds with this probability over them.

    Sources: Angelopoulos et al. (2022), "Conformal Risk Control"; Bates et al. (2021),
    "Distribution-Free, Risk-Controlling Prediction Sets".
    """
    n = len(probabilities)
    if n < documents_needed(risk, confidence_level):
        return None
    flat = np.concatenate(probabilities)
    shares = np.concatenate([np.full(len(each), 1 / len(each)) for each in probabilities])
    thresholds, group = np.unique(flat, return_inverse=True)
    at = np.bincount(group, shares)
    missed = (at.cumsum() - at) / n  # the mean share below each threshold: not falling

    def is_unsafe(mean: float) -> bool:
        if confidence_level is None:
            # A new document may have any loss up to 1.
            return (n * mean + 1) / (n + 1) > risk + 1e-12
        return hoeffding_bentkus(mean, n, risk) > 1 - confidence_level + 1e-12

    return float(thresholds[bisect_left(missed.tolist(), True, key=is_unsafe) - 1])


def precision_threshold(
    documents: Sequence[Correct], risk: float, confidence_level: float
) -> float | None:
    """Find the lowest threshold of GRID at which few predicted entities are wrong; None without.

    Over new documents with such entities, the expected share of a document's entities that are
    wrong is at most `risk`, with this confidence over the documents to calibrate on. This share can
    rise with the threshold, so each one of a grid is tested (learn then test, with Bonferroni's
    correction).

    Source: Angelopoulos et al. (2021), "Learn then Test".
    """
    for threshold in GRID:
        kept = [correct[threshold] for correct in documents]
        wrong = [1 - float(each.mean()) for each in kept if len(each)]
        if wrong:
            p_value = hoeffding_bentkus(float(np.mean(wrong)), len(wrong), risk)
            if p_value <= (1 - confidence_level) / len(GRID):
                return threshold
    return None


def coverage_threshold(probabilities: NDArray[np.float64], risk: float) -> float | None:
    """Find the highest threshold that few gold labelings are below; None for too few documents.

    The gold labeling of a new document is below it with a probability of at most `risk`, given
    those of n documents, (n,).

    Source: Vovk et al. (2005), "Algorithmic Learning in a Random World": split conformal
    prediction.
    """
    k = math.floor(round((len(probabilities) + 1) * risk, 9))
    return float(np.sort(probabilities)[k - 1]) if k else None


def hoeffding_bentkus(mean: float, n: int, risk: float) -> float:
    """Compute a p-value for the hypothesis that the expected loss is over `risk`.

    The mean is that of n independent losses, each 0 to 1.

    Source: Bates et al. (2021), proposition 6: the smaller one of Hoeffding's and Bentkus' bounds.
    """
    with required("calibrate"):
        from scipy.special import bdtr, rel_entr
    a = min(mean, risk)
    hoeffding = math.exp(-n * (rel_entr(a, risk) + rel_entr(1 - a, 1 - risk)))
    bentkus = math.e * bdtr(math.ceil(round(n * mean, 9)), n, risk)
    return float(min(hoeffding, bentkus, 1.0))
