"""Marks of no width, such as a byte order mark: they are no part of a word.

Axes: N tokens.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import DEP, ENT_IOB, ENT_TYPE, LEMMA, MORPH, POS, SENT_START, SHAPE, TAG
from spacy.strings import StringStore
from spacy.tokens import Doc
from thinc.api import Model, chain
from thinc.types import Floats2d

from ..crf import Chain
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
    """Find the tokens that are marks of no width: (N,).

    Args:
        shapes: (N,), their attribute SHAPE, in which such marks stand for themselves.
    """
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


def chain_without_marks(
    tok2vec: Model[list[Doc], list[Floats2d]],
    head: Model[list[Floats2d], Chain],
    keep_marks: bool = False,
) -> Model[list[Doc], Chain]:
    """Chain two layers, of which the first reads words without marks of no width.

    A layer that listens to another component reads what that has read. The layers can be found as
    "tok2vec" and "output_layer".

    Args:
        keep_marks: Whether the first layer reads the words as they are.
    """
    model: Model[list[Doc], Chain] = chain(tok2vec, head)
    if not keep_marks:
        model._func = partial(_forward, forward=model._func)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("output_layer", head)
    return model


def _forward(
    model: Model[list[Doc], Chain],
    docs: list[Doc],
    is_train: bool,
    *,
    forward: Callable[..., Any],
) -> Any:
    marked = [
        isinstance(doc, Doc) and SOME in _kinds_of(doc.to_array(SHAPE), doc.vocab.strings)
        for doc in docs
    ]
    if any(marked) and not has_listener(model):
        docs = [_without_marks(doc) if has else doc for doc, has in zip(docs, marked)]
    return forward(model, docs, is_train)


def has_listener(model: Model[Any, Any]) -> bool:
    """Whether a layer of the model listens to another component."""
    return any(hasattr(layer, "upstream_name") for layer in model.walk())


def without_marks(word: str) -> str:
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


def _without_marks(doc: Doc) -> Doc:
    """Copy a doc, with the attributes that a layer may read, and words without the marks."""
    words = [without_marks(token.text) for token in doc]
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
