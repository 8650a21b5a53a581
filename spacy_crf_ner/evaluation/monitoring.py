"""Are new documents like those that guarantees were fitted to, and were the guarantees kept?"""

import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..extras import require, required
from ..input_error import InputError
from ..pipeline.annotated_labels import is_complete
from ..pipeline.checks import check_own_key
from ..pipeline.lookup import recognizer, recognizer_name, recognizer_names, sets_entities_alone
from ..pipeline.network import BATCH_SIZE, computed_once
from .guarantees import guarantees
from .matching import DocEntities, Entity, entity, without_entities
from .scores import mean

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

SAMPLE = 500  # documents that are compared: with many, any difference is significant
SIGNIFICANT = 0.01  # of all tests together
EQUAL = 1e-4  # values that differ by less are equal: batches, saving and rounding change them
# The thresholds of candidates that are compared.
LEVELS = (*(i / 10 for i in range(9, 0, -1)), 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 1e-4, 1e-5)

# Scores of the gold entities of a doc, 0.0 if they are no candidates, and of all its candidates.
Scores = tuple[NDArray[np.float64], NDArray[np.float64]]


class Difference(NamedTuple):
    """The two-sample Kolmogorov-Smirnov test for a statistic of documents."""

    statistic: str
    before: float  # its median on the documents of the guarantees
    now: float  # its median on new documents
    distance: float  # the largest difference between the two distribution functions, 0 to 1
    p: float  # the probability of such a distance if both were of one source


def drift(nlp: Language, docs: Iterable[Doc], name: str | None = None) -> list[Difference]:
    """Compare docs with those that the guarantees of a pipeline were fitted to.

    `guarantees` returns what was found last, also after the pipeline was saved.

    Args:
        docs: Docs that the components before the recognizer have processed; 500 of them are
            compared.
        name: The `crf_ner` component; None for the only one.

    Raises:
        InputError: For a pipeline without guarantees, or one that has changed since they were
            given, for no docs with tokens, and if scipy is not installed.
    """
    require("calibrate")
    name = recognizer_name(nlp, name)
    if not guarantees(nlp, name):
        raise InputError(
            f"[{name}] The pipeline has no promises. Fit some: spacy-crf-ner promise fit."
        )
    pipe = recognizer(nlp, name)
    now = describe(pipe, docs)
    if not now["tokens"]:
        raise InputError(f"[{name}] expected documents with text, got none.")
    rows = compare(pipe.cfg["guarantees"]["reference"], now)
    found = {"documents": len(now["tokens"]), "differ": different(rows)}
    pipe.cfg["guarantees"]["drift"] = found
    return rows


def describe(pipe: "CRFEntityRecognizer", docs: Iterable[Doc]) -> dict[str, list[float]]:
    """Compute statistics of a random sample of docs that the earlier components have processed.

    Returns, with a value for each doc that has it: its "tokens"; the "surprise", minus the log
    probability of its best labeling, per token; and the "confidence", the mean of its entities.
    """
    filled = [doc for doc in docs if len(doc)]
    sample = random.Random(0).sample(filled, min(SAMPLE, len(filled)))
    found: dict[str, list[float]] = {"tokens": [], "surprise": [], "confidence": []}
    for i in range(0, len(sample), BATCH_SIZE):
        batch = sample[i : i + BATCH_SIZE]
        with computed_once(pipe):
            best = [first for (first,) in pipe.nbest(batch, 1)]
            known = [[ent for ent in each.ents if ent.label_ in pipe.labels] for each in best]
            confidences = pipe.span_posteriors_of(batch, known)
        found["tokens"] += [float(len(doc)) for doc in batch]
        found["surprise"] += [-each.log_probability / len(doc) for doc, each in zip(batch, best)]
        found["confidence"] += [sum(of_doc) / len(of_doc) for of_doc in confidences if of_doc]
    return found


def compare(
    before: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]
) -> list[Difference]:
    """Test for each statistic of `describe` that both samples have whether they are of one source.

    The p-value is exact for the 500 values, or fewer, of each sample.
    """
    with required("calibrate"):
        from scipy.stats import ks_2samp
    rows = []
    for name in before:
        x, y = np.array(before[name]), np.array(now[name])
        if len(x) and len(y):
            nearest = x[np.abs(x - y[:, None]).argmin(axis=1)]
            y = np.where(np.abs(y - nearest) < EQUAL, nearest, y)
            with warnings.catch_warnings():  # an exact p of 1 can be above it by rounding
                warnings.filterwarnings("ignore", "ks_2samp: Exact calculation", RuntimeWarning)
                test = ks_2samp(x, y)
            medians = float(np.median(x)), float(np.median(y))
            rows.append(Difference(name, *medians, float(test.statistic), float(test.pvalue)))
    return rows


