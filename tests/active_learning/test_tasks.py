"""Answers exported from each tool convert to exactly the given annotation."""

import json
from xml.etree import ElementTree

import pytest
import spacy
import srsly
from spacy.tokens import DocBin, Span

from spacy_crf_ner import data
from spacy_crf_ner.active_learning import TOOLS, Options, suggest
from spacy_crf_ner.active_learning.label_errors import Review
from spacy_crf_ner.active_learning.selection import Unit
from spacy_crf_ner.active_learning.tasks import write_tasks
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.docbin import read_docbin
from spacy_crf_ner.input_error import CorpusError
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels

TEXTS = ["Anna saw Bonn", "Bonn 🙂 came, Anna", "It came", 'Zoë "saw" Élan & <it>']


def tasks_of(folder, tool):
    path = next(folder.glob("tasks.*"))
    if tool == "label-studio":
        return json.loads(path.read_text("utf-8"))
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def suggested(model, tmp_path, tool, unit):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    out = tmp_path / "tasks"
    suggest(
        model, [tmp_path / "texts.txt"], out, Options(n=50, unit=unit, random_share=0), tool=tool
    )
    return tasks_of(out, tool)


def exported(tool, task, number, spans):
    """What the tool exports for a text with these spans."""
    if tool == "prodigy":
        return {**task, "spans": spans, "answer": "accept", "_input_hash": number}
    if tool == "jsonl":
        return {**task, "spans": spans, "answer": "accept"}
    if tool == "doccano":
        units = [len(task["text"][:i].encode("utf-16-le")) // 2 for i in range(99)]
        label = [[units[span["start"]], units[span["end"]], span["label"]] for span in spans]
        return {**task, "id": number, "label": label, "Comments": []}
    results = [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": s["start"], "end": s["end"], "labels": [s["label"]]},
        }
        for s in spans
    ]
    annotation = {"was_cancelled": False, "result": results}
    return {"id": number, "data": task["data"], "annotations": [annotation]}


def answered(tool, task, number, yes):
    """What the tool exports for a question."""
    if tool == "prodigy":
        return {**task, "answer": "accept" if yes else "reject", "_task_hash": number}
    if tool == "jsonl":
        return {**task, "answer": "accept" if yes else "reject"}
    highlighted = task["predictions"][0]["result"]
    choice = {"from_name": "answer", "to_name": "text", "type": "choices"}
    choice["value"] = {"choices": ["yes" if yes else "no"]}
    annotation = {"was_cancelled": False, "result": [*highlighted, choice]}
    return {"id": number, "data": task["data"], "annotations": [annotation], "predictions": []}


def converted(tmp_path, tool, answers, merge=None, repair=False):
    path = tmp_path / ("answers.json" if tool == "label-studio" else "answers.jsonl")
    text = json.dumps(answers) if tool == "label-studio" else "\n".join(map(json.dumps, answers))
    path.write_text(text, encoding="utf-8")
    nlp, log = spacy.blank("en"), data.ConversionLog(repair)
    out = tmp_path / "answered.spacy"
    if merge is None:
        data.convert(path, out, nlp=nlp, log=log)
    else:
        data.merge([path], merge, out, nlp=nlp, log=log)
    return {doc.text: doc for doc in read_docbin(out, nlp.vocab)[1]}, log


def keys(spans):
    return {(span.start_char, span.end_char, span.label_) for span in spans}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("unit", ["docs", "sentences"])
def test_convert_returns_corrected_texts_of_each_tool(model, loop, tmp_path, tool, unit):
    tasks = suggested(model, tmp_path, tool, unit)
    answers, expected = [], {}
    for i, task in enumerate(tasks):
        text = task["data"]["text"] if tool == "label-studio" else task["text"]
        words = [word for word in ("Anna", "Bonn", "Élan") if word in text]
        spans = [{"start": text.index(w), "end": text.index(w) + 4, "label": "X"} for w in words]
        expected[text] = {(span["start"], span["end"], "X") for span in spans}
        answers.append(exported(tool, task, i, spans))
    assert expected.keys() == {*TEXTS}
    docs, _ = converted(tmp_path, tool, answers)
    assert {text: keys(doc.ents) for text, doc in docs.items()} == expected
    for doc in docs.values():
        assert doc.has_annotation("ENT_IOB", require_complete=True)
        meta = doc.user_data["meta"]
        assert len(meta.get("data", meta)["task_id"]) == 16


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("number", [-(2**63) + 1, 2**63])
def test_convert_id_over_64_bits_becomes_string(model, loop, tmp_path, tool, number):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"id": number, "text": TEXTS[0]}))
    one, out = Options(n=1, unit="docs"), tmp_path / "tasks"
    suggest(model, [tmp_path / "texts.jsonl"], out, one, tool=tool)
    docs, _ = converted(tmp_path, tool, [exported(tool, *tasks_of(out, tool), 1, [])])
    meta = docs[TEXTS[0]].user_data["meta"]
    found = meta.get("data", meta)["source_id" if tool == "doccano" else "id"]
    assert found == (number if abs(number) < 2**63 else str(number))


