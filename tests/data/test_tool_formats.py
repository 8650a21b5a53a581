"""Formats of annotation tools: annotations are read, and invalid ones raise or are counted."""

import json
import random
import re
import shutil
import tracemalloc
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from helpers import tags
from spacy_crf_ner.data import (
    FORMATS,
    ConversionLog,
    ConvertOptions,
    convert,
    counting,
    detect_format,
    json_records,
)
from spacy_crf_ner.data.brat import is_brat, read_brat
from spacy_crf_ner.data.docbin import read_spacy
from spacy_crf_ner.data.json_reader import read_json
from spacy_crf_ner.data.jsonl import write_jsonl
from spacy_crf_ner.data.label_studio import ANSWER, QUESTION
from spacy_crf_ner.data.lines import MAX_LINE_BYTES
from spacy_crf_ner.data.offsets import set_entities, tokenize
from spacy_crf_ner.data.record import RawSpan
from spacy_crf_ner.docbin import document_of
from spacy_crf_ner.input_error import CorpusError
from spacy_crf_ner.ml.zero_width import is_blank

DATA = Path(__file__).parents[1] / "fixtures"

# Expected content of each golden file: the text, and (text, label) of its entities.
GOLDEN = [
    ("Anna Schmidt visited Hanoi.", [("Anna Schmidt", "PER"), ("Hanoi", "LOC")]),
    ("🎉 Hà Nội, then\nParis Berlin", [("Hà Nội", "LOC"), ("Paris", "LOC"), ("Berlin", "LOC")]),
    ("Nothing here.", []),
]
FILES = {
    "prodigy.jsonl": "jsonl",
    "doccano.jsonl": "doccano",
    "label_studio.json": "label_studio",
    "label_studio_min.json": "label_studio",
    "brat": "brat",
}
# What is no annotation in them.
LEFT_OUT = {
    "prodigy.jsonl": {"answer": 1},
    "doccano.jsonl": {"relation": 1},
    "label_studio.json": {"cancelled": 2, "annotation": 1, "result": 1, "task": 1},
    "label_studio_min.json": {},
    "brat": {"line": 2},
}
FUZZ = 3 * settings.default.max_examples


def annotate(text: str, nlp: Language, spans: Any, log: ConversionLog, where: str) -> Doc:
    return set_entities(tokenize(text, nlp, where), [RawSpan(*span) for span in spans], log, where)


def said(docs: list[Doc]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(doc.text, [(ent.text, ent.label_) for ent in doc.ents]) for doc in docs]


def jsonl(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read_one(path: Path, nlp: Language, record: Any, log: ConversionLog | None = None) -> Doc:
    (doc,) = read_json(jsonl(path, record), nlp, log)
    return doc


def read_label_tasks(
    path: Path, nlp: Language, *tasks: Any, log: ConversionLog | None = None
) -> list[Doc]:
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return list(read_json(path, nlp, log))


def task(text: str, *values: Any, kind: str = "labels") -> dict[str, Any]:
    results = [{"type": kind, "to_name": "text", "value": value} for value in values]
    return {"data": {"text": text}, "annotations": [{"result": results}]}


def brat(folder: Path, text: str, annotation: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "one.txt").write_bytes(text.encode())
    (folder / "one.ann").write_bytes(annotation.encode())
    return folder


# Reading


@pytest.mark.parametrize("name", FILES)
def test_readers_give_same_docs_for_all_tool_formats(name: str, nlp: Language) -> None:
    log = ConversionLog()
    assert detect_format(DATA / name) == FILES[name]
    docs = list(FORMATS[FILES[name]](DATA / name, nlp, log))
    assert said(docs) == GOLDEN
    assert log.counts == {f"skipped.{key}": n for key, n in LEFT_OUT[name].items()}
    assert (log.totals["records"], log.totals["entities"]) == (3, 5)
    for doc in docs:
        assert doc.vocab is nlp.vocab
        assert set(tags(doc)) <= set("BIO")
        assert not doc.has_annotation("SENT_START")


def test_readers_keep_metadata_of_records(nlp: Language) -> None:
    first = {name: next(FORMATS[format](DATA / name, nlp)) for name, format in FILES.items()}
    meta = {name: doc.user_data["meta"] for name, doc in first.items()}
    assert meta["prodigy.jsonl"] == {
        "source": "letters",
        "_view_id": "ner_manual",
        "_task_hash": -5,
    }
    assert meta["doccano.jsonl"] == {"id": 1, "Comments": []}
    assert meta["label_studio.json"] == {"id": 1, "data": {"author": "B."}}
    assert meta["label_studio_min.json"]["annotation_id"] == 9
    assert meta["brat"] == {"file": "a.txt", "document": f"{DATA.name}/brat/a"}


def test_file_of_a_task_is_not_its_document(tmp_path: Path, nlp: Language) -> None:
    """`suggest` names the input file, which may have one document per line."""
    path = jsonl(tmp_path / "a.jsonl", {"text": "a", "spans": [], "meta": {"file": "in.txt"}})
    (doc,) = read_json(path, nlp)
    assert document_of(doc) is None


def test_read_label_studio_span_with_several_labels_gives_one_each(
    tmp_path: Path, nlp: Language
) -> None:
    value = {"start": 0, "end": 5, "labels": ["LOC", "ORG"], "text": "Hanoi"}
    path = tmp_path / "a.json"
    log = ConversionLog(spans_key="sc")
    (doc,) = read_label_tasks(path, nlp, task("Hanoi", value), log=log)
    assert [(span.text, span.label_) for span in doc.spans["sc"]] == [
        ("Hanoi", "LOC"), ("Hanoi", "ORG"),
    ]  # fmt: skip
    with pytest.raises(CorpusError, match=r"the label and the ids, got .* Give the span one label"):
        read_label_tasks(path, nlp, task("Hanoi", value))


@pytest.mark.parametrize(
    "key, mark", [("annotations", "was_cancelled"), ("completions", "skipped")]
)
def test_read_label_studio_skips_cancelled_tasks(
    key: str, mark: str, tmp_path: Path, nlp: Language
) -> None:
    skipped = {"data": {"text": "Hanoi"}, key: [{mark: True, "result": []}] * 2}
    log = ConversionLog()
    assert not read_label_tasks(tmp_path / "a.json", nlp, skipped, log=log)
    assert log.counts == {"skipped.cancelled": 2, "skipped.task": 1}


def test_read_label_studio_accepts_backslash_in_span_text(tmp_path: Path, nlp: Language) -> None:
    """As in a path; Label Studio may also write a line feed as backslash and n."""
    for text, covered, end in (("C:\\new\\n", "C:\\new", 6), ("Bad\nHof", "Bad\\nHof", 7)):
        value = {"start": 0, "end": end, "text": covered, "labels": ["X"]}
        log = ConversionLog(alignment="expand")
        (doc,) = read_label_tasks(tmp_path / "a.json", nlp, task(text, value), log=log)
        assert [ent.label_ for ent in doc.ents] == ["X"]


def test_other_results_beside_an_answer_of_label_studio_are_counted(
    tmp_path: Path, nlp: Language
) -> None:
    asked = {"start": 0, "end": 5, "label": "LOC"}
    own = {"value": {"start": 0, "end": 5, "labels": ["LOC"]}, "type": "labels"}
    other = {"value": {"start": 0, "end": 5, "labels": ["ORG"]}, "type": "labels"}
    yes = {"from_name": ANSWER, "value": {"choices": ["yes"]}, "type": "choices"}
    data = {"text": "Hanoi", QUESTION: asked, "author": "B."}
    log = ConversionLog()
    given = {"id": 7, "data": data, "annotations": [{"result": [own, yes, other]}]}
    (doc,) = read_label_tasks(tmp_path / "a.json", nlp, given, log=log)
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("Hanoi", "LOC")]
    assert doc.user_data["meta"] == {"id": 7, "data": {"author": "B."}}
    assert log.counts == {"skipped.result": 1}


