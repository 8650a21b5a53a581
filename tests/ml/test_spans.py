"""Windows of docs, by counting tokens one by one."""

from itertools import pairwise

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.transformer.spans import (
    doc_spans,
    sent_spans,
    sentence_windows,
    strided_spans,
)

VOCAB = spacy.blank("en").vocab


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 12))
def test_strided_spans_begin_at_each_stride_until_the_end(n: int, window: int, stride: int) -> None:
    stride = min(stride, window)
    spans = strided_spans(window, stride)(Doc(VOCAB, words=["a"] * n))
    assert [start for start, _ in spans] == [i * stride for i in range(len(spans))]
    assert all(end == min(start + window, n) for start, end in spans)
    assert [end == n for _, end in spans] == [False] * (len(spans) - 1) + [True]


@given(st.lists(st.booleans(), max_size=30))
def test_doc_and_sent_spans_are_docs_and_sentences(starts: list[bool]) -> None:
    starts = [True, *starts]
    doc = Doc(VOCAB, words=["a"] * len(starts), sent_starts=starts)
    assert doc_spans()(doc) == [(0, len(doc))]
    edges = [i for i, is_start in enumerate(starts) if is_start] + [len(starts)]
    assert sent_spans()(doc) == [*pairwise(edges)]


@given(st.lists(st.sampled_from(["a", "b", ".", "。", "\n"]), max_size=40), st.integers(1, 12))
def test_sentence_windows_end_at_a_sentence_end_or_the_limit(words: list[str], window: int) -> None:
    spans = sentence_windows(window)(Doc(VOCAB, words=words))
    assert {i for start, end in spans for i in range(start, end)} == {*range(len(words))}
    assert all(end - start <= window for start, end in spans)
    for (start, end), (following, _) in pairwise(spans):
        full = start + window
        ends = [i for i in range(start + window // 2 + 1, full + 1) if words[i - 1] not in "ab"]
        assert end == (ends[-1] if ends else full)
        assert following == (end if ends else full - window // 4)


def test_windows_that_skip_tokens_are_refused() -> None:
    with pytest.raises(InputError, match=r"get_spans\.window: .* from 1, got 0"):
        sentence_windows(0)
    for window, stride in ((0, 0), (4, 0), (4, 5)):
        with pytest.raises(InputError, match=f"a stride from 1 .* got {stride} and {window}"):
            strided_spans(window, stride)
