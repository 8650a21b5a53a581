"""Marks of no width, such as a byte order mark: they are no part of a word.

Axes: N tokens.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import DEP, ENT_IOB, ENT_TYPE, LEMMA, MORPH, POS, SENT_START, SHAPE, TAG
from spacy.strings import StringStore
from spacy.tokens import Doc
from thinc.api import Model

from ..docbin import copy_norms

# Default_Ignorable_Code_Point, Unicode 15, without the fillers of Hangul.
MARKS = re.compile(
    "[\\u00ad\\u034f\\u061c\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f"
    "\\ufe00-\\ufe0f\\ufeff\\ufff0-\\ufff8\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a"
    "\\U000e0000-\\U000e0fff]"
)
JOINERS = "\u200c\u200d"
ATTRIBUTES = [TAG, POS, MORPH, LEMMA, DEP, ENT_IOB, ENT_TYPE, SENT_START]
NONE, SOME, ALL = range(3)
MAX_KINDS = 100_000
_kinds: dict[int, int] = {}  # by the id of a shape; texts have few different ones


def is_blank(text: str) -> bool:
    """Whether nothing of a text is visible: it has whitespace and marks of no width alone."""
    return not MARKS.sub("", text).strip()


def blank_tokens(shapes: NDArray[Any], strings: StringStore) -> NDArray[np.bool_]:
    """Find the tokens that are marks of no width, (N,). In SHAPE, marks stand for themselves."""
    if ALL not in _kinds_of(shapes, strings):
        return np.zeros(len(shapes), dtype=bool)
    return np.array([_kind(shape, strings) == ALL for shape in shapes.tolist()])


def _kinds_of(shapes: NDArray[Any], strings: StringStore) -> set[int]:
    return {_kind(shape, strings) for shape in {*shapes.tolist()}}


def _kind(shape: int, strings: StringStore) -> int:
    if shape not in _kinds:
        if len(_kinds) >= MAX_KINDS:
            _kinds.clear()
        text = strings[shape]
        _kinds[shape] = NONE if not MARKS.search(text) else ALL if is_blank(text) else SOME
    return _kinds[shape]


def has_listener(model: Model[Any, Any]) -> bool:
    """Whether a layer of the model listens to another component."""
    return any(hasattr(layer, "upstream_name") for layer in model.walk())


def docs_to_read(layer: Model[Any, Any], docs: Sequence[Doc]) -> list[Doc]:
    """Return docs as a layer reads them: without marks, except for a listener to other layers."""
    return [*docs] if has_listener(layer) else [*map(without_marks, docs)]


def word_without_marks(word: str) -> str:
    """Remove the marks from a word; the word itself if it has nothing else.

    Joiners inside a word stay: in Persian and Hindi, they are part of its spelling.
    """
    start, end = 0, len(word)
    while start < end and MARKS.match(word[start]):
        start += 1
    while start < end and MARKS.match(word[end - 1]):
        end -= 1
    inner = MARKS.sub(lambda mark: mark[0] if mark[0] in JOINERS else "", word[start:end])
    return inner or word


def without_marks(doc: Doc) -> Doc:
    """Return a doc without marks in its words: itself, or a copy with the attributes of tokens."""
    if SOME not in _kinds_of(doc.to_array(SHAPE), doc.vocab.strings):
        return doc
    words = [word_without_marks(token.text) for token in doc]
    spaces = [bool(token.whitespace_) for token in doc]
    copied = Doc(doc.vocab, words, spaces, user_data=doc.user_data)
    attributes: Any = doc.to_array(ATTRIBUTES)
    copied.from_array(ATTRIBUTES, attributes)
    copied.tensor = doc.tensor
    own = [token.norm_ for token in copied]
    copy_norms(doc, copied)
    for token, word, norm in zip(doc, copied, own):
        if token.text != word.text:
            word.norm_ = norm
    return copied