@pytest.mark.parametrize(
    "span, expected",
    [
        (RawSpan(0, 5, ""), "-BO"),
        (RawSpan(0, 5, "LOC", text="Hanoi,"), "-B-"),
        (RawSpan(6, 12, "LOC"), "-B-"),
        (RawSpan(None, None, "LOC"), "-B-"),
        (RawSpan(5, 6, "LOC"), "OBO"),  # whitespace
    ],
    ids=str,
)
def test_set_entities_possible_tokens_of_invalid_span_are_missing(
    span: RawSpan, expected: str, nlp: Language
) -> None:
    log = ConversionLog(repair=True)
    doc = set_entities(nlp.make_doc("Hanoi Mon ."), [span, RawSpan(6, 9, "DATE")], log, "here")
    assert tags(doc) == expected
    assert log.totals["rejected.entities"] == 1


def test_read_jsonl_keeps_key_also_present_in_meta(tmp_path: Path, nlp: Language) -> None:
    record = {"text": "Hanoi", "spans": [], "source": 1, "meta": {"source": 2}}
    doc = read_one(tmp_path / "a", nlp, record)
    assert doc.user_data["meta"] == {"source": 1, "meta": {"source": 2}}


@pytest.mark.parametrize("key", ["spans", "entities"])
def test_read_jsonl_null_annotation_is_ignored(key: str, tmp_path: Path, nlp: Language) -> None:
    for others in ({}, {"answer": "accept"}, {"missing": [[0, 5]]}):
        (tmp_path / "a").write_text(json.dumps({"text": "Hanoi", key: None, **others}))
        with pytest.raises(CorpusError, match="expected annotation, one of the keys"):
            list(read_json(tmp_path / "a", nlp))
    (tmp_path / "a").write_text(json.dumps({"text": "Hanoi", key: None, "answer": "ignore"}))
    assert not list(read_json(tmp_path / "a", nlp))
    other = {"text": "Hanoi", "spans": [], "entities": [], key: None}
    (tmp_path / "a").write_text(json.dumps(other))
    assert [tags(doc) for doc in read_json(tmp_path / "a", nlp)] == ["O"]


# As the tools write them: doccano's exporters, and the interfaces of Prodigy's documentation


CAFE = unicodedata.normalize("NFD", "Café Ann left Café firetrucks")
ENGINE = "👨\u200d🚒 firemen 🎉 drive firetrucks"


@pytest.mark.parametrize(
    "text, words, way, kind",
    [
        (ENGINE, ["firemen", "firetrucks"], lambda text: text.encode("utf-16-le")[::2], "utf16"),
        (CAFE, ["Ann", "firetrucks"], lambda text: unicodedata.normalize("NFC", text), "nfc"),
    ],
    ids=["utf16", "nfc"],
)
@pytest.mark.parametrize("key", ["label", "entities"])
def test_offsets_that_count_otherwise_raise_or_are_repaired(
    text: str, words: list[str], way: Any, kind: str, key: str, tmp_path: Path, nlp: Language
) -> None:
    """As in doccano's issue 2290."""

    def record(count: Callable[[str], Any]) -> dict[str, Any]:
        starts = [len(count(text[: text.index(word)])) for word in words]
        return {"text": text, key: [[at, at + len(w), "X"] for at, w in zip(starts, words)]}

    path = jsonl(tmp_path / "a.jsonl", record(way))
    with pytest.raises(CorpusError, match=r"line 1: expected offsets that count char.*--repair"):
        list(read_json(path, nlp))
    log = ConversionLog(repair=True)
    expected = [(text, [(word, "X") for word in words])]
    assert said(list(read_json(path, nlp, log))) == expected
    assert log.counts == {f"repaired.{kind}": 1}
    right = record(str)
    assert said(list(read_json(jsonl(tmp_path / "b.jsonl", right), nlp))) == expected
    inside = {**right, key: [*right[key], [99, 100, "X"]]}
    log = ConversionLog(repair=True)
    assert said(list(read_json(jsonl(tmp_path / "c.jsonl", inside), nlp, log))) == expected
    assert log.counts == {"rejected.offsets": 1}


def test_read_doccano_offsets_that_fit_both_or_neither_way_are_characters(
    tmp_path: Path, nlp: Language
) -> None:
    both = jsonl(tmp_path / "d.jsonl", {"id": 1, "text": "🎉 (x)", "label": [[3, 4, "X"]]})
    assert said(list(read_json(both, nlp))) == [("🎉 (x)", [("x", "X")])]
    neither = jsonl(tmp_path / "e.jsonl", {"id": 1, "text": "🎉 firemen", "label": [[4, 6, "X"]]})
    with pytest.raises(CorpusError, match="an entity of whole tokens"):
        list(read_json(neither, nlp))


PRODIGY: list[tuple[dict[str, Any], str | None]] = [
    ({"_view_id": "ner_manual", "_is_binary": False, "answer": "accept"}, "BOB"),
    ({"_view_id": "ner_manual", "answer": "reject"}, None),
    ({"_view_id": "ner_manual", "answer": "ignore"}, None),
    ({"_view_id": "ner", "_is_binary": True, "answer": "accept"}, "B-B"),
    ({"_view_id": "ner", "_is_binary": False, "answer": "accept"}, "BOB"),
    ({"_view_id": "ner", "answer": "reject"}, "---"),
    ({"answer": "accept"}, "BOB"),
    ({"answer": "accept", "missing": [[5, 7]]}, "B-B"),
    ({"answer": "reject"}, "---"),
    ({"answer": "ignore"}, None),
    ({"_view_id": "spans_manual", "answer": "accept"}, "BOB"),
    ({"_view_id": "blocks", "answer": "accept"}, "BOB"),
    ({"_view_id": "review", "answer": "accept", "sessions": ["a"], "versions": []}, "BOB"),
]


@pytest.mark.parametrize("answer, annotated", PRODIGY, ids=str)
def test_read_jsonl_reads_answers_of_prodigy_interfaces(
    answer: dict[str, Any], annotated: str | None, tmp_path: Path, nlp: Language
) -> None:
    """With all that `db-out` writes; the end of a span in tokens is inclusive there."""
    tokens = [
        {"text": text, "start": start, "end": start + len(text), "id": i, "ws": i < 2}
        for i, (text, start) in enumerate((("Anna", 0), ("in", 5), ("Bonn", 8)))
    ]
    spans = [
        {"start": 0, "end": 4, "token_start": 0, "token_end": 0, "label": "PER", "text": "Anna"},
        {"start": 8, "end": 12, "token_start": 2, "token_end": 2, "label": "LOC", "score": 0.5,
         "source": "en_core_web_lg", "input_hash": 885944384},
    ]  # fmt: skip
    keys = {"_input_hash": 1, "_task_hash": -2, "_session_id": None, "_annotator_id": "s-a"}
    record = {"text": "Anna in Bonn", "tokens": tokens, "spans": spans, "meta": {"score": 0.1}}
    log = ConversionLog()
    path = jsonl(tmp_path / "a", {**record, **keys, **answer, "_timestamp": 1633999979})
    docs = list(read_json(path, nlp, log))
    assert [tags(doc) for doc in docs] == ([] if annotated is None else [annotated])
    assert log.counts == ({"skipped.answer": 1} if annotated is None else {})
    for doc in docs if annotated == "---" else ():
        assert [(span.text, span.label_) for span in doc.spans["incorrect_spans"]] == [
            ("Anna", "PER"), ("Bonn", "LOC"),
        ]  # fmt: skip


# JSON lines


