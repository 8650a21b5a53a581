"""Entities that may overlap: all of them in doc.spans, in every format that can have them."""

import json
import random
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

from spacy_crf_ner import data
from spacy_crf_ner.cli import app
from spacy_crf_ner.data import ConversionLog
from spacy_crf_ner.docbin import read_docbin
from spacy_crf_ner.input_error import CorpusError, InputError
from spacy_crf_ner.pipeline.annotated_labels import annotated_labels, mark_annotated_labels

FIXTURES = Path(__file__).parents[1] / "fixtures"
KEY = "sc"
RawSpan = tuple[int, int, str]  # first character, last character + 1, label

TEXT = "The mayor of Bad Ems met Anna."
# In text order, longer first: nested (also in its own label), crossing, and the same tokens twice.
SPANS = [
    (0, 20, "PER"),
    (0, 9, "PER"),
    (4, 9, "ROLE"),
    (10, 20, "WHERE"),
    (13, 29, "EVENT"),
    (13, 20, "LOC"),
    (13, 20, "ORG"),
    (25, 29, "PER"),
]
EMPTY = "Nothing is here."


def write_jsonl(folder: Path, docs: dict[str, Iterable[RawSpan]]) -> Path:
    return write_lines(
        folder / "a.jsonl",
        *(
            {"text": text, "spans": [{"start": s, "end": e, "label": n} for s, e, n in spans]}
            for text, spans in docs.items()
        ),
    )


def write_doccano(folder: Path, docs: dict[str, Iterable[RawSpan]]) -> Path:
    records = ({"text": text, "label": [list(each) for each in docs[text]]} for text in docs)
    return write_lines(folder / "a.jsonl", *records)


def write_label_studio(folder: Path, docs: dict[str, Iterable[RawSpan]]) -> Path:
    tasks = []
    for text, spans in docs.items():
        values = ({"start": s, "end": e, "labels": [n], "text": text[s:e]} for s, e, n in spans)
        results = [{"type": "labels", "to_name": "text", "value": value} for value in values]
        tasks.append({"data": {"text": text}, "annotations": [{"result": results}]})
    (folder / "a.json").write_text(json.dumps(tasks))
    return folder / "a.json"


def write_brat(folder: Path, docs: dict[str, Iterable[RawSpan]]) -> Path:
    (folder / "brat").mkdir()
    for number, (text, spans) in enumerate(docs.items()):
        lines = (f"T{i}\t{n} {s} {e}\t{text[s:e]}\n" for i, (s, e, n) in enumerate(spans))
        (folder / "brat" / f"{number}.txt").write_text(text)
        (folder / "brat" / f"{number}.ann").write_text("".join(lines))
    return folder / "brat"


FORMATS: dict[str, Callable[[Path, dict[str, Iterable[RawSpan]]], Path]] = {
    "jsonl": write_jsonl,
    "doccano": write_doccano,
    "label_studio": write_label_studio,
    "brat": write_brat,
}


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def convert(
    source: Path, nlp: Language, log: ConversionLog | None = None, **settings: Any
) -> tuple[list[Doc], dict[str, int]]:
    """Convert to a .spacy file, and read it again."""
    target = source.parent / "out.spacy"
    log = log or ConversionLog(spans_key=KEY)
    log.max_loss = 1.0  # of a corpus of two documents
    options = data.ConvertOptions(**settings)
    counts = data.convert(source, target, options, nlp=nlp, log=log)["corpus"]
    return list(read_docbin(target, nlp.vocab)[1]), counts


def found(doc: Doc) -> list[RawSpan]:
    return [(span.start_char, span.end_char, span.label_) for span in doc.spans[KEY]]


@pytest.mark.parametrize("format", FORMATS)
def test_all_spans_are_kept_in_text_order(format: str, tmp_path: Path, nlp: Language) -> None:
    shuffled = random.Random(2).sample(SPANS, len(SPANS))
    shuffled.sort(key=lambda span: span[2] == "ORG")  # equal spans stay in the order of the file
    source = FORMATS[format](tmp_path, {TEXT: shuffled, EMPTY: []})
    docs, counts = convert(source, nlp, format=format)
    assert [found(doc) for doc in docs] == [SPANS, []]
    for doc in docs:
        assert not doc.has_annotation("ENT_IOB") and doc.ents == ()
        assert [*doc.spans] == [KEY]
    assert (counts["docs"], counts["entities"], counts["entities.PER"]) == (2, 8, 3)


