"""Windows are those of spacy-transformers' span getters."""

import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy_transformers import span_getters

from helpers import properties
from spacy_crf_ner.ml.transformer.spans import doc_spans, sent_spans, strided_spans

VOCAB = spacy.blank("en").vocab
LENGTHS = st.lists(st.integers(0, 30), max_size=4)


def docs_of(lengths: list[int]) -> list[Doc]:
    docs = [
        Doc(VOCAB, words=["a"] * n, sent_starts=[i % 7 == 0 for i in range(n)]) for n in lengths
    ]
    return docs


@properties
@given(LENGTHS, st.integers(1, 12), st.integers(1, 12))
def test_strided_windows(lengths: list[int], window: int, stride: int) -> None:
    docs = docs_of(lengths)
    expected = span_getters.configure_strided_spans(window, stride)(docs)
    assert strided_spans(window, stride)(docs) == expected


@properties
@given(LENGTHS)
def test_sentences_and_docs(lengths: list[int]) -> None:
    docs = docs_of(lengths)
    assert doc_spans()(docs) == span_getters.configure_get_doc_spans()(docs)
    assert sent_spans()(docs) == span_getters.configure_get_sent_spans()(docs)
