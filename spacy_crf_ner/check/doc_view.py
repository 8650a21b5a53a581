"""A doc as the rules see it: what they ask of it, read once."""

from typing import List, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IDX, IS_SPACE, ORTH, SENT_START
from spacy.tokens import Doc, Span

from .finding import Place

SHOWN = 60  # characters of a text
MISSING = 0  # of `iob`, as of token.ent_iob: no annotation
OUTSIDE = 2


class Reading(NamedTuple):
    """A doc of T tokens, and where it is.

    part: "train" or "dev".
    number: Of the doc in its part, from 0.
    ents: Its entities.
    orth: (T,) the words, as spaCy's hashes of them.
    offsets: (T,) the first character of each.
    iob: (T,) token.ent_iob: 0 where the annotation is missing, 2 outside of entities.
    space: (T,) bool, tokens of whitespace.
    starts: (T,) bool, tokens that begin a sentence; the first one does.
    """

    part: str
    number: int
    doc: Doc
    ents: List[Span]
    orth: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    iob: NDArray[np.uint64]
    space: NDArray[np.bool_]
    starts: NDArray[np.bool_]

    @property
    def annotated(self) -> bool:
        """Whether any token says if it is of an entity."""
        return bool((self.iob != MISSING).any())

    def place(self, span: Span, note: str = "") -> Place:
        """Name a place in the doc."""
        return Place(self.part, self.number, span.start_char, shorten(span.text), note)

    def beginning(self, note: str = "") -> Place:
        """Name the doc as a place."""
        return Place(self.part, self.number, 0, shorten(self.doc.text), note)


def read(part: str, number: int, doc: Doc) -> Reading:
    """Read of a doc what the rules ask."""
    attributes = [ORTH, IDX, ENT_IOB, SENT_START, IS_SPACE]
    orth, offsets, iob, sentence, space = doc.to_array(attributes).T
    # Of unsigned integers: a sentence start is 1, and none of its kin is.
    starts = sentence == 1
    starts[:1] = True
    return Reading(part, number, doc, list(doc.ents), orth, offsets, iob, space == 1, starts)


def shorten(text: str) -> str:
    """Cut a long text."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
