"""Tag schemes: legal sequences are exactly those of spans, and decoding restores the spans."""

from itertools import product

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import biluo_tags_to_spans, biluo_to_iob, offsets_to_biluo_tags

from helpers import LABELS, SCHEMES, Span, annotations, span_sets, write
from spacy_crf_ner.tags import TAG_MISSING, TagMask, TagScheme

VOCAB = spacy.blank("xx").vocab
# Any text is a label; with a hyphen first or last it is hardest to tell from its prefix.
labels = st.text(st.characters(codec="utf-8"), min_size=1) | st.sampled_from(["-", "B-", "-O"])
label_sets = st.lists(labels, min_size=1, max_size=4, unique=True).map(tuple)


def ids_of(scheme: TagScheme, tags: list[str]) -> tuple[int, ...]:
    return tuple(scheme.tags.index(tag) for tag in tags)


def entities(scheme: TagScheme, ids: np.ndarray) -> list[Span]:
    return scheme.offsets(scheme.decode(ids))


def spans_of(doc: Doc, biluo: list[str]) -> list[Span]:
    return [(span.start, span.end, span.label_) for span in biluo_tags_to_spans(doc, biluo)]


def merge_adjacent(spans: list[Span]) -> list[Span]:
    """Join spans of one label that touch: IO writes them as one."""
    merged: list[Span] = []
    for start, end, label in spans:
        if merged and merged[-1][1:] == (start, label):
            start = merged.pop()[0]
        merged.append((start, end, label))
    return merged


# 3 labels, and so 13 tags in BILUO, only for up to 3 tokens.
@pytest.mark.parametrize(
    "name, n_labels, T", [c for c in product(SCHEMES, range(4), range(1, 5)) if c[1] * c[2] < 10]
)
def test_constraints_allow_exactly_tag_sequences_of_spans(name: str, n_labels: int, T: int) -> None:
    scheme = TagScheme(name, LABELS[:n_labels])
    transitions, start, end = scheme.constraints
    C = len(scheme.tags)
    # (P, T); with 2 labels in BILUO, C = 9 and P = 9^4 = 6561
    paths = np.indices((C,) * T).reshape(T, -1).T
    legal = start[paths[:, 0]] & end[paths[:, -1]]
    legal &= transitions[paths[:, :-1], paths[:, 1:]].all(axis=1)
    spelled = {ids_of(scheme, write(name, T, spans)) for spans in span_sets(T, scheme.labels)}
    assert set(map(tuple, paths[legal].tolist())) == spelled


@pytest.mark.parametrize("name", SCHEMES)
def test_spans_restores_every_span_set_from_tags(name: str) -> None:
    scheme = TagScheme(name, LABELS[:2])
    for T in range(6):
        for spans in map(list, span_sets(T, scheme.labels)):
            ids = np.array(ids_of(scheme, write(name, T, spans)), dtype=np.int64)
            assert entities(scheme, ids) == (merge_adjacent(spans) if name == "io" else spans)


@given(st.data(), st.sampled_from(SCHEMES), label_sets)
def test_tags_and_spans_agree_with_spacy(
    data: st.DataObject, name: str, labels: tuple[str, ...]
) -> None:
    scheme = TagScheme(name, labels)
    T, spans = data.draw(annotations(labels))
    doc = Doc(VOCAB, words=["w"] * T)
    # "w w w": token i begins at character 2 i, and the one before it ended at 2 i - 1.
    offsets = [(2 * start, 2 * end - 1, label) for start, end, label in spans]
    biluo = offsets_to_biluo_tags(doc, offsets)
    ids = scheme.ids(biluo)
    assert ids.dtype == np.int64
    written = [scheme.tags[i] for i in ids]
    spaces = {"biluo": biluo, "bio": biluo_to_iob(biluo), "io": write("io", T, spans)}
    assert written == spaces[name]
    expected = spans_of(doc, biluo)
    assert entities(scheme, ids) == (merge_adjacent(expected) if name == "io" else expected)


@pytest.mark.parametrize("name", SCHEMES)
@given(st.lists(st.tuples(st.integers(0, len(LABELS) - 1), st.integers(1, 6)), max_size=4))
def test_write_returns_padded_tag_ids_of_scheme(name: str, asked: list[tuple[int, int]]) -> None:
    scheme = TagScheme(name, LABELS)
    numbers, lengths = np.array(asked, dtype=np.int64).reshape(-1, 2).T
    longest = max(lengths, default=1)
    expected = [
        ids_of(scheme, write(name, n, [(0, n, LABELS[i])])) + (TAG_MISSING,) * (longest - n)
        for i, n in asked
    ]
    found = scheme.encode(numbers, lengths)
    np.testing.assert_array_equal(found, np.reshape(expected, (len(asked), longest)))


