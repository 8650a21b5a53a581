"""Preset annotation: the existing entities of docs, as constraints on decoding.

Axes: N tokens of the batch, one chain of a doc after the other, C tags.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, ENT_TYPE, IS_SPACE, SENT_START, SHAPE
from spacy.tokens import Doc, Span

from ..ml.zero_width import blank_tokens
from ..tags import TAG_OUTSIDE, TagScheme

# The preset entities of a chain, each with its label in the chain.
Preset = Sequence[tuple[Span, str]]

# The values of token.ent_iob.
IOB_MISSING, IOB_INSIDE, IOB_OUTSIDE, IOB_BEGIN = range(4)


@dataclass(frozen=True)
class DecodingConstraints:
    """Constraints on decoding the docs of a batch.

    Boundaries are sentence starts, first tokens, and tokens that begin preset entities or follow
    them.
    """

    allowed: NDArray[np.bool_] | None  # (N, C), tags that are allowed at the tokens; None for all
    boundaries: NDArray[np.bool_]  # (N,), tokens that cannot continue an entity
    preset: NDArray[np.bool_]  # (N,), tokens whose annotation is kept, not predicted


def preset_constraints(
    docs: Sequence[Doc],
    scheme: TagScheme,
    overwrite: bool,
    chains: Callable[[Doc], Sequence[Preset]],
    possible: NDArray[np.bool_] | None = None,
) -> DecodingConstraints:
    """Convert entities, blocked tokens, sentence starts and whitespace to constraints.

    Entities are kept, and other tokens are predicted given them. Entities of a label that the
    scheme lacks count as outside. Blocked tokens are outside. Outside tokens are kept only in docs
    where other tokens are marked as missing. Otherwise another component has annotated the doc, and
    its outside tokens are only tokens that it did not recognize. With `overwrite`, all are ignored.

    No predicted entity crosses a sentence start, or begins or ends with whitespace. In BIO and
    IO, which do not mark the end of an entity, it contains no whitespace either. Zero-width
    characters count as whitespace. A preset entity that breaks these rules is kept, with a warning.

    Args:
        chains: Returns the preset entities of each of the M chains of a doc.
        possible: (M, C) bool, the tags that may be predicted in each chain; None for all. Preset
            entities may have others.
    """
    presets = [chains(doc) for doc in docs]
    columns = [doc.to_array([ENT_IOB, ENT_TYPE, SENT_START, IS_SPACE]) for doc in docs]
    for doc, column in zip(docs, columns):
        column[blank_tokens(doc.to_array(SHAPE), doc.vocab.strings), 3] = 1
    columns = [column for column, of_doc in zip(columns, presets) for _ in of_doc]
    rows = [(doc, ents) for doc, of_doc in zip(docs, presets) for ents in of_doc]  # of a chain each
    begins = np.cumsum([0, *(len(doc) for doc, _ in rows)]).tolist()
    iob, label, sentence, space = np.concatenate(columns).T
    doc_of = np.repeat(np.arange(len(columns)), [len(column) for column in columns])  # and chain
    first = np.diff(doc_of, prepend=-1) > 0
    # The array is unsigned: -1, for no sentence start, is a large number in it.
    sentence_starts = (sentence == 1) & ~first
    boundaries = sentence_starts | first
    is_space = space == 1
    preset = np.zeros(len(iob), dtype=bool)
    if not overwrite:
        incomplete = np.bincount(doc_of[iob == IOB_MISSING], minlength=len(columns)) > 0
        preset = (iob == IOB_BEGIN) & (label == 0)  # blocked
        preset |= (iob == IOB_OUTSIDE) & incomplete[doc_of]
        for begin, (_, ents) in zip(begins, rows):
            for ent, _ in ents:
                preset[begin + ent.start : begin + ent.end] = True
    if possible is None and not (sentence_starts.any() or is_space.any() or preset.any()):
        return DecodingConstraints(None, boundaries, preset)
    if possible is None:
        allowed = np.ones((len(iob), len(scheme.tags)), dtype=bool)
    else:
        allowed = np.tile(possible, (len(docs), 1))[doc_of]
    # The first and last tags of a sentence are constrained like those of a doc.
    starts, ends = scheme.constraints.start, scheme.constraints.end
    allowed[sentence_starts] &= starts
    allowed[:-1][sentence_starts[1:]] &= ends
    # Tags that can begin or end an entity are forbidden at whitespace.
    within = ~(starts | ends)
    within[TAG_OUTSIDE] = True
    allowed[is_space] &= within
    if preset.any():
        for begin, (doc, ents) in zip(begins, rows):
            at = slice(begin, begin + len(doc))
            kept = allowed[at], preset[at], boundaries[at], is_space[at]
            _apply_preset(doc, ents, scheme, *kept)
    return DecodingConstraints(allowed, boundaries, preset)


def _apply_preset(
    doc: Doc,
    ents: Preset,
    scheme: TagScheme,
    allowed: NDArray[np.bool_],
    preset: NDArray[np.bool_],
    boundaries: NDArray[np.bool_],
    is_space: NDArray[np.bool_],
) -> None:
    """Restrict the preset tokens of a chain to their tags, and keep their entities from growing."""
    allowed[preset] = np.arange(allowed.shape[1]) == TAG_OUTSIDE
    for ent, label in ents:
        crossed = boundaries[ent.start + 1 : ent.end].any()
        if crossed or is_space[ent.start] or is_space[ent.end - 1]:
            broken = "crosses a sentence start" if crossed else "begins or ends with whitespace"
            warnings.warn(
                f"The preset entity {ent.text[:60]!r} ({ent.label_}) of the doc {doc.text[:60]!r} "
                f"{broken}. It is kept; set overwrite to true to ignore it.",
                stacklevel=2,
            )
        if label in scheme.numbers:
            first, tags = scheme.entity_mask(ent.start, ent.end, label, len(doc))
            allowed[ent.start : ent.end] = tags[ent.start - first : ent.end - first]
            for neighbor in (ent.start - 1, ent.end):
                # An entity cannot grow over a sentence start.
                begin = max(neighbor, ent.start)
                if 0 <= neighbor < len(doc) and not preset[neighbor] and not boundaries[begin]:
                    allowed[neighbor] &= tags[neighbor - first]
    for ent, _ in ents:  # neither a part nor a union of them is an entity
        boundaries[ent.start : ent.end] = False
        boundaries[ent.start] = True
        boundaries[ent.end : ent.end + 1] = True
