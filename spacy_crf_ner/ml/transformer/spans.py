"""The windows of docs that a transformer reads: span getters, as spacy-transformers has them."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from spacy.attrs import ORTH
from spacy.pipeline import Sentencizer
from spacy.strings import StringStore
from spacy.tokens import Doc, Span

from ...input_error import InputError

SpanGetter = Callable[[Sequence[Doc]], list[list[Span]]]
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
    """
    return partial(_of_docs, partial(_strided, window=window, stride=stride))


def sentence_windows(window: int) -> SpanGetter:
    """Make `spacy-crf-ner.sentence_windows.v1`: windows that end with a sentence, by punctuation.

    They do not overlap, so no token is read twice. Where no sentence ends in the second half of a
    window, the window is full, and shares its last quarter with the next one.

    Args:
        window: Tokens of a window at most.
    """
    if window < 1:
        raise InputError(f"get_spans.window: expected a number of tokens from 1, got {window}.")
    return partial(_of_docs, partial(_sentence_windows, window=window))


def sent_spans() -> SpanGetter:
    """Make `spacy-crf-ner.sent_spans.v1`: the sentences of docs, which must be set."""
    return partial(_of_docs, lambda doc: list(doc.sents))


def doc_spans() -> SpanGetter:
    """Make `spacy-crf-ner.doc_spans.v1`: docs as a whole."""
    return partial(_of_docs, lambda doc: [doc[:]])


def _of_docs(spans: Callable[[Doc], list[Span]], docs: Sequence[Doc]) -> list[list[Span]]:
    return [spans(doc) for doc in docs]


def _strided(doc: Doc, window: int, stride: int) -> list[Span]:
    spans = []
    for start in range(0, len(doc), stride):
        is_last = start + stride > len(doc)
        spans.append(doc[start:] if is_last else doc[start : start + window])
        if start + window >= len(doc):
            break
    return spans


def _sentence_windows(doc: Doc, window: int) -> list[Span]:
    if len(doc) <= window:
        return [doc[:]] if len(doc) else []
    ends = np.flatnonzero(np.isin(doc.to_array(ORTH), ENDS)) + 1
    spans, start = [], 0
    while len(doc) - start > window:
        end = following = start + window
        before = ends[: np.searchsorted(ends, end, side="right")]
        if len(before) and before[-1] > start + window // 2:
            end = following = int(before[-1])
        else:
            following -= window // 4
        spans.append(doc[start:end])
        start = following
    return [*spans, doc[start:]]