@pytest.mark.parametrize("format", FORMATS)
def test_convert_overlapping_spans_without_key_raise(
    format: str, tmp_path: Path, nlp: Language
) -> None:
    source = FORMATS[format](tmp_path, {TEXT: SPANS})
    with pytest.raises(CorpusError, match=r"without a common token, got .* keep both with --spans"):
        convert(source, nlp, ConversionLog(), format=format)
    log = ConversionLog(repair=True)
    docs, _ = convert(source, nlp, log, format=format)
    # The first of those that overlap is kept, as it comes in the file.
    assert [ent.text for ent in docs[0].ents] == ["The mayor of Bad Ems", "Anna"]
    assert log.counts == {"rejected.overlap": 6} and not docs[0].spans


@pytest.mark.parametrize("format", FORMATS)
def test_convert_duplicate_span_raises(format: str, tmp_path: Path, nlp: Language) -> None:
    source = FORMATS[format](tmp_path, {TEXT: [*SPANS, SPANS[5]]})
    with pytest.raises(CorpusError, match=r"a span once, got 'Bad Ems' \(LOC, 13:20\)"):
        convert(source, nlp, format=format)
    log = ConversionLog(repair=True, spans_key=KEY)
    docs, counts = convert(source, nlp, log, format=format)
    assert found(docs[0]) == SPANS and counts["entities"] == log.totals["entities"] == 8
    assert log.counts == {"repaired.duplicate": 1}


def test_convert_spans_key_reads_inline_entities_as_spans(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.txt").write_text("[Anna](PER) met [Otto](PER)\nNobody came\n")
    docs, counts = convert(tmp_path / "a.txt", nlp)
    assert [found(doc) for doc in docs] == [[(0, 4, "PER"), (9, 13, "PER")], []]
    assert counts["entities"] == 2 and counts["sentences"] == 2


# Alignment


TWICE = {"aligned.expand": 1, "aligned.duplicate": 1}


@pytest.mark.parametrize(
    "alignment, spans, expected, counts",
    [
        ("expand", [(0, 12, "A"), (1, 5, "B")], [(0, 13, "A"), (0, 8, "B")], {"aligned.expand": 2}),
        # The two become one span, which is no mistake.
        ("expand", [(0, 8, "A"), (1, 5, "A")], [(0, 8, "A")], TWICE),
        (
            "contract",
            [(0, 10, "A"), (9, 13, "A")],
            [(0, 8, "A"), (9, 13, "A")],
            {"aligned.contract": 1},
        ),
        ("contract", [(0, 13, "A"), (1, 5, "B")], [(0, 13, "A")], {"rejected.alignment": 1}),
        ("strict", [(0, 13, "A"), (1, 5, "B")], [(0, 13, "A")], {"rejected.alignment": 1}),
    ],
)
def test_convert_spans_key_applies_alignment(
    alignment: str,
    spans: list[RawSpan],
    expected: list[RawSpan],
    counts: dict[str, int],
    tmp_path: Path,
    nlp: Language,
) -> None:
    source = write_jsonl(tmp_path, {"Annalise Emsx": spans})
    log = ConversionLog(True, alignment, KEY)
    docs, written = convert(source, nlp, log)
    assert (found(docs[0]), log.counts) == (expected, counts)
    assert log.totals["entities"] - log.totals["rejected.entities"] == written["entities"]


# What spans cannot express


PARTIAL: list[dict[str, Any]] = [
    {"missing": [[4, 9]]},
    {"_view_id": "ner", "answer": "accept"},
    {"_is_binary": True},
    {"answer": "reject"},
]


@pytest.mark.parametrize("more", PARTIAL, ids=str)
def test_convert_spans_partial_annotation_raises(more: Any, tmp_path: Path, nlp: Language) -> None:
    record = {"text": TEXT, "spans": [{"start": 0, "end": 9, "label": "PER"}]}
    source = write_lines(tmp_path / "a.jsonl", record, {**record, **more})
    with pytest.raises(CorpusError, match="line 2: expected a completely annotated text, got"):
        convert(source, nlp)
    log = ConversionLog(repair=True, spans_key=KEY)
    docs, _ = convert(source, nlp, log)
    assert [found(doc) for doc in docs] == [[(0, 9, "PER")]]
    assert log.counts == {"rejected.record": 1} and log.totals["rejected.records"] == 1


def test_convert_span_both_gold_and_incorrect_raises(tmp_path: Path, nlp: Language) -> None:
    record = {"text": TEXT, "spans": [{"start": 0, "end": 20, "label": "PER"}]}
    for label in ("PER", None):
        incorrect = [{"start": 0, "end": 20, "label": label}]
        source = write_lines(tmp_path / "a.jsonl", {**record, "incorrect": incorrect})
        with pytest.raises(CorpusError, match="a span that is an entity or is none"):
            convert(source, nlp)
    incorrect = [{"start": 0, "end": 9, "label": "PER"}]
    source = write_lines(tmp_path / "a.jsonl", {**record, "incorrect": incorrect})
    (doc,), _ = convert(source, nlp)
    assert found(doc) == [(0, 20, "PER")] and len(doc.spans["incorrect_spans"]) == 1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"syllables": "split"}, "expected keep with a spans key, got 'split'"),
        ({"log": ConversionLog(spans_key="")}, "expected a key for entities, got ''"),
        ({"log": ConversionLog(spans_key="annotated_labels")}, "got 'annotated_labels'"),
        ({"log": ConversionLog(spans_key="incorrect_spans")}, "got 'incorrect_spans'"),
    ],
)
def test_convert_spans_key_with_unsupported_settings_raises(
    settings: Any, message: str, tmp_path: Path, nlp: Language
) -> None:
    source = write_jsonl(tmp_path, {TEXT: []})
    with pytest.raises(InputError, match=message) as caught:
        convert(source, nlp, **settings)
    assert not isinstance(caught.value, CorpusError) and [*tmp_path.iterdir()] == [source]


