"""Subwords of tokens, by counting characters; windows with too many; batches."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import example, given
from hypothesis import strategies as st
from spacy.tokens import Doc

from encoders import TEXTS, TOKENIZERS, belongs
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.transformer import tokenizer as tokenizers
from spacy_crf_ner.ml.transformer.slow_tokenizer import SlowTokenizer
from spacy_crf_ner.ml.transformer.spans import SpanGetter, sentence_windows, strided_spans
from spacy_crf_ner.ml.transformer.subwords import (
    CPU,
    CPU_BF16,
    POOLINGS,
    BatchLimits,
    Encoded,
    Subwords,
    batches,
    divide,
)
from spacy_crf_ner.ml.transformer.tokenizer import Tokenizer

VOCAB = spacy.blank("xx").vocab
PAD = -1
WHOLE = BatchLimits(10**9, 10**9)
NOTHING = Doc(VOCAB, words=["\n"])


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(TOKENIZERS[kind]().to_str(), 0, 10**9)


class Recorder:
    """Encodes texts, with a number of its own for each subword; and keeps them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.made: list[Encoded] = []

    def __call__(self, texts: Sequence[str]) -> list[Encoded]:
        found = []
        for each in self.tokenizer.encode(texts):
            first = sum(len(before.ids) for before in self.made + found)
            ids = np.arange(first, first + len(each.ids), dtype=np.int32)
            found.append(each._replace(ids=ids))
        self.made += found
        return found


def ids_by_token(subwords: Subwords) -> list[list[int]]:
    cells = np.concatenate([np.zeros(0, dtype=int), *(b.ids.ravel() for b in subwords.batches)])
    edges = [*subwords.firsts.tolist(), len(subwords.rows)]
    return [cells[subwords.rows[i:j]].tolist() for i, j in pairwise(edges)]


def counted(docs: list[Doc], windows: SpanGetter, made: list[Encoded]) -> list[list[int]]:
    """The subwords of each token, with an index for each, by comparing each with each."""
    found: list[list[int]] = []
    windows_left = iter(made)
    for doc in docs:
        own: list[list[int]] = [[] for _ in doc]
        for start, end in windows(doc):
            if start == end:
                continue
            encoded, base = next(windows_left), doc[start].idx
            for index, pair in zip(encoded.ids.tolist(), encoded.characters.tolist()):
                for i in range(start, end):
                    token = doc[i].idx, doc[i].idx + len(doc[i])
                    if belongs(token, (base + pair[0], base + pair[1]), doc.text):
                        own[i].append(index)
        found += own
    assert next(windows_left, None) is None
    return found


odd = st.sampled_from(
    ["né", "Tim", "is", "東京", " ", "\n\n", " \t", "\u3000", "a b", "b ", " a", "\xa0", "e\u0301"]
)
words = st.lists(
    st.tuples(odd | st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.booleans()),
    max_size=12,
)


def made_of(pairs: list[tuple[str, bool]]) -> Doc:
    return Doc(VOCAB, words=[word for word, _ in pairs], spaces=[space for _, space in pairs])


def few_windows(doc: Doc) -> list[tuple[int, int]]:
    """Windows that leave out tokens, and empty ones."""
    return [(i, min(i + 2, len(doc))) for i in range(0, len(doc), 3)] + [(0, 0)]


windows = st.one_of(
    st.just(few_windows),
    st.builds(sentence_windows, st.integers(1, 8)),
    st.integers(1, 6).flatmap(
        lambda n: st.builds(strided_spans, st.just(n), st.integers(1, n))  # may overlap
    ),
)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(st.lists(words.map(made_of), max_size=3), windows, st.sampled_from(POOLINGS))
@example([Doc(VOCAB, [".", "a", "b", "\n", "a", "b"])], sentence_windows(9), "mean")
@example([Doc(VOCAB, ["a ", "b", " a"], [False, False, False])], sentence_windows(9), "mean")
def test_a_token_has_the_subwords_whose_characters_it_shares(
    kind: str, docs: list[Doc], windows: SpanGetter, pooling: str
) -> None:
    check(Recorder(tokenizer_of(kind)), docs, windows, pooling)


def check(encode: Recorder, docs: list[Doc], windows: SpanGetter, pooling: str) -> None:
    found = ids_by_token(divide(docs, windows, encode, 10**9, PAD, BatchLimits(20, 5), pooling))
    expected = counted(docs, windows, encode.made)
    parts = {"mean": slice(None), "first": slice(1), "last": slice(-1, None)}
    assert found == [subwords[parts[pooling]] for subwords in expected]


@given(st.lists(words.map(made_of), max_size=3), windows)
def test_a_token_has_the_subwords_of_a_slow_tokenizer(
    phobert: str, docs: list[Doc], windows: SpanGetter
) -> None:
    check(Recorder(slow(phobert)), docs, windows, "mean")


@cache
def slow(folder: str) -> SlowTokenizer:
    from transformers import AutoTokenizer

    untyped: Any = AutoTokenizer
    return SlowTokenizer(untyped.from_pretrained(folder, use_fast=False), 256)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("東京に行く。", "東 京 に 行 く 。"),
        ("東猫。x12 東", "東猫 。 x12 東"),  # unknown words
        ("東-x。", "東 -x -x 。"),  # two of them
        ("猫 東京東京", "猫 東 京 東 京"),
        ("", ""),
    ],
)
def test_a_slow_tokenizer_without_spaces_between_words(
    text: str, expected: str, tmp_path: Path
) -> None:
    """A text of Japanese is one word for the tokenizer of PhoBERT."""
    from transformers import BertJapaneseTokenizer

    file = tmp_path / "vocab.txt"
    pieces = ["東", "##京", "##東", "##に", "##行", "##く", "。"]
    file.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]), "utf-8")
    untyped: Any = BertJapaneseTokenizer
    tokenizer = SlowTokenizer(untyped(str(file), word_tokenizer_type="basic"), 256)
    (encoded,) = tokenizer.encode([text])
    found = [text[start:end] for start, end in encoded.characters]
    assert found == ["", *expected.split(), ""]


