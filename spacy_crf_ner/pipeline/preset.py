"""What docs already say of their entities, as the tags that may stand at their tokens.

Axes: N tokens of the batch, one doc after the other, T tokens of a doc, C tags.
"""

import warnings
from dataclasses import dataclass
from typing import Optional, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, SENT_START
from spacy.tokens import Doc

from ..tags import OUTSIDE, TagScheme

# The values of token.ent_iob.
MISSING, INSIDE, OUT, BEGIN = 0, 1, 2, 3


@dataclass(frozen=True)
class Bounds:
    """What may be predicted of the docs of a batch.

    allowed: (N, C) bool, which tags may stand at which tokens; None for all.
    breaks: (N,) bool, tokens that continue no entity, the first one of each doc among them.
    taken: (N,) bool, tokens of which nothing is predicted: they are given.
    """

    allowed: Optional[NDArray[np.bool_]]
    breaks: NDArray[np.bool_]
    taken: NDArray[np.bool_]


def bounds(docs: Sequence[Doc], scheme: TagScheme, overwrite: bool) -> Bounds:
    """Read off docs their entities, blocked tokens, sentence starts and whitespace.

    Entities stay as they are, and their neighbours are predicted given them; those of a label that
    the scheme lacks count as outside. Blocked tokens are outside. Tokens marked as outside stay so
    if others of their doc are marked as missing: a doc with all of its tokens marked has been
    through another component, which marks as outside what it does not know.

    No entity crosses a sentence start, or begins or ends in whitespace, and in BIO and IO, which do
    not mark where an entity ends, whitespace is in none; one that is given and does
    so stays nevertheless, with a warning.

    overwrite: Whether entities and outside tokens of the docs are ignored.
    """
    columns = [doc.to_array([ENT_IOB, SENT_START, IS_SPACE]) for doc in docs]
    iob, sentence, space = np.concatenate(columns).T
    doc_of = np.repeat(np.arange(len(docs)), [len(doc) for doc in docs])
    first = np.diff(doc_of, prepend=-1) > 0
    # Of unsigned integers: a sentence start is 1, and none of its kin is.
    sentence_starts = (sentence == 1) & ~first
    breaks = sentence_starts | first
    is_space = space == 1
    taken = np.zeros(len(iob), dtype=bool)
    if not overwrite:
        incomplete = np.bincount(doc_of[iob == MISSING], minlength=len(docs)) > 0
        taken = (iob == BEGIN) | (iob == INSIDE) | ((iob == OUT) & incomplete[doc_of])
    if not (sentence_starts.any() or is_space.any() or taken.any()):
        return Bounds(None, breaks, taken)
    allowed = np.ones((len(iob), len(scheme.tags)), dtype=bool)
    # A sentence begins as a doc does, and the one before it ends so.
    starts, ends = scheme.constraints.start, scheme.constraints.end
    allowed[sentence_starts] &= starts
    allowed[:-1][sentence_starts[1:]] &= ends
    # What may begin or end an entity does not stand at whitespace.
    within = ~(starts | ends)
    within[OUTSIDE] = True
    allowed[is_space] &= within
    if taken.any():
        stop = 0
        for doc in docs:
            at = slice(stop, stop := stop + len(doc))
            _take(doc, scheme, allowed[at], taken[at], breaks[at], is_space[at])
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