def test_read_jsonl_keeps_norms_of_tokenizer_tokens(tmp_path: Path, nlp: Language) -> None:
    """`spacy train` tokenizes their text again, so other norms would be those of other words."""
    doc = nlp.make_doc("He didn't say that he'd visit Oslo's mayor.")
    doc.set_ents([spacy.tokens.Span(doc, 7, 8, "LOC")])
    assert "not" in [token.norm_ for token in doc]
    write_jsonl([doc], tmp_path / "a")
    (read,) = read_json(tmp_path / "a", nlp)
    assert everything(read) == everything(doc)
    assert [token.norm_ for token in read] == [token.norm_ for token in doc]
    # These are not the tokens of their text, or may not be.
    for words, spaces in (
        (["Mt.", "Etna"], None),
        (["Mt.", "E", "tna"], [True, False, False]),
        (["He", "did", "n't"], [True, True, False]),
    ):
        other = Doc(nlp.vocab, words, spaces)
        other.set_ents([])
        write_jsonl([other], tmp_path / "a")
        (read,) = read_json(tmp_path / "a", nlp)
        assert everything(read) == everything(other)
        assert [token.norm_ for token in read] == [token.norm_ for token in other]


def test_read_jsonl_reads_text_over_max_length_if_tokens_are_given(tmp_path: Path) -> None:
    small, large = spacy.blank("en"), spacy.blank("en")
    small.max_length = 8
    for unknown in (False, True):
        doc = Doc(large.vocab, ["Hanoi", "now"], None if unknown else [True, False])
        doc.set_ents([spacy.tokens.Span(doc, 0, 1, "LOC")])
        write_jsonl([doc], tmp_path / "a")
        (read,) = read_json(tmp_path / "a", small)
        assert everything(read) == everything(doc)
    for tokens in (None, [], [{"text": "Hanoi"}]):
        record = {"text": "Hanoi now", "tokens": tokens, "spans": []}
        says = "at most 8 characters, got 9" if tokens is None else "tokens that make up"
        with pytest.raises(CorpusError, match=f"line 1: expected .*{says}"):
            read_one(tmp_path / "a", small, record)


OTHER_TOKENS: list[Any] = [["Hanoi"], [{"text": "Hanoi"}], [{"text": ""}], [1], {"text": "Hanoi"}]
OTHER_TOKENS += [[{"text": "Ha"}, {"text": "x"}], [{"text": "Hanoi", "ws": 1}, {"text": "now"}]]
OTHER_TOKENS += [[{"text": "Hanoi", "ws": False}, {"text": "now"}]]


@pytest.mark.parametrize("tokens", OTHER_TOKENS, ids=str)
def test_read_jsonl_tokens_of_other_text_raise(tokens: Any, tmp_path: Path, nlp: Language) -> None:
    record = {"text": "Hanoi now", "tokens": tokens, "spans": []}
    with pytest.raises(CorpusError, match=r"line 1: expected .*, got "):
        read_one(tmp_path / "a", nlp, record)


SPAN = {"start": 0, "end": 5, "label": "LOC"}


@pytest.mark.parametrize(
    "record",
    [
        {"text": "a"},
        {"spans": []},
        {"text": None, "spans": []},
        {"text": 5, "spans": []},
        {"text": "\ud800", "spans": []},
        {"text": "a", "spans": {}},
        {"text": "a", "answer": "maybe"},
        {"text": "a", "spans": [], "_is_binary": 1},
        {"text": "a", "spans": [], "missing": [[0, 2]]},
        {"text": "a", "spans": [], "missing": [0, 1]},
        {"text": "a", "spans": [], "meta": []},
        {"text": "a", "spans": [], "meta": {"n": 2**70}},
        {"text": "a", "spans": [], "meta": {"n": "\ud800"}},
        {"text": "a", "spans": [], "sent_starts": 0},
        {"text": "a", "spans": [], "id": 1.5},
        {"text": "a " * 600_000, "spans": []},
        "a",
        None,
        5,
        [],
    ],
    ids=lambda record: repr(record)[:40],
)
def test_read_jsonl_invalid_record_raises_or_is_rejected(
    record: Any, tmp_path: Path, nlp: Language
) -> None:
    path = jsonl(tmp_path / "a", record, {"text": "Hanoi", "spans": []})
    with pytest.raises(CorpusError, match=r"line 1: expected .*, got "):
        list(read_json(path, nlp))
    log = ConversionLog(repair=True)
    assert [doc.text for doc in read_json(path, nlp, log)] == ["Hanoi"]
    assert log.counts == {"rejected.record": 1}
    assert log.totals["records"] == 2 and log.totals["rejected.records"] == 1


GOOD = b'{"text": "Hanoi", "spans": []}\n'


BAD_JSON = [b'{"text": "a", "spans": [', b'{"text": "\xff", "spans": []}', b"[" * 100_000, b"a"]
BAD_JSON += [b'{"text": "a", "text": "b", "spans": []}', b'{"text": "a", "spans": [], "n": NaN}']
BAD_JSON += [b'{"text": "a", "spans": [], "n": ' + b"1" * 5000 + b"}"]
BAD_JSON += [b'{"text": "a", "spans": [], "n": 1e999}', b'{"a":' * 100_000]
BAD_JSON += [b'{"text": "a", "spans": [], "meta": ' + b"[" * 800 + b"]" * 800 + b"}"]
BAD_JSON += [b'{"text": "' + b"a" * MAX_LINE_BYTES + b'", "spans": []}']


@pytest.mark.parametrize("line", BAD_JSON, ids=lambda line: line[:40].decode(errors="replace"))
def test_read_jsonl_bad_json_raises_or_is_rejected(
    line: bytes, tmp_path: Path, nlp: Language
) -> None:
    path = tmp_path / "a"
    path.write_bytes(GOOD + b" \n" + line + b"\n" + GOOD)
    with pytest.raises(CorpusError, match=r"a, line 3: expected "):
        list(read_json(path, nlp))
    log = ConversionLog(repair=True)
    assert [doc.text for doc in read_json(path, nlp, log)] == ["Hanoi", "Hanoi"]
    assert log.counts == {"rejected.record": 1}
    assert len(log.messages[0]) < 500


def test_read_jsonl_duplicate_id_error_names_both_lines(tmp_path: Path, nlp: Language) -> None:
    records = [{"text": "a", "spans": [], "id": number} for number in (-1, -2, "-1", 1, -2)]
    path = jsonl(tmp_path / "a", *records)
    with pytest.raises(CorpusError, match=r"line 5: .*got -2, as in .*line 2\. "):
        list(read_json(path, nlp))
    log = ConversionLog(repair=True)
    assert len(list(read_json(path, nlp, log))) == 4
    assert log.counts == {"rejected.record": 1}


@pytest.mark.slow
def test_ids_take_little_memory(tmp_path: Path, nlp: Language) -> None:
    """A long id, and a long path, are not kept."""
    records = [{"text": "a", "spans": [], "id": f"{i}" * 500} for i in range(2000)]
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    docs = read_json(jsonl(folder / "a", *records), nlp)
    next(docs)
    tracemalloc.start()
    for _ in docs:
        pass
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2000 * 200


# Spans


@pytest.mark.parametrize(
    "span, kind",
    [
        ((-1, 3, "X"), "offsets"),
        ((0, 10**30, "X"), "offsets"),
        ((3, 3, "X"), "offsets"),
        ((4, 3, "X"), "offsets"),
        ((0, 15, "X"), "offsets"),
        ((0.0, 5.0, "X"), "offsets"),
        ((False, True, "X"), "offsets"),
        (("0", "5", "X"), "offsets"),
        ((None, [5], {}), "offsets"),
        ((0, 5, ""), "label"),
        ((0, 5, " \n"), "label"),
        ((0, 5, None), "label"),
        ((0, 5, 7), "label"),
        ((0, 5, ["X"]), "label"),
        ((0, 5, "\ud800"), "label"),
        ((0, 5, "X", 7), "label"),
        ((5, 6, "X"), "whitespace"),
        ((1, 5, "X"), "alignment"),
        ((6, 9, "X"), "overlap"),
    ],
)
def test_set_entities_invalid_span_raises_or_is_rejected(
    span: Any, kind: str, nlp: Language
) -> None:
    spans = [(6, 14, "DATE"), span]
    with pytest.raises(CorpusError, match=r"^here: expected .*, got .*\. [A-Z].*\.$"):
        annotate("Hanoi Oct 2026", nlp, spans, ConversionLog(), "here")
    log = ConversionLog(repair=True)
    doc = annotate("Hanoi Oct 2026", nlp, spans, log, "here")
    assert [ent.text for ent in doc.ents] == ["Oct 2026"]
    assert log.counts == {f"rejected.{kind}": 1}
    assert log.totals["entities"] - log.totals["rejected.entities"] == 1


