"""Windows are those of spacy-transformers' span getters."""

from itertools import pairwise

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy_transformers import span_getters

from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.transformer.spans import (
    doc_spans,
    sent_spans,
    sentence_windows,
    strided_spans,
)

VOCAB = spacy.blank("en").vocab
LENGTHS = st.lists(st.integers(0, 30), max_size=4)


def docs_of(lengths: list[int]) -> list[Doc]:
    docs = [
        Doc(VOCAB, words=["a"] * n, sent_starts=[i % 7 == 0 for i in range(n)]) for n in lengths
    ]
    return docs


@given(LENGTHS, st.integers(1, 12), st.integers(1, 12))
def test_strided_spans_match_span_getters(lengths: list[int], window: int, stride: int) -> None:
    docs = docs_of(lengths)
    expected = span_getters.configure_strided_spans(window, stride)(docs)
    assert strided_spans(window, stride)(docs) == expected


@given(LENGTHS)
def test_doc_and_sent_spans_match_span_getters(lengths: list[int]) -> None:
    docs = docs_of(lengths)
    assert doc_spans()(docs) == span_getters.configure_get_doc_spans()(docs)
    assert sent_spans()(docs) == span_getters.configure_get_sent_spans()(docs)


@given(st.lists(st.sampled_from(["a", "b", ".", "。", "\n"]), max_size=40), st.integers(1, 12))
def test_sentence_windows_end_at_sentence_end_or_limit(words: list[str], window: int) -> None:
    """By counting tokens one by one."""
    doc = Doc(VOCAB, words=words)
    (spans,) = sentence_windows(window)([doc])
    assert bool(spans) == bool(words)  # spacy-transformers' own layer fails on empty windows
    assert {i for span in spans for i in range(span.start, span.end)} == set(range(len(doc)))
    assert all(len(span) <= window for span in spans)
    for span, following in pairwise(spans):
        full = span.start + window
        ends = [
            i for i in range(span.start + window // 2 + 1, full + 1) if words[i - 1] not in "ab"
        ]
        assert span.end == (ends[-1] if ends else full)
        assert following.start == (span.end if ends else full - window // 4)


def test_sentence_windows_with_window_zero_raises() -> None:
    with pytest.raises(InputError, match=r"get_spans\.window: .* from 1, got 0"):
        sentence_windows(0)
