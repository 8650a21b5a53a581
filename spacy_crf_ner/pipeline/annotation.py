"""Predictions, and writing them to docs."""

import warnings
from collections.abc import Container, Iterable
from typing import NamedTuple

import numpy as np
from spacy.tokens import Doc, Span

from ..tags import SpanOffsets
from .character_spans import SCORES, FollowingSpans
from .spacy_internals import extension_key

CONFIDENCE = "confidence"  # the name of the extension attribute
CONFIDENT_IN = "confidence_label"  # the label that it is the confidence of; "" if it is unknown
# The key of overlapping entities and of candidates, as in spaCy's span categorizer, unless one is
# set.
SPANS_KEY = "sc"


class Prediction(NamedTuple):
    """The prediction for one doc."""

    spans: list[SpanOffsets]  # of the entities of `doc.ents`, in order
    confidences: list[float]  # their probabilities; empty if not requested
    candidates: list[tuple[SpanOffsets, float]]  # that may overlap, for `doc.spans`


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


def annotate(
    doc: Doc,
    prediction: Prediction,
    overwrite: bool,
    confidence: bool,
    spans_key: str | None,
    labels: Container[str] | None = None,
) -> None:
    """Set the predicted entities; other tokens without annotation become outside.

    Args:
        overwrite: Whether to replace preset entities.
        confidence: Whether to set `ent._.confidence`.
        spans_key: The key of `doc.spans` for candidates or overlapping entities; None for none.
        labels: The labels of the component. Entities of other labels that another crf_ner has
            predicted are not put into `doc.spans[spans_key]`; None puts all there.
    """
    ents = [Span(doc, *span) for span in prediction.spans]
    preset = []
    if spans_key is not None and not overwrite:  # before they change
        preset = [
            ent
            for ent in doc.ents
            if labels is None or ent.label_ in labels or ent._.get(CONFIDENCE) is None
        ]
    if overwrite or not doc.has_annotation("ENT_IOB"):
        delete_confidence(doc.ents)
        for ent in doc.ents:
            for token in ent:  # set_ents keeps old ids if the new entity has none
                token.ent_id, token.ent_kb_id = 0, 0
        doc.set_ents(ents, default="outside")
    else:
        doc.set_ents(ents, default="unmodified")
        missing = [doc[i : i + 1] for i, token in enumerate(doc) if not token.ent_iob]
        doc.set_ents([], outside=missing, default="unmodified")
    if confidence:
        for ent, p in zip(ents, prediction.confidences):
            _set_confidence(ent, p)
    if spans_key is not None:
        # Preset entities have the probability 1.0.
        kept = {(ent.start, ent.end, ent.label_) for ent in preset}
        found = [(Span(doc, *span), p) for span, p in prediction.candidates if span not in kept]
        found = sorted([*found, *((ent, 1.0) for ent in preset)], key=lambda pair: pair[0])
        spans = [span for span, _ in found]
        scores = np.array([p for _, p in found], dtype=np.float32)
        attrs = {SCORES: scores}
        doc.spans[spans_key] = FollowingSpans(doc, name=spans_key, spans=spans, attrs=attrs)
