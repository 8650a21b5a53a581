"""The parts of the simulation and of the corrupted entities that do not train."""

import random

import spacy
from spacy.tokens import Doc, Span

from benchmarks.active_learning import _name
from benchmarks.label_errors import KINDS, corrupt, is_about
from spacy_crf_ner.active_learning import Unit
from spacy_crf_ner.active_learning.ranking import identify


def test_corrupt_returns_exactly_the_changed_entities():
    nlp, rng = spacy.blank("en"), random.Random(0)
    docs, before = [], []
    for _ in range(60):
        doc = Doc(nlp.vocab, ["w"] * 12)
        ents = [Span(doc, i, i + rng.choice((1, 2)), rng.choice("ABC")) for i in (1, 4, 8)]
        doc.set_ents(ents, default="outside")
        docs.append(doc)
        before.append({(ent.start_char, ent.end_char, ent.label_) for ent in ents})
    changed = corrupt(docs, 0.2, seed=1)
    assert len(changed) == 36 and {kind for *_, kind in changed} == {*KINDS}
    for i, doc in enumerate(docs):
        now = {(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents}
        own = [each for each in changed if each[0] == i]
        differing = now ^ before[i]
        assert bool(differing) == bool(own)
        for start, end, label in differing:
            ent = {"start": start, "end": end, "label": label}
            finding = {"doc": i, "gold": ent, "predicted": None}
            assert any(is_about(finding, *each[:3]) for each in own)


def test_question_name_contains_token_offsets():
    doc = Doc(spacy.blank("en").vocab, ["It", ".", "An", "na", "saw", "Bonn"], [True] * 5 + [False])
    text = doc.text.removeprefix("It . ")
    unit = Unit("id", text, [], [], 0.0, "", {"offset": 5}, (0, 5, "PER"))
    assert _name(doc, unit) == f"{identify(doc.text)} 2 4 PER"
