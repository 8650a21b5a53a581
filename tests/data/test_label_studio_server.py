"""Label Studio itself: texts and spans that it imports, stores and exports come back unchanged.

Needs Label Studio, in an environment of its own: `pip install label-studio`, and its command in the
variable LABEL_STUDIO.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import spacy
from spacy.tokens import Doc

from spacy_crf_ner import data
from spacy_crf_ner.active_learning.selection import Unit
from spacy_crf_ner.active_learning.tasks import LABELING, write_tasks
from spacy_crf_ner.data import ConversionLog
from spacy_crf_ner.data.json_reader import read_json

COMMAND = os.environ.get("LABEL_STUDIO") or shutil.which("label-studio")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """<View>
  <Labels name="label" toName="text" choice="multiple">
    <Label value="PER"/><Label value="LOC"/><Label value="ORG"/>
  </Labels>
  <Text name="text" value="$text"/>
</View>"""
# Texts, and the entities that are annotated, by the words that they cover.
CORPUS: list[tuple[str, list[tuple[str, str]]]] = [
    ("Anna Schmidt visited Hanoi.", [("Anna Schmidt", "PER"), ("Hanoi", "LOC")]),
    ("🎉 Hà Nội, then\nParis 👨‍👩‍👧 Berlin", [("Hà Nội", "LOC"), ("Berlin", "LOC")]),
    ("Ha\u0300 No\u0323\u0302i", [("Ha\u0300 No\u0323\u0302i", "LOC")]),  # NFD
    ("  Bonn \u00a0and\u2028Rome\t ", [("Bonn", "LOC"), ("Rome", "LOC")]),
    ('a\r\nb "q" <b> Bonn &amp; \\n Ann', [("Bonn", "LOC"), ("Ann", "PER")]),
    ("Nothing here.", []),
]
NESTED = "The University of Oslo in Norway"
OVERLAPS = [((4, 22), ["ORG"]), ((18, 22), ["LOC"]), ((26, 32), ["LOC", "ORG"])]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Start Label Studio with its database in a new folder."""
    if not COMMAND:
        pytest.skip("Label Studio is not installed: set LABEL_STUDIO to its command")
    folder = tmp_path_factory.mktemp("label_studio")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    user = ["--username", "a@example.com", "--password", "only-for-tests", "--user-token", TOKEN]
    command = [COMMAND, "start", "tests", "--init", "--no-browser", "--enable-legacy-api-token"]
    where = ["--data-dir", str(folder), "--port", str(port)]
    environment = {**os.environ, "LABEL_STUDIO_BASE_DATA_DIR": str(folder)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *where, *user],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        headers = {"Authorization": f"Token {TOKEN}"}
        url = f"http://localhost:{port}/api/"
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            for _ in range(300):
                try:
                    client.get("projects/").raise_for_status()
                    break
                except httpx.HTTPError:
                    assert process.poll() is None, (folder / "log").read_text()[-2000:]
                    time.sleep(1)
            yield client
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def send(server: httpx.Client, path: str, content: Any) -> Any:
    return server.post(path, json=content).raise_for_status().json()


def result(text: str, start: int, end: int, labels: list[str]) -> dict[str, Any]:
    value = {"start": start, "end": end, "labels": labels, "text": text[start:end]}
    return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}


def results(text: str, entities: list[tuple[str, str]]) -> list[dict[str, Any]]:
    starts = [(text.index(words), words, label) for words, label in entities]
    return [result(text, at, at + len(words), [label]) for at, words, label in starts]


def import_tasks(
    server: httpx.Client, tasks: list[dict[str, Any]], config: str = CONFIG
) -> tuple[int, list[int]]:
    """Make a project of these tasks, and return its id, and those of the tasks."""
    project = send(server, "projects/", {"title": "tests", "label_config": config})["id"]
    assert send(server, f"projects/{project}/import", tasks)["task_count"] == len(tasks)
    found = server.get("tasks", params={"project": project, "page_size": 100}).json()["tasks"]
    assert [task["total_predictions"] for task in found] == [
        len(task.get("predictions", ())) for task in tasks
    ]
    return project, sorted(task["id"] for task in found)