def test_conversion_log_alignment_missing_with_spans_key_raises() -> None:
    with pytest.raises(InputError, match="strict, expand or contract with a spans key, got 'miss"):
        ConversionLog(alignment="missing", spans_key=KEY)


# Labels


def test_convert_spans_of_unannotated_labels_raise_or_are_rejected(
    tmp_path: Path, nlp: Language
) -> None:
    source = write_jsonl(tmp_path, {EMPTY: [], TEXT: SPANS})
    message = r"corpus, doc 2: expected entities of the annotated labels \['PER', 'LOC'\], got .*'R"
    with pytest.raises(CorpusError, match=message):
        convert(source, nlp, labels=["PER", "LOC"])
    log = ConversionLog(repair=True, spans_key=KEY)
    docs, counts = convert(source, nlp, log, labels=["PER", "LOC"])
    assert [found(doc) for doc in docs] == [[], [s for s in SPANS if s[2] in ("PER", "LOC")]]
    assert [annotated_labels(doc) for doc in docs] == [{"PER", "LOC"}] * 2
    assert log.counts == {"rejected.label": 4} and counts["entities"] == 4
    assert log.totals["rejected.entities"] == 4 and not docs[1].has_annotation("ENT_IOB")


def test_convert_spans_key_checks_annotated_labels_of_record(tmp_path: Path, nlp: Language) -> None:
    record = {"text": TEXT, "spans": [{"start": 0, "end": 20, "label": "PER"}]}
    source = write_lines(tmp_path / "a.jsonl", {**record, "annotated_labels": ["LOC"]})
    with pytest.raises(CorpusError, match="line 1: expected entities of the annotated labels"):
        convert(source, nlp)
    source = write_lines(tmp_path / "a.jsonl", {**record, "annotated_labels": ["PER"]})
    assert annotated_labels(convert(source, nlp)[0][0]) == {"PER"}


# Binary files


@pytest.mark.parametrize("seed", range(5))
def test_convert_spans_key_round_trip_is_exact(seed: int, tmp_path: Path, nlp: Language) -> None:
    """From JSON lines to a binary file and back, with ids, metadata and sentences."""
    rng = random.Random(seed)
    records = []
    for number in range(20):
        words = [
            "".join(rng.choices(string.ascii_lowercase, k=3)) for _ in range(rng.randint(0, 9))
        ]
        spans = set()
        for _ in range(rng.randint(0, 12) if words else 0):
            start = rng.randrange(len(words))
            spans.add((start, rng.randint(start + 1, len(words)), rng.choice("AB")))
        ordered = sorted(spans, key=lambda span: (span[0], -span[1], rng.random()))
        record: dict[str, Any] = {"text": " ".join(words), "spans": []}
        for start, end, label in ordered:
            span = {"start": 4 * start, "end": 4 * end - 1, "label": label}
            more = {"kb_id": f"Q{number}", "id": f"e{len(record['spans'])}"}
            record["spans"].append(span | {k: v for k, v in more.items() if rng.random() < 0.5})
        record["sent_starts"] = [0, *(4 * i for i in range(1, len(words)) if rng.random() < 0.3)]
        record["sent_starts"] = record["sent_starts"][: len(words)]
        if rng.random() < 0.5:
            record["annotated_labels"] = ["A", "B"]
        records.append(record | {"meta": {"n": number}})
    source = write_lines(tmp_path / "a.jsonl", *records)
    for first, second in (("a.jsonl", "a.spacy"), ("a.spacy", "b.spacy"), ("b.spacy", "b.jsonl")):
        files = tmp_path / first, tmp_path / second
        data.convert(*files, nlp=nlp, log=ConversionLog(spans_key=KEY))
    assert source.read_text() == (tmp_path / "b.jsonl").read_text()