def test_set_entities_trims_whitespace_and_repair_drops_duplicate(nlp: Language) -> None:
    spans = [(0, 6, "LOC"), (0, 5, "LOC"), (9, 14, "N")]
    with pytest.raises(CorpusError):
        annotate("Hanoi Oct 2026", nlp, spans, ConversionLog(), "here")
    log = ConversionLog(repair=True)
    doc = annotate("Hanoi Oct 2026", nlp, spans, log, "here")
    assert [ent.text for ent in doc.ents] == ["Hanoi", "2026"]
    assert log.counts == {"trimmed.whitespace": 2, "repaired.duplicate": 1}
    assert log.totals["entities"] == 2


@pytest.mark.parametrize(
    "alignment, span, expected",
    [
        ("expand", (1, 8), "BIO"),
        ("contract", (1, 8), "--O"),
        ("contract", (0, 8), "BOO"),
        ("contract", (1, 9), "OBO"),
        ("missing", (1, 8), "--O"),
        ("missing", (1, 5), "-OO"),
        ("strict", (1, 8), "--O"),
    ],
)
def test_set_entities_applies_alignment_to_edges_inside_tokens(
    alignment: str, span: tuple[int, int], expected: str, nlp: Language
) -> None:
    log = ConversionLog(repair=True, alignment=alignment)
    doc = annotate("Hanoi Oct 2026", nlp, [(*span, "X")], log, "here")
    assert tags(doc) == expected
    assert sum(log.counts.values()) == len(log.messages) == 1
    assert log.messages[0].startswith("here: ")
    found = log.totals["entities"] - log.totals["rejected.entities"]
    assert found == len(doc.ents)
    if not log.totals["rejected.entities"] or alignment == "missing":  # as was asked for: no error
        log = ConversionLog(False, alignment)
        assert tags(annotate("Hanoi Oct 2026", nlp, [(*span, "X")], log, "here")) == expected


def test_read_jsonl_incorrect_spans_are_not_aligned(tmp_path: Path, nlp: Language) -> None:
    spans = [{"start": 0, "end": 5}, {"start": 1, "end": 5, "label": "X"}, SPAN]
    record = {"text": "Hanoi now", "spans": [], "incorrect": spans}
    log = ConversionLog(repair=True, alignment="expand")
    doc = read_one(tmp_path / "a", nlp, record, log)
    found = [(span.text, span.label_) for span in doc.spans["incorrect_spans"]]
    assert found == [("Hanoi", ""), ("Hanoi", "LOC")]
    assert log.counts == {"rejected.alignment": 1}
    both = {"text": "Hanoi now", "spans": [SPAN], "incorrect": [SPAN]}
    with pytest.raises(CorpusError, match="is an entity or is none"):
        read_one(tmp_path / "a", nlp, both)


# Writing


@st.composite
def drawn_docs(draw: st.DrawFn) -> tuple[list[str], list[bool], list[Any], bool, Any]:
    """Words, spaces, pieces of tokens with their annotation, unknown spaces, metadata."""
    letters = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"])
    word = st.text(letters, min_size=1, max_size=5).filter(lambda text: not is_blank(text))
    words = draw(st.lists(word, max_size=8))
    spaces = [draw(st.booleans()) for _ in words]
    labels = st.sampled_from(["O", "-", "PER", "creative-work", "Tên người"])
    pieces = draw(st.lists(st.tuples(st.integers(1, 3), labels), max_size=8))
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=4),
        lambda values: st.lists(values, max_size=2),
    )
    meta = draw(st.dictionaries(st.text(max_size=3), json_values, max_size=2))
    return words, spaces, pieces, draw(st.booleans()), meta


def make_doc(nlp: Language, drawn: Any) -> Doc:
    words, spaces, pieces, unknown, meta = drawn
    doc = Doc(nlp.vocab, words, spaces=None if unknown else spaces)
    ents, missing, at = [], [], 0
    for length, label in pieces:
        span = doc[at : at + length]
        at += length
        if len(span) and label == "-":
            missing.append(span)
        elif len(span) and label != "O":
            span = spacy.tokens.Span(doc, span.start, span.end, label, kb_id="Q1", span_id=label)
            ents.append(span)
    doc.set_ents(ents, missing=missing, default="outside")
    if len(doc):
        doc.spans["incorrect_spans"] = [spacy.tokens.Span(doc, 0, 1, "wrong")]
        for token in doc:
            token.is_sent_start = token.i in (0, 3)
    if meta:
        doc.user_data["meta"] = meta
    return doc


def everything(doc: Doc) -> Any:
    ents = [(e.start, e.end, e.label_, e.kb_id_, e.id_) for e in doc.ents]
    wrong = [(s.start, s.end, s.label_) for s in doc.spans.get("incorrect_spans", [])]
    words = [token.text_with_ws for token in doc]
    starts = [token.is_sent_start for token in doc]
    rest = (doc.has_unknown_spaces, starts, doc.user_data.get("meta"))
    return doc.text, words, tags(doc), ents, wrong, rest


@given(st.lists(drawn_docs(), max_size=3))
def test_write_jsonl_round_trip_keeps_docs(scratch: Path, nlp: Language, drawn: Any) -> None:
    docs = [make_doc(nlp, one) for one in drawn]
    for tokenizer in (None, nlp):
        assert write_jsonl(docs, scratch, tokenizer) == len(docs)
        assert list(map(everything, read_json(scratch, nlp))) == list(map(everything, docs))


@given(st.lists(st.lists(st.sampled_from(["Anna", "Hà", "🎉.", "\n"]), max_size=6), max_size=3))
def test_write_jsonl_omits_tokens_of_same_tokenizer(
    scratch: Path, nlp: Language, texts: list[list[str]]
) -> None:
    docs = [nlp.make_doc(" ".join(words)) for words in texts]
    for doc in docs:
        names = [doc[t.i : t.i + 1] for t in doc if t.text == "Anna"]
        doc.set_ents([spacy.tokens.Span(doc, n.start, n.end, "PER") for n in names])
    write_jsonl(docs, scratch, nlp)
    assert '"tokens"' not in scratch.read_text(encoding="utf-8") or not all(map(len, docs))
    assert list(map(everything, read_json(scratch, nlp))) == list(map(everything, docs))


def test_write_jsonl_keeps_position_of_spaces(scratch: Path, nlp: Language) -> None:
    # The tokenizer makes the same words of this text, with the second space in another place.
    doc = Doc(
        nlp.vocab, ["Hanoi", " ", "is"], [False, True, False], sent_starts=[True, True, False]
    )
    assert [token.text for token in nlp.make_doc(doc.text)] == [token.text for token in doc]
    write_jsonl([doc], scratch, nlp)
    assert list(map(everything, read_json(scratch, nlp))) == [everything(doc)]


def test_write_jsonl_metadata_not_json_raises(tmp_path: Path, nlp: Language) -> None:
    doc = nlp("Hanoi")
    doc.user_data["meta"] = {"a": {1, 2}}
    path = tmp_path / "a.jsonl"
    with pytest.raises(CorpusError, match="line 1: expected metadata of JSON"):
        write_jsonl([doc], path)
    assert not path.exists()


# doccano


