"""Predictions: from the posterior distribution of docs to their annotation."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from spacy.tokens import Doc, Span

from ..tags import SpanOffsets
from .character_spans import SCORES, FollowingSpans
from .interval_scheduling import Candidate, best_disjoint
from .spacy_internals import extension_key

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer

CONFIDENCE = "confidence"  # the name of the extension attribute
CONFIDENT_IN = "confidence_label"  # the label that it is the confidence of; "" if it is unknown
# The key of overlapping entities and of candidates, as in spaCy's span categorizer, unless one is
# set.
SPANS_KEY = "sc"


class Prediction(NamedTuple):
    """The prediction for one doc."""

    spans: list[SpanOffsets]  # of the entities of `doc.ents`, in order
    confidences: list[float]  # their probabilities; empty if not requested
    candidates: list[Candidate]  # that may overlap, for `doc.spans`


def label_thresholds(pipe: CRFEntityRecognizer) -> dict[str, float]:
    """Return the lowest probability of an entity of each label."""
    return {label: pipe.thresholds.get(label, pipe.threshold) for label in pipe.labels}


def decode(pipe: CRFEntityRecognizer, docs: Sequence[Doc]) -> list[Prediction]:
    """Find the entities of docs, their probabilities, and candidates if they are asked for."""
    encoding, thresholds = pipe.encoding, label_thresholds(pipe)
    posterior = pipe.posterior(docs)
    if pipe.decode == "max_expected_f":
        lowest = np.array([*thresholds.values()]).clip(pipe.f_score_threshold)
        spans = [
            [span for span, _ in encoding.choose(of_doc, pipe.f_score_threshold)]
            for of_doc in posterior.candidates(lowest)
        ]
    else:
        spans = posterior.decode()
    probabilities: list[list[float]] = [[] for _ in docs]
    if pipe.confidence or any(thresholds.values()) or encoding.key is not None:
        probabilities = posterior.probabilities(spans)
    if any(thresholds.values()):
        for of_doc, ps in zip(spans, probabilities):
            kept = [p >= thresholds[label] for (_, _, label), p in zip(of_doc, ps)]
            of_doc[:] = compress(of_doc, kept)
            ps[:] = compress(ps, kept)
    if encoding.key is not None:
        presets = [() if pipe.overwrite else doc.ents for doc in docs]
        return [_with_disjoint(*of_doc) for of_doc in zip(spans, probabilities, presets)]
    candidates: list[list[Candidate]] = [[] for _ in docs]
    if pipe.spans_key is not None:
        default = pipe.candidate_threshold
        by_label = [pipe.candidate_thresholds.get(label, default) for label in pipe.labels]
        candidates = posterior.candidates(np.array(by_label))
    return [Prediction(*of_doc) for of_doc in zip(spans, probabilities, candidates)]


def _with_disjoint(
    spans: list[SpanOffsets], probabilities: list[float], kept: Iterable[Span]
) -> Prediction:
    """Put overlapping entities of a doc into `doc.spans`, and the best disjoint into `doc.ents`."""
    overlapping = list(zip(spans, probabilities))
    taken = {i for span in kept for i in range(span.start, span.end)}
    ents = best_disjoint(
        (each for each in overlapping if taken.isdisjoint(range(*each[0][:2]))), 0.0
    )
    return Prediction([span for span, _ in ents], [p for _, p in ents], overlapping)


def add_confidence_extension() -> None:
    """Register `ent._.confidence` if it is new; warn if other code uses the name."""
    if not Span.has_extension(CONFIDENCE):
        Span.set_extension(CONFIDENCE, getter=_confidence, setter=_set_confidence)
    _, method, getter, _ = Span.get_extension(CONFIDENCE)
    if method is not None or getter not in (None, _confidence):
        warnings.warn(
            "Other code has registered Span._.confidence with a method or getter, which hides the "
            "confidences of crf_ner. Register that attribute under another name.",
            stacklevel=2,
        )


def _confidence(ent: Span) -> float | None:
    """Read a confidence; None if the entity has been given another label since."""
    data = ent.doc.user_data
    p: float | None = data.get(extension_key(ent, CONFIDENCE))
    label = p is not None and data.get(extension_key(ent, CONFIDENT_IN))
    return None if label and ent.label_ and label != ent.label_ else p


def _set_confidence(ent: Span, p: float | None) -> None:
    data = ent.doc.user_data
    data[extension_key(ent, CONFIDENCE)], data[extension_key(ent, CONFIDENT_IN)] = p, ent.label_


def delete_confidence(ents: Iterable[Span]) -> None:
    """Delete the confidences of entities."""
    for ent in ents:
        for name in (CONFIDENCE, CONFIDENT_IN):
            ent.doc.user_data.pop(extension_key(ent, name), None)


def annotate(pipe: CRFEntityRecognizer, doc: Doc, prediction: Prediction) -> None:
    """Set the predicted entities; other tokens without annotation become outside.

    Preset entities are put into `doc.spans` too. If entities overlap, those of other labels that
    another `crf_ner` has predicted are not.
    """
    key, labels = pipe.entities_key or pipe.spans_key, pipe.labels
    ents = [Span(doc, *span) for span in prediction.spans]
    preset = []
    if key is not None and not pipe.overwrite:  # before they change
        preset = [
            ent
            for ent in doc.ents
            if not pipe.overlap or ent.label_ in labels or ent._.get(CONFIDENCE) is None
        ]
    if pipe.overwrite or not doc.has_annotation("ENT_IOB"):
        delete_confidence(doc.ents)
        for ent in doc.ents:
            for token in ent:  # set_ents keeps old ids if the new entity has none
                token.ent_id, token.ent_kb_id = 0, 0
        doc.set_ents(ents, default="outside")
    else:
        doc.set_ents(ents, default="unmodified")
        missing = [doc[i : i + 1] for i, token in enumerate(doc) if not token.ent_iob]
        doc.set_ents([], outside=missing, default="unmodified")
    if pipe.confidence or pipe.overlap:
        for ent, p in zip(ents, prediction.confidences):
            _set_confidence(ent, p)
    if key is not None:
        # Preset entities have the probability 1.0.
        kept = {(ent.start, ent.end, ent.label_) for ent in preset}
        found = [(Span(doc, *span), p) for span, p in prediction.candidates if span not in kept]
        found = sorted([*found, *((ent, 1.0) for ent in preset)], key=lambda pair: pair[0])
        spans = [span for span, _ in found]
        attrs = {SCORES: np.array([p for _, p in found], dtype=np.float32)}
        doc.spans[key] = FollowingSpans(doc, name=key, spans=spans, attrs=attrs)