def test_convert_spans_key_selects_doc_spans_instead_of_ents(tmp_path: Path, nlp: Language) -> None:
    """The key selects which of the two is written as JSON lines."""
    doc = nlp(TEXT)
    doc.set_ents([Span(doc, 6, 7, "PER")])
    doc.spans[KEY] = [Span(doc, 0, 5, "A"), Span(doc, 3, 5, "B")]
    DocBin(docs=[doc]).to_disk(tmp_path / "a.spacy")
    for key, expected in ((None, [(25, 29, "PER")]), (KEY, [(0, 20, "A"), (13, 20, "B")])):
        target, log = tmp_path / f"{key}.jsonl", ConversionLog(spans_key=key)
        counts = data.convert(tmp_path / "a.spacy", target, nlp=nlp, log=log)["corpus"]
        record = json.loads(target.read_text())
        assert [(s["start"], s["end"], s["label"]) for s in record["spans"]] == expected
        assert counts["entities"] == log.totals["entities"] == len(expected)
        assert "missing" not in record


def test_convert_binary_doc_without_spans_key_raises(tmp_path: Path, nlp: Language) -> None:
    docs = [nlp(TEXT), nlp(TEXT)]
    docs[0].spans[KEY], docs[1].spans["scs"] = [], []
    DocBin(docs=docs).to_disk(tmp_path / "a.spacy")
    message = (
        r"a.spacy, doc 2: expected doc.spans\['sc'\], got keys \['scs'\]. Did you mean scs\? Change"
    )
    with pytest.raises(CorpusError, match=message):
        convert(tmp_path / "a.spacy", nlp)
    log = ConversionLog(repair=True, spans_key=KEY)
    assert [found(doc) for doc in convert(tmp_path / "a.spacy", nlp, log)[0]] == [[]]
    assert log.counts == {"rejected.record": 1} and log.totals["records"] == 2


# Joining, splitting, and the command


def test_convert_n_sents_keeps_spans_of_joined_docs(tmp_path: Path, nlp: Language) -> None:
    source = write_jsonl(tmp_path, {TEXT: SPANS, EMPTY: [], "Anna": [(0, 4, "PER")], "So": []})
    docs, counts = convert(source, nlp, n_sents=3)
    second = len(TEXT) + len(EMPTY) + 2
    assert [found(doc) for doc in docs] == [[*SPANS, (second, second + 4, "PER")], []]
    assert counts["entities"] == 9 and not docs[0].has_annotation("ENT_IOB")


def test_convert_command_spans_key_splits_corpus(tmp_path: Path, nlp: Language) -> None:
    docs = {f"Anna{i} of Bad Ems": [(0, 16, "PER"), (9, 16, "LOC")] for i in range(10)}
    source = write_jsonl(tmp_path, docs)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["convert", str(source), str(out), "--spans-key", "nested"])
    assert result.exit_code == 0, result.output
    rows = " ".join(result.output.replace("│", " ").split())
    assert "entities 16 2 2" in rows and "entities.LOC 8 1 1" in rows
    for part, n in (("train", 8), ("dev", 1), ("test", 1)):
        read = list(read_docbin(out / f"{part}.spacy", nlp.vocab)[1])
        assert [len(doc.spans["nested"]) for doc in read] == [2] * n


def test_convert_to_jsonl_notes_spans_not_written(tmp_path: Path, nlp: Language) -> None:
    doc = nlp(TEXT)
    doc.spans[KEY] = [doc.char_span(*span) for span in SPANS]
    doc.ents = [doc.char_span(25, 29, "PER")]
    DocBin(docs=[doc, doc]).to_disk(tmp_path / "a.spacy")
    for key, lost in ((None, f"16 spans of doc.spans['{KEY}']"), (KEY, "2 spans of doc.ents")):
        log = ConversionLog(spans_key=key)
        data.convert(tmp_path / "a.spacy", tmp_path / f"{key}.jsonl", nlp=nlp, log=log)
        assert log.notes == [f"Not written: {lost}; see --spans-key."]


def test_mark_annotated_labels_span_of_other_label_raises(nlp: Language) -> None:
    doc = nlp(TEXT)
    doc.spans[KEY] = [doc.char_span(25, 29, "PER")]
    with pytest.raises(InputError, match=r"annotated labels \['LOC'\], got 'PER'"):
        mark_annotated_labels(doc, ["LOC"], KEY)