def test_read_doccano_rejects_labels_of_whole_text(tmp_path: Path, nlp: Language) -> None:
    path = jsonl(tmp_path / "a", {"text": "Hanoi now", "label": ["sport", [0, 5, "LOC"]]})
    log = ConversionLog(repair=True)
    assert said(list(read_json(path, nlp, log))) == [("Hanoi now", [("Hanoi", "LOC")])]
    assert log.counts == {"rejected.offsets": 1}


# Label Studio


def test_read_label_studio_uses_text_field_of_results(tmp_path: Path, nlp: Language) -> None:
    value = {"start": 0, "end": 5, "labels": ["LOC"]}
    data = {"title": "Saigon now", "review": "Hanoi now", "text": "Paris now"}
    for result in (
        {"source": "$review", "to_name": "t"},
        {"source": "$review", "to_name": "text"},
        {"to_name": "review"},
    ):
        results = [{**result, "type": "labels", "value": value}]
        one = {"data": dict(data), "annotations": [{"result": results}]}
        (doc,) = read_label_tasks(tmp_path / "a", nlp, one)
        assert said([doc]) == [("Hanoi now", [("Hanoi", "LOC")])]
    short = {"id": 1, "annotator": 1, "created_at": "2024-01-01", "updated_at": "2024-01-02"}
    one = {**short, "review": "Hanoi now", "label": [value]}
    assert said(read_label_tasks(tmp_path / "a", nlp, one)) == [("Hanoi now", [("Hanoi", "LOC")])]
    both = [{"to_name": key, "type": "labels", "value": value} for key in ("text", "title")]
    one = {"data": data, "annotations": [{"result": both}]}
    with pytest.raises(CorpusError, match="record 1: expected one text"):
        read_label_tasks(tmp_path / "a", nlp, one)


@pytest.mark.parametrize("wrong", [[7, 7, "X"], [9, 99, "X"], [None, 3, "X"], [9, 8, "X"]])
def test_read_doccano_invalid_span_keeps_offset_unit_of_others(
    wrong: list[object], tmp_path: Path, nlp: Language
) -> None:
    """The unit is given by "offsets_in"; here all offsets are of whole tokens in both units."""
    text = "😀😀 a b c d e"
    record = {"id": 1, "text": text, "label": [[7, 8, "X"], wrong], "offsets_in": "utf-16"}
    log = ConversionLog(repair=True)
    (doc,) = read_json(jsonl(tmp_path / "a.jsonl", record), nlp, log)
    assert said([doc]) == [(text, [("b", "X")])]
    assert log.counts == {"rejected.offsets": 1}


def test_read_label_studio_repairs_utf16_offsets_by_text(tmp_path: Path, nlp: Language) -> None:
    text = "🎉🎉 Hanoi"
    value = {"start": 5, "end": 10, "labels": ["LOC"], "text": "Hanoi"}
    with pytest.raises(CorpusError, match=r"expected the text 'Hanoi', got .* with --repair\."):
        read_label_tasks(tmp_path / "a", nlp, task(text, value))
    log = ConversionLog(repair=True)
    (doc,) = read_label_tasks(tmp_path / "a", nlp, task(text, value), log=log)
    assert said([doc]) == [(text, [("Hanoi", "LOC")])]
    assert log.counts == {"repaired.utf16": 1}
    value = {"start": 3, "end": 10, "labels": ["LOC"], "text": "Bad\\nHof"}  # an escaped line feed
    (doc,) = read_label_tasks(tmp_path / "a", nlp, task("🎉 Bad\nHof.", value), log=log)
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("Bad\nHof", "LOC")]


def test_read_label_studio_json_min_reads_each_control(tmp_path: Path, nlp: Language) -> None:
    spans = [{"start": 0, "end": 4, "labels": ["PER"]}, {"start": 9, "end": 14, "labels": ["LOC"]}]
    short = {"text": "Anna saw Hanoi", "annotator": 1, "who": spans[:1], "where": spans[1:]}
    (doc,) = read_label_tasks(tmp_path / "a", nlp, {**short, "tags": ["x"]})
    assert said([doc]) == [("Anna saw Hanoi", [("Anna", "PER"), ("Hanoi", "LOC")])]
    assert doc.user_data["meta"] == {"annotator": 1, "tags": ["x"]}


@pytest.mark.parametrize(
    "value, kind",
    [
        ({"start": 0, "end": 5, "labels": ["A", "B"]}, "label"),
        ({"start": 0, "end": 5, "labels": []}, "label"),
        ({"start": 0, "end": 5, "labels": "A"}, None),
        ({"start": 0, "end": 5}, "label"),
        ({"start": 10**30, "end": 10**31, "labels": ["A"], "text": "Saigon"}, "offsets"),
        (None, "offsets"),
        ([0, 5], "offsets"),
    ],
)
def test_read_label_studio_invalid_value_raises_or_is_rejected(
    value: Any, kind: str | None, tmp_path: Path, nlp: Language
) -> None:
    if kind is None:
        (doc,) = read_label_tasks(tmp_path / "a", nlp, task("Hanoi now", value))
        assert [ent.label_ for ent in doc.ents] == ["A"]
        return
    with pytest.raises(CorpusError, match="record 1: expected "):
        read_label_tasks(tmp_path / "a", nlp, task("Hanoi now", value))
    log = ConversionLog(repair=True)
    (doc,) = read_label_tasks(tmp_path / "a", nlp, task("Hanoi now", value), log=log)
    assert not doc.ents and log.counts == {f"rejected.{kind}": 1}
    assert log.totals["entities"] == log.totals["rejected.entities"] == 1


@pytest.mark.parametrize(
    "item",
    [
        5,
        {},
        {"data": []},
        {"data": {"n": 1}, "annotations": [{"result": []}]},
        {"data": {"text": "a"}, "annotations": [7]},
        {"data": {"text": "a"}, "annotations": [{}]},
        {"data": {"text": "a"}, "annotations": [{"result": [7]}]},
        {"data": {"text": "a"}, "annotations": [{"was_cancelled": "no"}]},
        {"data": {"text": 5}, "annotations": [{"result": []}]},
        {"text": "a"},
        {"text": 5, "lead_time": 1},
        {"a": "x", "b": "y", "lead_time": 1},
        task("a", {"start": 0, "end": 1, "hypertextlabels": ["X"]}, kind="hypertextlabels"),
        task("a", {"start": "0", "end": "0", "paragraphlabels": ["X"]}, kind="paragraphlabels"),
    ],
    ids=str,
)
def test_read_label_studio_invalid_task_raises_or_is_rejected(
    item: Any, tmp_path: Path, nlp: Language
) -> None:
    with pytest.raises(CorpusError, match="record 2: expected "):
        read_label_tasks(tmp_path / "a", nlp, task("b"), item)
    log = ConversionLog(repair=True)
    docs = read_label_tasks(tmp_path / "a", nlp, item, task("b"), log=log)
    assert [doc.text for doc in docs] == ["b"]
    assert log.counts["rejected.record"] == 1


def two_annotations(text: str, first: Any, second: Any, **others: Any) -> Any:
    """A task of two annotators, with some label values of each."""
    made = [task(text, *values)["annotations"][0] for values in (first, second)]
    return {"data": {"text": text}, "annotations": [{**made[0]}, {**made[1], **others}]}


def test_read_label_studio_contradiction_raises_or_keeps_first(
    tmp_path: Path, nlp: Language
) -> None:
    loc, per = ({"start": 0, "end": 5, "labels": [label]} for label in ("LOC", "PER"))
    now = {"start": 6, "end": 9, "labels": ["DATE"]}
    for other in ([per], [], [loc, now]):
        both = two_annotations("Hanoi now", [loc], other)
        with pytest.raises(CorpusError, match="record 1: expected annotations that agree"):
            read_label_tasks(tmp_path / "a", nlp, both)
        log = ConversionLog(repair=True)
        (doc,) = read_label_tasks(tmp_path / "a", nlp, both, log=log)
        assert said([doc]) == [("Hanoi now", [("Hanoi", "LOC")])]
        assert log.counts == {"rejected.contradiction": 1} and len(log.messages) == 1
    same = {**loc, "text": "Hanoi"}
    for both in (
        two_annotations("Hanoi now", [now, loc], [same, now]),
        two_annotations("Hanoi now", [per], [loc, now], ground_truth=True),
    ):
        log = ConversionLog()
        (doc,) = read_label_tasks(tmp_path / "a", nlp, both, log=log)
        assert said([doc]) == [("Hanoi now", [("Hanoi", "LOC"), ("now", "DATE")])]
        assert log.counts == {"skipped.annotation": 1}


