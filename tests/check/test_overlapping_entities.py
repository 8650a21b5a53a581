"""Checks of corpora whose entities may overlap: doc.spans instead of doc.ents."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

from spacy_crf_ner.check import CheckSettings, Finding, check, read_settings
from spacy_crf_ner.cli import app
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels

ROOT = Path(__file__).parents[2]
VOCAB = spacy.blank("en").vocab
SETTINGS = CheckSettings(spans_key="sc", rare=0)
Entity = tuple[int, int, str]  # first token, last token + 1, label


def make(text: str, *spans: Entity) -> Doc:
    doc = Doc(VOCAB, words=text.split(" "))
    doc.spans["sc"] = [Span(doc, *span) for span in spans]
    return doc


def findings(*docs: Doc, **settings: Any) -> dict[str, Finding]:
    report = check(docs, settings=SETTINGS._replace(**settings))
    return {finding.kind: finding for finding in report.findings}


def places(finding: Finding) -> list[tuple[str, str]]:
    return [(place.text, place.note) for place in finding.places]


# Findings


def test_check_nested_and_crossing_entities_have_no_findings() -> None:
    doc = make("the mayor of Ems", (0, 4, "PER"), (0, 2, "PER"), (3, 4, "LOC"), (1, 3, "ROLE"))
    assert findings(doc) == {}
    assert findings(doc, scheme="io") == {}


def test_check_duplicate_or_empty_span_is_error() -> None:
    spans = (1, 2, "LOC"), (1, 2, "LOC"), (1, 2, "ORG"), (2, 2, "ORG"), (0, 2, "LOC")
    found = findings(make("in Ems it is", *spans), make("so Ems is", *[(1, 1, "LOC")] * 5))
    assert places(found["invalid-span"]) == [("Ems", "LOC"), ("", "ORG"), *[("", "LOC")] * 3]
    assert found["invalid-span"].severity == "error"


def test_check_io_scheme_reports_adjacent_entities_of_one_label() -> None:
    doc = make("Bad Ems Ulm is", (0, 3, "LOC"), (0, 2, "LOC"), (2, 3, "LOC"), (3, 4, "PER"))
    found = findings(doc, scheme="io")
    assert list(found) == ["adjacent"] and places(found["adjacent"]) == [("Bad Ems Ulm", "LOC")]


def test_every_span_is_checked() -> None:
    doc = make("so , Bad \n", (0, 4, "LOC"), (1, 3, "LOC"), (0, 4, "!LOC"))
    found = findings(doc, long_entity=3)
    assert places(found["whitespace-edge"]) == [("so , Bad \n", "LOC"), ("so , Bad \n", "!LOC")]
    assert places(found["punctuation-edge"]) == [(", Bad", "LOC")]
    assert places(found["label-mark"]) == [("so , Bad \n", "!LOC")]
    assert [note for _, note in places(found["long-entity"])] == ["LOC, 4 tokens", "!LOC, 4 tokens"]


def test_check_docs_without_spans_key_use_doc_ents() -> None:
    docs = [make("in Ems", (1, 2, "LOC")), make("he came"), make("she came"), make("who came")]
    del docs[1].spans["sc"], docs[2].spans["sc"]
    docs[2].set_ents([Span(docs[2], 0, 1, "PER")])
    docs[3].set_ents([Span(docs[3], 0, 1, "ORG")])  # not gold
    report = check(docs, settings=SETTINGS)
    kinds = ("warning", "no-annotation"), ("note", "other-key")
    assert [(finding.severity, finding.kind) for finding in report.findings] == [*kinds]
    assert [[place.doc for place in finding.places] for finding in report.findings] == [[1], [2]]
    assert "without doc.spans['sc']" in report.findings[1].found
    s = report.statistics["train"]
    assert (s.missing, s.labels) == (2, {"LOC": 1, "PER": 1})


def test_check_duplicates_ignore_span_order() -> None:
    spans = (0, 4, "PER"), (3, 4, "LOC")
    same = [make("the mayor of Ems", *spans), make("the mayor of Ems", *spans[::-1])]
    assert list(findings(*same)) == ["duplicate"]
    other = make("the mayor of Ems", spans[0])
    assert list(findings(same[0], other)) == ["annotated-differently", "duplicate"]


def test_check_sometimes_outside_counts_words_in_no_span() -> None:
    docs = [make(f"so Ems {'so ' * i}is", (1, 2, "LOC")) for i in range(5)]
    inside = [make(f"of Ems {'of ' * i}is", (0, 2, "PER")) for i in range(5)]
    assert findings(*docs, *inside) == {}
    outside = [make(f"in Ems {'in ' * i}is") for i in range(5)]
    found = findings(*docs, *inside, *outside)
    assert places(found["sometimes-outside"]) == [("Ems", "LOC 5, outside 5")]


def test_annotated_labels_are_compared_with_the_spans() -> None:
    doc = make("the mayor of Ems", (0, 4, "PER"), (3, 4, "LOC"))
    mark_annotated_labels(doc, ["PER", "ORG"])
    found = findings(doc)
    assert places(found["unknown-annotated"]) == [("Ems", "LOC")]
    assert places(found["unused-annotated"]) == [("the mayor of Ems ", "ORG")]


# Statistics


def test_overlaps_and_levels_are_counted() -> None:
    docs = [
        make(
            "the son of the mayor of Ems here",
            (0, 7, "PER"),
            (3, 7, "PER"),
            (3, 5, "PER"),
            (0, 2, "PER"),
            (6, 7, "LOC"),
            (7, 8, "LOC"),
        ),
        make("Ems in Ems", (0, 1, "LOC"), (2, 3, "LOC")),
        make("nobody"),
    ]
    s = check(docs, settings=SETTINGS).statistics["train"]
    # PER 0:7 is outside of 0:2 and 3:7, and this one of 3:5. LOC 6:7 is in two of these.
    assert s.levels == {"PER": {0: 1, 1: 2, 2: 1}, "LOC": {0: 4}}
    assert [s.level_share(n) for n in (1, 2, 3)] == [5 / 8, 7 / 8, 1]
    assert s.to_dict()["levels"] == {"LOC": [4], "PER": [1, 2, 1]}
    assert s.label_tokens == {"PER": 7, "LOC": 4}  # each token once
    assert (s.entities, s.empty_sentences, s.missing) == (8, 1, 0)
    empty = check([], settings=SETTINGS).statistics["train"]
    assert empty.level_share(1) == 0 and json.dumps(empty.to_dict())


@pytest.mark.parametrize("seed", range(5))
def test_statistics_match_pairwise_comparison(seed: int) -> None:
    rng = random.Random(seed)
    docs = []
    for _ in range(30):
        T = rng.randint(1, 12)
        starts = [rng.randrange(T) for _ in range(rng.randint(0, 8))]
        spans = {(start, rng.randint(start + 1, T), rng.choice("AB")) for start in starts}
        docs.append(make(" ".join("abcdefghijkl"[:T]), *rng.sample(sorted(spans), len(spans))))
    overlapping = same = 0
    deepest = {"A": 0, "B": 0}
    for doc in docs:
        tokens = [({*range(span.start, span.end)}, span.label_) for span in doc.spans["sc"]]
        for i, (own, label) in enumerate(tokens):
            labels = [other for j, (each, other) in enumerate(tokens) if own & each and i != j]
            overlapping += bool(labels)
            same += label in labels
        for label in deepest:
            # The number of levels is the largest number of entities at one token.
            depths = [sum(t in own for own, name in tokens if name == label) for t in range(12)]
            deepest[label] = max(deepest[label], *depths)
    s = check(docs, settings=SETTINGS).statistics["train"]
    assert (s.overlapping, s.overlapping_same_label) == (overlapping, same)
    assert {label: len(counts) for label, counts in s.levels.items()} == deepest
    assert {label: counts.total() for label, counts in s.levels.items()} == s.labels


# The config and the command


def test_read_settings_overlapping_entities_returns_spans_key(tmp_path: Path) -> None:
    config = spacy.util.load_config(ROOT / "configs" / "cnn.cfg")
    for settings, key in (
        ({"spans_key": "mine"}, None),
        ({"overlap": True}, "sc"),
        ({"overlap": True, "spans_key": "mine"}, "mine"),
    ):
        config["components"]["ner"].update(settings)
        config.to_disk(tmp_path / "config.cfg")
        assert read_settings(tmp_path / "config.cfg").spans_key == key
        for each in settings:
            del config["components"]["ner"][each]


def test_the_command_prints_levels(tmp_path: Path) -> None:
    docs = [make(f"mayor{i} of Ems", (0, 3, "PER"), (0, 1, "PER"), (2, 3, "LOC")) for i in range(9)]
    docs += [make("he came", (0, 1, "PER"))]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    run = ["check", str(tmp_path / "train.spacy")]
    result = CliRunner().invoke(app, [*run, "--spans-key", "sc"])
    assert result.exit_code == 0, result.output
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in result.output.splitlines()
    ]
    for row in (
        ["entities", "28"],
        ["overlapping", "27 (96.4%)"],
        ["overlapping their label", "18 (64.3%)"],
        ["in 1 level per label", "67.9%"],
        ["in 2 levels per label", "100.0%"],
        ["in 3 levels per label", "100.0%"],
        ["PER", "19", "28", "2"],
        ["LOC", "9", "9", "1"],
    ):
        assert row in rows
    # Without the key, the entities are not found, and the advice names it.
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 1 and "doc.spans of --spans-key" in " ".join(result.output.split())
    assert "level" not in result.output


def test_check_two_labels_of_one_span_are_not_conflicting() -> None:
    both, one = make("Oslo won", (0, 1, "LOC"), (0, 1, "ORG")), make("Oslo won", (0, 1, "LOC"))
    assert "conflicting-labels" not in findings(both, both)
    conflict = findings(both, both, one)["conflicting-labels"]
    assert [note for _, note in places(conflict)] == ["LOC + ORG 2, LOC 1"]
