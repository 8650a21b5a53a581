"""Promises about new documents, such as: of their entities, at most 2 % are missed.

They hold for documents from the same source as those that they were fitted to. A pipeline stores
them with its labels; they are bound to its weights and settings.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from hashlib import blake2b
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Model

from ..input_error import InputError
from ..ml.digest import weights_digest
from ..pipeline.gold import gold_tags
from ..pipeline.lookup import require_recognizer
from .drift import Difference, compare, describe
from .matching import collect_entities
from .risk_control import (
    GRID,
    coverage_threshold,
    documents_needed,
    precision_threshold,
    recall_threshold,
)

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

T = TypeVar("T")

SPANS_KEY = "sc"  # the key of candidates, unless one is set
# The lowest thresholds, as there may be their reciprocal of candidates at a token, and of analyses.
LOWEST = {"recall": 1e-5, "analyses": 1e-3}
CERTAINTY = 0.95  # of precision, unless one is given: it has no bound on average
HALVES = 50  # how often a promise is tried on random halves of the documents

# What a promise depends on, besides the weights.
SETTINGS = {
    "recall": ("spans_key", "candidate_threshold", "candidate_thresholds"),
    "precision": ("decode", "span_threshold", "threshold", "thresholds"),
    "analyses": (),
}
USED = {
    "recall": "with such entities",
    "precision": "with found entities",
    "analyses": "with complete annotation",
}
COMMON = ("temperature", "overwrite")


def guarantees(nlp: Language, name: str | None = None) -> dict[str, Any]:
    """Return the promises of a pipeline: "recall", "precision" and "analyses", those that it has.

    name: The `crf_ner` component; None for the only one.

    Returns for each its "level", 0 to 1; its "certainty" over documents to calibrate on, None if it
    holds on average over them; their number, "documents"; its "threshold", or those by label; and
    for recall whether it is promised "by_label".
    Raises InputError as `require_recognizer`, and if weights, settings, the vectors of the vocab or
    the components before it are no longer those for which the promises were given.
    """
    name = require_recognizer(nlp, name)
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(name))
    stored: dict[str, Any] = deepcopy(pipe.cfg.get("guarantees", {}))
    stored.pop("reference", None)
    changed = []
    if stored and stored.pop("digest") != _digest(nlp, name):
        changed.append("weights or earlier components")
    for kind, given in stored.items():
        now = _settings(pipe, kind)
        changed += [key for key, x in given["settings"].items() if not _is_same(now[key], x)]
    if changed:
        raise InputError(
            f"[{name}] guarantees: expected the pipeline for which {', '.join(stored)} were "
            f"promised, got other {', '.join(dict.fromkeys(changed))}. Calibrate it again: "
            "spacy-crf-ner calibrate."
        )
    for given in stored.values():
        del given["settings"]
    return dict(_rounded(stored))


def drift(nlp: Language, docs: Iterable[Doc], name: str | None = None) -> list[Difference]:
    """Compare docs with those that the promises of a pipeline were fitted to.

    docs: Docs that the components before the recogniser have processed; 500 of them are compared.
    name: The `crf_ner` component; None for the only one.

    Raises InputError for a pipeline without promises, for no docs with tokens, and as `guarantees`.
    """
    name = require_recognizer(nlp, name)
    if not guarantees(nlp, name):
        raise InputError(
            f"[{name}] expected a pipeline with guarantees, got one without. Calibrate it: "
            "spacy-crf-ner calibrate --recall."
        )
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(name))
    now = describe(pipe, docs)
    if not now["tokens"]:
        raise InputError(f"[{name}] expected documents with text, got none.")
    return compare(pipe.cfg["guarantees"]["reference"], now)


def promise(
    nlp: Language,
    name: str,
    examples: Sequence[Example],
    *,
    recall: float | None = None,
    precision: float | None = None,
    analyses: float | None = None,
    certainty: float | None = None,
    by_label: bool = False,
) -> list[dict[str, Any]]:
    """Fit the thresholds that keep promises, and store both in the component.

    examples: Those to calibrate on; nothing else may have been fitted to them. The components
        before this one must have processed their `predicted` docs.
    recall: Share of the entities of a new document that are among the candidates.
    precision: Share of the predicted entities of a new document that are right.
    analyses: Share of new documents whose right analysis is in `analysis_sets`.
    certainty: Of recall and precision; None for recall on average, and a precision of 95 %.
    by_label: Promise the recall of each label.

    Returns a row for each promise: the "promise", its "level", "certainty", "documents" and
    "threshold"; the mean error "on_halves" of the documents if fitted to the other half, and the
    "worst" of 20 halves, None if a half has too few; and the "cost": candidates per gold entity,
    the recall that is left, or analyses per document.
    Raises InputError for a level that is not between 0 and 1, for too few documents, and if a
    promise would need too many candidates or analyses.
    """
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(name))
    require_promise(recall, precision, analyses, certainty, by_label)
    before = {key: getattr(pipe, key) for key in (*SETTINGS["recall"], *SETTINGS["precision"])}
    try:
        return _promise(nlp, name, examples, recall, precision, analyses, certainty, by_label)
    except Exception:
        for key, value in before.items():
            if getattr(pipe, key) != value:
                setattr(pipe, key, value)
        raise


def require_promise(
    recall: float | None = None,
    precision: float | None = None,
    analyses: float | None = None,
    certainty: float | None = None,
    by_label: bool = False,
) -> bool:
    """Return whether there is something to promise; arguments and InputErrors as for `promise`."""
    levels = {"recall": recall, "precision": precision, "analyses": analyses}
    for what, level in {**levels, "certainty": certainty}.items():
        if level is not None and not 0 < level < 1:
            raise InputError(f"{what}: expected a number between 0 and 1, got {level}.")
    if (by_label and recall is None) or (certainty and recall is None and precision is None):
        raise InputError(
            "certainty, by_label: expected a recall (or, for certainty, a precision) to promise, "
            "got none. Say which."
        )
    return any(level is not None for level in levels.values())


def _promise(
    nlp: Language,
    name: str,
    examples: Sequence[Example],
    recall: float | None,
    precision: float | None,
    analyses: float | None,
    certainty: float | None,
    by_label: bool,
) -> list[dict[str, Any]]:
    pipe = cast("CRFEntityRecognizer", nlp.get_pipe(name))
    stored: dict[str, Any] = {}
    rows = []
    if recall is not None:
        pipe.spans_key = pipe.spans_key or SPANS_KEY
        _require_own_key(nlp, name, pipe.spans_key)
        rows += _promise_recall(pipe, examples, recall, certainty, by_label)
        stored["recall"] = {
            **rows[0],
            "by_label": by_label,
            "documents": min(row["documents"] for row in rows),
            "threshold": dict(pipe.candidate_thresholds) or pipe.candidate_threshold,
        }
    if precision is not None:
        rows.append(_promise_precision(pipe, examples, precision, certainty or CERTAINTY))
        stored["precision"] = rows[-1]
    if analyses is not None:
        rows.append(_promise_analyses(pipe, examples, analyses))
        stored["analyses"] = rows[-1]
    kept = ("level", "certainty", "documents", "threshold", "by_label")
    pipe.cfg["guarantees"] = {
        kind: {key: row[key] for key in kept if key in row} | {"settings": _settings(pipe, kind)}
        for kind, row in stored.items()
    } | {
        "digest": _digest(nlp, name),
        "reference": describe(pipe, [eg.predicted for eg in examples]),
    }
    if analyses is not None:
        docs = [eg.predicted for eg in examples]
        rows[-1]["cost"] = float(np.mean([len(each) for each in pipe.analysis_sets(docs)]))
    return rows


def _promise_recall(
    pipe: "CRFEntityRecognizer",
    examples: Sequence[Example],
    level: float,
    certainty: float | None,
    by_label: bool,
) -> list[dict[str, Any]]:
    found = [_gold_probabilities(pipe, eg) for eg in examples]
    rows = []
    for label in pipe.labels if by_label else (None,):
        of_label = [[p for of, p in doc if label in (None, of)] for doc in found]
        rows.append(
            _row(
                pipe.name,
                "recall" if label is None else f"recall of {label}",
                [np.array(ps) for ps in of_label if ps],
                level,
                certainty,
                lambda documents: recall_threshold(documents, 1 - level, certainty),
                lambda ps, threshold: float((ps < threshold).mean()),
            )
        )
    pipe.candidate_thresholds = {}
    if by_label:
        pipe.candidate_thresholds = dict(zip(pipe.labels, (row["threshold"] for row in rows)))
    else:
        pipe.candidate_threshold = rows[0]["threshold"]
    docs = _annotated(pipe, examples)
    key = pipe.spans_key
    candidates = [span.label_ for doc in docs if key in doc.spans for span in doc.spans[key]]
    gold = [label for doc in found for label, _ in doc]
    for label, row in zip(pipe.labels if by_label else (None,), rows):
        number, entities = (
            len(each) if label is None else each.count(label) for each in (candidates, gold)
        )
        row["cost"] = number / entities
    return rows


def _promise_precision(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], level: float, certainty: float
) -> dict[str, Any]:
    pipe.threshold, pipe.thresholds = 0.0, {}
    docs = _annotated(pipe, examples)
    collected = collect_entities(Example(doc, eg.reference) for doc, eg in zip(docs, examples))
    # Preset entities have no confidence.
    judged = [
        [(ent.confidence, is_right) for ent, is_right in zip(doc.predicted, doc.correct())]
        for doc in collected
    ]
    found = [
        (np.array([p for p, _ in doc], dtype=float), np.array([x for _, x in doc], dtype=bool))
        for doc in ([pair for pair in of_doc if pair[0] is not None] for of_doc in judged)
    ]

    def wrong(document: tuple[NDArray[Any], NDArray[Any]], threshold: float) -> float:
        kept = document[1][document[0] >= threshold]
        return 1 - float(kept.mean()) if len(kept) else np.nan

    row = _row(
        pipe.name,
        "precision",
        [document for document in found if len(document[0])],
        level,
        certainty,
        lambda documents: precision_threshold(documents, 1 - level, certainty),
        wrong,
    )
    pipe.threshold = row["threshold"]
    right = sum(int(correct[p >= pipe.threshold].sum()) for p, correct in found)
    return {**row, "cost": right / sum(len(doc.gold) for doc in collected)}


def _promise_analyses(
    pipe: "CRFEntityRecognizer", examples: Sequence[Example], level: float
) -> dict[str, Any]:
    complete = [
        eg for eg in examples if eg.reference.has_annotation("ENT_IOB", require_complete=True)
    ]
    known = [_is_analysis(pipe, eg) for eg in complete]
    log_p = iter(pipe.log_likelihoods(compress(complete, known)))
    return _row(
        pipe.name,
        "analyses",
        [math.exp(next(log_p)) if is_known else 0.0 for is_known in known],
        level,
        None,
        lambda p: coverage_threshold(np.array(p), 1 - level),
        lambda p, threshold: float(p < threshold),
    )


def _row(
    name: str,
    what: str,
    documents: Sequence[T],
    level: float,
    certainty: float | None,
    fit: Callable[[Sequence[T]], float | None],
    error: Callable[[T, float], float],
) -> dict[str, Any]:
    """Fit a threshold to documents, and try it on halves of them.

    fit: Finds the threshold, None if there is none. error: The share of errors in a document, NaN
        if it has nothing to judge.
    """
    tests = len(GRID) if what == "precision" else 1
    needed = documents_needed(1 - level, certainty, tests)
    threshold = fit(documents)
    if len(documents) < needed:
        raise InputError(
            f"[{name}] {what}: expected at least {needed} documents to promise {100 * level:g} %, "
            f"got {len(documents)} {USED[what.split()[0]]}. Calibrate on more, or promise less."
        )
    if threshold is None:
        raise InputError(
            f"[{name}] {what}: expected a threshold at which {100 * level:g} % is certain, got "
            f"none from {len(documents)} documents. Promise less, or calibrate on more."
        )
    lowest = LOWEST.get(what.split()[0], 0.0)
    if threshold < lowest:
        raise InputError(
            f"[{name}] {what}: expected {100 * level:g} % above a probability of {lowest:g}, got "
            f"{threshold:.2g}. The model does not know these documents well enough: promise less, "
            "or train on more like them; for analyses, split the documents into sentences."
        )
    threshold = math.floor(threshold * 1e10) / 1e10  # a saved number has ten decimals
    rng = random.Random(0)
    errors = []
    for _ in range(HALVES):
        shuffled = rng.sample(documents, len(documents))
        half = len(shuffled) // 2
        fitted = fit(shuffled[:half])
        if fitted is not None:
            errors.append(float(np.nanmean([error(each, fitted) for each in shuffled[half:]])))
    return {
        "promise": what,
        "level": level,
        "certainty": certainty,
        "documents": len(documents),
        "threshold": threshold,
        "on_halves": float(np.mean(errors)) if errors else None,
        "worst": float(np.quantile(errors, 0.95)) if errors else None,
    }


def _annotated(pipe: "CRFEntityRecognizer", examples: Sequence[Example]) -> list[Doc]:
    docs = [eg.predicted.copy() for eg in examples]
    for _ in pipe.pipe(docs):  # sets the entities in place; error handlers may drop docs
        pass
    return docs


def _gold_probabilities(pipe: "CRFEntityRecognizer", example: Example) -> list[tuple[str, float]]:
    """Return the label and the probability of each gold entity; 0 if it cannot be predicted."""
    asked: list[Span] = []
    found = []
    for ent in example.reference.ents:
        span = example.predicted.char_span(ent.start_char, ent.end_char, label=ent.label_)
        if span is None or ent.label_ not in pipe.labels:
            found.append((ent.label_, 0.0))
        else:
            asked.append(span)
    posteriors = pipe.span_posteriors(example.predicted, asked)
    return found + [(span.label_, p) for span, p in zip(asked, posteriors)]


def _is_analysis(pipe: "CRFEntityRecognizer", example: Example) -> bool:
    """Whether the gold entities can be the analysis of a doc, with its preset entities."""
    if not all(p for _, p in _gold_probabilities(pipe, example)):
        return False
    doc = example.predicted
    gold = set()
    for ent in example.reference.ents:
        span = doc.char_span(ent.start_char, ent.end_char)
        assert span is not None  # it has a probability
        gold.add((span.start, span.end, ent.label_))
    preset = () if pipe.overwrite else doc.ents
    # In the scheme IO, adjacent entities of one label are read as one.
    read = pipe.scheme.spans(gold_tags(example, pipe.scheme, pipe.name))
    return set(pipe.scheme.offsets(read)) == gold >= {(e.start, e.end, e.label_) for e in preset}


def _require_own_key(nlp: Language, name: str, key: str) -> None:
    """Raise InputError if another component writes candidates under the same key."""
    for other, pipe in nlp.pipeline:
        if other != name and key in (getattr(pipe, "spans_key", None), getattr(pipe, "key", None)):
            raise InputError(
                f"[{name}] spans_key: expected a key of its own, got {key!r}, which {other!r} "
                "writes too. Set another spans_key."
            )


def _settings(pipe: "CRFEntityRecognizer", kind: str) -> dict[str, Any]:
    values = {name: getattr(pipe, name) for name in (*COMMON, *SETTINGS[kind])}
    return {name: dict(x) if name.endswith("thresholds") else x for name, x in values.items()}


def _rounded(value: Any) -> Any:
    """Round numbers to the ten decimals that are saved."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 10) if isinstance(value, float) else value