@pytest.mark.parametrize(
    "tool, unit",
    # doccano has no questions.
    [*((tool, "sentences") for tool in TOOLS), ("prodigy", "spans"), ("label-studio", "spans")],
)
def test_convert_unanswered_tasks_raises(model, loop, tmp_path, tool, unit):
    tasks = suggested(model, tmp_path, tool, unit)
    kind = "task" if tool == "label-studio" else "answer"
    with pytest.raises(CorpusError, match=f"got none, {len(tasks)} skipped.{kind}"):
        converted(tmp_path, tool, tasks)


@pytest.mark.parametrize("tool", [tool for tool in TOOLS if tool != "doccano"])
@pytest.mark.parametrize("known", [True, False])
def test_convert_returns_answers_to_span_questions(model, loop, tmp_path, tool, known):
    tasks = suggested(model, tmp_path, tool, "spans")
    gold = {TEXTS[0]: {(0, 4, "PER"), (9, 13, "LOC")}, TEXTS[1]: {(0, 4, "LOC")}}
    answers, right, wrong = [], {}, {}
    for i, task in enumerate(tasks):
        if tool == "label-studio":
            text, span = task["data"]["text"], task["data"]["asked_span"]
        else:
            text, (span,) = task["text"], task["spans"]
        span = span["start"], span["end"], span["label"]
        yes = span in gold.get(text, set())
        (right if yes else wrong).setdefault(text, set()).add(span)
        answers.append(answered(tool, task, i, yes))
    assert right and wrong
    merge = tmp_path / "known.spacy"
    nlp = spacy.blank("en")
    other = nlp.make_doc("Not asked")
    other.set_ents([], default="outside")
    blank = [nlp.make_doc(TEXTS[0])] if known else []
    spacy.tokens.DocBin(docs=[*blank, other]).to_disk(merge)
    docs, log = converted(tmp_path, tool, answers, merge)
    assert log.merged["answers"] == len(tasks)
    assert log.merged["unchanged"] == 1 and log.merged["changed"] == len(blank)
    assert list(docs.pop("Not asked").ents) == []
    for text, doc in docs.items():
        assert keys(doc.ents) == right.get(text, set())
        assert keys(doc.spans.get(INCORRECT, [])) == wrong.get(text, set())
        of_ents = {token.i for ent in doc.ents for token in ent}
        assert {token.i for token in doc if token.ent_iob} == of_ents


def test_convert_skips_rejected_texts(model, loop, tmp_path):
    tasks = suggested(model, tmp_path, "jsonl", "docs")
    for task in tasks:
        assert task["_is_binary"] is False
        task |= {"spans": [{"start": 0, "end": 2, "label": "PER"}], "answer": "reject"}
    with pytest.raises(CorpusError, match=f"got none, {len(tasks)} skipped.answer"):
        converted(tmp_path, "jsonl", tasks)


def test_convert_label_studio_faulty_answers_skips_or_raises(tmp_path):
    asked = {"text": "Bonn", "asked_span": {"start": 0, "end": 4, "label": "LOC"}}
    unanswered = {"id": 1, "data": asked, "annotations": [{"result": []}]}
    choice = {"from_name": "answer", "type": "choices", "value": {"choices": ["yes"]}}
    yes = {"id": 2, "data": asked, "annotations": [{"result": [choice]}]}
    docs, log = converted(tmp_path, "label-studio", [unanswered, yes])
    assert log.counts == {"skipped.task": 1}
    assert keys(docs["Bonn"].ents) == {(0, 4, "LOC")}
    no = {**choice, "value": {"choices": ["no"]}}
    ticks = [{"result": each} for each in ([], [choice], [no])]
    for given, skipped in (([0, 1], 1), ([1, 1], 1), ([0, 1, 2], 1), ([1, 2], 0)):
        task = {"data": {**asked}, "annotations": [ticks[i] for i in given]}
        (tmp_path / "answered.spacy").unlink()
        if 2 in given:
            with pytest.raises(CorpusError, match="annotations that agree"):
                converted(tmp_path, "label-studio", [task])
        docs, log = converted(tmp_path, "label-studio", [task], repair=True)
        assert keys(docs["Bonn"].ents) == {(0, 4, "LOC")}
        assert (log.counts["skipped.annotation"], log.counts["rejected.contradiction"]) == (
            skipped, 2 in given,
        )  # fmt: skip
    both = {**choice, "value": {"choices": ["yes", "no"]}}
    odd = {"id": 3, "data": asked, "annotations": [{"result": [both]}]}
    short = {"id": 4, "annotator": 1, **asked, "answer": "yes"}
    for task in (odd, short):
        (tmp_path / "answered.spacy").unlink(missing_ok=True)
        with pytest.raises(CorpusError, match="expected"):
            converted(tmp_path, "label-studio", [task])


