"""The windows of docs that a transformer reads, as the span getters of spacy-transformers."""

from collections.abc import Callable, Sequence
from functools import partial

from spacy.tokens import Doc, Span

SpanGetter = Callable[[Sequence[Doc]], list[list[Span]]]


def strided_spans(window: int, stride: int) -> SpanGetter:
    """Make `spacy-crf-ner.strided_spans.v1`: windows of equal length that may overlap.

    window: Tokens of a window. stride: Tokens between the starts of two windows.
    """
    return partial(_of_docs, partial(_strided, window=window, stride=stride))


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
