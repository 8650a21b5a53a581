"""Preset annotation of docs: it is kept, constrains predictions, and causes warnings if invalid."""

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

import enumeration
import helpers
from enumeration import array
from helpers import SCHEMES
from pipelines import SENTENCES, copied, make_examples, small, train
from spacy_crf_ner import crf
from spacy_crf_ner.crf import Chain
from spacy_crf_ner.pipeline.encoding import Encoding
from spacy_crf_ner.pipeline.platt_scaling import UNCHANGED
from spacy_crf_ner.pipeline.preset import preset_constraints

VOCAB = spacy.blank("en").vocab
LABELS = ("PER", "LOC")
UNKNOWN = "WORK"  # no label of any model here
BLOCKED = ""
TEXTS = [text for text, _ in SENTENCES]
WORDS = TEXTS[5].replace(".", " .").split()  # Apple hired Ada Lovelace Byron in Paris Texas .


# What may be predicted, by the definition


class Annotation(NamedTuple):
    """A doc as it comes: its entities, BLOCKED where of no label, and marks of other tokens.

    outside: Tokens marked as outside an entity; all others, but for the entities, are missing.
    """

    words: list[str]
    starts: list[bool | None]
    ents: list[helpers.Span]
    outside: set[int]

    def doc(self) -> Doc:
        doc = Doc(VOCAB, words=self.words, sent_starts=self.starts)
        doc.set_ents(
            [Span(doc, *ent) for ent in self.ents if ent[2] != BLOCKED],
            blocked=[doc[start:end] for start, end, label in self.ents if label == BLOCKED],
            outside=[doc[t : t + 1] for t in sorted(self.outside)],
            default="missing",
        )
        return doc

    @property
    def boundaries(self) -> set[int]:
        return {t for t in range(1, len(self.words)) if self.starts[t]}

    @property
    def given(self) -> list[helpers.Span]:
        """The entities whose label a model has tags for."""
        return [ent for ent in self.ents if ent[2] in LABELS]

    @property
    def preset(self) -> set[int]:
        """The tokens of which nothing is to be predicted."""
        preset = {t for start, end, _ in self.ents for t in range(start, end)}
        marked = preset | self.outside
        return preset if len(marked) == len(self.words) else marked

    def is_new(self, span: helpers.Span, scheme: str) -> bool:
        """Whether this may be an entity beside those that are given."""
        start, end, _ = span
        inside = range(start, end)
        space = [self.words[t].isspace() for t in inside]
        return not (
            self.preset & set(inside)
            or self.boundaries & set(inside[1:])
            or space[0]
            or space[-1]
            # Only BILUO has tags that neither begin nor end an entity.
            or (any(space) and scheme != "biluo")
        )

    def labelings(self, scheme: str) -> list[tuple[helpers.Span, ...]]:
        """All sets of entities that the scheme can write, beside those that are given."""
        T = len(self.words)
        sets = []
        for spans in helpers.span_sets(T, LABELS):
            new = [span for span in spans if self.is_new(span, scheme)]
            if set(spans) != {*new, *self.given}:
                continue
            # In IO only a sentence start parts adjacent entities of one label; but given ones
            # are known to be two.
            merged = [
                (left, right)
                for left, right in pairwise(spans)
                if left[1] == right[0]
                and left[2] == right[2]
                and right[0] not in self.boundaries
                and not {left, right} <= set(self.given)
            ]
            if scheme != "io" or not merged:
                sets.append(spans)
        return sets


@st.composite
def annotated(draw: st.DrawFn) -> Annotation:
    """Draw a doc of 1 to 4 tokens with entities, marks, sentence starts and whitespace."""
    T = draw(st.integers(1, 4))
    words = draw(st.lists(st.sampled_from(["a", "b", "c", "d", "\n"]), min_size=T, max_size=T))
    starts = draw(st.lists(st.sampled_from([None, False, True, True]), min_size=T, max_size=T))
    ents, outside, t = [], set(), 0
    while t < T:
        end = min(T, t + draw(st.sampled_from([1, 1, 1, 2, 3])))
        mark = draw(st.sampled_from([None, None, "O", BLOCKED, UNKNOWN, *LABELS]))
        if mark == "O":
            outside |= set(range(t, end))
        elif mark is not None:
            ents.append((t, end, mark))
        t = end
    return Annotation(words, starts, ents, outside)


