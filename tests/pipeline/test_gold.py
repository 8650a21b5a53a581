"""Gold tags: read off the gold doc where its tokens are the predicted ones, else aligned."""

import math
import random
from typing import Any

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import Alignment, Example

from helpers import LABELS, SCHEMES, Span, annotations
from pipelines import small
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels
from spacy_crf_ner.pipeline.calibration import log_likelihoods
from spacy_crf_ner.pipeline.gold import aligned_negatives, gold_tags
from spacy_crf_ner.tags import TagScheme

VOCAB = spacy.blank("en").vocab
WORDS = ("Ada", "x", "\u200bx", "-", " ", "  ", "\n", "\u00a0")


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


@given(examples(), st.sampled_from(SCHEMES))
def test_gold_tags_with_equal_tokens_match_spacy_alignment(eg: Example, scheme: str) -> None:
    tags = TagScheme(scheme, LABELS)
    found = gold_tags(eg, tags, "ner")
    expected = tags.ids(eg.get_aligned_ner())
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_gold_tags_with_equal_tokens_skips_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alignment is the slowest step, and spaCy's corpora do not cache it between epochs."""
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
        assert list(aligned_negatives(eg, "wrong", tags.labels, "ner")) == []
    assert [x for x, _ in aligned] == [["Ada", "By", "ron", "sang"]]


def drawn_gold(rng: random.Random, words: list[str], labels: tuple[str, ...]) -> Doc:
    """Entities, and tokens without annotation beside them."""
    doc = Doc(VOCAB, words)
    start = rng.randrange(len(words))
    ent = spacy.tokens.Span(doc, start, rng.randint(start + 1, len(words)), rng.choice(labels))
    outside = [doc[t : t + 1] for t in range(len(words)) if rng.random() < 0.3]
    doc.set_ents([ent], default="missing")
    rest = [span for span in outside if not (ent.start <= span.start < ent.end)]
    doc.set_ents([], outside=rest, default="unmodified")
    return doc


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("limited", [False, True])
def test_loss_with_missing_annotation_matches_nbest_enumeration(
    scheme: str, overlap: bool, limited: bool
) -> None:
    """The sets, with their probabilities, are all labelings that `nbest` finds."""
    nlp, words = small(4, scheme=scheme, overlap=overlap), ["Ada", "saw", "Bo", "nn"]
    labels = "LOC", "PER"
    ner: Any = nlp.get_pipe("crf_ner")
    full = Doc(nlp.vocab, words)
    full.set_ents([spacy.tokens.Span(full, i, i + 1, label) for i, label in enumerate(labels)])
    nlp.initialize(lambda: [Example(Doc(nlp.vocab, words), full)])
    rng = random.Random(0)
    labelings = [
        ({(ent.start, ent.end, ent.label_) for ent in labeling.ents}, labeling.probability)
        for labeling in ner.nbest([Doc(nlp.vocab, words)], 10**4)[0]
    ]
    potentials = ner.model.predict([Doc(nlp.vocab, words)])
    golds, log_ps = [], []
    for _ in range(30):
        gold = drawn_gold(rng, words, labels)
        if limited:
            mark_annotated_labels(gold, [gold.ents[0].label_])
        known = {(ent.start, ent.end, ent.label_) for ent in gold.ents}
        label = gold.ents[0].label_
        taken = {t.i for t in gold if t.ent_iob != 0}  # outside, or in an entity
        fits = 0.0
        for ents, probability in labelings:
            others = [e for e in ents - known if not (limited and e[2] != label)]
            at = {t for start, end, _ in others for t in range(start, end)}
            fits += probability * (known <= ents and not at & taken)
        eg = Example(Doc(nlp.vocab, words), gold)
        loss, _ = ner.get_loss([eg], potentials)
        assert loss == pytest.approx(-math.log(fits), abs=1e-4)
        golds.append(eg)
        log_ps.append(math.log(fits))
    assert log_likelihoods(ner, golds) == pytest.approx(log_ps, abs=1e-4)


def test_marks_of_no_width_are_outside_as_whitespace_is() -> None:
    doc = Doc(VOCAB, words=["\ufeff", "Ada", "\u200b", "\u200bx"])
    ada = [spacy.tokens.Span(doc, 1, 2, "PER")]
    doc.set_ents(ada, default="missing")
    eg = Example(Doc(VOCAB, words=[token.text for token in doc]), doc)
    assert gold_tags(eg, TagScheme("io", ("PER",)), "ner").tolist() == [0, 1, 0, -1]
    doc.set_ents([spacy.tokens.Span(doc, 0, 2, "PER")])
    with pytest.raises(InputError, match=r"begins and ends with a word.*marks of no width"):
        gold_tags(eg, TagScheme("io", ("PER",)), "ner")