def test_doccano_tasks_use_utf16_offsets(tmp_path):
    text = "🎉 Élan met 👍🏽 Anna"
    spans = [((text.index(word), text.index(word) + 4, "X"), 0.5) for word in ("Élan", "Anna")]
    write_tasks(tmp_path, "tasks", [Unit("id", text, [], spans, 1.0, "")], "doccano", ["X"], False)
    (task,) = srsly.read_jsonl(tmp_path / "tasks.jsonl")
    units = text.encode("utf-16-le")
    found = [units[2 * start : 2 * end].decode("utf-16-le") for start, end, _ in task["label"]]
    assert found == ["Élan", "Anna"]
    docs, log = converted(tmp_path, "doccano", [{**task, "id": 1}])
    assert keys(docs[text].ents) == {span for span, _ in spans}
    assert not log.counts and "offsets_in" not in docs[text].user_data["meta"]


def test_prodigy_tasks_have_token_indices_of_spans(model, loop, tmp_path):
    for task in suggested(model, tmp_path, "prodigy", "docs"):
        for token in task["tokens"]:
            assert task["text"][token["start"] : token["end"]] == token["text"]
        for span in task["spans"]:
            first, last = (task["tokens"][span[f"token_{at}"]] for at in ("start", "end"))
            assert (first["start"], last["end"]) == (span["start"], span["end"])


def test_prodigy_tasks_with_overlapping_entities_use_spans_view(tmp_path):
    tokens = [("Bank", True), ("of", True), ("Oslo", False)]
    nested = [((0, 12, "ORG"), 0.9), ((8, 12, "GPE"), 0.8)]
    touching = [((0, 5, "ORG"), 0.9), ((5, 12, "GPE"), 0.8)]
    tokens[:1] = [("Bank", False), (" ", False)]
    for entities, view in (
        (nested, "spans_manual"),
        (nested[:1], "ner_manual"),
        (touching, "ner_manual"),
    ):
        unit = Unit("id", "Bank of Oslo", tokens, entities, 1.0, "")
        write_tasks(tmp_path, "tasks", [unit], "prodigy", ["ORG", "GPE"], False)
        (task,) = tasks_of(tmp_path, "prodigy")
        assert task["_view_id"] == view


def test_label_studio_shows_predictions_and_their_scores(tmp_path):
    text, ents = "Anna saw Bonn", [((0, 4, "PER"), 0.0), ((9, 13, "LOC"), None)]
    units = [
        Unit("one", text, [], ents, 0.75, ""),
        Unit("two", text, [], ents[1:], 0.5, "", {}, ents[1][0]),
    ]
    write_tasks(tmp_path, "tasks", units, "label-studio", ["PER", "LOC"], binary=True)
    one, two = tasks_of(tmp_path, "label-studio")
    ((first,), (second,)) = (task["predictions"] for task in (one, two))
    assert (first["score"], second["score"]) == (0.75, 0.5)
    shown = [(each["value"], each.get("score", "none")) for each in first["result"]]
    assert shown == [
        ({"start": 0, "end": 4, "labels": ["PER"], "text": "Anna"}, 0.0),
        ({"start": 9, "end": 13, "labels": ["LOC"], "text": "Bonn"}, "none"),
    ]
    assert len({each["id"] for each in first["result"]}) == 2
    assert second["result"][0]["value"] == shown[1][0]
    assert two["data"]["question"] == "Is 'Bonn' (highlighted) exactly a LOC?"


@pytest.mark.parametrize("tool", ["jsonl", "prodigy"])
def test_convert_accepted_gold_keeps_corpus_unchanged(tool, tmp_path):
    """Tokens and labels that gold does not annotate do not become outside."""
    nlp = spacy.blank("en")
    doc = nlp.make_doc("Anna saw Bonn in May")
    doc.set_ents([Span(doc, 2, 3, "LOC", kb_id="Q586")], missing=[doc[0:1]], default="outside")
    mark_annotated_labels(doc, ["LOC"])
    gold = tmp_path / "gold.spacy"
    DocBin(docs=[doc]).to_disk(gold)
    finding = {"doc": 0, "kind": "missed", "log_odds": 1.0, "gold": None, "predicted": None}
    found = Review([{**finding, "gold_probability": None}], [doc], [], 0, 0)
    write_tasks(tmp_path, "tasks", found.units(), tool, ["LOC"], binary=False)
    task = json.loads((tmp_path / "tasks.jsonl").read_text())
    (tmp_path / "answers.jsonl").write_text(json.dumps({**task, "answer": "accept"}))
    log = data.ConversionLog()
    new = tmp_path / "new.spacy"
    data.merge([tmp_path / "answers.jsonl"], gold, new, nlp=nlp, log=log)
    _, docs = read_docbin(new, nlp.vocab)
    assert [each.to_json() for each in docs] == [doc.to_json()]
    assert log.merged["unchanged"] == 1


def test_label_studio_interface_escapes_labels(tmp_path):
    unit = Unit("id", 'a "b" <c>', [], [], 0.5, "", {}, (2, 5, "<X> & 'Y'"))
    write_tasks(tmp_path, "tasks", [unit], "label-studio", ["<X> & 'Y'", '"'], binary=True)
    root = ElementTree.parse(tmp_path / "labeling.xml").getroot()
    assert [each.get("value") for each in root.iter("Label")] == ["<X> & 'Y'", '"']
    assert [each.get("value") for each in root.iter("Choice")] == ["yes", "no"]