letters = st.text("abcdefgh", min_size=1, max_size=6)


@given(st.lists(st.lists(letters, max_size=30), max_size=3), st.integers(8, 12))
def test_a_window_with_too_many_subwords_is_divided(texts: list[list[str]], longest: int) -> None:
    docs = [Doc(VOCAB, words=text) for text in texts]
    tokenizer = tokenizer_of("word pieces")
    given = docs, lambda doc: [(0, len(doc))], tokenizer.encode
    subwords = divide(*given, longest, PAD, CPU)
    assert all(batch.ids.shape[1] <= longest for batch in subwords.batches)
    assert ids_by_token(subwords) == ids_by_token(divide(*given, 10**9, PAD, CPU))


def test_a_token_with_too_many_subwords_is_cut() -> None:
    doc = Doc(VOCAB, words=["ab", "abcdefgh", "ab"])
    encode = tokenizer_of("word pieces").encode
    found, whole = (
        ids_by_token(divide([doc], lambda doc: [(0, 3)], encode, longest, PAD, CPU))
        for longest in (6, 10**9)
    )
    assert found == [whole[0], whole[1][:5], whole[2]]  # after the special one


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200), st.integers(0, 40)
)
def test_batches_contain_each_window_once_within_limits(
    lengths: list[int], most: int, padding: int
) -> None:
    found = [batch.tolist() for batch in batches(np.array(lengths), BatchLimits(most, padding))]
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    in_order = [lengths[i] for batch in found for i in batch]
    assert in_order == sorted(in_order, reverse=True)
    for batch in found:
        sizes = [lengths[i] for i in batch]
        padded = len(sizes) * max(sizes)
        assert len(sizes) == 1 or (padded <= most and padded - sum(sizes) <= padding)


@pytest.mark.parametrize("limits", [CPU, CPU_BF16])
def test_batches_of_realistic_lengths_pad_under_ten_percent(limits: BatchLimits) -> None:
    lengths = np.random.default_rng(0).gamma(2.0, 15.0, 512).astype(int) + 3
    padded = sum(lengths[batch].max() * len(batch) for batch in batches(lengths, limits))
    assert padded < 1.1 * lengths.sum()


def test_batches_have_padding_masks_and_token_types() -> None:
    """Some transformers, such as XLNet, identify the last subword of a text by its token type."""

    def encode(texts: Sequence[str]) -> list[Encoded]:
        return [
            Encoded(
                np.arange(5, 6 + len(text), dtype=np.int32),
                np.array([0] * len(text) + [2], dtype=np.int32),
                np.array([(i, i + 1) for i in range(len(text))] + [(0, 0)], dtype=np.int32),
            )
            for text in texts
        ]

    docs = [Doc(VOCAB, words=[word], spaces=[False]) for word in ("a", "bc")]
    (batch,) = divide(docs, lambda doc: [(0, 1)], encode, 9, PAD, WHOLE).batches
    assert batch.ids.tolist() == [[5, 6, 7], [5, 6, PAD]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.types.tolist() == [[0, 0, 2], [0, 2, 0]]


def test_windows_without_subwords_are_not_encoded() -> None:
    from tokenizers import processors

    tokenizer: Any = TOKENIZERS["word pieces"]()
    tokenizer.post_processor = processors.TemplateProcessing("$A", None, [])
    encode = Tokenizer(tokenizer.to_str(), 0, 64).encode
    docs = [NOTHING, Doc(VOCAB, words=["\n", "a"])]
    subwords = divide(docs, strided_spans(1, 1), encode, 64, PAD, WHOLE)
    assert [batch.ids.shape for batch in subwords.batches] == [(1, 1)]
    assert [len(ids) for ids in ids_by_token(subwords)] == [0, 0, 1]
    assert divide([NOTHING], strided_spans(1, 1), encode, 64, PAD, WHOLE).batches == []


def test_kept_subwords_are_those_of_the_tokenizer_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizers, "MAX_KEPT", 60)
    monkeypatch.setattr(tokenizers, "PER_TEXT", 5)
    tokenizer = Tokenizer(TOKENIZERS["unigram"]().to_str(), 0, 64)
    texts = [*TEXTS, "a", "", "is", "here"]
    chance = np.random.default_rng(0)
    for _ in range(30):
        chosen = chance.choice(texts, 4).tolist()
        for kept, new in zip(tokenizer.encode_again(chosen), tokenizer.encode(chosen), strict=True):
            assert all(map(np.array_equal, kept, new))
        size, least = (sum(5 + len(text) for text in of) for of in (tokenizer._kept, {*chosen}))
        assert size == tokenizer._size <= max(60, least)


@pytest.mark.parametrize("spans", [[(0, 3)], [(-1, 2)], [(2, 1)], [0, 2], None, [("a", "b")]])
def test_windows_of_a_wrong_function_are_refused(spans: Any) -> None:
    docs = [Doc(VOCAB, words=["a", "b"]), Doc(VOCAB, words=["c", "d"])]
    encode = Tokenizer(TOKENIZERS["word pieces"]().to_str(), 0, 64).encode
    with pytest.raises(InputError, match=r"get_spans: expected pairs .* a doc of 2 tokens"):
        divide(docs, lambda doc: spans, encode, 64, PAD, WHOLE)
