"""Cutting long texts: every character once, at the ends of sentences, no entity lost at a cut."""

import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spacy_crf_ner.annotate.chunking import chunk_text, merge_entities

WORDS = [
    "Rome",
    "walks",
    "to",
    "New York",
    "and",
    "a",
    "Ada.",
    "Why?",
    "\n",
    "»Oslo!«",
    "。",
    "xyz" * 9,
]
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", "  ", "", "\n\n"])))


def text_of(parts):
    return "".join(word + space for word, space in parts)


def find(text):
    """Entities that depend on nothing around them."""
    pattern = r"\b(?:New York|Rome|Ada|Oslo)\b"
    return [(match.start(), match.end(), "X", None) for match in re.finditer(pattern, text)]


@given(TEXTS, st.integers(4, 60), st.integers(0, 30))
def test_chunks_tile_the_text(parts, size, overlap) -> None:
    text = text_of(parts)
    chunks = list(chunk_text(text, size, overlap))
    assert "".join(text[chunk.start : chunk.end] for chunk in chunks) == text
    assert [chunk.start for chunk in chunks[1:]] == [chunk.end for chunk in chunks[:-1]]
    for chunk in chunks:
        assert chunk.end - chunk.start <= size
        assert chunk.start - overlap <= chunk.left <= chunk.start
        assert chunk.end <= chunk.right <= chunk.end + overlap


@given(TEXTS, st.integers(30, 60))
def test_merge_entities_from_chunks_matches_whole_text(parts, size) -> None:
    text = text_of(parts)
    chunks = list(chunk_text(text, size, overlap=40))
    found = [
        (
            chunk,
            [
                (start + chunk.left, end + chunk.left, label, p)
                for start, end, label, p in find(text[chunk.left : chunk.right])
            ],
        )
        for chunk in chunks
    ]
    assert merge_entities(found) == find(text)


def test_chunk_text_cuts_at_last_sentence_end() -> None:
    text = "One two three four. Five six! Seven eight nine ten eleven"
    first, *_ = chunk_text(text, 36, 0)
    assert text[first.start : first.end] == "One two three four. Five six! "


@pytest.mark.parametrize(
    "text, end",
    [
        ("One two. three fou five six", 19),  # its end is in the first three quarters
        ("One two three x. five six", 17),
        ("One two three x\nfo ur five", 16),
        ("一二三四五六七八九十一二三四五六。一二三四", 17),
        ('"One two thre x." f ve', 18),
    ],
)
def test_chunk_text_cuts_in_last_quarter_of_chunk(text, end) -> None:
    first, *_ = chunk_text(text, 20, 0)
    assert first.end == end


def test_chunk_text_default_overlap_is_2000_characters() -> None:
    first, second, third = chunk_text("word " * 50_000)
    assert (first.end, second.end) == (100_000, 200_000)
    assert 98_000 <= second.left <= 98_005 and second.right == 201_999  # between words
    assert (first.left, third.right) == (0, 250_000)


def test_chunk_text_without_sentences_cuts_between_words() -> None:
    text = "one two three four five six seven eight"
    assert all(text[chunk.end - 1] == " " for chunk in list(chunk_text(text, 16, 4))[:-1])
    assert all(chunk.left == 0 or text[chunk.left - 1] == " " for chunk in chunk_text(text, 16, 7))


def test_chunk_text_without_spaces_cuts_at_maximum_size() -> None:
    assert [chunk.end for chunk in chunk_text("x" * 25, 10, 3)] == [10, 20, 25]


@pytest.mark.parametrize("text", ["", "short"])
def test_chunk_text_short_text_returns_one_chunk(text) -> None:
    assert list(chunk_text(text, 10, 2)) == [(0, len(text), 0, len(text))]


def test_merge_entities_keeps_entity_of_chunk_where_it_starts() -> None:
    first, second = chunk_text("abcdefgh", 4, 4)
    assert (first.end, second.start) == (4, 4)
    over, after = (2, 6, "X", None), (6, 8, "Y", None)
    assert merge_entities([(first, [over]), (second, [(4, 6, "X", None), after])]) == [over, after]
    other = (4, 6, "Z", None)
    assert merge_entities([(first, [(4, 6, "X", None)]), (second, [other])]) == [other]


@pytest.mark.parametrize("text", ["a。bc", "。。。", "a b c"])
def test_chunk_text_size_one_returns_single_characters(text) -> None:
    chunks = islice(chunk_text(text, 1, 0), 99)
    assert [text[chunk.start : chunk.end] for chunk in chunks] == [*text]
