"""Shapes of JSON that people have: each is read right, or refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from spacy_crf_ner.data import ConversionLog, ConvertOptions, convert
from spacy_crf_ner.docbin import read_docbin
from spacy_crf_ner.input_error import CorpusError
from spacy_crf_ner.pipeline.annotated_labels import annotated_labels

TEXT = "Ann left Oslo."
TOKENS = ["Ann", "left", "Oslo", "."]
FOUND = [("Ann", "PER"), ("Oslo", "LOC")]
SPANS = [[0, 3, "PER"], [9, 13, "LOC"]]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
PAIR = [TEXT, {"entities": SPANS}]
POINTS = [
    {"label": ["PER"], "points": [{"start": 0, "end": 2, "text": "Ann"}]},
    {"label": ["LOC"], "points": [{"start": 9, "end": 12, "text": "Oslo"}]},
]
TAGS = ["B-PER", "O", "B-LOC", "O"]
WORDS = [{"orth": word, "ner": tag} for word, tag in zip(TOKENS, ["U-PER", "O", "U-LOC", "O"])]
RESULT = [
    {"type": "labels", "to_name": "text", "value": {"start": a, "end": z, "labels": [label]}}
    for a, z, label in SPANS
]


def renamed(start: str, end: str, label: str) -> list[dict[str, Any]]:
    return [{start: a, end: z, label: name} for a, z, name in SPANS]


def offset(by: int) -> list[list[Any]]:
    return [[start, end + by, label] for start, end, label in SPANS]


TAGGED = {"tokens": TOKENS, "ner_tags": TAGS}
WITH_TEXT = {"text": " ".join(TOKENS), "tokens": TOKENS}
TOKENS_WITH_TAGS = [{"text": word, "ner": tag} for word, tag in zip(TOKENS, TAGS)]
KINDS = ["NNP", "VBD", "NNP", "."]
NO_TEXTS = [{**each, "points": [{**each["points"][0], "text": None}]} for each in POINTS]


# A record on a line.
LINES: dict[str, Any] = {
    "spaCy": PAIR,
    "Prodigy": {"text": TEXT, "spans": OBJECTS},
    "other name of the entities": {"text": TEXT, "ents": SPANS},
    "entities as objects": {"text": TEXT, "annotations": OBJECTS},
    "other name of the text": {"sentence": TEXT, "entities": SPANS},
    "content": {"content": TEXT, "entities": SPANS},
    "label first": {"text": TEXT, "entities": [[label, a, z] for a, z, label in SPANS]},
    "start_char": {"text": TEXT, "ents": renamed("start_char", "end_char", "label")},
    "tag": {"text": TEXT, "ents": renamed("start", "end", "tag")},
    "begin and type": {"text": TEXT, "ents": renamed("begin", "end", "type")},
    "texts by label": {
        "text": TEXT,
        "label": {"PER": {"Ann": [[0, 3]]}, "LOC": {"Oslo": [[9, 13]]}},
    },
    "texts by label, inclusive": {
        "text": TEXT,
        "label": {"PER": {"Ann": [[0, 2]]}, "LOC": {"Oslo": [[9, 12]]}},
    },
    "offsets by label": {"text": TEXT, "labels": {"PER": [[0, 3]], "LOC": [[9, 13]]}},
    "Dataturks": {"content": TEXT, "annotation": POINTS, "extras": None},
    "Dataturks without texts": {"content": TEXT, "annotation": NO_TEXTS},
    "doccano": {"id": 1, "text": TEXT, "label": SPANS, "Comments": []},
    "doccano, labels": {"doc_id": 2, "text": TEXT, "labels": SPANS},
    "doccano, relations": {
        "id": 4,
        "text": TEXT,
        "entities": [{"id": 7, **each} for each in renamed("start_offset", "end_offset", "label")],
        "relations": [{"id": 1, "from_id": 7, "to_id": 8, "type": "in"}],
    },
    "annotation with exclusive ends": {"text": TEXT, "annotation": SPANS},
    "annotation of objects": {"text": TEXT, "annotation": OBJECTS},
    "doccano and an annotator": {"text": TEXT, "label": SPANS, "annotator": "bob"},
    "doccano and data": {"text": TEXT, "label": SPANS, "data": {"source": "x"}},
    "doccano and a time": {"text": TEXT, "label": SPANS, "lead_time": 3},
    "doccano and an answer": {"text": TEXT, "label": SPANS, "answer": "accept"},
    "doccano and null": {"text": TEXT, "label": SPANS, "entities": None, "missing": None},
    "other name and an answer": {"text": TEXT, "ents": SPANS, "answer": "accept"},
    "other name and an annotator": {"text": TEXT, "ents": SPANS, "annotator": "bob"},
    "Label Studio": {"id": 1, "data": {"text": TEXT}, "annotations": [{"result": RESULT}]},
    "Label Studio, JSON-MIN": {
        "text": TEXT,
        "lead_time": 1,
        "label": [each["value"] for each in RESULT],
    },
}
# One JSON value a file.
FILES: dict[str, Any] = {
    "pairs": [PAIR],
    "NER Annotator": {"classes": ["PER", "LOC"], "annotations": [PAIR, None]},
    "records": [{"content": TEXT, "entities": SPANS}],
    "examples": {"examples": [{"content": TEXT, "annotations": renamed("start", "end", "tag")}]},
    "Rasa": {
        "rasa_nlu_data": {
            "common_examples": [
                {"text": TEXT, "intent": "x", "entities": renamed("start", "end", "entity")}
            ]
        }
    },
    "Label Studio": [{"id": 1, "data": {"text": TEXT}, "annotations": [{"result": RESULT}]}],
    "spaCy 2": [{"id": 0, "paragraphs": [{"raw": TEXT, "sentences": [{"tokens": WORDS}]}]}],
}
# Tokens and tags: the text is unknown.
ROWS: dict[str, Any] = {
    "datasets": TAGGED,
    "words and labels": {"id": "1", "words": TOKENS, "labels": TAGS},
    "tags of two kinds": {"tokens": TOKENS, "tags": KINDS, "labels": TAGS},
    "tokens as objects": {"tokens": TOKENS_WITH_TAGS},
    "tokens as objects and other tags": {"tokens": TOKENS_WITH_TAGS, "tags": KINDS},
    "tags and no spans": {**TAGGED, "spans": []},
    "tags and an answer": {**WITH_TEXT, "ner_tags": TAGS, "answer": "accept"},
    "tags and an annotator": {**TAGGED, "annotator": "bob"},
    "text, tags and an annotator": {**WITH_TEXT, "ner_tags": TAGS, "annotator": "bob"},
    "spaCy 2 without its text": {"id": 0, "paragraphs": [{"sentences": [{"tokens": WORDS}]}]},
}
CASES = [
    *((f"line: {name}", json.dumps(value) + "\n", TEXT) for name, value in LINES.items()),
    *((f"file: {name}", json.dumps(value), TEXT) for name, value in FILES.items()),
    *((f"pretty: {name}", json.dumps(value, indent=2), TEXT) for name, value in FILES.items()),
    *((f"row: {name}", json.dumps(value) + "\n", " ".join(TOKENS)) for name, value in ROWS.items()),
]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def converted(
    path: Path, nlp: Language, log: ConversionLog | None = None, **options: Any
) -> list[Doc]:
    target = path.with_suffix(".spacy")
    convert(path, target, ConvertOptions(**options), nlp=nlp, log=log)
    return list(read_docbin(target, nlp.vocab)[1])


def said(doc: Doc) -> list[tuple[str, str]]:
    return [(ent.text, ent.label_) for ent in doc.ents]


@pytest.mark.parametrize(
    "content, text", [each[1:] for each in CASES], ids=[each[0] for each in CASES]
)
def test_shape_of_json_is_read(content: str, text: str, tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    log = ConversionLog()
    (doc,) = converted(path, nlp, log)
    assert (doc.text.strip(), said(doc)) == (text, FOUND)
    assert all(token.ent_iob for token in doc) and not any(
        k[:4] in ("repa", "reje") for k in log.counts
    )


# What is not read: the record, what the message names, and the way through.
REFUSED: dict[str, tuple[Any, str]] = {
    "numbers of labels": (
        {"text": TEXT, "annotations": [{"label": 1, "start_offset": 0, "end_offset": 3}]},
        "got the number 1.*doccano before version 1.0.*as labels.json",
    ),
    "numbers of tags": (
        {"tokens": TOKENS, "ner_tags": [1, 0, 2, 0]},
        "tags that are texts, got numb.*save_to",
    ),
    "spans of tokens": (
        {"tokens": TOKENS, "entities": [[0, 1, "PER"]]},
        "a text for the spans.*Add the text",
    ),
    "SQuAD": (
        {"data": [{"title": "x", "paragraphs": [{"context": TEXT, "qas": []}]}]},
        "got no text .*the keys 'data'",
    ),
    "paragraphs": (
        {"title": "x", "paragraphs": [{"context": TEXT, "qas": []}]},
        "paragraphs of 'sentences', as in spaCy 2, got the keys .'context', 'qas'",
    ),
    "tags and parts that are not annotated": (
        {**WITH_TEXT, "ner_tags": TAGS, "missing": [[4, 8]]},
        "beside these parts, got .'missing'.",
    ),
    "unknown answer": ({"text": TEXT, "ents": SPANS, "answer": "Reject"}, "got 'Reject'"),
    "other text": (
        {"body": TEXT, "annotations": SPANS},
        "no text .*'body' has .*--text-column body",
    ),
    "tags and spans": (
        {**WITH_TEXT, "entities": [], "ner_tags": TAGS},
        "--spans-column entities or --tag-column ner_tags",
    ),
    "two keys": (
        {"text": TEXT, "label": SPANS, "ents": SPANS},
        "got ents and label. Choose.*--spans-column",
    ),
    "no entities": (
        {"text": TEXT, "id": 3},
        "got no entities beside 'text'.*leave the record out.*would be",
    ),
    "label that is no list": ({"text": TEXT, "label": "X"}, "got no entities beside 'text'"),
    "unknown key": (
        {"text": TEXT, "persons": SPANS},
        "got no entities beside 'text'.*--spans-column persons",
    ),
    "unknown tags": (
        {"tokens": TOKENS, "kinds": TAGS},
        "rows of tokens.*'kinds': 4.*--tag-column kinds",
    ),
    "no text": (
        {"id": 3, "body": TEXT, "spans_of": SPANS},
        "got no text .the keys 'body', 'id', 'spans_of'",
    ),
    "null": ({"text": TEXT, "spans": None}, "got null as the spans.*leave the record out"),
}


@pytest.mark.parametrize("record, says", REFUSED.values(), ids=REFUSED)
def test_other_shape_of_json_is_refused_by_name(
    record: Any, says: str, tmp_path: Path, nlp: Language
) -> None:
    path = lines(tmp_path / "a.jsonl", record)
    with pytest.raises(CorpusError, match=f"(?s)line 1: expected .*{says}"):
        converted(path, nlp)


# Entities in two places, or in one that is not read: they are read, or the file is refused.
RECORD = {"text": TEXT, "entities": SPANS}
NOTHING = {"text": "Bo", "entities": []}
UNTAGGED = {"raw": TEXT, "sentences": [{"tokens": [{"orth": word} for word in TOKENS]}]}
DOUBTFUL: dict[str, Any] = {
    "label beside no entities": {"text": TEXT, "entities": [], "label": SPANS},
    "label beside no spans": {"text": TEXT, "spans": [], "label": SPANS},
    "label and parts that are not annotated": {"text": TEXT, "label": SPANS, "missing": [[4, 8]]},
    "tags beside no entities": {**WITH_TEXT, "entities": [], "ner_tags": TAGS},
    "two keys with tags": {
        "tokens": TOKENS,
        "ner_tags": ["B-PER", "O", "O", "O"],
        "labels": ["O", "O", "B-LOC", "O"],
    },
    "numbers of tags and tags": {"tokens": TOKENS, "ner_tags": [0] * 4, "labels": TAGS},
    "tags of objects beside no spans": {**WITH_TEXT, "spans": [], "tokens": TOKENS_WITH_TAGS},
    "tags without tokens": {"text": TEXT, "entities": [], "ner_tags": TAGS},
    "spans named as tags": {"text": TEXT, "entities": [], "ner": SPANS},
    "task and unknown key": {"text": TEXT, "annotator": "bob", "persons": SPANS},
    "tags as labels": {
        "text": TEXT,
        "entities": [{"start": a, "end": z, "entity": f"B-{label}"} for a, z, label in SPANS],
    },
    "Rasa, two lists": {
        "rasa_nlu_data": {"common_examples": [NOTHING], "entity_examples": [RECORD]}
    },
    "two lists of records": {"examples": [NOTHING], "data": [RECORD]},
    "spaCy 2, entities of a text": [{"paragraphs": [{**UNTAGGED, "entities": SPANS}]}],
}


@pytest.mark.parametrize("value", DOUBTFUL.values(), ids=DOUBTFUL)
def test_entities_of_another_key_are_read_or_refused(
    value: Any, tmp_path: Path, nlp: Language
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    try:
        docs = converted(path, nlp)
    except CorpusError:
        return
    assert [entity for doc in docs for entity in said(doc)] == FOUND


def test_tags_that_were_rejected_are_not_read_as_accepted(tmp_path: Path, nlp: Language) -> None:
    rows = ({**TAGGED, "answer": answer} for answer in ("reject", "accept"))
    path = lines(tmp_path / "a.jsonl", *rows)
    try:
        docs = converted(path, nlp)
    except CorpusError:
        return
    assert [said(doc) for doc in docs if doc.ents] == [FOUND]


def test_answers_apply_to_entities_of_chosen_keys(tmp_path: Path, nlp: Language) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": TEXT, "persons": SPANS, "answer": "reject"})
    (doc,) = converted(path, nlp, format="jsonl", columns={"spans_column": "persons"})
    assert not doc.ents and [span.text for span in doc.spans["incorrect_spans"]] == ["Ann", "Oslo"]


def test_accepted_tags_of_a_binary_answer_annotate_no_other_token(
    tmp_path: Path, nlp: Language
) -> None:
    path = lines(tmp_path / "a.jsonl", {"tokens": TOKENS, "ner_tags": TAGS, "_is_binary": True})
    (doc,) = converted(path, nlp)
    assert said(doc) == FOUND and [token.ent_iob for token in doc] == [3, 0, 3, 0]


def test_chosen_key_that_a_record_lacks_is_an_error(tmp_path: Path, nlp: Language) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": TEXT, "tokens": TOKENS, "entities": SPANS})
    for columns in (
        {"spans_column": "persons"},
        {"tag_column": "kinds"},
        {"tag_column": "entities", "token_column": "forms"},
    ):
        with pytest.raises(CorpusError, match="line 1: expected"):
            converted(path, nlp, format="jsonl", columns=columns)


def test_inclusive_ends_of_some_records_are_not_those_of_others(
    tmp_path: Path, nlp: Language
) -> None:
    records = [{"text": TEXT, "entities": SPANS}, {"content": TEXT, "annotation": NO_TEXTS}]
    path = lines(tmp_path / "a.jsonl", *records)
    assert [said(doc) for doc in converted(path, nlp, ConversionLog(repair=True))] == [FOUND] * 2


def test_exclusive_ends_in_a_format_of_inclusive_ones_are_an_error(
    tmp_path: Path, nlp: Language
) -> None:
    """They would be one character too long: Anna and a comma."""
    points = [{"label": ["PER"], "points": [{"start": 0, "end": 4}]}]
    path = lines(tmp_path / "a.jsonl", {"content": "Anna, here", "annotation": points})
    with pytest.raises(CorpusError, match=r"ends that are all inclusive, got 1 of 1 spans"):
        converted(path, nlp)


def test_ends_of_two_kinds_in_one_file_are_an_error(tmp_path: Path, nlp: Language) -> None:
    spans = [{"start": a, "end": z - 1, "label": x, "text": TEXT[a:z]} for a, z, x in SPANS]
    records = [{"text": TEXT, "spans": spans}, {"text": TEXT, "entities": SPANS}]
    path = lines(tmp_path / "a.jsonl", *records)
    with pytest.raises(CorpusError, match=r"ends that are all inclusive, got 2 of 2 spans"):
        converted(path, nlp)


def test_keys_are_chosen_by_columns(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "a.jsonl"
    for record, columns in (
        (
            {"body": TEXT, "persons": SPANS, "label": "x"},
            {"text_column": "body", "spans_column": "persons"},
        ),
        (
            {"forms": TOKENS, "kinds": TAGS, "ner_tags": [0] * 4},
            {"token_column": "forms", "tag_column": "kinds"},
        ),
        ({"text": TEXT, "spans": [], "gold": SPANS}, {"spans_column": "gold"}),
    ):
        lines(path, record)
        (doc,) = converted(path, nlp, format="jsonl", columns=columns)
        path.with_suffix(".spacy").unlink()
        assert said(doc) == FOUND


def test_numbers_of_labels_are_read_from_the_file_of_labels(tmp_path: Path, nlp: Language) -> None:
    spans = [
        {"label": i, "start_offset": a, "end_offset": z} for i, (a, z, _) in enumerate(SPANS, 3)
    ]
    lines(tmp_path / "a.jsonl", {"text": TEXT, "annotations": spans})
    labels = [{"id": 3, "text": "PER"}, {"id": 4, "text": "LOC"}]
    (tmp_path / "label_config.json").write_text(json.dumps(labels))
    (doc,) = converted(tmp_path / "a.jsonl", nlp)
    assert said(doc) == FOUND


def test_inclusive_ends_without_texts_are_repaired(tmp_path: Path, nlp: Language) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": TEXT, "entities": offset(-1)})
    with pytest.raises(CorpusError, match=r"exclusive ends, got inclusive ones.*--repair"):
        converted(path, nlp)
    log = ConversionLog(repair=True)
    (doc,) = converted(path, nlp, log)
    assert said(doc) == FOUND and log.counts == {"repaired.inclusive": 1}


def test_span_whose_text_shows_an_exclusive_end_keeps_it(tmp_path: Path, nlp: Language) -> None:
    spans = [{"start": a, "end": z - (a > 0), "label": x, "text": TEXT[a:z]} for a, z, x in SPANS]
    records = [{"text": TEXT, "spans": spans}, {"content": TEXT, "annotation": POINTS}]
    path = lines(tmp_path / "a.jsonl", *records)
    assert [said(doc) for doc in converted(path, nlp)] == [FOUND, FOUND]


def test_record_that_annotates_no_label_is_not_one_that_annotates_all(
    tmp_path: Path, nlp: Language
) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": TEXT, "spans": [], "annotated_labels": []})
    (doc,) = converted(path, nlp)
    assert annotated_labels(doc) == set()


@pytest.mark.parametrize(
    "texts",
    [
        [(TEXT, SPANS), ("Ann left Osl", [[0, 2, "PER"], [9, 12, "LOC"]])],  # one mistake
        [
            ("Seoul-e Ann", [[0, 5, "LOC"]]),
            ("Seoule gan", [[0, 5, "LOC"]]),
        ],  # a suffix of one letter
    ],
)
def test_exclusive_ends_are_not_taken_for_inclusive_ones(
    texts: Any, tmp_path: Path, nlp: Language
) -> None:
    path = lines(tmp_path / "a.jsonl", *({"text": a, "entities": b} for a, b in texts))
    log = ConversionLog(repair=True, alignment="expand", max_loss=1.0)
    converted(path, nlp, log)
    assert "repaired.inclusive" not in log.counts


@pytest.mark.parametrize(
    ("lang", "text", "words", "start"),
    [("en", "00", ["0", "0"], 0), ("zh", "在河内。", None, 1)],
)
def test_exclusive_ends_of_tokens_are_not_taken_for_inclusive_ones(
    lang: str, text: str, words: list[str] | None, start: int, tmp_path: Path
) -> None:
    record: dict[str, Any] = {"text": text}
    record["spans"] = [{"start": start, "end": start + 1, "label": "LOC"}]
    if words:
        record["tokens"] = [{"text": word, "ws": False} for word in words]
    lines(tmp_path / "a.jsonl", record)
    (doc,) = converted(tmp_path / "a.jsonl", spacy.blank(lang))
    assert [(ent.start_char, ent.end_char) for ent in doc.ents] == [(start, start + 1)]


def test_ends_of_a_format_with_inclusive_ones_may_be_those_of_tokens(tmp_path: Path) -> None:
    points = [{"label": ["LOC"], "points": [{"start": 1, "end": 2}]}]
    record = {"content": "在河内。", "annotation": points}
    lines(tmp_path / "a.jsonl", record)
    (doc,) = converted(tmp_path / "a.jsonl", spacy.blank("zh"))
    assert [(ent.start_char, ent.end_char) for ent in doc.ents] == [(1, 3)]


UNTYPABLE = ["\ud800", "a\x00b", "a\nb", "\u202eab"]


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("my spans", "use --spans-column 'my spans'."),
        *((key, "Annotate the text, or leave the record out.") for key in UNTYPABLE),
    ],
)
def test_option_for_a_key_can_be_typed(
    key: str, advice: str, tmp_path: Path, nlp: Language
) -> None:
    lines(tmp_path / "a.jsonl", {"text": TEXT, key: [{"of": "Ann"}]})
    with pytest.raises(CorpusError, match="no entities beside 'text'") as raised:
        converted(tmp_path / "a.jsonl", nlp)
    str(raised.value).encode()
    assert advice in str(raised.value)


def test_discontinuous_entities_become_what_is_chosen(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("North and South Korea left")
    (tmp_path / "b" / "a.ann").write_text(
        "T1\tLOC 0 5;16 21\tNorth Korea\nT2\tLOC 10 21\tSouth Korea\n"
    )
    for choice, expected in {
        "hull": ["North and South Korea"],
        "parts": ["North", "Korea"],
        "skip": ["South Korea"],
    }.items():
        log = ConversionLog(repair=True, discontinuous=choice, max_loss=1.0)
        (doc,) = converted(tmp_path / "b", nlp, log)
        (tmp_path / "b.spacy").unlink()
        assert [ent.text for ent in doc.ents] == expected
        assert log.counts[f"discontinuous.{choice}"] == 1
        assert log.totals["entities"] - log.totals["rejected.entities"] == len(doc.ents)
    # What is skipped may be an entity.
    assert [token.text for token in doc if not token.ent_iob] == ["North"]
    with pytest.raises(CorpusError, match=r"2 parts, 'North Korea'\. Use --discontinuous"):
        converted(tmp_path / "b", nlp)


def test_entities_inside_tokens_are_split_off_and_a_rule_is_proposed(
    tmp_path: Path, nlp: Language
) -> None:
    record = {"text": "Kunde2785708 and KT038/B.", "label": [[5, 12, "ID"], [17, 24, "ID"]]}
    path = lines(tmp_path / "a.jsonl", record)
    with pytest.raises(CorpusError) as caught:
        converted(path, nlp)
    for each in ("'Kunde2785708' with expand", "'KT038/' with contract", "'KT038/B' with split"):
        assert each in str(caught.value)
    log = ConversionLog(alignment="split")
    (doc,) = converted(path, nlp, log)
    tokens = ["Kunde", "2785708", "and", "KT038", "/", "B", "."]
    assert [token.text for token in doc] == tokens and log.counts == {"aligned.split": 2}
    assert [ent.text for ent in doc.ents] == ["2785708", "KT038/B"] and doc.text == record["text"]
    (rule,) = (note for note in log.notes if "divide_tokens" in note)
    infixes = json.loads(rule.partition("infixes = ")[2].rstrip("."))
    assert nlp(record["text"]).char_span(5, 12) is None
    rules = {"@callbacks": "spacy-crf-ner.divide_tokens.v1", "infixes": infixes}
    pipeline = spacy.blank("en", config={"initialize": {"before_init": rules}})
    pipeline.initialize()
    again = spacy.blank("en").from_bytes(pipeline.to_bytes())
    cut = again(record["text"])
    assert all(cut.char_span(ent.start_char, ent.end_char) for ent in doc.ents)
    assert [token.text for token in again("Kunde12 and B.")] == ["Kunde", "12", "and", "B", "."]
