"""Examples to what is learned from them: labels, tags, and spans known to be wrong.

Axes: T predicted tokens, C tags.
"""

import warnings
from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..tags import MISSING, OUTSIDE, TagScheme
from .preset import OUT


def collect_labels(examples: Iterable[Example], name: str, wrong_key: Optional[str]) -> List[str]:
    """Read all examples once: their labels, and whether their entities can be learned.

    name: Of the component, for messages.
    wrong_key: Of the spans in gold docs that are known to be wrong; None for none.

    Returns the labels in alphabetical order.
    Raises ValueError for an entity that begins or ends in whitespace, or of a label in "!".
    Warns of entities and wrong spans that do not align with the predicted tokens.
    """
    labels: Set[str] = set()
    ents = _Alignment("gold entities", "count as not annotated")
    wrong = _Alignment(f"spans in doc.spans[{wrong_key!r}]", "are left out")
    for eg in examples:
        found = _require_text(eg.reference, name)
        labels.update(ent.label_ for ent in found)
        ents.add(eg, found)
        wrong.add(eg, _wrong(eg, wrong_key))
    for read in (ents, wrong):
        if read.misaligned:
            warnings.warn(f"[{name}] {read}", stacklevel=3)
    return sorted(labels)


class _Alignment:
    """The spans of a corpus, and which of them do not align with the predicted tokens."""

    def __init__(self, what: str, fate: str) -> None:
        self.what, self.fate = what, fate
        self.total = 0
        self.misaligned: List[Span] = []

    def add(self, eg: Example, spans: Sequence[Span]) -> None:
        self.total += len(spans)
        self.misaligned += [span for span in spans if not eg.get_aligned_spans_y2x([span])]

    def __str__(self) -> str:
        shown = "; ".join(_where(span) for span in self.misaligned[:5])
        return (
            f"{len(self.misaligned)} of {self.total} {self.what} do not align with the predicted "
            f"tokens, which {self.fate}: {shown}{'; ...' if len(self.misaligned) > 5 else ''}. Use "
            "the tokenizer of the corpus, or correct the offsets."
        )


def gold_tags(eg: Example, scheme: TagScheme, name: str) -> NDArray[np.int64]:
    """Write the gold entities as tag ids of the predicted tokens, (T,); -1 where they are missing.

    Raises ValueError for an entity of an unknown label, or that begins or ends in whitespace.
    """
    ents = _require_text(eg.reference, name)
    try:
        if _same_tokens(eg):
            return _tags(eg.reference, ents, scheme)
        biluo = eg.get_aligned_ner()
        if sum(tag is not None and tag[0] in "BU" for tag in biluo) < len(ents):
            # The same words each time, so that Python shows it once.
            warnings.warn(
                f"[{name}] some gold entities do not align with the predicted tokens, which "
                "count as not annotated; nlp.initialize() lists them.",
                stacklevel=3,
            )
        return scheme.ids(biluo)
    except KeyError:
        ent = next(ent for ent in ents if ent.label_ not in scheme.labels)
        raise ValueError(_unknown(ent, scheme, name)) from None


def _same_tokens(eg: Example) -> bool:
    """Whether predicted and gold tokens are the same, so that nothing has to be aligned."""
    x, y = eg.predicted, eg.reference
    return len(x) == len(y) and np.array_equal(x.to_array(ORTH), y.to_array(ORTH))


def _tags(gold: Doc, ents: Sequence[Span], scheme: TagScheme) -> NDArray[np.int64]:
    """Write entities as tag ids of the gold tokens, with the results of `get_aligned_ner`."""
    iob, is_space = gold.to_array([ENT_IOB, IS_SPACE]).T
    # Whitespace is outside of entities wherever any token is annotated.
    outside = (iob == OUT) | ((is_space != 0) & iob.any())
    tags = np.where(outside, OUTSIDE, MISSING)
    if ents:
        starts, ends = np.array([(ent.start, ent.end) for ent in ents]).T
        labels = np.array([scheme.numbers[ent.label_] for ent in ents])
        written = scheme.write(labels, ends - starts)  # (S, L)
        tokens = starts[:, None] + np.arange(written.shape[1])
        tags[tokens[tokens < ends[:, None]]] = written[tokens < ends[:, None]]
    return tags


def wrong_spans(
    eg: Example, key: Optional[str], scheme: TagScheme, name: str
) -> Iterator[List[NDArray[np.bool_]]]:
    """Yield for each span known to be wrong what would have to be allowed for it to be.

    key: Of the spans in the gold doc; None for none. The label "O" says that the span is not
        wholly outside of entities, an empty one that it is no entity of any label.

    Yields for each span arrays of (T, C), one for each label that it is wrong with; not for those
    that do not align with the predicted tokens.
    Raises ValueError for an unknown label, and for a span that is a gold entity.
    """
    spans = _wrong(eg, key)
    if not spans:
        return
    for span in spans:
        if span.label_ not in ("", *scheme.tags[:1], *scheme.labels):
            raise ValueError(_unknown(span, scheme, name))
        for ent in eg.reference.ents:
            if (ent.start, ent.end) == (span.start, span.end) and span.label_ in ("", ent.label_):
                raise ValueError(
                    f"[{name}] {_where(ent)}: expected a span that is no gold entity in "
                    f"doc.spans[{key!r}], got this one. It is right or wrong: take it out of one."
                )
    T = len(eg.predicted)
    for span in eg.get_aligned_spans_y2x(spans, allow_overlap=True):
        if span.label_ == scheme.tags[OUTSIDE] and span.label_ not in scheme.labels:
            yield [scheme.outside(span.start, span.end, T)]
        else:
            labels = [span.label_] if span.label_ else scheme.labels
            yield [scheme.only(span.start, span.end, label, T) for label in labels]


def _wrong(eg: Example, key: Optional[str]) -> List[Span]:
    """The spans of the gold doc that are known to be wrong."""
    return [] if key is None else list(eg.reference.spans.get(key, []))


def _unknown(span: Span, scheme: TagScheme, name: str) -> str:
    return (
        f"[{name}] {_where(span)}: expected one of the labels {list(scheme.labels)}, "
        f"got {span.label_!r}. Initialize the pipeline with that label, or rename it."
    )


def _require_text(doc: Doc, name: str) -> Tuple[Span, ...]:
    """The entities; none that begins or ends in whitespace, or as spaCy 2 spelled wrong ones."""
    ents: Tuple[Span, ...] = tuple(doc.ents)
    for ent in ents:
        if ent.label_.startswith("!"):
            raise ValueError(
                f"[{name}] {_where(ent)}: expected a label, got {ent.label_!r}. A span known to be "
                "wrong goes into doc.spans, under the key that incorrect_spans_key names."
            )
        if ent[0].is_space or ent[-1].is_space:
            raise ValueError(
                f"[{name}] {_where(ent)}: expected an entity that begins and ends in a "
                f"word, got {ent.text!r}. Trim the whitespace off its ends."
            )
    return ents


def _where(ent: Span) -> str:
    """Name an entity in a message."""
    return (
        f"entity {ent.text[:60]!r} ({ent.label_}, characters {ent.start_char}:{ent.end_char}) "
        f"in the doc {ent.doc.text[:60]!r}"
    )