@pytest.mark.filterwarnings("ignore:The preset entity")
@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=st.lists(annotated() | st.none(), min_size=1, max_size=4), overwrite=st.booleans())
def test_preset_constraints_of_batch_match_single_docs(
    scheme: str, batch: list[Annotation | None], overwrite: bool
) -> None:
    """None is a doc without tokens."""
    encoding = Encoding(scheme, LABELS, "ner")
    tags = encoding.tags
    docs = [Doc(VOCAB) if annotation is None else annotation.doc() for annotation in batch]
    together = preset_constraints(docs, tags, overwrite, encoding.presets)
    end = 0
    for doc in docs:
        begin, end = end, end + len(doc)
        alone = preset_constraints([doc], tags, overwrite, encoding.presets)
        np.testing.assert_array_equal(together.boundaries[begin:end], alone.boundaries)
        np.testing.assert_array_equal(together.preset[begin:end], alone.preset)
        allowed, expected = (
            np.ones((end, len(tags.tags)), dtype=bool) if found.allowed is None else found.allowed
            for found in (together, alone)
        )
        np.testing.assert_array_equal(allowed[begin:end], expected[: len(doc)])
    assert end == len(together.preset)


@pytest.mark.filterwarnings("ignore:The preset entity")
@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=st.data(), annotation=annotated())
def test_decode_with_preset_annotation_matches_enumeration(
    scheme: str, data: st.DataObject, annotation: Annotation
) -> None:
    encoding = Encoding(scheme, LABELS, "ner")
    tags = encoding.tags
    T, C = len(annotation.words), len(tags.tags)
    arrays = [
        data.draw(st.composite(array)(enumeration.SMALL_SCORES, *shape))
        for shape in ((T, C), (C, C), (C,), (C,))
    ]
    potentials = Chain(arrays[0], np.array([T]), *arrays[1:])
    posterior = encoding.posterior([annotation.doc()], potentials, False, 1.0, UNCHANGED)

    sets = annotation.labelings(scheme)
    paths = [[tags.tags.index(tag) for tag in helpers.write(scheme, T, spans)] for spans in sets]
    every, scores = enumeration.scored_paths(*map(torch.from_numpy, arrays))
    score_of = dict(zip(map(tuple, every.tolist()), scores.tolist()))
    p = torch.tensor([score_of[tuple(path)] for path in paths], dtype=torch.float64).softmax(0)

    p_of = {
        tuple(span for span in spans if span not in annotation.given): share
        for spans, share in zip(sets, p.tolist())
    }
    (best,) = posterior.decode()
    assert p_of[tuple(best)] == pytest.approx(max(p_of.values()), rel=1e-4)
    new = [
        (start, end, label)
        for start in range(T)
        for end in range(start + 1, T + 1)
        for label in LABELS
        if annotation.is_new((start, end, label), scheme)
    ]
    expected = [sum(share for spans, share in p_of.items() if span in spans) for span in new]
    np.testing.assert_allclose(posterior.probabilities([new])[0], expected, atol=2e-5)


# A pipeline trained on the sentences


