"""Random docs: the annotation satisfies its invariants."""

import string
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from pipelines import TOK2VEC

SCHEMES = ("biluo", "bio", "io")
# The scheme, and the number of levels if entities overlap.
KINDS = [(scheme, max_nesting) for scheme in SCHEMES for max_nesting in (0, 2)]

VOCAB = spacy.blank("en").vocab
LABELS = ("PER", "LOC")
# Zero-width, combining, right to left, a surrogate pair in UTF-16, a flag, NUL and the like.
ODD = ["\u200b", "\ufeff", "e\u0301", "\u0301", "שלום", "\u202eabc", "😀", "👩\u200d🚀", "🇻🇳", "\0"]
NOT_SEEN = string.whitespace + "\u200b\ufeff\u00a0\u2028\u3000\x1c\x85"
SPACES = [" ", "\n", "\t\n", "\u00a0", "\u2028", "\u3000", "\x1c", "\x85"]

Given = tuple[int, int, str | None]  # of label "" where blocked, of None where outside


def blank(scheme: str, max_nesting: int) -> Language:
    """A pipeline that finds something everywhere: it has random weights, large ones."""
    nlp = Language(VOCAB)
    model = {"hidden_width": 4, "tok2vec": {**TOK2VEC, "width": 8, "embed_size": 100}}
    config = {"scheme": scheme, "model": model, "spans_key": "maybe"}
    if max_nesting:
        config |= {"overlap": True, "max_nesting": max_nesting}
    ner = nlp.add_pipe("crf_ner", config=config)
    for label in LABELS:
        ner.add_label(label)
    doc = Doc(VOCAB, words=["a"])
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: [Example(doc, doc.copy())])
    projection = ner.model.get_ref("output_layer").shims[0].module.projection
    with torch.no_grad():
        projection.weight.mul_(30.0)
        projection.bias.zero_()[0] = -1.0
    return nlp


PIPELINES = {kind: blank(*kind) for kind in KINDS}


class Input(NamedTuple):
    """What a doc is made of."""

    words: list[str]
    spaces: list[bool]
    starts: list[bool] | None
    marks: list[Given]
    default: str | None

    def doc(self) -> Doc:
        doc = Doc(VOCAB, words=self.words, spaces=self.spaces, sent_starts=self.starts)
        if self.default is not None:
            doc.set_ents(
                [Span(doc, *mark) for mark in self.marks if mark[2]],
                blocked=[doc[mark[0] : mark[1]] for mark in self.marks if mark[2] == ""],
                outside=[doc[mark[0] : mark[1]] for mark in self.marks if mark[2] is None],
                default=self.default,
            )
        return doc

    @property
    def kept(self) -> list[Given]:
        return [mark for mark in self.marks if mark[2]] if self.default is not None else []


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    """Draw words, whitespace, sentence starts, and entities and other marks."""
    plain = st.sampled_from(["Tim", "Cook", "visited", "Hanoi", ".", "a"])
    written = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
    word = plain | st.sampled_from(ODD) | st.sampled_from(SPACES) | written
    words = draw(st.lists(word, max_size=12) | st.lists(st.sampled_from(SPACES), max_size=4))
    T = len(words)
    flags = st.lists(st.booleans(), min_size=T, max_size=T)
    starts = draw(st.none() | flags)
    marks: list[Given] = []
    default = draw(st.sampled_from([None, "missing", "missing", "outside"]))
    t = 0
    while default is not None and t < T:
        end = t + draw(st.integers(1, min(4, T - t)))
        if draw(st.booleans()):
            marks.append((t, end, draw(st.sampled_from(["", None, "WORK", *LABELS]))))
        t = end
    return Input(words, draw(flags), starts, marks, default)


def check(drawn: Input, doc: Doc, max_nesting: int) -> None:
    """Check the invariants of an annotated doc."""
    found = [(ent.start, ent.end, ent.label_) for ent in doc.ents]
    assert set(drawn.kept) <= set(found)
    assert all(left[1] <= right[0] for left, right in pairwise(found))
    marked = {t for start, end, _ in drawn.marks for t in range(start, end)}
    # A doc all of whose tokens are marked has been through another component.
    barred = ["", None] if drawn.default == "missing" and len(marked) < len(doc) else [""]
    forbidden = {t for s, e, label in drawn.marks if label in barred for t in range(s, e)}
    for ent in doc.ents:
        if (ent.start, ent.end, ent.label_) in drawn.kept:
            assert ent._.confidence is None
        else:
            assert 0.0 <= ent._.confidence <= 1.0
    group = doc.spans["maybe"]
    for ent in (*doc.ents, *(group if max_nesting else ())):
        if (ent.start, ent.end, ent.label_) in drawn.kept:
            continue
        assert ent.label_ in LABELS
        assert ent[0].text.strip(NOT_SEEN) and ent[-1].text.strip(NOT_SEEN)
        assert not forbidden & set(range(ent.start, ent.end))
        if drawn.starts is not None:
            assert not any(drawn.starts[ent.start + 1 : ent.end])
    assert len(group) == len(group.attrs["scores"])
    if max_nesting:
        spans = [(span.start, span.end, span.label_) for span in group]
        assert set(found) <= set(spans) and len(set(spans)) == len(spans)
    assert all(0.0 < p <= 1.0 for p in group.attrs["scores"])
    assert doc.has_annotation("ENT_IOB", require_complete=True) or not len(doc)


def same(first: Doc, second: Doc) -> bool:
    """Whether two docs have one annotation, but for the last bits of a probability."""
    p, q = ([ent._.confidence for ent in doc.ents] for doc in (first, second))
    tokens = [doc.to_array(["ENT_IOB", "ENT_TYPE"]).tolist() for doc in (first, second)]
    return tokens[0] == tokens[1] and p == pytest.approx(q, abs=1e-3)


@pytest.mark.filterwarnings("ignore:The preset entity")
@pytest.mark.parametrize("kind", KINDS)
@given(drawn=st.lists(inputs(), min_size=1, max_size=3))
def test_random_docs_meet_annotation_invariants(kind: tuple[str, int], drawn: list[Input]) -> None:
    nlp = PIPELINES[kind]
    docs = [nlp(each.doc()) for each in drawn]
    for each, doc in zip(drawn, docs):
        check(each, doc, kind[1])
    piped = nlp.pipe((each.doc() for each in drawn), batch_size=len(drawn))
    for each, doc, other in zip(drawn, docs, piped):
        check(each, other, kind[1])
        assert same(doc, other)


@pytest.mark.parametrize("kind", KINDS)
def test_fixture_pipelines_find_many_entities(kind: tuple[str, int]) -> None:
    """Control: the invariants above are checked on many entities."""
    words = Random(0).choices(["Tim", "Cook", "visited", "Hanoi", ".", "a", *ODD[2:]], k=400)
    doc = PIPELINES[kind](Doc(VOCAB, words=words))
    assert len(doc.ents) > 40
    assert {ent.label_ for ent in doc.ents} == set(LABELS)
    assert {1, 2, 3} <= {len(ent) for ent in (doc.spans["maybe"] if kind[1] else doc.ents)}
