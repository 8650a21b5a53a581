"""The server: it answers in batches, and continues after a request that fails."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from typer.main import get_command
from typer.testing import CliRunner

from overlapping import LEARNED, TEXT, make_overlapping
from spacy_crf_ner.cli import app
from spacy_crf_ner.pipeline.lookup import recognizer

testclient = pytest.importorskip("fastapi.testclient")
serving = pytest.importorskip("spacy_crf_ner.serving")
uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture
def nlp(trained: Language) -> Language:
    return spacy.load(trained.path)  # type: ignore[arg-type]


@pytest.fixture
def client(nlp: Language) -> Iterator[Any]:
    with testclient.TestClient(serving.make_app(nlp), raise_server_exceptions=False) as found:
        yield found


def expected(nlp: Language, text: str) -> list[tuple[int, int, str]]:
    return [(ent.start_char, ent.end_char, ent.label_) for ent in nlp(text).ents]


def offsets(entities: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(each["start"], each["end"], each["label"]) for each in entities]


def test_concurrent_requests_return_own_entities_in_batches(nlp, trained, monkeypatch) -> None:
    texts = ["Tim Cook visited Hanoi.", "Nothing.", "", "Hanoi"] * 10
    sizes: list[int] = []
    pipe = nlp.pipe
    monkeypatch.setattr(nlp, "pipe", lambda docs, **_: sizes.append(len(docs)) or pipe(docs))
    with (
        testclient.TestClient(serving.make_app(nlp, max_batch=5)) as client,
        ThreadPoolExecutor(20) as threads,
    ):
        answers = list(threads.map(lambda t: client.post("/entities", json={"text": t}), texts))
        together = client.post("/batch", json=texts)
    assert [each.status_code for each in (*answers, together)] == [200] * (len(texts) + 1)
    found_alone = [each.json() for each in answers]
    for text, found in zip(texts * 2, [*found_alone, *together.json()], strict=True):
        assert offsets(found) == expected(trained, text)
        assert all(text[e["start"] : e["end"]] == e["text"] for e in found)
        assert all(0 < e["confidence"] <= 1 for e in found)
    assert sum(sizes) == 2 * len(texts) and max(sizes) == 5


def test_overlapping_entities_are_served() -> None:
    with testclient.TestClient(serving.make_app(make_overlapping())) as client:
        (found,) = client.post("/batch", json=[TEXT]).json()
        labels = client.get("/health").json()["labels"]
    assert offsets(found) == LEARNED[TEXT] and labels == ["LOC", "ORG", "PER"]
    assert all(0 < each["confidence"] <= 1 for each in found)


@pytest.mark.parametrize("error", [RuntimeError("poison"), OSError("disk")])
def test_text_that_fails_is_the_only_one_without_an_answer(client, nlp, monkeypatch, caplog, error):
    """Unless the machine fails."""
    pipe = nlp.pipe

    def failing(batch: list[str], **settings: Any) -> Any:
        if "poison" in batch:
            raise error
        return pipe(batch)

    monkeypatch.setattr(nlp, "pipe", failing)
    assert client.post("/entities", json={"text": "poison"}).status_code == 500
    answer = client.post("/batch", json=["Hanoi", "poison", "Hanoi"])
    if isinstance(error, OSError):
        assert answer.status_code == 500
    else:
        first, failed, last = answer.json()
        assert failed == {"error": "RuntimeError: poison"}
        assert "of 6 characters: RuntimeError: poison" in caplog.text
        assert offsets(first) == offsets(last) == expected(nlp, "Hanoi") != []
    assert client.post("/entities", json={"text": "Hanoi"}).status_code == 200


def test_server_refuses_too_large_and_invalid_requests(client, monkeypatch) -> None:
    assert len(client.post("/batch", json=[""] * 1000).json()) == 1000
    for texts, limit in ((["x", "x" * 100_001], 100_000), ([""] * 1001, 1000)):
        refused = client.post("/batch", json=texts)
        assert refused.status_code == 422 and f"at most {limit}" in refused.text
        assert len(refused.text) < 200
    content = [b" " * 2**20] * 11
    for body in (b"".join(content), iter(content)):  # which has no Content-Length
        large = client.post("/batch", content=body)
        assert large.status_code == 413 and "at most 10,485,760 bytes" in large.text
    assert client.post("/entities", json={}).status_code == 422
    assert client.post("/batch", json={"text": "Hanoi"}).status_code == 422
    of_emoji = r'{"text": "Hanoi \ud83d"}'  # half of it
    headers = {"Content-Type": "application/json"}
    half = client.post("/entities", content=of_emoji, headers=headers)
    assert half.status_code == 422 and "unicode" in half.text


def test_server_refuses_only_texts_that_the_tokenizer_changes(nlp: Language) -> None:
    nlp.tokenizer = lambda text: Doc(nlp.vocab, text.split())
    texts = ["Hanoi"] * 3 + ["visited   Hanoi"] + ["Hanoi"] * 3
    with (
        testclient.TestClient(serving.make_app(nlp)) as client,
        ThreadPoolExecutor(len(texts)) as threads,
    ):
        answers = [*threads.map(lambda t: client.post("/entities", json={"text": t}), texts)]
        together = client.post("/batch", json=texts)
    assert [each.status_code for each in answers] == [200] * 3 + [422] + [200] * 3
    for reason in (answers[3].json()["detail"][0]["msg"], together.json()[3]["error"]):
        assert "the tokenizer changes the text" in reason
    for found in (answers[0].json(), together.json()[-1]):
        assert offsets(found) == expected(nlp, "Hanoi")


def test_server_keeps_vocab_size_after_requests(client, nlp, trained, monkeypatch) -> None:
    monkeypatch.setattr("spacy_crf_ner.annotate.runner.MAX_NEW_WORDS", -1)
    sizes = set()
    for i in range(20):
        text = f"Tim Qz{i} visited Hanoi with Xy{i}."
        found = client.post("/entities", json={"text": text}).json()
        assert offsets(found) == expected(trained, text)
        sizes.add(len(nlp.vocab.strings))
    assert len(sizes) == 1


def test_server_returns_error_when_pipeline_drops_docs(client, nlp, monkeypatch) -> None:
    monkeypatch.setattr(nlp, "pipe", lambda batch, **_: iter(()))
    assert client.post("/entities", json={"text": "Hanoi"}).status_code == 500


def test_health_describes_the_pipeline(nlp: Language) -> None:
    recognizer(nlp).temperature, recognizer(nlp).calibrated_on = 1.5, 36
    with testclient.TestClient(serving.make_app(nlp)) as client:
        found = client.get("/health").json()
    assert found["ready"] is True
    assert found["labels"] == sorted(recognizer(nlp).labels)
    assert found["calibrated_on"] == {nlp.pipe_names[-1]: 36}
    assert found["versions"]["spacy"] == spacy.__version__


# The command


def test_serve_command_runs_the_app_on_the_port(nlp, monkeypatch) -> None:
    ran: list[Any] = []

    def run(server: Any, sockets: list[socket.socket]) -> None:
        ran.append((server.config, sockets[0].getsockname()))
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    arguments = ["serve", str(nlp.path), "--port", "0", "--max-batch", "3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ((config, (host, port)),) = ran
    assert host == "127.0.0.1" and f"curl {host}:{port}/entities" in result.stderr
    with testclient.TestClient(config.app) as client:
        found = client.post("/batch", json=["Tim Cook visited Hanoi."]).json()
    assert [offsets(each) for each in found] == [expected(nlp, "Tim Cook visited Hanoi.")]


def test_serve_command_port_in_use_prints_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", str(tmp_path), "--port", port])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: Port {port} of 127.0.0.1 cannot be used: Address")
    assert len(result.stderr.splitlines()) == 1


def test_default_batch_of_the_command_is_that_of_the_app() -> None:
    found = get_command(app).get_command(None, "serve")  # type: ignore[attr-defined]
    assert [each.default for each in found.params if each.name == "max_batch"] == [
        serving.MAX_BATCH
    ]