def _is_same(now: Any, then: Any) -> bool:
    """Whether a setting has not changed; the last digits are not saved."""
    if isinstance(then, float):
        return math.isclose(now, then, rel_tol=1e-8)
    if isinstance(then, dict):
        return now.keys() == then.keys() and all(_is_same(now[key], then[key]) for key in then)
    return bool(now == then)


def _digest(nlp: Language, name: str) -> str:
    """The digest of the weights of a component, and of what comes before it."""
    names = nlp.component_names[: nlp.component_names.index(name)]
    names = [each for each in names if each not in nlp.disabled]
    pipes = [nlp.get_pipe(each) for each in (*names, name)]
    models = [getattr(pipe, "model", None) for pipe in pipes]
    weights = weights_digest(model for model in models if isinstance(model, Model))
    digest = blake2b(weights.encode(), digest_size=16)
    digest.update(srsly.json_dumps([nlp.lang, *names]).encode())
    digest.update(nlp.vocab.vectors.data.tobytes())
    for pipe, model in zip(pipes[:-1], models):
        if hasattr(pipe, "settings"):
            digest.update(srsly.json_dumps(pipe.settings, sort_keys=True).encode())
        elif model is None and hasattr(pipe, "to_bytes"):
            digest.update(pipe.to_bytes())
    return digest.hexdigest()
