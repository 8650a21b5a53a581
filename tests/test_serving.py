"""The server example: it answers in batches, and continues after a request that fails."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

testclient = pytest.importorskip("fastapi.testclient")
PATH = Path(__file__).parents[1] / "examples" / "serve.py"


@pytest.fixture
def serve(trained, tmp_path, monkeypatch):
    trained.to_disk(tmp_path / "model")
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    spec = importlib.util.spec_from_file_location("serve", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "serve", module)
    spec.loader.exec_module(module)
    return module


def expected(nlp, text):
    ents = nlp(text).ents
    return [(ent.start_char, ent.end_char, ent.label_) for ent in ents]


def test_concurrent_requests_return_own_entities_in_batches(serve, trained, monkeypatch):
    texts = ["Tim Cook visited Hanoi.", "Nothing.", "", "Hanoi"] * 10
    sizes = []
    pipe = serve.nlp.pipe
    monkeypatch.setattr(serve.nlp, "pipe", lambda batch: sizes.append(len(batch)) or pipe(batch))
    with testclient.TestClient(serve.app) as client, ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda t: client.post("/entities", json={"text": t}), texts))
    for text, answer in zip(texts, answers, strict=True):
        assert answer.status_code == 200
        found = answer.json()
        assert [(e["start"], e["end"], e["label"]) for e in found] == expected(trained, text)
        assert all(text[e["start"] : e["end"]] == e["text"] for e in found)
        assert all(0 < e["confidence"] <= 1 for e in found)
    assert sum(sizes) == len(texts) and max(sizes) > 1


def test_server_returns_errors_and_continues_after_failed_requests(serve, monkeypatch):
    pipe = serve.nlp.pipe

    def failing(batch):
        if "poison" in batch:
            raise RuntimeError("poison")
        return pipe(batch)

    monkeypatch.setattr(serve.nlp, "pipe", failing)
    with testclient.TestClient(serve.app, raise_server_exceptions=False) as client:
        assert client.post("/entities", json={"text": "poison"}).status_code == 500
        assert client.post("/entities", json={"text": "Hanoi"}).status_code == 200
        long = client.post("/entities", json={"text": "x" * 100_001})
        assert long.status_code == 422 and "at most 100000" in long.text and len(long.text) < 200
        assert client.post("/entities", json={}).status_code == 422
        of_emoji = r'{"text": "Hanoi \ud83d"}'  # half of it
        headers = {"Content-Type": "application/json"}
        half = client.post("/entities", content=of_emoji, headers=headers)
        assert half.status_code == 422 and "unicode" in half.text


def test_server_keeps_vocab_size_after_requests(serve, trained):
    with testclient.TestClient(serve.app) as client:
        sizes = set()
        for i in range(20):
            text = f"Tim Qz{i} visited Hanoi with Xy{i}."
            found = client.post("/entities", json={"text": text}).json()
            assert [(e["start"], e["end"], e["label"]) for e in found] == expected(trained, text)
            sizes.add(len(serve.nlp.vocab.strings))
    assert len(sizes) == 1


def test_server_returns_error_when_pipeline_drops_docs(serve, monkeypatch):
    monkeypatch.setattr(serve.nlp, "pipe", lambda batch: iter(()))
    with testclient.TestClient(serve.app, raise_server_exceptions=False) as client:
        assert client.post("/entities", json={"text": "Hanoi"}).status_code == 500