@pytest.mark.parametrize(
    "first, second",
    [
        ([(2, 6, ["PER"])], [(2, 6, ["PER"]), (2, 6, ["PER"])]),
        ([(2, 6, ["PER"])], [(2, 7, ["PER"])]),
        ([(2, 6, ["PER", "ORG"])], [(2, 6, ["ORG", "PER"])]),
        ([(2, 6, ["PER", "ORG"])], [(2, 6, ["ORG"]), (2, 6, ["PER"])]),
        ([(2, 6, ["PER"], "Anna")], [(3, 7, ["PER"], "Anna")]),  # counted in UTF-16
    ],
)
def test_read_label_studio_equivalent_annotations_agree(
    first: Any, second: Any, tmp_path: Path, nlp: Language
) -> None:
    def values(spans: Any) -> Any:
        return [dict(zip(("start", "end", "labels", "text"), each)) for each in spans]

    both = two_annotations("🙂 Anna saw", values(first), values(second))
    log = ConversionLog(spans_key="sc")
    (doc,) = read_label_tasks(tmp_path / "a", nlp, both, log=log)
    assert {(span.text, span.label_) for span in doc.spans["sc"]} == {
        ("Anna", label) for label in first[0][2]
    }
    assert log.counts == {"skipped.annotation": 1}


@pytest.mark.parametrize("other", [(0, 400, "LOC"), (0, 5, None), ("0", 5, "LOC")])
def test_read_label_studio_unreadable_span_is_disagreement(
    other: Any, tmp_path: Path, nlp: Language
) -> None:
    start, end, label = other
    values = [{"start": 0, "end": 5, "labels": ["LOC"]}]
    extra = {"start": start, "end": end, "labels": [label]}
    both = two_annotations("Hanoi now", values, [*values, extra])
    with pytest.raises(CorpusError, match="record 1: expected annotations that agree"):
        read_label_tasks(tmp_path / "a", nlp, both)


NO_ARRAY = [b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1] 2"]
NO_ARRAY += [b"[nan]", b"[NaN]", b'["\xff"]', b"[" * 100_000, b'[{"a":' * 100_000]
NO_ARRAY += [b'[{"a": 1, "a": 2}]', b"[1" + b"0" * 5000 + b"]"]
NO_ARRAY += [b"[1]]", b"[1\0]"]


@pytest.mark.parametrize("content", NO_ARRAY, ids=lambda found: found[:12].decode(errors="replace"))
def test_read_label_studio_file_without_array_raises_despite_repair(
    content: bytes, tmp_path: Path, nlp: Language
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="expected an array of JSON, in UTF-8, got ") as problem:
        list(read_json(path, nlp, ConversionLog(repair=True)))
    assert len(str(problem.value)) < 1000


def test_read_label_studio_array_over_limit_raises(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_records, "MAX_ARRAY_BYTES", 1000)
    (tmp_path / "a").write_text("[" + " " * 1000)
    with pytest.raises(CorpusError, match=r"at most 1,000 bytes, got 1,001\. Export the"):
        list(read_json(tmp_path / "a", nlp, ConversionLog(repair=True)))


# brat


@pytest.mark.parametrize(
    "line, expected",
    [
        ("T1\tGPE 0 5;12 17\tNorth Korea", "-O-B"),
        ("T2\tGPE 0 5\tNorth", "-OOB"),
        ("T1 GPE 0 5 North", "---B"),
        ("T1\tGPE 0 5;100 200\tNorth Korea", "---B"),
        ("T1\tGPE 5 0;9 8\tNorth Korea", "---B"),
    ],
)
def test_read_brat_tokens_of_rejected_entity_are_missing(
    line: str, expected: str, tmp_path: Path, nlp: Language
) -> None:
    path = brat(tmp_path / "b", "North or South Korea", f"T2\tLOC 15 20\tKorea\n{line}\n")
    (doc,) = read_brat(path, nlp, ConversionLog(repair=True))
    assert tags(doc) == expected
    log = ConversionLog(repair=True, spans_key="sc")
    (doc,) = read_brat(path, nlp, log)
    assert [span.text for span in doc.spans["sc"]] == ["Korea"]
    assert log.totals["rejected.entities"] == 1


def test_other_files_of_a_folder_of_brat_are_counted(tmp_path: Path, nlp: Language) -> None:
    path = brat(tmp_path / "b", "Bonn", "T1\tLOC 0 4\tBonn\n")
    brat(path / "more", "Ulm", "")
    for name in ("annotation.conf", ".a.txt", ".a.ann", "._one.ann"):
        (path / name).write_text("")
    log = ConversionLog()
    assert len(list(read_brat(path, nlp, log))) == 1
    assert log.counts["skipped.file"] == 5
    assert log.notes == ["Skipped: ._one.ann, .a.ann, .a.txt, annotation.conf, more."]
    assert len(list(read_brat(path / ".a.txt", nlp, log))) == 1  # named by the user
    for name in ("one.txt", "one.ann"):
        (path / name).unlink()
    assert not is_brat(path)
    with pytest.raises(CorpusError, match="expected documents as name"):
        list(read_brat(path, nlp))


def test_read_brat_offsets_count_carriage_returns(tmp_path: Path, nlp: Language) -> None:
    text = "First line.\r\nNew\r\nYork here."
    doc, = read_brat(brat(tmp_path / "b", text, "T1\tLOC 13 22\tNew York\r\n"), nlp)  # fmt: skip
    assert said([doc]) == [(text, [("New\r\nYork", "LOC")])]


@pytest.mark.parametrize(
    "line, kind",
    [
        ("T1\tLOC 0 3;6 9\tHan now", "discontinuous"),
        ("T1\tLOC -5 5\tHanoi", "line"),
        ("T1\tLOC 0 99999999999\tHanoi", "line"),
        ("T1\tLOC 0\tHanoi", "line"),
        ("T1 LOC 0 5 Hanoi", "line"),
        ("T1\t0 5\tHanoi", "line"),
        ("Hanoi", "line"),
        ("T9\tDATE 6 9\tnow", "id"),
    ],
)
def test_read_brat_invalid_line_raises_or_is_rejected(
    line: str, kind: str, tmp_path: Path, nlp: Language
) -> None:
    path = brat(tmp_path / "b", "Hanoi now", f"T9\tDATE 6 9\tnow\n{line}\n")
    with pytest.raises(CorpusError, match=r"one\.ann, line 2: expected .*, got "):
        list(read_brat(path, nlp))
    log = ConversionLog(repair=True)
    docs = list(read_brat(path, nlp, log))
    assert said(docs) == [("Hanoi now", [("now", "DATE")])]
    assert log.counts == {f"rejected.{kind}": 1}
    assert (log.totals["entities"], log.totals["rejected.entities"]) == (2, 1)


def test_read_brat_missing_file_raises_or_is_rejected(tmp_path: Path, nlp: Language) -> None:
    for missing in ("one.txt", "one.ann"):
        folder = brat(tmp_path / missing, "Hanoi", "")
        (folder / missing).unlink()
        (folder / "two.txt").write_text("a")
        (folder / "two.ann").write_text("")
        with pytest.raises(CorpusError, match=f"no {missing}"):
            list(read_brat(folder, nlp))
        log = ConversionLog(repair=True)
        assert [doc.text for doc in read_brat(folder, nlp, log)] == ["a"]
        assert log.counts == {"rejected.record": 1}
    with pytest.raises(CorpusError, match="expected documents as name"):
        list(read_brat(tmp_path, nlp, ConversionLog(repair=True)))


