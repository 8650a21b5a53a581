"""Examples to what is learned from them: labels, tags, and spans known to be wrong.

Axes: T predicted tokens, C tags.
"""

import warnings
from typing import Iterable, Iterator, List, Optional, Set

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from spacy.training import Example

from .tags import TagScheme


def collect_labels(examples: Iterable[Example], name: str) -> List[str]:
    """Read all examples once: their labels, and whether their entities can be learned.

    name: Of the component, for messages.

    Returns the labels in alphabetical order.
    Raises ValueError for an entity that begins or ends in whitespace.
    Warns of entities that do not align with the predicted tokens.
    """
    labels: Set[str] = set()
    total = 0
    misaligned: List[Span] = []
    for eg in examples:
        total += len(eg.reference.ents)
        labels.update(ent.label_ for ent in eg.reference.ents)
        _require_text(eg.reference, name)
        misaligned.extend(_misaligned(eg))
    if misaligned:
        shown = "; ".join(_where(ent) for ent in misaligned[:5])
        warnings.warn(
            f"[{name}] {len(misaligned)} of {total} gold entities do not align with the "
            f"predicted tokens, which count as not annotated: {shown}"
            f"{'; ...' if len(misaligned) > 5 else ''}. Use the tokenizer of the corpus, or "
            "correct the offsets.",
            stacklevel=3,
        )
    return sorted(labels)


def gold_tags(eg: Example, scheme: TagScheme, name: str) -> NDArray[np.int64]:
    """Write the gold entities as tag ids of the predicted tokens, (T,); -1 where they are missing.

    Raises ValueError for an entity of an unknown label, or that begins or ends in whitespace.
    """
    _require_text(eg.reference, name)
    biluo = eg.get_aligned_ner()
    if sum(tag is not None and tag[0] in "BU" for tag in biluo) < len(eg.reference.ents):
        # The same words each time, so that Python shows it once.
        warnings.warn(
            f"[{name}] some gold entities do not align with the predicted tokens, which "
            "count as not annotated; nlp.initialize() lists them.",
            stacklevel=3,
        )
    try:
        return scheme.ids(biluo)
    except KeyError:
        ent = next(ent for ent in eg.reference.ents if ent.label_ not in scheme.labels)
        raise ValueError(_unknown(ent, scheme, name)) from None


def wrong_spans(
    eg: Example, key: Optional[str], scheme: TagScheme, name: str
) -> Iterator[List[NDArray[np.bool_]]]:
    """Yield for each span known to be wrong what would have to be allowed for it to be.

    key: Of the spans in the gold doc; None for none.

    Yields for each span arrays of (T, C), one for each label that it is wrong with; not for those
    that do not align with the predicted tokens.
    Raises ValueError for an unknown label.
    """
    if key is None or key not in eg.reference.spans:
        return
    for span in eg.reference.spans[key]:
        if span.label_ and span.label_ not in scheme.labels:
            raise ValueError(_unknown(span, scheme, name))
    T = len(eg.predicted)
    for span in eg.get_aligned_spans_y2x(eg.reference.spans[key], allow_overlap=True):
        labels = [span.label_] if span.label_ else scheme.labels
        yield [scheme.only(span.start, span.end, label, T) for label in labels]


def _unknown(span: Span, scheme: TagScheme, name: str) -> str:
    return (
        f"[{name}] {_where(span)}: expected one of the labels {list(scheme.labels)}, "
        f"got {span.label_!r}. Initialize the pipeline with that label, or rename it."
    )


def _require_text(doc: Doc, name: str) -> None:
    """Refuse entities that begin or end in whitespace."""
    for ent in doc.ents:
        if ent[0].is_space or ent[-1].is_space:
            raise ValueError(
                f"[{name}] {_where(ent)}: expected an entity that begins and ends in a "
                f"word, got {ent.text!r}. Trim the whitespace off its ends."
            )


def _where(ent: Span) -> str:
    """Name an entity in a message."""
    return (
        f"entity {ent.text[:60]!r} ({ent.label_}, characters {ent.start_char}:{ent.end_char}) "
        f"in the doc {ent.doc.text[:60]!r}"
    )


def _misaligned(eg: Example) -> List[Span]:
    """The gold entities that have no counterpart in the predicted tokens."""
    ents = eg.reference.ents
    return [ent for ent in ents if not eg.get_aligned_spans_y2x([ent])]