def variant(trained: Language, **settings: Any) -> Language:
    """A copy of the trained pipeline with other settings."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 32}, **settings})
    return nlp.from_bytes(trained.to_bytes())


@pytest.fixture(scope="module", params=SCHEMES)
def learned(request: pytest.FixtureRequest, shared: Any) -> Language:
    """A pipeline of each scheme that has learned the sentences; not to be changed."""

    def make() -> Language:
        nlp = small(width=32, scheme=request.param)
        train(nlp, make_examples(nlp))
        return nlp

    return spacy.load(shared(f"preset-{request.param}", make))


def doc_of(
    nlp: Language,
    words: Sequence[str] = WORDS,
    ents: Sequence[tuple[Any, ...]] = (),
    default: str = "missing",
    starts: Sequence[int] = (),
    **marks: Sequence[tuple[int, int]],
) -> Doc:
    """A doc with entities (start, end, label, kb_id, span_id), marks and sentence starts."""
    given = [t in starts for t in range(len(words))] if starts else None
    doc = Doc(nlp.vocab, words=list(words), sent_starts=given)
    spans = {mark: [doc[start:end] for start, end in places] for mark, places in marks.items()}
    if ents or marks:
        found = [Span(doc, s, e, *rest[:1], **_ids(rest[1:])) for s, e, *rest in ents]
        doc.set_ents(found, default=default, **spans)
    return doc


def _ids(ids: Sequence[str]) -> dict[str, str]:
    return dict(zip(("kb_id", "span_id"), ids))


def found(doc: Doc) -> list[helpers.Span]:
    return [(ent.start, ent.end, ent.label_) for ent in doc.ents]


def state(doc: Doc) -> tuple[Any, ...]:
    """All that the component may set."""
    attributes = ["ENT_IOB", "ENT_TYPE", "ENT_KB_ID", "ENT_ID", "SENT_START"]
    groups = {
        key: ([(s.start, s.end, s.label_) for s in group], list(group.attrs.get("scores", [])))
        for key, group in doc.spans.items()
    }
    return doc.to_array(attributes).tolist(), [ent._.confidence for ent in doc.ents], groups


def agree(first: Doc, second: Doc) -> bool:
    """Whether the docs are equal, but for what a batch does to the last bits of a probability."""
    (tokens, p, groups), (other_tokens, other_p, other_groups) = state(first), state(second)
    return (
        tokens == other_tokens
        and p == pytest.approx(other_p, abs=1e-4)
        and groups.keys() == other_groups.keys()
        and all(groups[key][0] == other_groups[key][0] for key in groups)
    )


def test_preset_entities_keep_their_ids(learned: Language) -> None:
    """Even those that the model would not find, or not so."""
    ents = [(0, 2, "PERSON", "Q1", "a"), (3, 4, "GPE", "Q2", "b")]
    doc = learned(doc_of(learned, ents=ents))
    kept = [(e.start, e.end, e.label_, e.kb_id_, e.id_) for e in doc.ents if e.kb_id_]
    assert kept == ents
    assert [ent._.confidence for ent in doc.ents if ent.kb_id_] == [None, None]
    assert found(doc)[-1][1:] == (8, "GPE")  # and it finds others beside them


@pytest.mark.parametrize("mark", ["blocked", "outside"])
def test_blocked_or_outside_tokens_get_no_entity(learned: Language, mark: str) -> None:
    free = found(learned(doc_of(learned)))
    assert (2, 5, "PERSON") in free and (0, 1, "ORG") in free
    doc = learned(doc_of(learned, **{mark: [(3, 4)]}))
    assert not any(start <= 3 < end for start, end, _ in found(doc))
    assert (0, 1, "ORG") in found(doc)
    assert doc[3].ent_iob_ == ("B" if mark == "blocked" else "O") and not doc[3].ent_type


def test_tokens_marked_outside_by_entity_ruler_are_predicted(trained: Language) -> None:
    nlp = variant(trained)
    ruler = nlp.add_pipe("entity_ruler", before="crf_ner")
    ruler.add_patterns([{"label": UNKNOWN, "pattern": "hired", "id": "rule"}])
    doc = nlp(TEXTS[5])
    assert [(*ent, doc[ent[0]].ent_id_) for ent in found(doc)] == [
        (0, 1, "ORG", ""),
        (1, 2, UNKNOWN, "rule"),
        (2, 5, "PERSON", ""),
        (6, 7, "GPE", ""),
        (7, 8, "GPE", ""),
    ]
    assert [ent._.confidence is None for ent in doc.ents] == [False, True, False, False, False]


def test_entity_ruler_entities_are_kept_like_spacy_ner(trained: Language) -> None:
    """Both components keep all entities of the ruler."""
    spacys = spacy.blank("en")
    spacys.add_pipe("ner")
    spacys.initialize(lambda: make_examples(spacys))
    kept = []
    for nlp, name in ((variant(trained), "crf_ner"), (spacys, "ner")):
        ruler = nlp.add_pipe("entity_ruler", before=name)
        ruler.add_patterns([{"label": "PERSON", "pattern": "Apple hired"}])
        kept.append([ent for ent in found(nlp(TEXTS[5])) if ent[0] == 0])
    assert kept[0] == kept[1] == [(0, 2, "PERSON")]


def test_overwrite_ignores_preset_annotation(trained: Language) -> None:
    nlp = variant(trained, overwrite=True)
    expected = nlp(doc_of(nlp))
    ents = [(0, 2, "PERSON", "Q1", "a"), (3, 4, UNKNOWN, "Q2", "b")]
    marks = {"blocked": [(6, 7)], "outside": [(7, 8)]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        doc = nlp(doc_of(nlp, ents=ents, **marks))
    assert state(doc) == state(expected)
    assert found(doc) == [(0, 1, "ORG"), (2, 5, "PERSON"), (6, 7, "GPE"), (7, 8, "GPE")]


def test_overwrite_ignores_preset_entities_in_nbest_and_posteriors(trained: Language) -> None:
    """Preset entities are not forced into the labelings, and their posterior is not 1."""
    ner: Any = variant(trained, overwrite=True).get_pipe("crf_ner")
    bare, doc = doc_of(trained), doc_of(trained, ents=[(0, 2, "PERSON"), (3, 4, "GPE")])
    (expected,), (labelings,) = ner.nbest([bare], 5), ner.nbest([doc], 5)
    assert [[(e.start, e.end, e.label_) for e in each.ents] for each in labelings] == [
        [(e.start, e.end, e.label_) for e in each.ents] for each in expected
    ]
    p = ner.span_posteriors(doc, doc.ents)
    assert p == ner.span_posteriors(bare, [Span(bare, e.start, e.end, e.label) for e in doc.ents])
    assert max(p) < 0.5


def test_overwrite_removes_confidence_of_replaced_entities(trained: Language) -> None:
    nlp = variant(trained, overwrite=True)
    doc = nlp(doc_of(nlp))
    nlp.get_pipe("crf_ner").confidence = False
    assert [ent._.confidence for ent in nlp.get_pipe("crf_ner")(doc).ents] == [None] * 4
    assert not doc.user_data


@pytest.mark.parametrize(
    "place, starts, words, message",
    [
        ((0, 2), [0, 1], WORDS, "crosses a sentence start"),
        ((0, 2), [], ["\n", *WORDS], "begins or ends with whitespace"),
        ((1, 3), [], ["Apple", "hired", " ", *WORDS], "begins or ends with whitespace"),
    ],
)
@pytest.mark.parametrize("label", ["ORG", UNKNOWN])
def test_invalid_preset_entity_warns_and_is_kept(
    learned: Language,
    place: tuple[int, int],
    starts: list[int],
    words: list[str],
    message: str,
    label: str,
) -> None:
    doc = doc_of(learned, words=words, ents=[(*place, label)], starts=starts)
    with pytest.warns(UserWarning, match=message):
        learned(doc)
    assert (*place, label) in found(doc)
    assert len(doc.ents) > 1


def test_valid_preset_entities_do_not_warn(learned: Language) -> None:
    doc = doc_of(learned, ents=[(0, 2, "ORG"), (2, 3, UNKNOWN)], starts=[0, 2, 5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned(doc)


MANY: list[dict[str, Any]] = [
    {},
    {"starts": [0, 4, 7]},
    {"ents": [(0, 1, UNKNOWN), (3, 4, "PERSON", "Q1", "a")]},
    {"ents": [(6, 8, "GPE")], "blocked": [(0, 1)], "outside": [(2, 3)]},
    {"ents": [(1, 2, "ORG")], "default": "outside", "starts": [0, 3]},
    {"words": [" "]},
    {"words": []},
    {"words": [*WORDS, "\n", *WORDS], "ents": [(4, 6, "PERSON"), (6, 7, "GPE")]},
]


def test_a_second_run_changes_nothing(learned: Language) -> None:
    for given_ in MANY:
        doc = learned(doc_of(learned, **given_))
        before = state(doc)
        assert state(learned.get_pipe("crf_ner")(doc)) == before


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_a_pipe_of_annotated_docs_equals_calls(trained: Language, batch_size: int) -> None:
    settings = {"spans_key": "maybe", "candidate_threshold": 0.01}
    nlp = variant(trained, threshold=0.2, thresholds={"GPE": 0.9}, **settings)
    nlp.get_pipe("crf_ner").temperature = 2.0
    piped = nlp.pipe((doc_of(nlp, **each) for each in MANY), batch_size=batch_size)
    for doc, given_ in zip(piped, MANY):
        assert agree(doc, nlp(doc_of(nlp, **given_)))


# Confidence


@pytest.mark.parametrize("how", ["bytes", "DocBin", "disk"])
def test_confidences_and_candidates_are_stored_with_the_doc(
    trained: Language, how: str, tmp_path: Any
) -> None:
    nlp = variant(trained, spans_key="maybe", candidate_threshold=1e-3)
    doc = nlp(doc_of(nlp, ents=[(0, 1, UNKNOWN)]))
    _, expected, groups = state(doc)
    assert expected[0] is None and len(expected) == 4 and None not in expected[1:]
    assert len(groups["maybe"][0]) >= 4
    if how == "bytes":
        stored = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    elif how == "disk":
        doc.to_disk(tmp_path / "doc")
        stored = Doc(nlp.vocab).from_disk(tmp_path / "doc")
    else:
        docs = DocBin(docs=[doc], store_user_data=True).to_bytes()
        (stored,) = DocBin(store_user_data=True).from_bytes(docs).get_docs(nlp.vocab)
    assert state(stored) == state(doc)


def test_confidence_of_relabeled_entity_is_none(trained: Language) -> None:
    """A person, or an entity_ruler behind the component, has replaced the first one."""
    doc = trained(TEXTS[5])
    before = [ent._.confidence for ent in doc.ents]
    old = doc.ents[0]
    doc.set_ents([Span(doc, old.start, old.end, UNKNOWN)], default="unmodified")
    stored = Doc(trained.vocab).from_bytes(doc.to_bytes())
    for each in (doc, trained(doc), stored):
        assert [ent._.confidence for ent in each.ents] == [None, *before[1:]]
    doc.set_ents([old], default="unmodified")
    assert doc.ents[0]._.confidence == doc[old.start : old.end]._.confidence == before[0]
    restored = Doc(trained.vocab).from_json(doc.to_json(underscore=["confidence"]))
    assert [ent._.confidence for ent in restored.ents] == before
    doc.ents[0]._.confidence = 0.25
    assert Doc.from_docs([doc, stored]).ents[0]._.confidence == 0.25  # type: ignore[union-attr]


def test_confidence_false_stores_no_user_data(trained: Language) -> None:
    nlp = variant(trained, confidence=False)
    doc = nlp(TEXTS[5])
    assert len(doc.ents) == 4 and doc.user_data == {}
    nlp.get_pipe("crf_ner").threshold = 0.01
    assert nlp(TEXTS[5]).user_data == {}


def test_confidence_is_the_posterior_of_the_span(learned: Language) -> None:
    for given_ in MANY:
        doc = doc_of(learned, **given_)
        fresh = doc.copy()
        new = [ent for ent in learned(doc).ents if ent._.confidence is not None]
        spans = [Span(fresh, ent.start, ent.end, ent.label_) for ent in new]
        p = learned.get_pipe("crf_ner").span_posteriors(fresh, spans)
        assert p == pytest.approx([ent._.confidence for ent in new], abs=1e-5)


def test_span_posteriors_match_spans_by_characters(learned: Language) -> None:
    ner, doc = learned.get_pipe("crf_ner"), learned.make_doc("Tim Cook visited Hanoi.")
    words, spaces = ["Tim Cook", "visited", "Hanoi", "."], [True, True, False, False]
    other = Doc(learned.vocab, words=words, spaces=spaces)
    own, others = (
        [each.char_span(0, 8, "PERSON"), each.char_span(17, 22, "GPE")] for each in (doc, other)
    )
    assert [span.start for span in own] != [span.start for span in others]
    p = ner.span_posteriors(doc, own)
    assert min(p) > 0.5 and ner.span_posteriors(doc, others) == p
    with pytest.raises(ValueError, match="span_posteriors: expected spans of the doc 'Tim Cook v"):
        ner.span_posteriors(other, [doc[0:1]])  # a part of a token


# Thresholds


def confidences(nlp: Language, text: str) -> dict[str, float]:
    return {ent.text: ent._.confidence for ent in nlp(text).ents}


def test_threshold_drops_entities_below_it(trained: Language) -> None:
    every = confidences(trained, TEXTS[5])
    assert len(set(every.values())) == 4
    nlp = variant(trained)
    for least in [*every.values(), 0.0, 1.0]:
        nlp.get_pipe("crf_ner").threshold = least
        assert confidences(nlp, TEXTS[5]) == {ent: p for ent, p in every.items() if p >= least}


def test_thresholds_apply_per_label(trained: Language) -> None:
    nlp = variant(trained, thresholds={"GPE": 1.0})
    assert [ent.label_ for ent in nlp(TEXTS[5]).ents] == ["ORG", "PERSON"]
    nlp = variant(trained, threshold=1.0, thresholds={"GPE": 0.0})
    assert [ent.label_ for ent in nlp(TEXTS[5]).ents] == ["GPE", "GPE"]


def test_threshold_keeps_preset_entities(trained: Language) -> None:
    nlp = variant(trained, threshold=1.0)
    assert found(nlp(doc_of(nlp, ents=[(0, 2, "GPE")]))) == [(0, 2, "GPE")]


def test_spacy_find_threshold_finds_best_threshold(trained: Language, tmp_path: Any) -> None:
    """Its scores are those of pipelines with each threshold."""
    from spacy.cli.find_threshold import find_threshold

    # Of what the pipeline finds, the least sure is wrong.
    gold = trained(TEXTS[5])
    least = min(gold.ents, key=lambda ent: ent._.confidence)
    gold.set_ents([ent for ent in gold.ents if ent != least], default="outside")
    DocBin(docs=[gold]).to_disk(tmp_path / "dev.spacy")
    for name, thresholds in (("threshold", {}), ("thresholds.GPE", {"GPE": 0.0})):
        variant(trained, thresholds=thresholds).to_disk(tmp_path / "model")
        best, score, scores = find_threshold(
            str(tmp_path / "model"), tmp_path / "dev.spacy", "crf_ner", name, "ents_f", n_trials=2
        )
        expected = {}
        for p in (0.0, 1.0):
            settings: Any = {"threshold": p} if name == "threshold" else {"thresholds": {"GPE": p}}
            nlp = variant(trained, **settings)
            examples = [Example(nlp.make_doc(TEXTS[5]), gold)]
            expected[p] = nlp.evaluate(examples)["ents_f"]
        assert scores == pytest.approx(expected) and len(set(scores.values())) == 2
        assert score == max(expected.values()) and expected[best] == score


# Candidates


def test_candidates_are_a_span_group_with_scores(learned: Language) -> None:
    nlp = copied(learned)
    ner: Any = nlp.get_pipe("crf_ner")
    ner.spans_key, ner.candidate_threshold = "maybe", 1e-4
    doc, empty = nlp(doc_of(nlp, ents=[(0, 1, "ORG")])), nlp(doc_of(nlp, words=[]))
    group = doc.spans["maybe"]
    scores = group.attrs["scores"]
    assert len(group) == len(scores) > 0 and group.has_overlap
    assert all(1e-4 <= p <= 1.0 for p in scores) and list(group) == sorted(group)
    p_of = {(s.start, s.end, s.label_): p for s, p in zip(group, scores.tolist())}
    assert p_of.pop((0, 1, "ORG")) == 1.0 and all(start > 0 for start, *_ in p_of)
    for ent in doc.ents[1:]:
        assert p_of[ent.start, ent.end, ent.label_] == pytest.approx(ent._.confidence, abs=1e-5)
    fresh = doc_of(nlp, ents=[(0, 1, "ORG")])
    spans = [Span(fresh, *span) for span in p_of]
    assert ner.span_posteriors(fresh, spans) == pytest.approx(list(p_of.values()), abs=1e-5)
    assert len(empty.spans["maybe"]) == len(empty.spans["maybe"].attrs["scores"]) == 0


# Several labelings


def test_nbest_keeps_preset_entities(learned: Language) -> None:
    ner = learned.get_pipe("crf_ner")
    for given_ in MANY:
        doc = doc_of(learned, **given_)
        before = state(doc)
        (ranked,) = ner.nbest([doc], 5)
        assert state(doc) == before
        assert all(set(doc.ents) <= set(ents) and ents == sorted(ents) for ents, *_ in ranked)
        shares = [labeling.probability for labeling in ranked]
        assert shares == sorted(shares, reverse=True) and sum(shares) <= 1.0 + 1e-5
        best = [(ent.start, ent.end, ent.label_) for ent in ranked[0][0]]
        assert best == found(learned(doc))


def test_nbest_of_long_doc_has_finite_log_probability(trained: Language) -> None:
    """Its probability may be less than float64 has a number for; its logarithm is not."""
    unsure, T = variant(trained), 2_000
    ner: Any = unsure.get_pipe("crf_ner")
    ner.temperature = 30.0
    doc = doc_of(unsure, words=(WORDS * T)[:T])
    (ranked,) = ner.nbest([doc], 3)
    assert len(ranked) == 3
    log_ps = [labeling.log_probability for labeling in ranked]
    assert log_ps == sorted(log_ps, reverse=True) and -np.inf < log_ps[0] < -0.3 * T
    assert [labeling.probability for labeling in ranked] == [float(np.exp(p)) for p in log_ps]
    best = [(ent.start, ent.end, ent.label_) for ent in ranked[0].ents]
    assert best == found(unsure(doc))
    # The best path, scored as what is predicted of all tokens at once.
    chain = crf.constrain(ner.model.predict([doc]).divided_by(30.0), *ner.scheme.constraints)
    (loss,) = crf.negative_log_likelihood(chain, ner.trellis(doc).path)
    assert log_ps[0] == pytest.approx(-loss, abs=1e-6)


def test_labelings_share_one_forward_backward_pass(
    trained: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    forward_backward = crf.forward_backward

    def counted(chain: crf.Chain) -> crf.ForwardBackward:
        passes.append(chain)
        return forward_backward(chain)

    monkeypatch.setattr(crf, "forward_backward", counted)
    trained.get_pipe("crf_ner").nbest([doc_of(trained)], 5)
    assert len(passes) == 1


# Spans known to be wrong


def learning_what_is_wrong(label: str) -> tuple[Language, Example]:
    """A pipeline, and an example without gold entities but a span known to be wrong."""
    nlp = small(incorrect_spans_key="wrong")
    train(nlp, make_examples(nlp), steps=5)
    eg = Example(doc_of(nlp), doc_of(nlp))
    eg.reference.spans["wrong"] = [Span(eg.reference, 6, 7, label)]
    return nlp, eg


@pytest.mark.parametrize("label", ["GPE", ""])
def test_update_with_incorrect_span_lowers_its_posterior(label: str) -> None:
    """With its label, or with any."""
    nlp, eg = learning_what_is_wrong(label)
    ner = nlp.get_pipe("crf_ner")
    asked = [Span(eg.predicted, 6, 7, each) for each in ([label] if label else ner.labels)]
    before = sum(ner.span_posteriors(eg.predicted, asked))
    losses = nlp.update([eg], sgd=nlp.create_optimizer())
    assert losses["crf_ner"] == pytest.approx(-np.log1p(-before), rel=1e-3, abs=1e-6)
    assert sum(ner.span_posteriors(eg.predicted, asked)) < before


def test_overlapping_incorrect_spans_sum_their_losses() -> None:
    """Each has its own loss."""
    nlp, _ = learning_what_is_wrong("GPE")
    doc, gold = nlp.make_doc("Ada saw Paris"), nlp.make_doc("Ada saw Paris")
    wrong = [(0, 1, "PERSON"), (0, 2, "PERSON"), (0, 3, "GPE"), (2, 3, "GPE"), (1, 3, "ORG")]
    gold.spans["wrong"] = [Span(gold, *span) for span in wrong]
    (labelings,) = nlp.get_pipe("crf_ner").nbest([doc], 10**4)  # type: ignore[attr-defined]
    found = [({(e.start, e.end, e.label_) for e in a.ents}, a.probability) for a in labelings]
    right = [sum(p for ents, p in found if span not in ents) for span in wrong]
    losses = nlp.update([Example(doc, gold)], sgd=nlp.create_optimizer())
    assert losses["crf_ner"] == pytest.approx(-np.log(right).sum(), rel=1e-4)


@pytest.mark.parametrize("words", [["A"], ["A", "B"], ["A", "B", "C"]])
def test_incorrect_span_with_label_o_makes_token_an_entity(words: list[str]) -> None:
    nlp = small(incorrect_spans_key="wrong")
    ner: Any = nlp.get_pipe("crf_ner")
    for label in ("PERSON", "ORG"):
        ner.add_label(label)
    eg = Example.from_dict(Doc(nlp.vocab, words=words), {"entities": [None] * len(words)})
    person = (0, min(2, len(words)), "PERSON")
    eg.reference.spans["wrong"] = [Span(eg.y, 0, 1, "O"), Span(eg.y, *person)]
    train(nlp, [eg], steps=20, learn_rate=0.02)
    doc = ner(Doc(nlp.vocab, words=words))
    assert doc[0].ent_iob_ == "B" and person not in found(doc)


@pytest.mark.parametrize("label", ["PERSON", ""])
def test_gold_entity_in_incorrect_spans_raises(label: str) -> None:
    nlp, eg = learning_what_is_wrong(label)
    eg.reference.ents = [Span(eg.reference, 6, 7, "PERSON")]
    expected = r"'Paris' \(PERSON, .*not a gold entity in doc.spans\['wrong'\]"
    with pytest.raises(ValueError, match=expected):
        nlp.update([eg], sgd=nlp.create_optimizer())


def test_misaligned_incorrect_span_warns_once_per_corpus() -> None:
    nlp = small(incorrect_spans_key="wrong")
    predicted = Doc(nlp.vocab, words=["Ada", "Byron"])
    reference = Doc(nlp.vocab, words=["Ad", "a", "Byron"], spaces=[False, True, False])
    reference.set_ents([Span(reference, 2, 3, "PERSON")])
    reference.spans["wrong"] = [Span(reference, 0, 1, "PERSON"), Span(reference, 0, 2, "PERSON")]
    expected = r"1 of 2 spans in doc.spans\['wrong'\] do not align.*ignored: entity 'Ad' \(PERSON"
    with pytest.warns(UserWarning, match=expected) as warned:
        nlp.initialize(lambda: [Example(predicted, reference)])
    assert len(warned) == 1


# Settings


@pytest.mark.parametrize("place", [(0, 0, "GPE"), (0, 1, UNKNOWN), (0, 1, "")])
def test_span_posteriors_of_empty_span_or_unknown_label_raises(
    trained: Language, place: tuple[int, int, str]
) -> None:
    doc = doc_of(trained)
    expected = rf"tokens 0:{place[1]} \('{place[2]}'\).*expected a span with a token and one of"
    with pytest.raises(ValueError, match=expected):
        trained.get_pipe("crf_ner").span_posteriors(doc, [Span(doc, *place)])


@pytest.mark.parametrize("scheme", ["biluo", "bio", "io"])
def test_span_posteriors_of_parts_and_unions_of_preset_entities_are_zero(scheme: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"scheme": scheme, "model": {"hidden_width": 4}})
    words = ["Anna", "Carl", "came"]
    gold = Doc(nlp.vocab, words, ents=["B-PER", "O", "O"])
    nlp.initialize(lambda: [Example(Doc(nlp.vocab, words), gold)])
    ner: Any = nlp.get_pipe("crf_ner")
    both, first, second = (0, 2, "PER"), (0, 1, "PER"), (1, 2, "PER")
    doc = Doc(nlp.vocab, words, ents=["B-PER", "B-PER", ""])
    asked = [Span(doc, *span) for span in (first, second, both)]
    assert ner.span_posteriors(doc, asked) == pytest.approx([1.0, 1.0, 0.0])
    doc = Doc(nlp.vocab, words, sent_starts=[True, True, False])
    doc.set_ents([Span(doc, *both)], default="missing")
    asked = [Span(doc, *span) for span in (both, first, second)]
    with pytest.warns(UserWarning, match="crosses a sentence start"):
        found = ner.span_posteriors(doc, asked)
    assert found == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize("overwrite", [False, True])
def test_span_posteriors_of_many_docs_equal_those_of_each_doc(trained, overwrite, monkeypatch):
    """Docs of many lengths, in several batches, each with other preset entities, or none."""
    monkeypatch.setattr("spacy_crf_ner.pipeline.queries.BATCH_SIZE", 7)
    monkeypatch.setattr("spacy_crf_ner.pipeline.queries.PADDED_TOKENS", 60)
    nlp = spacy.load(trained.path, config={"components": {"crf_ner": {"overwrite": overwrite}}})
    ner = nlp.get_pipe("crf_ner")
    docs, spans = [], []
    for i in range(40):
        words = ["Tim", "Cook", "visited", "Hanoi", "and", "Paris"][: i % 7] * (1 + i % 3)
        doc = Doc(nlp.vocab, words=words)
        if i % 4 and words:
            at = i % len(words)
            doc.ents = [Span(doc, at, at + 1, ner.labels[i % 3])]
        docs.append(doc)
        asked = range(0, len(words), 1 + i % 2) if i % 5 else ()
        spans.append([Span(doc, at, at + 1, ner.labels[(i + at) % 3]) for at in asked])
    expected = [ner.span_posteriors(doc, of_doc) for doc, of_doc in zip(docs, spans)]
    found = ner.span_posteriors_of(iter(docs), iter(spans))
    assert [len(of_doc) for of_doc in found] == [len(of_doc) for of_doc in spans]
    for of_doc, right in zip(found, expected):
        assert of_doc == pytest.approx(right, abs=1e-6)
    assert any(1.0 in of_doc for of_doc in found) is not overwrite
    assert ner.span_posteriors_of(docs[:2], [[], []]) == [[], []]
