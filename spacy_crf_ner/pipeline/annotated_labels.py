"""Which labels a gold doc annotates, for training on corpora with different labels.

`doc.spans["annotated_labels"]` has a span for each label, over the tokens where the label is
annotated. So it is stored with the doc, aligned with other tokens, and kept by augmenters. Without
it, all labels are annotated. Elsewhere, a token that gold says is outside may be in an entity.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..input_error import InputError
from ..ml.zero_width import is_blank
from ..tags import TagScheme
from .gold import gold_entities

KEY = "annotated_labels"


def mark_annotated_labels(doc: Doc, labels: Iterable[str], key: str | None = None) -> None:
    """Mark a gold doc as annotated with these labels, and with no others.

    The entities are in `doc.spans[key]`, or in `doc.ents` without a key. Raises InputError for a
    label that is not a non-empty string, if the doc has an entity of another label, and if it is
    marked already as annotated with fewer labels.
    """
    labels = [*dict.fromkeys(labels)]
    where = f"the doc {doc.text[:60]!r}"
    if not all(isinstance(label, str) and label for label in labels):
        raise InputError(f"{where}: expected annotated labels that are not empty, got {labels}.")
    before = annotated_labels(doc)
    if before is not None and not before >= {*labels}:
        raise InputError(
            f"{where}: expected some of its annotated labels {sorted(before)}, got {labels}. "
            "Leave out the others, or convert the corpus again."
        )
    _check_labels(gold_entities(doc, key), labels)
    doc.spans[KEY] = [Span(doc, 0, len(doc), label) for label in labels]


def check_annotated(doc: Doc, ents: Iterable[Span]) -> None:
    """Raise InputError for an entity of a label that a gold doc does not annotate."""
    labels = annotated_labels(doc)
    if labels is not None:
        _check_labels(ents, labels)


def _check_labels(ents: Iterable[Span], labels: Collection[str]) -> None:
    for ent in ents:
        if ent.label_ not in labels:
            raise InputError(
                f"entity {ent.text[:60]!r} in the doc {ent.doc.text[:60]!r}: expected one of the "
                f"annotated labels {[*labels]}, got {ent.label_!r}. Add the label to them."
            )


def annotated_labels(doc: Doc) -> set[str] | None:
    """Return the labels that a gold doc annotates; None for all."""
    return {span.label_ for span in doc.spans[KEY]} if KEY in doc.spans else None


def is_complete(gold: Doc, labels: Iterable[str]) -> bool:
    """Whether all entities of these labels are annotated."""
    given = np.array([token.ent_iob != 0 for token in gold], dtype=bool)
    blank = np.array([is_blank(token.text) for token in gold], dtype=bool)
    is_whole = bool((given | blank).all() and (given.any() or not len(gold)))
    annotated = annotated_labels(gold)
    return is_whole and (annotated is None or annotated >= {*labels})


def unannotated(eg: Example, labels: Sequence[str], overlapping: bool = False) -> NDArray[np.bool_]:
    """Find the predicted tokens where gold does not say whether they are in an entity: bool (T, L).

    Unless entities overlap, a token of a gold entity is in no other.
    """
    if KEY not in eg.reference.spans:
        return np.zeros((len(eg.predicted), len(labels)), dtype=bool)
    ambiguous = np.ones((len(eg.predicted), len(labels)), dtype=bool)
    for span in eg.get_aligned_spans_y2x(list(eg.reference.spans[KEY]), allow_overlap=True):
        if span.label_ in labels:
            ambiguous[span.start : span.end, labels.index(span.label_)] = False
    for ent in () if overlapping else eg.get_aligned_spans_y2x(eg.reference.ents):
        ambiguous[ent.start : ent.end] = False
    return ambiguous


def ambiguous_tags(examples: Sequence[Example], scheme: TagScheme) -> NDArray[np.bool_] | None:
    """Find the tags but "O" that "outside" may stand for at the N tokens: (N, C); None for none."""
    if not any(KEY in eg.reference.spans for eg in examples):
        return None
    by_label = np.concatenate([unannotated(eg, scheme.labels) for eg in examples])
    tags = np.zeros((len(by_label), len(scheme.tags)), dtype=bool)
    tags[:, 1:] = by_label[:, scheme.label_of[1:]]
    return tags