def export(server: httpx.Client, project: int, kind: str, path: Path) -> Path:
    options = {"exportType": kind, "download_all_tasks": "true"}
    answer = server.get(f"projects/{project}/export", params=options).raise_for_status()
    path.write_bytes(answer.content)
    assert data.detect_format(path) == "label_studio"
    return path


def said(docs: list[Doc]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(doc.text, [(ent.text, ent.label_) for ent in doc.ents]) for doc in docs]


def test_label_studio_export_keeps_texts_and_spans(server: httpx.Client, tmp_path: Path) -> None:
    """Of six annotated tasks; a skipped task and an unannotated task are counted."""
    prediction = {"model_version": "m", "score": 0.5}
    tasks = [
        {
            "data": {"text": text, "task_id": f"t{i}", "span": {"start": 0}},
            "predictions": [{**prediction, "result": results(text, [(text[:4], "ORG")])}],
        }
        for i, (text, _) in enumerate([*CORPUS, ("Cancelled", []), ("Not seen", [])])
    ]
    project, ids = import_tasks(server, tasks)
    for task, (text, entities) in zip(ids, CORPUS):
        content = {"result": results(text, entities)}
        send(server, f"tasks/{task}/annotations/", content)
    cancelled = {"result": [], "was_cancelled": True}
    send(server, f"tasks/{ids[len(CORPUS)]}/annotations/", cancelled)
    nlp = spacy.blank("en")
    log = ConversionLog()
    docs = list(read_json(export(server, project, "JSON", tmp_path / "a"), nlp, log))
    assert said(docs) == CORPUS
    assert log.counts == {"skipped.cancelled": 1, "skipped.task": 2}
    assert docs[1].user_data["meta"]["data"] == {"task_id": "t1", "span": {"start": 0}}
    short = export(server, project, "JSON_MIN", tmp_path / "b")
    annotated = [each for each in json.loads(short.read_bytes()) if each["task_id"] < "t6"]
    short.write_text(json.dumps(annotated), "utf-8")
    assert said(list(read_json(short, nlp))) == CORPUS


def test_label_studio_export_keeps_overlapping_spans(server: httpx.Client, tmp_path: Path) -> None:
    project, (task,) = import_tasks(server, [{"data": {"text": NESTED}}])
    spans = [result(NESTED, *at, labels) for at, labels in OVERLAPS]
    send(server, f"tasks/{task}/annotations/", {"result": spans})
    nlp = spacy.blank("en")
    for kind in ("JSON", "JSON_MIN"):
        path = export(server, project, kind, tmp_path / kind)
        (doc,) = read_json(path, nlp, ConversionLog(spans_key="sc"))
        found = [((span.start_char, span.end_char), span.label_) for span in doc.spans["sc"]]
        assert found == [(at, label) for at, labels in OVERLAPS for label in labels]


def test_label_studio_export_keeps_span_answers(server: httpx.Client, tmp_path: Path) -> None:
    """Of tasks of `suggest --unit spans`, imported with their labeling configuration."""
    text = "🎉 Anna & <Bob>"
    asked = [(2, 6, "PER"), (10, 13, "A&B")]
    units = [
        Unit(str(i), text + " " * i, [(text, False)], [(span, 0.5)], 0.1, "", question=span)
        for i, span in enumerate(asked)
    ]
    write_tasks(tmp_path, "tasks", units, "label-studio", ["PER", "A&B"], binary=True)
    tasks = json.loads((tmp_path / "tasks.json").read_text("utf-8"))
    project, ids = import_tasks(server, tasks, (tmp_path / LABELING).read_text("utf-8"))
    for task, id_, answer in zip(tasks, ids, ("yes", "no")):
        choice = {"from_name": "answer", "to_name": "text", "type": "choices"}
        highlighted = task["predictions"][0]["result"]
        answers = [*highlighted, {**choice, "value": {"choices": [answer]}}]
        send(server, f"tasks/{id_}/annotations/", {"result": answers})
    path = export(server, project, "JSON", tmp_path / "a")
    yes, no = read_json(path, spacy.blank("en"))
    assert [(ent.text, ent.label_) for ent in yes.ents] == [("Anna", "PER")]
    assert [(span.text, span.label_) for span in no.spans["incorrect_spans"]] == [("Bob", "A&B")]
    assert not no.ents and {token.ent_iob for token in no} == {0}
    assert {token.text for token in yes if token.ent_iob} == {"Anna"}