@pytest.mark.parametrize("name", SCHEMES)
def test_continues_is_true_only_inside_spans(name: str) -> None:
    """True for adjacent tokens of one span, and for no others unless IO merges spans."""
    scheme = TagScheme(name, LABELS[:2])
    expected = np.zeros_like(scheme.continues)
    for spans in span_sets(4, scheme.labels):
        ids = ids_of(scheme, write(name, 4, spans))
        for start, end, _ in spans:
            for t in range(start + 1, end):
                expected[ids[t - 1], ids[t]] = True
    np.testing.assert_array_equal(scheme.continues, expected)


def matches(mask: TagMask, ids: np.ndarray) -> np.ndarray:
    """How many of the alternatives of a mask a tag sequence matches."""
    allowed = mask.allowed.reshape(-1, *mask.allowed.shape[-2:])
    at = range(allowed.shape[1])
    return allowed[:, at, ids[mask.start : mask.start + len(at)]].all(1).sum()


@pytest.mark.parametrize("name", SCHEMES)
def test_masks_match_sequences_with_and_without_entity(name: str) -> None:
    scheme = TagScheme(name, LABELS[:2])
    places = [(start, end) for start in range(4) for end in range(start + 1, 5)]
    without = {
        (*place, label): scheme.exclusion_mask(*place, label, 4)
        for place in places
        for label in ("O", "", *scheme.labels)
    }
    having = {
        (*place, label): scheme.entity_mask(*place, label, 4)
        for place in places
        for label in scheme.labels
    }
    for spans in span_sets(4, scheme.labels):
        ids = np.array(ids_of(scheme, write(name, 4, spans)))
        for start, end in places:
            free = all(stop <= start or end <= first for first, stop, _ in spans)
            assert matches(without[start, end, "O"], ids) == (not free)
            found = {label for s, e, label in entities(scheme, ids) if (s, e) == (start, end)}
            assert matches(without[start, end, ""], ids) == (not found)
            for label in scheme.labels:
                there = label in found
                assert matches(having[start, end, label], ids) == there
                assert matches(without[start, end, label], ids) == (not there)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("label", ["", LABELS[0], "O"])
def test_exclusion_masks_are_disjoint_and_complete_for_all_sequences(name: str, label: str) -> None:
    """A softmax decoder gives them probability."""
    scheme = TagScheme(name, LABELS[:2])
    C = len(scheme.tags)
    exclusion = scheme.exclusion_mask(1, 2, label, 3)
    if label == "O":
        masks = [TagMask(1, np.arange(C)[None] == 0)]
    else:
        masks = [scheme.entity_mask(1, 2, each, 3) for each in scheme.labels if label in ("", each)]
    for ids in map(np.array, product(range(C), repeat=3)):
        assert matches(exclusion, ids) == 1 - sum(matches(mask, ids) for mask in masks)


def test_mask_size_is_independent_of_doc_length() -> None:
    scheme = TagScheme("bio", LABELS)
    assert scheme.entity_mask(50_000, 50_002, LABELS[0], 100_000).allowed.shape == (4, 9)
    # One set leaves at the first token, and for each label one at the second and one after it.
    assert scheme.exclusion_mask(50_000, 50_002, "", 100_000).allowed.shape == (9, 4, 9)


@given(st.data(), st.sampled_from(SCHEMES))
def test_ids_masks_only_tokens_with_missing_annotation(data: st.DataObject, name: str) -> None:
    scheme = TagScheme(name, LABELS)
    T, spans = data.draw(annotations(LABELS))
    biluo = write("biluo", T, spans)
    hidden = data.draw(st.lists(st.sampled_from([False, None, "-"]), min_size=T, max_size=T))
    partly = [tag if mark is False else mark for tag, mark in zip(biluo, hidden)]
    expected = np.where([mark is not False for mark in hidden], TAG_MISSING, scheme.ids(biluo))
    np.testing.assert_array_equal(scheme.ids(partly), expected)
    assert TAG_MISSING == -1


@pytest.mark.parametrize("name", SCHEMES)
@given(labels=label_sets)
def test_tags_start_with_outside_and_keep_label_order(name: str, labels: list[str]) -> None:
    """Stored weights depend on the order of the tags."""
    prefixes = {"biluo": "BILU", "bio": "BI", "io": "I"}[name]
    expected = [f"{prefix}-{label}" for label in labels for prefix in prefixes]
    assert TagScheme(name, tuple(labels)).tags == ("O", *expected)


@pytest.mark.parametrize("tag", ["U-ORG", "B-per", "X-PER", "PER", ""])
def test_ids_of_unknown_tag_raises_key_error(tag: str) -> None:
    with pytest.raises(KeyError):
        TagScheme("biluo", LABELS).ids(["O", tag])


@pytest.mark.parametrize("name", ["BIO", "bioes", ""])
def test_tag_scheme_with_unknown_name_raises(name: str) -> None:
    with pytest.raises(ValueError, match=rf"\['biluo', 'bio', 'io'\], got '{name}'"):
        TagScheme(name, LABELS)