def test_convert_brat_invalid_name_raises_or_is_rejected(tmp_path: Path, nlp: Language) -> None:
    folder = brat(tmp_path / "b", "Hanoi", "")
    for suffix in (".txt", ".ann"):
        (folder / f"a\udcff{suffix}").write_text("")
    with pytest.raises(CorpusError, match=r"expected a file name in UTF-8, got 'a.udcff\.txt'"):
        convert(folder, tmp_path / "out.spacy", nlp=nlp)
    log = ConversionLog(repair=True, max_loss=0.5)
    assert convert(folder, tmp_path / "out.spacy", nlp=nlp, log=log)["corpus"]["docs"] == 1
    assert log.counts == {"rejected.record": 1}
    "".join(log.messages).encode()


@pytest.mark.parametrize("name", ["a.txt", "a.ann"])
def test_one_document_is_read_by_either_file(name: str, nlp: Language) -> None:
    assert said(list(read_brat(DATA / "brat" / name, nlp))) == GOLDEN[:1]


# .spacy


@pytest.mark.parametrize("content", [b"", b"x", b"\x78\x9c", b"PK\x03\x04", GOOD])
def test_read_spacy_other_file_raises(content: bytes, tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "a.spacy"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"a\.spacy.*: expected spaCy's binary format"):
        list(read_spacy(path, nlp))


