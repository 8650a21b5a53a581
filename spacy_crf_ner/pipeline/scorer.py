"""The scorer of the component: spaCy's, for the labels that a gold doc annotates."""

from collections.abc import Callable, Iterable
from typing import Any

from spacy.scorer import get_ner_prf
from spacy.training import Example

from .label_sets import unannotated


def make_ner_scorer() -> Callable[..., dict[str, Any]]:
    """Build `spacy-crf-ner.ner_scorer.v1`: precision, recall and F1 of `doc.ents`.

    As `spacy.ner_scorer.v1`, but predicted entities of a label that the gold doc does not annotate
    do not count as wrong, unless they overlap a gold entity (see `label_sets`).
    """
    return score_entities


def score_entities(examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
    """Score examples; returns "ents_p", "ents_r", "ents_f" and "ents_per_type"."""
    scores: dict[str, Any] = get_ner_prf([_judged(eg) for eg in examples], **kwargs)
    return scores


def _judged(eg: Example) -> Example:
    """Leave out predicted entities whose label is not annotated."""
    ents = eg.predicted.ents
    labels = [*{ent.label_ for ent in ents}]
    hidden = unannotated(eg, labels)
    if hidden is None:
        return eg
    doc = eg.predicted.copy()
    known = [e for e in ents if not hidden[e.start : e.end, labels.index(e.label_)].all()]
    doc.set_ents(known, default="outside")
    return Example(doc, eg.reference)
