"""The windows of a doc that a transformer reads."""

from collections.abc import Callable
from functools import partial

import numpy as np
from spacy.attrs import ORTH
from spacy.pipeline import Sentencizer
from spacy.strings import StringStore
from spacy.tokens import Doc

from ...input_error import InputError

WINDOW = 128  # tokens, by default
# From a doc to its windows: (first token, last token + 1) of each.
SpanGetter = Callable[[Doc], list[tuple[int, int]]]
# The ids of tokens that end a sentence. In numpy, a list of such large numbers is of float64.
ENDS = np.array(
    [*map(StringStore().__getitem__, (*Sentencizer.default_punct_chars, "\n", "\n\n"))],
    dtype=np.uint64,
)


def strided_spans(window: int, stride: int) -> SpanGetter:
    """Make `spacy-crf-ner.strided_spans.v1`: windows of equal length that may overlap.

    Args:
        window: Tokens of a window.
        stride: Tokens between the starts of two windows.

    Raises:
        InputError: For numbers below 1, and for a stride that skips tokens.
    """
    if not 1 <= stride <= window:
        raise InputError(
            f"get_spans: expected a stride from 1 to the window, got {stride} and {window}."
        )
    return partial(_strided, window=window, stride=stride)


def sentence_windows(window: int) -> SpanGetter:
    """Make `spacy-crf-ner.sentence_windows.v1`: windows that end with a sentence, by punctuation.

    They do not overlap, so no token is read twice. Where no sentence ends in the second half of a
    window, the window is full, and shares its last quarter with the next one.

    Args:
        window: Tokens of a window at most.

    Raises:
        InputError: For a number below 1.
    """
    if window < 1:
        raise InputError(f"get_spans.window: expected a number of tokens from 1, got {window}.")
    return partial(_sentence_windows, window=window)


def sent_spans() -> SpanGetter:
    """Make `spacy-crf-ner.sent_spans.v1`: the sentences of docs, which must be set."""
    return _sentences


def doc_spans() -> SpanGetter:
    """Make `spacy-crf-ner.doc_spans.v1`: docs as a whole."""
    return _whole


def _strided(doc: Doc, window: int, stride: int) -> list[tuple[int, int]]:
    starts = range(0, max(len(doc) - window, 0) + stride, stride)
    return [(start, min(start + window, len(doc))) for start in starts]


def _sentence_windows(doc: Doc, window: int) -> list[tuple[int, int]]:
    if len(doc) <= window:
        return [(0, len(doc))]
    ends = np.flatnonzero(np.isin(doc.to_array(ORTH), ENDS)) + 1
    spans, start = [], 0
    while len(doc) - start > window:
        end = following = start + window
        before = ends[: np.searchsorted(ends, end, side="right")]
        if len(before) and before[-1] > start + window // 2:
            end = following = int(before[-1])
        else:
            following -= window // 4
        spans.append((start, end))
        start = following
    return [*spans, (start, len(doc))]


def _sentences(doc: Doc) -> list[tuple[int, int]]:
    return [(sent.start, sent.end) for sent in doc.sents]


def _whole(doc: Doc) -> list[tuple[int, int]]:
    return [(0, len(doc))]