def test_read_spacy_os_error_propagates(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_docs(*_: Any) -> Iterator[Doc]:
        raise OSError("disk gone")
        yield

    DocBin(docs=[nlp("Hanoi")]).to_disk(tmp_path / "a.spacy")
    monkeypatch.setattr(DocBin, "get_docs", get_docs)
    with pytest.raises(OSError, match="disk gone"):
        list(read_spacy(tmp_path / "a.spacy", nlp, ConversionLog(repair=True)))


# Anything


HOSTILE = b'" [ ] { } , : ; # \\ ]( null true -1 1e999 0.5 NaN "text": {"a":1} ""'.split()
HOSTILE += b"-DOCSTART- B- \\ud800 \\u0000 \0 \xff \xed\xa0\x80 \xef\xbb\xbf".split()
HOSTILE += [b" ", b"\n", b"\n\n", b"\r", b"\r\n", b"\t", b"9" * 30, b"[" * 2000]
HOSTILE += ["\u2028\ufeff🎉".encode()]


def mutate(draw: random.Random, content: bytes) -> bytes:
    """Delete, double, move or replace a few parts of a file."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content) + 1)
        end = min(len(content), at + draw.choice([0, 1, 1, 2, 5, 20, 200]))
        part = content[at:end]
        new = draw.choice([b"", part * 2, draw.choice(HOSTILE), bytes([draw.randrange(256)])])
        content = content[:at] + new + content[end:]
    return content


def count_lines(content: bytes) -> int:
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return sum(bool(line.decode(errors="replace").strip()) for line in lines)


# What is mutated of each format: the files of a folder of brat, or any one of several files.
FUZZED = {name: [name] for name in FILES} | {"inline": ["inline.txt"], "table": ["gmb.csv"]}
FUZZED["brat"] = [f"brat/{path.name}" for path in sorted((DATA / "brat").iterdir())]
FUZZED["conll"] = [f"{name}.conll" for name in ("iob1", "iob2", "bioes", "biluo", "comments")]


@pytest.mark.parametrize("name", FUZZED)
def test_readers_mutated_file_raises_or_counts_records(
    name: str, tmp_path: Path, nlp: Language
) -> None:
    draw = random.Random(name)
    read = FORMATS[FILES.get(name, name)]
    path = tmp_path / name
    outcomes = {"read": 0, "told": 0}
    for _ in range(FUZZ):
        changed = DATA / draw.choice(FUZZED[name])
        if name == "brat":
            shutil.copytree(DATA / name, path, dirs_exist_ok=True)
        target = path / changed.name if name == "brat" else path
        target.write_bytes(mutate(draw, changed.read_bytes()))
        alignment = draw.choice(["strict", "expand", "contract", "missing"])
        strict: list[Doc] = []
        for repair in (False, True):
            log = ConversionLog(repair, alignment)
            try:
                docs = list(read(path, nlp, log))
            except CorpusError as problem:
                assert re.search(r": expected .*, got ", str(problem), re.S)
                assert str(problem).startswith(str(path))
                str(problem).encode()
                outcomes["told"] += 1
                is_whole = "expected offsets that count the same" in str(problem)
                # Without the header, words may be in any column.
                is_whole |= name == "table" and "--token-column" in str(problem)
                assert not repair or is_whole or name.startswith("label_studio")
                continue
            outcomes["read"] += 1
            assert repair or not [key for key in log.counts if key[:4] in ("repa", "reje")]
            check_nothing_is_lost(name, path, docs, log)
            assert not strict or list(map(everything, docs)) == list(map(everything, strict))
            strict = docs
    assert min(outcomes.values()) > FUZZ / 20


def check_nothing_is_lost(name: str, path: Path, docs: list[Doc], log: ConversionLog) -> None:
    totals = log.totals
    if name != "table" and not log.counts["skipped.comment"]:
        left_out = log.counts["skipped.answer"] + log.counts["skipped.task"]
        assert count_records(name, path) == totals["records"] + left_out
    assert len(docs) == totals["records"] - totals["rejected.records"]
    entities = sum(len(doc.ents) for doc in docs)
    assert entities == totals["entities"] - totals["rejected.entities"]
    DocBin(docs=docs, store_user_data=True).to_bytes()


def ends_sentence(line: bytes) -> bool:
    text = line.decode(errors="replace")
    is_readable = b"\0" not in line and text.encode() == line
    return is_readable and (not text.strip() or text.startswith("-DOCSTART-"))


def count_records(name: str, path: Path) -> int:
    if path.is_dir():
        return len({file.stem for file in path.iterdir()})
    content = path.read_bytes()
    if name == "conll":
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        return sum(not is_boundary for is_boundary, _ in groupby(lines, ends_sentence))
    if not name.endswith(".json"):
        return count_lines(content)
    try:
        return len(json.loads(content.decode("utf-8-sig")))
    except ValueError:  # no array any more: its lines are records that cannot be read
        return count_lines(content)


@pytest.mark.parametrize("packed", [True, False])
def test_read_spacy_mutated_file_reads_or_raises_corpus_error(
    packed: bool, tmp_path: Path, nlp: Language
) -> None:
    draw = random.Random(0)
    doc = annotate("Hanoi now", nlp, [(0, 5, "LOC")], ConversionLog(), "here")
    whole = DocBin(docs=[doc, nlp("a")], store_user_data=True).to_bytes()
    path = tmp_path / "a.spacy"
    told = 0
    for _ in range(FUZZ):
        # What zlib has packed has a checksum: what it is made of must be hostile too.
        packed_or_not = whole if packed else zlib.decompress(whole)
        changed = mutate(draw, packed_or_not)
        path.write_bytes(changed if packed else zlib.compress(changed))
        try:
            list(read_spacy(path, nlp))
        except CorpusError:
            told += 1
    assert told > FUZZ / 2


def test_read_doccano_detects_utf16_despite_space_at_span_edges(
    tmp_path: Path, nlp: Language
) -> None:
    text = "😀😀😀😀 Mr Tim Cook visited Hanoi today"
    at = [text.index("Tim") + 4, text.index("Hanoi") + 4]
    spans = [[at[0], at[0] + 8, "PER"], [at[1], at[1] + 6, "GPE"]]  # "Hanoi ", in UTF-16
    path = jsonl(tmp_path / "a.jsonl", {"text": text, "label": spans})
    log = ConversionLog(repair=True, alignment="expand")
    (doc,) = read_json(path, nlp, log)
    assert said([doc]) == [(text, [("Tim Cook", "PER"), ("Hanoi", "GPE")])]
    assert log.counts == {"repaired.utf16": 1, "trimmed.whitespace": 1}


@pytest.mark.parametrize(
    "label, right", [("PER ", "PER"), ("\nPER", "PER"), ("P\n\nER", "P ER"), ("A  B", "A  B")]
)
def test_read_doccano_repairs_whitespace_of_labels(
    tmp_path: Path, nlp: Language, label: str, right: str
) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"text": "Tim", "label": [[0, 3, label]]})
    log = ConversionLog(repair=True)
    assert said(list(read_json(path, nlp, log))) == [("Tim", [("Tim", right)])]
    assert log.counts == ({} if label == right else {"repaired.label": 1})
    if label != right:
        with pytest.raises(CorpusError, match="expected a label without whitespace"):
            list(read_json(path, nlp))


@pytest.mark.parametrize(
    "text, kind",
    [
        ("## intent:fly\n- to [Oslo](city)\n", "training data of Rasa"),
        ("## intent:fly\n- to [Oslo](city:OSL)\n", "training data of Rasa"),
        ('version: "3.1"\nnlu:\n- intent: fly\n  examples: |\n    - to [Oslo](city)\n', "of Rasa"),
        ('nlu:\n- intent: fly\n  examples: |\n    - to [Oslo]{"entity": "city"}\n', "of Rasa"),
        ("# Title\n\nSee [Oslo](city)\n", "Markdown or YAML"),
        ("so it is\n- to [Oslo](city)\n", "Markdown or YAML"),
        ("see [the manual](https://example.org/m) there\n", "web links"),
        ("see [the manual](manual.html) there\n", "web links"),
        ("to [Oslo](city:OSL) at noon\n", "labels that are no words"),
    ],
)
def test_markdown_and_yaml_are_refused_by_name(
    text: str, kind: str, tmp_path: Path, nlp: Language
) -> None:
    (tmp_path / "a.md").write_text(text)
    with pytest.raises(CorpusError, match=f"sentences with entities in brackets, got .*{kind}, "):
        convert(tmp_path / "a.md", tmp_path / "a.spacy", nlp=nlp)


def test_read_inline_link_raises_also_if_the_format_is_given(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_text("[Oslo](city)\nsee [it](https://example.org)\n")
    with pytest.raises(CorpusError, match="line 2: expected a label, got the link 'https:"):
        convert(tmp_path / "a.txt", tmp_path / "a.spacy", ConvertOptions(format="inline"), nlp=nlp)
    (tmp_path / "b.txt").write_text("- to [Oslo](city)\n")
    counts = convert(
        tmp_path / "b.txt", tmp_path / "b.spacy", ConvertOptions(format="inline"), nlp=nlp
    )
    assert counts["corpus"]["entities"] == 1


@pytest.mark.parametrize("first, expected, kind", [("🎉", "(", "utf16"), ("e\u0301", "x", "nfc")])
def test_offsets_that_fit_by_both_countings_follow_the_rest_of_the_file(
    first: str, expected: str, kind: str, tmp_path: Path, nlp: Language
) -> None:
    at = 3 if kind == "utf16" else 2
    both = {"text": f"{first} (x)", "label": [[3, 4, "X"]]}
    other = {"text": f"{first} firemen", "label": [[at, at + 7, "X"]]}
    log = ConversionLog(repair=True)
    docs = list(read_json(jsonl(tmp_path / "a.jsonl", both, other), nlp, log))
    assert [ent.text for doc in docs for ent in doc.ents] == [expected, "firemen"]
    assert log.counts == {f"repaired.{kind}": 2}
    # An entity that fits by no counting changes nothing for the others.
    wrong = {"text": f"{first} firemen", "label": [[at, at + 4, "X"]]}
    log = ConversionLog(repair=True)
    docs = list(read_json(jsonl(tmp_path / "b.jsonl", both, other, wrong), nlp, log))
    assert [ent.text for doc in docs for ent in doc.ents] == [expected, "firemen"]
    assert log.counts == {f"repaired.{kind}": 3, "rejected.alignment": 1}
    # As many that fit only by characters are refused.
    right = {"text": f"{first} firemen", "label": [[5 - at, 12 - at, "X"]]}
    with pytest.raises(CorpusError, match="1 that fit only characters, and 1 only"):
        list(read_json(jsonl(tmp_path / "c.jsonl", both, other, right), nlp, log))


@pytest.mark.parametrize("first", ["🎉", "e\u0301"])
def test_units_of_a_text_are_counted_as_often_for_one_entity_as_for_many(
    first: str, tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time for a text grows with the square of its length."""
    counted: list[str] = []
    for way, count in counting.UNITS.items():
        counter = lambda text, count=count: counted.append(text) or count(text)  # noqa: E731
        monkeypatch.setitem(counting.UNITS, way, counter)
    text = f"{first} {'Ann ' * 50}"
    spans = [[at.start(), at.end(), "PER"] for at in re.finditer("Ann", text)]
    times = []
    for i, given_spans in enumerate((spans[:1], spans)):
        counted.clear()
        path = jsonl(tmp_path / f"{i}.jsonl", {"text": text, "label": given_spans})
        (doc,) = read_json(path, nlp)
        assert len(doc.ents) == len(given_spans)
        times.append(len(counted))
    assert times[0] == times[1] > 0


@pytest.mark.parametrize("first", ["🎉🎉", "e\u0301e\u0301"])
def test_repaired_offsets_include_missing_parts_and_sentence_starts(
    first: str, tmp_path: Path, nlp: Language
) -> None:
    text = f"{first} Ann ran . Bob"
    shift = 2 if first[0] == "🎉" else -2
    at = {word: text.index(word) + shift for word in ("Ann", "ran", "Bob")}
    record = {
        "text": text,
        "spans": [{"start": at["Ann"], "end": at["Ann"] + 3, "label": "PER"}],
        "missing": [[at["Bob"], at["Bob"] + 3]],
        "sent_starts": [0, at["Bob"]],
    }
    path = jsonl(tmp_path / "a.jsonl", record)
    log = ConversionLog(repair=True)
    (doc,) = read_json(path, nlp, log)
    assert [ent.text for ent in doc.ents] == ["Ann"]
    assert [token.text for token in doc if token.ent_iob == 0] == ["Bob"]
    assert [sent[0].text for sent in doc.sents][1:] == ["Bob"]
    assert log.counts == {f"repaired.{'utf16' if shift > 0 else 'nfc'}": 1}


def test_composed_offsets_of_all_scripts_match_normalization() -> None:
    """Each place between composed letters is the place of the same text before it."""
    for text in (
        "Cafe\u0301 A\u030a ",
        "\u1112\u1161\u11ab a",
        "q\u0323\u0307x",
        "가\u11a8",
        "a\u0300",
    ):
        units = [*counting._composed(text), len(text)]
        composed = unicodedata.normalize("NFC", text)
        assert len(units) == len(composed) + 1
        for i, at in enumerate(units):
            if unicodedata.normalize("NFC", text[:at]) == composed[:i]:
                assert unicodedata.normalize("NFC", text[at:]) == composed[i:]
            else:
                assert unicodedata.combining(composed[i])  # inside of a letter


def test_read_jsonl_accepts_space_after_the_last_token(tmp_path: Path, nlp: Language) -> None:
    tokens = [
        {"text": "Ann", "start": 0, "end": 3, "id": 0, "ws": False},
        {"text": ".", "start": 3, "end": 4, "id": 1, "ws": True},
    ]
    record = {"text": "Ann.", "tokens": tokens, "spans": []}
    (doc,) = read_json(jsonl(tmp_path / "a.jsonl", record), nlp)
    assert [(token.text, token.whitespace_) for token in doc] == [("Ann", ""), (".", "")]
    with pytest.raises(CorpusError, match="tokens that make up"):
        list(read_json(jsonl(tmp_path / "b.jsonl", {**record, "text": "Ann.  "}), nlp))
