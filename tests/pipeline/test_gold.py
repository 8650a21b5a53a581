"""Gold tags: read off the gold doc where its tokens are the predicted ones, else aligned."""

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import Alignment, Example

from helpers import LABELS, SCHEMES, Span, annotations, properties
from spacy_crf_ner.pipeline.gold import gold_tags, negative_spans
from spacy_crf_ner.tags import TagScheme

VOCAB = spacy.blank("en").vocab
WORDS = ("Ada", "x", "-", " ", "  ", "\n", "\u00a0")


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """Draw the same words twice: the gold doc has entities, some blocked and missing tokens."""
    T, spans = draw(annotations(LABELS))
    words = draw(st.lists(st.sampled_from(WORDS), min_size=T, max_size=T))
    spaces = draw(st.lists(st.booleans(), min_size=T, max_size=T))
    spans = [(s, e, label) for s, e, label in spans if words[s].strip() and words[e - 1].strip()]
    gold = Doc(VOCAB, words=words, spaces=spaces)
    free = sorted(set(range(T)) - {t for start, end, _ in spans for t in range(start, end)})
    kinds = draw(st.lists(st.sampled_from(["outside", "missing", "blocked"]), min_size=T))
    annotate(gold, spans, list(zip(free, kinds)))
    return Example(Doc(VOCAB, words=words, spaces=draw(st.permutations(spaces))), gold)


def annotate(doc: Doc, spans: list[Span], others: list[tuple[int, str]]) -> None:
    marked = {
        kind: [doc[t : t + 1] for t, its in others if its == kind]
        for kind in ("blocked", "outside")
    }
    ents = [spacy.tokens.Span(doc, *span) for span in spans]
    doc.set_ents(ents, default="missing", **marked)


@properties
@given(examples(), st.sampled_from(SCHEMES))
def test_tags_of_the_same_tokens_are_spacys_aligned_ones(eg: Example, scheme: str) -> None:
    tags = TagScheme(scheme, LABELS)
    found = gold_tags(eg, tags, "ner")
    expected = tags.ids(eg.get_aligned_ner())
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_the_same_tokens_are_not_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligning takes longer than all the rest, and spaCy's corpora forget it after each epoch."""
    aligned = []
    from_strings = Alignment.from_strings

    def noted(x: list[str], y: list[str]) -> Alignment:
        aligned.append((x, y))
        return from_strings(x, y)

    monkeypatch.setattr(Alignment, "from_strings", noted)
    gold = Doc(VOCAB, words=["Ada", "Byron", "sang"])
    gold.set_ents([spacy.tokens.Span(gold, 0, 2, "PER")])
    tags = TagScheme("bio", ("PER",))
    for words, expected in (("Ada Byron sang", [1, 2, 0]), ("Ada By ron sang", [1, 2, 2, 0])):
        eg = Example(Doc(VOCAB, words=words.split()), gold)
        assert gold_tags(eg, tags, "ner").tolist() == expected
        assert list(negative_spans(eg, "wrong", tags, "ner")) == []
    assert [x for x, _ in aligned] == [["Ada", "By", "ron", "sang"]]
