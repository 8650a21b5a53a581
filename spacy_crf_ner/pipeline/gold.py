"""Gold annotation of examples: labels, tag ids, and negative spans.

Axes: T predicted tokens.
"""

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, ORTH, SHAPE
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..input_error import InputError
from ..ml.zero_width import blank_tokens, is_blank
from ..tags import TAG_MISSING, TAG_OUTSIDE, Spans, TagScheme
from .preset import IOB_OUTSIDE


def gold_entities(gold: Doc, key: str | None) -> Sequence[Span]:
    """Return the entities of a gold doc: `doc.spans[key]` if it has this key, else `doc.ents`."""
    return list(gold.spans[key]) if key is not None and key in gold.spans else gold.ents


def count_entities(
    examples: Iterable[Example], key: str | None, excluded: Collection[str] = ()
) -> int:
    """Count the gold entities of labels that are not excluded; see `gold_entities` for the key."""
    golds = (gold_entities(eg.reference, key) for eg in examples)
    return sum(ent.label_ not in excluded for ents in golds for ent in ents)


def learnable_labels(examples: Iterable[Example], key: str | None) -> set[str]:
    """Find the labels of gold entities that align with the predicted tokens."""
    return {
        ent.label_
        for eg in examples
        for ent in gold_entities(eg.reference, key)
        if eg.get_aligned_spans_y2x([ent])
    }


def where_gold_is(key: str | None) -> str:
    """Return the advice for a corpus without gold entities."""
    return f"Check that the corpus has doc.ents{f' or doc.spans[{key!r}]' if key else ''}"


def collect_labels(
    examples: Iterable[Example], name: str, negative_key: str | None, key: str | None = None
) -> list[str]:
    """Return the labels of all examples, sorted; check that their entities can be learned.

    Warns about entities and negative spans that do not align with the predicted tokens. Raises
    InputError for an entity that begins or ends with whitespace, without a label, or whose label
    begins with "!".
    """
    labels: set[str] = set()
    kinds = {
        "gold entities": "are treated as not annotated",
        f"spans in doc.spans[{negative_key!r}]": "are ignored",
    }
    total, misaligned = Counter[str](), {kind: list[str]() for kind in kinds}
    for eg in examples:
        ents = check_text(gold_entities(eg.reference, key), name)
        labels.update(ent.label_ for ent in ents)
        for kind, spans in zip(kinds, (ents, _negatives(eg, negative_key))):
            total[kind] += len(spans)
            lost = (span for span in spans if not eg.get_aligned_spans_y2x([span]))
            misaligned[kind] += map(_where, lost)
    for kind, places in misaligned.items():
        if places:
            warnings.warn(
                f"[{name}] {len(places)} of {total[kind]} {kind} do not align with the predicted "
                f"tokens and {kinds[kind]}: {'; '.join(places[:5])}"
                f"{'; ...' if len(places) > 5 else ''}. "
                "Use the tokenizer of the corpus, or correct the offsets.",
                stacklevel=3,
            )
    return sorted(labels)


def gold_tags(eg: Example, scheme: TagScheme, name: str) -> NDArray[np.int64]:
    """Convert the gold entities to tag ids of the predicted tokens: (T,), -1 where missing.

    Raises InputError for an entity that has an unknown label, or begins or ends with whitespace.
    """
    gold, ents = eg.reference, check_text(eg.reference.ents, name)
    check_known(ents, scheme.labels, name)
    if np.array_equal(eg.predicted.to_array(ORTH), gold.to_array(ORTH)):
        return _tags(gold, ents, scheme)  # same tokens: nothing to align
    biluo = eg.get_aligned_ner()
    if sum(tag is not None and tag[0] in "BU" for tag in biluo) < len(ents):
        warn_of_misaligned(name)
    return scheme.ids(biluo)


def warn_of_misaligned(name: str) -> None:
    """Warn, with a message that is always the same, so that Python shows it once."""
    warnings.warn(
        f"[{name}] some gold entities do not align with the predicted tokens and are treated as "
        "not annotated; nlp.initialize() lists them.",
        stacklevel=4,
    )


def _tags(gold: Doc, ents: Sequence[Span], scheme: TagScheme) -> NDArray[np.int64]:
    """Convert entities to tag ids of the gold tokens, as spaCy's `get_aligned_ner` does.

    A blocked token is not annotated. Whitespace is outside if any token is annotated; so are marks
    of no width.
    """
    iob, is_space, shapes = gold.to_array([ENT_IOB, IS_SPACE, SHAPE]).T
    is_blank = (is_space != 0) | blank_tokens(shapes, gold.vocab.strings)
    outside = (iob == IOB_OUTSIDE) | (is_blank & iob.any())
    tags = np.where(outside, TAG_OUTSIDE, TAG_MISSING)
    if ents:
        spans = [(ent.start, ent.end, scheme.numbers[ent.label_]) for ent in ents]
        write_tags(tags, Spans(*np.array(spans).T), scheme)
    return tags


