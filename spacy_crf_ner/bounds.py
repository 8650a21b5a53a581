"""What a doc already says of its entities, as the tags that may stand at its tokens.

Axes: T tokens, C tags.
"""

import warnings
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, SENT_START
from spacy.tokens import Doc

from .tags import OUTSIDE, TagScheme

# The values of token.ent_iob.
MISSING, INSIDE, OUT, BEGIN = 0, 1, 2, 3


@dataclass(frozen=True)
class Bounds:
    """What may be predicted of one doc.

    allowed: (T, C) bool, which tags may stand at which tokens; None for all.
    breaks: (T,) bool, tokens that continue no entity.
    taken: (T,) bool, tokens of which nothing is predicted: they are given.
    """

    allowed: Optional[NDArray[np.bool_]]
    breaks: NDArray[np.bool_]
    taken: NDArray[np.bool_]


def bounds(doc: Doc, scheme: TagScheme, overwrite: bool) -> Bounds:
    """Read off a doc its entities, blocked tokens, sentence starts and whitespace.

    Entities stay as they are, and their neighbours are predicted given them; those of a label that
    the scheme lacks count as outside. Blocked tokens are outside. Tokens marked as outside stay so
    if others are marked as missing: a doc with all of its tokens marked has been through another
    component, which marks as outside what it does not know.

    No entity crosses a sentence start, or begins or ends in whitespace, and in BIO and IO, which do
    not mark where an entity ends, whitespace is in none; one that is given and does
    so stays nevertheless, with a warning.

    overwrite: Whether entities and outside tokens of the doc are ignored.
    """
    T, C = len(doc), len(scheme.tags)
    # Of unsigned integers: a sentence start is 1, and none of its kin is.
    iob, sentence, space = doc.to_array([ENT_IOB, SENT_START, IS_SPACE]).T
    breaks = sentence == 1
    breaks[:1] = False
    is_space = space == 1
    taken = np.zeros(T, dtype=bool)
    if not overwrite:
        taken |= (iob == BEGIN) | (iob == INSIDE)
        if (iob == MISSING).any():
            taken |= iob == OUT
    if not (breaks.any() or is_space.any() or taken.any()):
        return Bounds(None, breaks, taken)
    allowed = np.ones((T, C), dtype=bool)
    # A sentence begins as a doc does, and the one before it ends so.
    starts, ends = scheme.constraints.start, scheme.constraints.end
    allowed[breaks] &= starts
    allowed[:-1][breaks[1:]] &= ends
    # What may begin or end an entity does not stand at whitespace.
    within = ~(starts | ends)
    within[OUTSIDE] = True
    allowed[is_space] &= within
    if taken.any():
        _take(doc, scheme, allowed, taken, breaks, is_space)
    return Bounds(allowed, breaks, taken)


def _take(
    doc: Doc,
    scheme: TagScheme,
    allowed: NDArray[np.bool_],
    taken: NDArray[np.bool_],
    breaks: NDArray[np.bool_],
    is_space: NDArray[np.bool_],
) -> None:
    """Allow of the tokens that are given only what is given, whatever else holds of them."""
    allowed[taken] = False
    allowed[taken, OUTSIDE] = True
    for ent in doc.ents:
        crossed = breaks[ent.start + 1 : ent.end].any()
        if crossed or is_space[ent.start] or is_space[ent.end - 1]:
            broken = "crosses a sentence start" if crossed else "begins or ends in whitespace"
            warnings.warn(
                f"The entity {ent.text[:60]!r} ({ent.label_}) that the doc {doc.text[:60]!r} came "
                f"with {broken}. It is kept; set overwrite to true to predict it anew.",
                stacklevel=2,
            )
        if ent.label_ in scheme.labels:
            given = scheme.only(ent.start, ent.end, ent.label_, len(doc))
            allowed[ent.start : ent.end] = given[ent.start : ent.end]
            for neighbour in (ent.start - 1, ent.end):
                # Over a sentence start nothing goes on with the entity.
                begin = max(neighbour, ent.start)
                if 0 <= neighbour < len(doc) and not taken[neighbour] and not breaks[begin]:
                    allowed[neighbour] &= given[neighbour]
