"""The Ray engine matches the local engine, for all file formats and for URIs."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pyarrow
import pytest
import spacy
from pyarrow import parquet

from annotated import entities, errors, records
from spacy_crf_ner.annotate import Settings, WorkerError, annotate, annotate_on_ray
from spacy_crf_ner.input_error import InputError

ray = pytest.importorskip("ray")

# A component that raises at one word, and at another word ends its process, but only once.
POISON = """
import os
from pathlib import Path

from spacy.language import Language


@Language.component("poison")
def poison(doc):
    for token in doc:
        if token.text == "arsenic":
            raise RuntimeError("not to be swallowed")
        if token.text == "strychnine":
            mark = Path(os.environ["POISON_MARK"])
            if not mark.exists():
                mark.touch()
                os._exit(1)
    return doc
"""
ENTRY = "[spacy_factories]\npoison = poison:poison\n"
METADATA = "Metadata-Version: 2.1\nName: poison\nVersion: 1\n"

TEXTS = [
    "Ada went to Hanoi.",
    "",
    "Nothing.",
    "Hanoi, Huế and  Đà Nẵng!",
    "a\u2028Hanoi",
    "2020-01-01",
]


@pytest.fixture(scope="module")
def poison(tmp_path_factory):
    """A folder that provides the component to processes with it in their path."""
    folder = tmp_path_factory.mktemp("poison")
    (folder / "poison.py").write_text(POISON)
    (folder / "poison-1.dist-info").mkdir()
    (folder / "poison-1.dist-info" / "entry_points.txt").write_text(ENTRY)
    (folder / "poison-1.dist-info" / "METADATA").write_text(METADATA)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("POISON_MARK", str(folder / "mark"))
        __import__("poison")
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory, poison):
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "CITY", "pattern": name} for name in ("Hanoi", "Huế")])
    nlp.add_pipe("poison")
    path = tmp_path_factory.mktemp("model") / "cities"
    nlp.to_disk(path)
    return str(path)


@pytest.fixture(scope="module")
def cluster(poison):
    """Ray with two CPUs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=200 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield
        ray.shutdown()


