"""Cutting long texts: every character once, at the ends of sentences, no entity lost at a cut."""

import re

import pytest
from helpers import properties
from hypothesis import given
from hypothesis import strategies as st

from spacy_crf_ner.annotate.chunking import cut, join

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


@properties
@given(TEXTS, st.integers(4, 60), st.integers(0, 30))
def test_pieces_tile_the_text(parts, size, overlap) -> None:
    text = text_of(parts)
    pieces = list(cut(text, size, overlap))
    assert "".join(text[piece.start : piece.end] for piece in pieces) == text
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    for piece in pieces:
        assert piece.end - piece.start <= size
        assert piece.start - overlap <= piece.left <= piece.start
        assert piece.end <= piece.right <= piece.end + overlap


@properties
@given(TEXTS, st.integers(30, 60))
def test_what_is_found_in_pieces_is_what_is_found_in_the_whole(parts, size) -> None:
    text = text_of(parts)
    pieces = list(cut(text, size, overlap=40))
    found = [
        (
            piece,
            [
                (start + piece.left, end + piece.left, label, p)
                for start, end, label, p in find(text[piece.left : piece.right])
            ],
        )
        for piece in pieces
    ]
    assert join(found) == find(text)


def test_a_cut_is_at_the_last_end_of_a_sentence() -> None:
    text = "One two three four. Five six! Seven eight nine ten eleven"
    first, *_ = cut(text, 36, 0)
    assert text[first.start : first.end] == "One two three four. Five six! "


def test_without_sentences_a_cut_is_between_words() -> None:
    text = "one two three four five six seven eight"
    assert all(text[piece.end - 1] == " " for piece in list(cut(text, 16, 4))[:-1])
    assert all(piece.left == 0 or text[piece.left - 1] == " " for piece in cut(text, 16, 7))


def test_without_spaces_a_cut_is_anywhere() -> None:
    assert [piece.end for piece in cut("x" * 25, 10, 3)] == [10, 20, 25]


@pytest.mark.parametrize("text", ["", "short"])
def test_a_short_text_is_one_piece(text) -> None:
    assert list(cut(text, 10, 2)) == [(0, len(text), 0, len(text))]


def test_an_entity_over_a_cut_is_of_the_piece_it_begins_in() -> None:
    first, second = cut("abcdefgh", 4, 4)
    assert (first.end, second.start) == (4, 4)
    over, after = (2, 6, "X", None), (6, 8, "Y", None)
    assert join([(first, [over]), (second, [(4, 6, "X", None), after])]) == [over, after]
