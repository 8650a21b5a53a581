"""From the posterior distribution of docs to their predictions, by the settings of a component."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from spacy.tokens import Doc, Span

from ..tags import SpanOffsets
from .annotation import Prediction
from .interval_scheduling import Candidate, best_disjoint

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer


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