def write_jsonl(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def on_ray(tmp_path, model, out):
    """Annotate texts on Ray: `on_ray(texts, size, ...)`."""

    def annotate(texts, shard_size=1, model=model, **options):
        write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
        settings, inputs = Settings(shard_size=shard_size), [str(tmp_path / "in.jsonl")]
        return annotate_on_ray(model, inputs, str(out), settings, **options)

    return annotate


def corpus(folder):
    """Files of many kinds, with documents that cannot be read or annotated among them."""
    write_jsonl(folder / "a.jsonl", [{"text": text, "n": i} for i, text in enumerate(TEXTS * 3)])
    bad = [{"text": None}, {"no": 1}, {"text": "with arsenic"}, {"text": "x", "when": "2020-01-01"}]
    write_jsonl(folder / "b.jsonl", bad)
    with (folder / "b.jsonl").open("a") as file:
        file.write('no JSON\n\n{"text": "Hanoi", "id": 7, "deep": {"a": [1, {}]}}\n')
    (folder / "c.csv").write_text('text,code\n"Hanoi, again",007\narsenic,1\n,\n')
    (folder / "d.txt").write_text("In Hanoi\n\nlast line", encoding="utf-8")
    table = pyarrow.table({"text": ["To Huế", None], "small": pyarrow.array([1, 2], "int8")})
    parquet.write_table(table, folder / "e.parquet")
    (folder / "_f.txt").write_text("no part of the corpus")


@pytest.mark.slow
def test_annotate_on_ray_matches_local_engine(tmp_path, model, cluster):
    corpus(tmp_path / "in")
    settings = Settings(shard_size=4)
    local = annotate(model, [tmp_path / "in"], tmp_path / "local", settings, workers=1)
    seen = []
    summary = annotate_on_ray(
        model, [str(tmp_path / "in")], str(tmp_path / "ray"), settings, on_progress=seen.append
    )
    found = records(tmp_path / "ray")
    assert found == records(tmp_path / "local")
    names = [sorted(path.name for path in (tmp_path / n).iterdir()) for n in ("ray", "local")]
    assert names[0] == names[1]
    docs = spacy.load(model).pipe([row["text"] for row in found])
    assert [row["entities"] for row in found] == [*map(entities, docs)]
    assert [row["text"] for row in found[: 3 * len(TEXTS)]] == TEXTS * 3
    assert errors(tmp_path / "ray") == errors(tmp_path / "local")
    for name in ("in", "out", "errors", "blank_lines", "files", "ignored_files", "words"):
        assert summary[name] == local[name], name
    assert summary["in"] == len(found) + len(errors(tmp_path / "ray"))
    assert summary["entities"] == sum(len(row["entities"]) for row in found)
    assert json.loads((tmp_path / "ray" / "summary.json").read_bytes()) == summary
    assert seen[-1].documents == summary["in"] and seen[-1].size == seen[-1].total
    assert ray.is_initialized(), "the Ray instance of the program keeps running"


@pytest.mark.slow
@pytest.mark.parametrize("engines", [(annotate, annotate_on_ray), (annotate_on_ray, annotate)])
def test_annotate_resumes_run_of_other_engine(tmp_path, model, cluster, engines):
    texts = [f"Hanoi {i}" for i in range(20)]
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    arguments = model, [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), Settings(shard_size=3)
    first, second = engines

    def stop(progress):
        if progress.documents > 6:
            raise RuntimeError("stop")

    with pytest.raises(WorkerError, match="stop"):
        first(*arguments, workers=1, on_progress=stop)
    summary = second(*arguments, workers=1, resume=True)
    assert [row["text"] for row in records(tmp_path / "out")] == texts
    assert summary["in"] == 20 and 0 < summary["resumed_shards"] < summary["shards"] == 7


@pytest.mark.slow
def test_annotate_on_ray_dead_worker_keeps_each_document_once(on_ray, out, cluster, poison):
    mark = poison / "mark"
    mark.unlink(missing_ok=True)
    texts = [f"Hanoi {i}" + (" strychnine" if i == 20 else "") for i in range(40)]
    summary = on_ray(texts, 3, workers=2)
    assert mark.exists(), "no worker has died"
    assert [row["text"] for row in records(out)] == texts
    assert (summary["in"], summary["out"], summary["entities"]) == (40, 40, 40)


@pytest.mark.slow
def test_annotate_on_ray_more_workers_than_cpus_completes(on_ray, out, cluster):
    texts = [f"Hanoi {i}" for i in range(12)]
    on_ray(texts, 2, workers=3)
    assert [row["text"] for row in records(out)] == texts


@pytest.mark.slow
def test_annotate_on_ray_unloadable_model_raises(on_ray, tmp_path, out, model, cluster):
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "config.cfg").unlink()
    with pytest.raises(InputError, match=r"broken is no pipeline: it has no config\.cfg"):
        on_ray(["x"], model=str(broken), workers=1)
    assert not (out / "summary.json").exists()


@pytest.mark.slow
def test_annotate_on_ray_stops_ray_that_it_started(tmp_path, model, poison):
    write_jsonl(tmp_path / "in.jsonl", [{"text": "Hanoi"}])
    code = (
        "import sys, ray\n"
        "from spacy_crf_ner.annotate import annotate_on_ray\n"
        "summary = annotate_on_ray(*sys.argv[1:2], sys.argv[2:3], sys.argv[3], workers=1)\n"
        "print(summary['out'], ray.is_initialized())\n"
    )
    names = [model, str(tmp_path / "in.jsonl"), str(tmp_path / "out")]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_LOG_LEVEL": "ERROR"}
    run = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, env=environment
    )
    assert run.stdout.split() == ["1", "False"], run.stderr


def test_annotate_on_ray_missing_text_column_raises_before_writing(tmp_path, model):
    write_jsonl(tmp_path / "in.jsonl", [{"body": "Hanoi"}])
    with pytest.raises(ValueError, match="'text', got the columns body"):
        annotate_on_ray(model, [f"file://{tmp_path}/in.jsonl"], str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_annotate_on_ray_unreachable_address_raises(on_ray, out, monkeypatch):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        # Also where the tests have Ray on.
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        for each in (address, f"ray://{address}"):
            with pytest.raises(OSError, match="expected the address of a Ray cluster"):
                on_ray(["Hanoi"], address=each)
    assert not out.exists()


def test_annotate_on_ray_refused_connection_raises(on_ray, monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("Failed to connect.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(OSError, match=r"got: Failed to connect\. Start it"):
        on_ray(["Hanoi"], address="auto")


def test_annotate_on_ray_without_ray_raises_with_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r'pip install .* "\.\[ray\]"'):
        annotate_on_ray("model", ["in"], "out")