def write_tags(tags: NDArray[np.int64], spans: Spans, scheme: TagScheme) -> None:
    """Write the tags of spans that do not overlap into the tag ids of tokens."""
    lengths = spans.ends - spans.starts
    written = scheme.encode(spans.labels, lengths)  # (S, L)
    steps = np.arange(written.shape[1])
    within = steps < lengths[:, None]
    tags[(spans.starts[:, None] + steps)[within]] = written[within]


def fix_boundaries(
    gold: NDArray[np.int64],
    ambiguous: NDArray[np.bool_] | None,
    lengths: Sequence[int],
    scheme: TagScheme,
) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Keep tokens without annotation from extending the gold entity beside them, in BIO and IO.

    There, the tag of such a token could continue the entity. The token becomes "outside", and may
    have any tag but those.

    Args:
        gold: Tag ids (N,), -1 where missing.
        ambiguous: bool (N, C), the tags that "outside" may stand for; None for none.
        lengths: The tokens of each doc or chain.
    """
    missing, entity = gold < 0, gold > TAG_OUTSIDE
    if (scheme.extensions[1] < 0).all() or (ambiguous is None and not missing.any()):
        return gold, ambiguous
    nothing = np.zeros((len(gold), len(scheme.tags)), dtype=bool)
    free = nothing if ambiguous is None else ambiguous.copy()
    free[missing] = True
    edges = np.zeros(len(gold), dtype=bool)
    doc_of = np.repeat(np.arange(len(lengths)), lengths)
    inner = doc_of[1:] == doc_of[:-1]  # whether a token and the one before are of one doc
    after = np.flatnonzero(inner & entity[:-1] & ~entity[1:]) + 1
    before = np.flatnonzero(inner & ~entity[:-1] & entity[1:])
    free[after] &= ~scheme.continues[gold[after - 1]]
    free[before] &= ~scheme.continues.T[gold[before + 1]]
    edges[after] = edges[before] = True
    return np.where(missing & edges, TAG_OUTSIDE, gold), free


def aligned_negatives(
    eg: Example, key: str | None, labels: Sequence[str], name: str, entities_key: str | None = None
) -> Sequence[Span]:
    """Find the spans of `doc.spans[key]` of gold that align with the predicted tokens.

    A span is not an entity of its label, or of any label if it is empty. Raises InputError for a
    label that is not among these, and for a span that is a gold entity.
    """
    spans = _negatives(eg, key)
    for span in spans:
        if span.label_ not in ("", *labels):
            raise InputError(_unknown(span, labels, name))
        for ent in gold_entities(eg.reference, entities_key):
            if (ent.start, ent.end) == (span.start, span.end) and span.label_ in ("", ent.label_):
                raise InputError(
                    f"[{name}] {_where(ent)}: expected a span that is not a gold entity in "
                    f"doc.spans[{key!r}], got one that is. Remove it from doc.ents or doc.spans."
                )
    aligned: Sequence[Span] = eg.get_aligned_spans_y2x(spans, allow_overlap=True) if spans else ()
    return aligned


def _negatives(eg: Example, key: str | None) -> list[Span]:
    return [] if key is None else list(eg.reference.spans.get(key, []))


def _unknown(span: Span, labels: Sequence[str], name: str) -> str:
    return (
        f"[{name}] {_where(span)}: expected one of the labels {list(labels)}, "
        f"got {span.label_!r}. Initialize the pipeline with that label, or rename it."
    )


def check_known(ents: Iterable[Span], labels: Sequence[str], name: str) -> None:
    """Raise InputError for an entity of another label."""
    for ent in ents:
        if ent.label_ not in labels:
            raise InputError(_unknown(ent, labels, name))


def check_text(ents: Sequence[Span], name: str) -> Sequence[Span]:
    """Return the entities; raise InputError for whitespace at an edge, and no or a "!" label.

    Zero-width characters count as whitespace.
    """
    for ent in ents:
        if not ent.label_ or ent.label_.startswith("!"):
            raise InputError(
                f"[{name}] {_where(ent)}: expected a label, got {ent.label_!r}. Label it, or put "
                "negative spans into doc.spans, under the key that incorrect_spans_key names."
            )
        if not len(ent) or is_blank(ent[0].text) or is_blank(ent[-1].text):
            raise InputError(
                f"[{name}] {_where(ent)}: expected an entity that begins and ends with a "
                f"word, got {ent.text!r}. Remove the whitespace, and marks of no width, at its "
                "ends, or the entity."
            )
    return ents


def _where(ent: Span) -> str:
    return (
        f"entity {ent.text[:60]!r} ({ent.label_}, characters {ent.start_char}:{ent.end_char}) "
        f"in the doc {ent.doc.text[:60]!r}"
    )
