"""Candidates have the same characters, whatever becomes of the tokens; the oracle counts them."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup

from pipelines import copied
from spacy_crf_ner.annotate.entities import group_entities
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.character_spans import FollowingSpans

VOCAB = spacy.blank("en").vocab
Found = list[tuple[int, int, str, float]]


def content(group: Any) -> Found:
    """The characters, labels and scores of a group, with the text of its tokens checked."""
    doc, found = group.doc, []
    for span, score in zip(group, group.attrs["scores"], strict=True):
        tokens = doc[span.start : span.end]
        assert (tokens.start_char, tokens.end_char) == (span.start_char, span.end_char)
        found.append((span.start_char, span.end_char, span.label_, float(score)))
    return found


def group_of(doc: Doc, spans: Sequence[tuple[int, int]]) -> FollowingSpans:
    scores = np.arange(1, len(spans) + 1, dtype=np.float32)
    of_doc = [Span(doc, start, end, "AB"[i % 2]) for i, (start, end) in enumerate(spans)]
    group = FollowingSpans(doc, name="x", spans=of_doc, attrs={"scores": scores})
    doc.spans["x"] = group
    return group


def whole_tokens(found: Found, doc: Doc) -> Found:
    starts = {token.idx for token in doc}
    ends = {token.idx + len(token) for token in doc}
    return [each for each in found if each[0] in starts and each[1] in ends]


@given(st.data())
def test_spans_keep_their_characters_after_merges_and_splits(data: st.DataObject) -> None:
    doc = Doc(VOCAB, ["ab", "c", "de", "fg", "h", "ij"], [True, False, True, False, True, True])
    ends = st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda each: each[0] < each[1])
    group = group_of(doc, data.draw(st.lists(ends, max_size=6)))
    before = content(group)
    for _ in range(2):
        first = data.draw(st.integers(0, len(doc) - 1))
        last = data.draw(st.integers(first, len(doc) - 1))
        token = data.draw(st.sampled_from([*doc]))
        with doc.retokenize() as retokenizer:
            retokenizer.merge(doc[first : last + 1])
            if not first <= token.i <= last and len(token) == 2:
                heads = [(token, 0), (token, 0)]
                retokenizer.split(token, [*token.text], heads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = whole_tokens(before, doc)
            assert content(group) == before and len(group) == len(before)
            packed = Doc(VOCAB).from_bytes(doc.to_bytes())
            for other in (doc.copy(), packed, *DocBin(docs=[doc]).get_docs(VOCAB)):
                assert content(other.spans["x"]) == before


@pytest.mark.parametrize("read", ["len", "scores", "first", "list", "bytes", "add", "copy"])
def test_whatever_is_read_first_is_of_the_new_tokens(read: str) -> None:
    doc = Doc(VOCAB, ["Tim", "Cook", "opened", "it"])
    group = group_of(doc, [(0, 1), (0, 2), (3, 4)])
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    with pytest.warns(UserWarning, match=r"merged tokens: spans of doc.spans\['x'\]"):
        found = {
            "len": lambda: len(group),
            "scores": lambda: group.attrs["scores"].tolist(),
            "first": lambda: group[0].text,
            "list": lambda: [span.text for span in group],
            "bytes": lambda: len(SpanGroup(doc).from_bytes(group.to_bytes())),
            "add": lambda: len(group + SpanGroup(doc)),
            "copy": lambda: len(group.copy()),
        }[read]()
    expected: dict[str, Any] = {"scores": [2, 3], "first": "Tim Cook", "list": ["Tim Cook", "it"]}
    assert found == expected.get(read, 2)
    assert group.lost == 1


@pytest.mark.filterwarnings("ignore:A component has merged tokens")
def test_candidates_before_merge_entities_follow_the_tokens(trained: Language) -> None:
    nlp, text = copied(trained), "Tim Cook of Paris Texas."
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.spans_key, pipe.candidate_threshold = "x", 1e-4
    before = nlp(text)
    nlp.add_pipe("merge_entities")
    doc = nlp(text)
    assert len(doc) < len(before)
    expected = whole_tokens(content(before.spans["x"]), doc)
    assert 2 <= len(expected) < len(before.spans["x"])
    assert content(doc.spans["x"]) == expected


@pytest.mark.filterwarnings("ignore:A component has merged tokens")
def test_group_entities_with_entities_within_merged_tokens_raises() -> None:
    doc = Doc(VOCAB, ["Tim", "Cook", "opened", "it"])
    group_of(doc, [(0, 2), (3, 4)])
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[:2])
    assert [entity.end for entity in group_entities(doc, ["x"])["x"]] == [8, 18]
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[1:])
    with pytest.raises(InputError, match=r"doc.spans\['x'\] were predicted: 1 begin or end within"):
        group_entities(doc, ["x"])


def test_scores_can_be_read_after_the_doc_is_gone() -> None:
    group = group_of(Doc(VOCAB, ["Tim", "Cook"]), [(0, 1), (0, 2)])
    assert group.attrs["scores"].tolist() == [1, 2] and len(group) == 2
