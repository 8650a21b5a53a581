"""Gold annotation of examples: labels, tag ids, and negative spans.

Axes: T predicted tokens.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..input_error import InputError
from ..tags import TAG_MISSING, TAG_OUTSIDE, SpanOffsets, TagMask, TagScheme
from .label_sets import hidden_tags, unannotated
from .preset import IOB_OUTSIDE


def collect_labels(examples: Iterable[Example], name: str, negative_key: str | None) -> list[str]:
    """Read all examples once, and check that their entities can be learned.

    name: The name of the component, for messages.
    negative_key: The key of the negative spans in `doc.spans` of gold docs; None for none.

    Returns the labels in alphabetical order.
    Raises InputError for an entity that begins or ends with whitespace, or whose label begins with
    "!". Warns about entities and negative spans that do not align with the predicted tokens.
    """
    labels: set[str] = set()
    kinds = {
        "gold entities": "are treated as not annotated",
        f"spans in doc.spans[{negative_key!r}]": "are ignored",
    }
    total, misaligned = Counter[str](), Counter[str]()
    shown = {kind: list[str]() for kind in kinds}
    for eg in examples:
        ents = _require_text(eg.reference, name)
        labels.update(ent.label_ for ent in ents)
        for kind, spans in zip(kinds, (ents, _negatives(eg, negative_key))):
            lost = [span for span in spans if not eg.get_aligned_spans_y2x([span])]
            total[kind] += len(spans)
            misaligned[kind] += len(lost)
            shown[kind] += [_where(span) for span in lost[: 5 - len(shown[kind])]]
    for kind, number in misaligned.items():
        if number:
            warnings.warn(
                f"[{name}] {number} of {total[kind]} {kind} do not align with the predicted "
                f"tokens and {kinds[kind]}: {'; '.join(shown[kind])}"
                f"{'; ...' if number > 5 else ''}. "
                "Use the tokenizer of the corpus, or correct the offsets.",
                stacklevel=3,
            )
    return sorted(labels)


def gold_tags(eg: Example, scheme: TagScheme, name: str) -> NDArray[np.int64]:
    """Convert the gold entities to tag ids of the predicted tokens: (T,), -1 where missing.

    Raises InputError for an entity that has an unknown label, or begins or ends with whitespace.
    """
    gold, ents = eg.reference, _require_text(eg.reference, name)
    try:
        if np.array_equal(eg.predicted.to_array(ORTH), gold.to_array(ORTH)):
            return _tags(gold, ents, scheme)  # same tokens: nothing to align
        biluo = eg.get_aligned_ner()
        if sum(tag is not None and tag[0] in "BU" for tag in biluo) < len(ents):
            # The message is always the same, so Python shows it once.
            warnings.warn(
                f"[{name}] some gold entities do not align with the predicted tokens and are "
                "treated as not annotated; nlp.initialize() lists them.",
                stacklevel=3,
            )
        return scheme.ids(biluo)
    except KeyError:
        ent = next(ent for ent in ents if ent.label_ not in scheme.labels)
        raise InputError(_unknown(ent, scheme, name)) from None


def _tags(gold: Doc, ents: Sequence[Span], scheme: TagScheme) -> NDArray[np.int64]:
    """Convert entities to tag ids of the gold tokens, as `get_aligned_ner` does."""
    iob, is_space = gold.to_array([ENT_IOB, IS_SPACE]).T
    # Whitespace is outside of entities if any token is annotated.
    outside = (iob == IOB_OUTSIDE) | ((is_space != 0) & iob.any())
    tags = np.where(outside, TAG_OUTSIDE, TAG_MISSING)
    if ents:
        starts, ends = np.array([(ent.start, ent.end) for ent in ents]).T
        labels = np.array([scheme.numbers[ent.label_] for ent in ents])
        written = scheme.write(labels, ends - starts)  # (S, L)
        tokens = starts[:, None] + np.arange(written.shape[1])
        tags[tokens[tokens < ends[:, None]]] = written[tokens < ends[:, None]]
    return tags


def is_annotated(eg: Example, scheme: TagScheme, name: str) -> bool:
    """Whether gold says something of a token: "outside" says nothing if it may be any tag."""
    gold, hidden = gold_tags(eg, scheme, name), hidden_tags([eg], scheme)
    known = gold >= 0
    if hidden is not None:
        known &= (gold != TAG_OUTSIDE) | ~hidden[:, 1:].all(1)
    return bool(known.any())


def judge_spans(
    eg: Example, candidates: Iterable[tuple[SpanOffsets, float]], scheme: TagScheme, name: str
) -> list[tuple[float, bool]]:
    """Find for each span with a probability whether it is a gold entity.

    Leaves out spans with tokens without annotation, or of a label that is not annotated there.
    """
    missing, hidden = gold_tags(eg, scheme, name) < 0, unannotated(eg, scheme.labels)
    aligned = eg.get_aligned_spans_y2x(eg.reference.ents)
    gold = {(ent.start, ent.end, ent.label_) for ent in aligned}
    judged = []
    for (start, end, label), p in candidates:
        unknown = missing[start:end].any()
        if hidden is not None:
            unknown |= hidden[start:end, scheme.numbers[label]].all()
        if not unknown:
            judged.append((p, (start, end, label) in gold))
    return judged


def negative_spans(eg: Example, key: str | None, scheme: TagScheme, name: str) -> Iterator[TagMask]:
    """Find the negative spans of an example that align with its predicted tokens.

    key: The key of the spans in `doc.spans` of the gold doc; None for none. A span is not an entity
        of its label, or of any label if it is empty; the label "O" means that at least one token of
        the span is in an entity.

    Yields for each span the tag sequences of the doc without it (see `TagScheme.exclusion_mask`).
    Raises InputError for an unknown label, and for a span that is a gold entity.
    """
    spans = _negatives(eg, key)
    for span in spans:
        if span.label_ not in ("", *scheme.tags[:1], *scheme.labels):
            raise InputError(_unknown(span, scheme, name))
        for ent in eg.reference.ents:
            if (ent.start, ent.end) == (span.start, span.end) and span.label_ in ("", ent.label_):
                raise InputError(
                    f"[{name}] {_where(ent)}: expected a span that is not a gold entity in "
                    f"doc.spans[{key!r}], got one that is. Remove it from doc.ents or doc.spans."
                )
    for span in eg.get_aligned_spans_y2x(spans, allow_overlap=True) if spans else ():
        yield scheme.exclusion_mask(span.start, span.end, span.label_, len(eg.predicted))


def _negatives(eg: Example, key: str | None) -> list[Span]:
    return [] if key is None else list(eg.reference.spans.get(key, []))


def _unknown(span: Span, scheme: TagScheme, name: str) -> str:
    return (
        f"[{name}] {_where(span)}: expected one of the labels {list(scheme.labels)}, "
        f"got {span.label_!r}. Initialize the pipeline with that label, or rename it."
    )


def _require_text(doc: Doc, name: str) -> tuple[Span, ...]:
    """Return the entities; raise InputError if one has whitespace at an edge or a "!" label."""
    ents: tuple[Span, ...] = tuple(doc.ents)
    for ent in ents:
        if ent.label_.startswith("!"):
            raise InputError(
                f"[{name}] {_where(ent)}: expected a label, got {ent.label_!r}. Put negative spans "
                "into doc.spans, under the key that incorrect_spans_key names."
            )
        if ent[0].is_space or ent[-1].is_space:
            raise InputError(
                f"[{name}] {_where(ent)}: expected an entity that begins and ends with a "
                f"word, got {ent.text!r}. Remove the whitespace at its ends."
            )
    return ents


def _where(ent: Span) -> str:
    """Describe an entity in a message."""
    return (
        f"entity {ent.text[:60]!r} ({ent.label_}, characters {ent.start_char}:{ent.end_char}) "
        f"in the doc {ent.doc.text[:60]!r}"
    )
