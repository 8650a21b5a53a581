"""The parts of the simulation that do not train."""

import random

import spacy
from spacy.tokens import Doc, Span

from benchmark_active_learning import KINDS, _is_about, _name, corrupt, draw_curves, table
from spacy_crf_ner.active_learning import Unit
from spacy_crf_ner.active_learning.ranking import identify


def row(strategy, tokens, f1, seed=0):
    return {"strategy": strategy, "seed": seed, "tokens": tokens, "decisions": None, "f1": f1}


def test_table_has_first_round_that_reaches_each_share():
    rows = [row("all", 900, 50.0), row("all", 900, 60.0, 1)]
    rows += [row("entropy", t, f) for t, f in ((100, 10.0), (200, 45.0), (300, 48.0))]
    rows += [row("entropy", t, f, 1) for t, f in ((100, 10.0), (220, 54.0), (320, 56.0))]
    (line,) = [line for line in table(rows).splitlines() if line.startswith("| entropy")]
    assert line == "| entropy | 210 | 300 (1 never) | - (2 never) | - |"


def test_table_counts_decisions_and_no_tokens_for_span_questions():
    from matplotlib.figure import Figure

    rows = [row("all", 900, 50.0), {**row("spans", 100, 49.0), "decisions": 300, "round": 0}]
    rows.append({**row("random", 100, 49.0), "round": 0})
    (line,) = [line for line in table(rows).splitlines() if line.startswith("| spans")]
    assert line == "| spans | - | - | - | 300 |"
    axes = Figure().subplots()
    draw_curves(rows, axes)
    assert [text.get_text() for text in axes.get_legend().texts] == ["random", "all data"]


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
            assert any(_is_about(finding, *each[:3]) for each in own)


def test_question_name_contains_token_offsets():
    doc = Doc(spacy.blank("en").vocab, ["It", ".", "An", "na", "saw", "Bonn"], [True] * 5 + [False])
    text = doc.text.removeprefix("It . ")
    unit = Unit("id", text, [], [], 0.0, "", {"offset": 5}, (0, 5, "PER"))
    assert _name(doc, unit) == f"{identify(doc.text)} 2 4 PER"
