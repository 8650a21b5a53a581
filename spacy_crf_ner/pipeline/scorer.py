"""The scorer of the component: spaCy's, for the labels that a gold doc annotates."""

from collections.abc import Callable, Iterable
from typing import Any

from spacy.pipeline.spancat import spancat_score
from spacy.scorer import get_ner_prf
from spacy.tokens import Span
from spacy.training import Example

from .annotated_labels import KEY as ANNOTATED
from .annotated_labels import unannotated


def make_ner_scorer() -> Callable[..., dict[str, Any]]:
    """Build `spacy-crf-ner.ner_scorer.v1`: precision, recall and F1 of `doc.ents`.

    As `spacy.ner_scorer.v1`, but predicted entities of a label that the gold doc does not annotate
    do not count as wrong, unless they overlap a gold entity (see `annotated_labels`).

    Of a component with overlapping entities, those in `doc.spans` are scored too, as
    `spacy.spancat_scorer.v1` does. Gold docs without them have theirs in `doc.ents`, if complete.
    """
    return score_entities


def score_entities(
    examples: Iterable[Example], spans_key: str | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Score examples as spaCy's scorers do, with their settings.

    The keys are "ents_p", "ents_r", "ents_f" and "ents_per_type"; with a key of overlapping
    entities in `doc.spans`, say "sc", also "spans_sc_p", "spans_sc_r", "spans_sc_f" and
    "spans_sc_per_type".
    """
    judged = [_judged(eg, spans_key) for eg in examples]
    scores: dict[str, Any] = get_ner_prf(judged, **kwargs)
    if spans_key is not None:
        scores |= spancat_score(judged, spans_key=spans_key, **kwargs)
    return scores


def _judged(eg: Example, key: str | None) -> Example:
    """Read flat gold docs as overlapping ones; leave out predictions of unannotated labels."""
    gold = eg.reference
    complete = gold.has_annotation("ENT_IOB", require_complete=True)
    if not len(gold):  # spaCy cannot copy the marks of an empty doc
        return eg
    if key is not None and key not in gold.spans and complete:
        eg = Example(eg.predicted, gold.copy())
        eg.reference.spans[key] = list(eg.reference.ents)
    if ANNOTATED not in gold.spans:
        return eg
    doc = eg.predicted.copy()
    known = _known(eg, doc.ents, overlapping=False)
    doc.set_ents(known, default="outside")
    if key is not None and key in doc.spans:
        doc.spans[key] = _known(eg, doc.spans[key], overlapping=True)
    return Example(doc, eg.reference)


def _known(eg: Example, ents: Iterable[Span], overlapping: bool) -> list[Span]:
    ents = list(ents)
    labels = [*{ent.label_ for ent in ents}]
    ambiguous = unannotated(eg, labels, overlapping)
    return [e for e in ents if not ambiguous[e.start : e.end, labels.index(e.label_)].all()]
