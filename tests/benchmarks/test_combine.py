"""Noisy annotations: their scores, and Dawid-Skene on sources that are not equally good."""

import random

import spacy
from spacy.tokens import Doc, Span

from benchmarks.combine import Scores, annotate, bio, corrupt, dawid_skene, score

WORDS = ["Anna", "saw", "Bob", "in", "New", "York"]


def make(*ents):
    doc = Doc(spacy.blank("en").vocab, WORDS)
    doc.set_ents([Span(doc, *ent) for ent in ents], default="outside")
    return doc


def test_score_matches_manual_counts():
    gold = make((0, 1, "PER"), (2, 3, "PER"), (4, 6, "LOC"))
    found = make((0, 1, "PER"), (2, 3, "LOC"))
    found.set_ents(found.ents, missing=[found[3:6]], default="outside")
    assert score([gold], [found]) == Scores(2 / 3, 3 / 6, 1 / 2, 1 / 3, 0.4)
    assert score([gold], [gold]) == Scores(1, 1, 1, 1, 1)


def test_corrupt_changes_given_share_of_entities():
    gold = make((0, 1, "PER"), (2, 3, "PER"), (4, 6, "LOC"))
    rng = random.Random(0)
    assert bio(corrupt(gold, 0.0, ["PER", "LOC"], rng)) == bio(gold)
    same = sum(
        (4, 6, "LOC")
        in {(e.start, e.end, e.label_) for e in corrupt(gold, 0.3, ["PER", "LOC"], rng).ents}
        for _ in range(500)
    )
    assert 0.6 < same / 500 < 0.75  # an added entity never takes the place of another


def test_dawid_skene_with_one_blind_source_recovers_gold():
    """Two sources annotate LOC, and the third one does so only once."""
    gold = [make((0, 1, "PER"), (4, 6, "LOC")) for _ in range(20)]
    blind = [make((0, 1, "PER")) if i else make((0, 1, "PER"), (4, 6, "LOC")) for i in range(20)]
    tags = dawid_skene([gold, gold, blind], ["LOC", "PER"])
    for doc, (found, posterior) in zip(gold, tags):
        assert found == bio(doc) and posterior.min() > 0.9
        assert bio(annotate(doc, found, posterior, 0.5)) == bio(doc)
        assert set(bio(annotate(doc, found, posterior, 1.1))) == {""}