def different(rows: Sequence[Difference]) -> list[str]:
    """Return the statistics that differ: all tests together err once in a hundred times.

    By Bonferroni's correction.
    """
    return [row.statistic for row in rows if row.p < SIGNIFICANT / len(rows)]


def coverage(
    nlp: Language, name: str, examples: Sequence[Example], docs: Sequence[DocEntities]
) -> dict[str, Any] | None:
    """Measure what a pipeline guarantees, and what its candidates cover; None if it has neither.

    Only docs with complete gold annotation count, and no gold entities of labels that the component
    does not predict. Warns if guarantees no longer hold, or other components have written to the
    candidates, and leaves them out.

    For each kind, "guarantees" has what `guarantees` returns, and what was "found": the mean share
    over docs, or that for each label if guaranteed by label; None if there is nothing to judge, for
    set_coverage if other components set entities too, and for precision if one of them is a
    `crf_ner`. For each "threshold" of candidates down to theirs, "curve" has the mean "coverage" of
    the gold entities of a doc, and the number of candidates "per_entity". With thresholds by label,
    the last one is None: it stands for them.

    Args:
        name: The `crf_ner` component that annotated the predicted docs, see `as_left_by`.
        docs: The result of `collect_entities` for the examples.
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
    scores = [_score_candidates(doc, gold.gold, key) for doc, gold in complete]

    def recall(label: str | None) -> float | None:
        pairs = [zip(doc.gold, ps) for (_, doc), (ps, _) in zip(complete, scores)]
        return _mean_share(
            [[p > 0 for ent, p in doc if label in (None, ent.label)] for doc in pairs]
        )

    found: dict[str, Any] = {"recall": recall(None)}
    if guaranteed.get("recall", {}).get("by_label"):
        found["recall"] = {label: recall(label) for label in labels}
    # Preset entities of another `crf_ner` have confidences too.
    is_alone = recognizer_names(nlp) == [name]
    added = [doc.judged() if is_alone else [] for _, doc in complete]
    found["precision"] = _mean_share([[is_right for _, is_right in each] for each in added])
    if "set_coverage" in guaranteed:
        found["set_coverage"] = _set_coverage_found(nlp, name, complete)
    return {
        "docs": len(complete),
        "guarantees": {kind: {**each, "found": found[kind]} for kind, each in guaranteed.items()},
        "curve": _curve(pipe, scores) if key is not None else [],
    }


def _has_scores(docs: Iterable[Doc], key: str | None) -> bool:
    """Whether the candidates of docs have scores: other components may have replaced them."""
    groups = [doc.spans[key] for doc in docs if key is not None and key in doc.spans]
    return bool(groups) and all(len(g.attrs.get("scores", ())) == len(g) for g in groups)


def _mean_share(docs: Iterable[Any]) -> float | None:
    """Return the mean over docs of the share of their values that are true."""
    return mean([np.mean(values) for values in docs if len(values)])


def _curve(pipe: "CRFEntityRecognizer", docs: Sequence[Scores]) -> list[dict[str, Any]]:
    entities = sum(len(p) for p, _ in docs)
    if not entities:
        return []
    scores = np.concatenate([scores for _, scores in docs])
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
            "coverage": _mean_share([(p >= level) & (p > 0) for p, _ in docs]),
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
    known = [i for i, (doc, _) in enumerate(complete) if doc.has_annotation("ENT_IOB")]
    bare = [without_entities(complete[i][0]) for i in known]
    sets = dict(zip(known, recognizer(nlp, name).prediction_sets(bare)))
    return mean(
        [
            any({*map(entity, each.ents)} == {*gold.gold} for each in sets.get(i, ()))
            for i, (_, gold) in enumerate(complete)
        ]
    )


def _score_candidates(doc: Doc, gold: Sequence[Entity], key: str | None) -> Scores:
    group = doc.spans[key] if key is not None and key in doc.spans else ()
    scores = np.array(group.attrs["scores"] if group else [], dtype=np.float64)
    of_span = {entity(span): p for span, p in zip(group, scores)}
    return np.array([of_span.get(ent, 0.0) for ent in gold]), scores
