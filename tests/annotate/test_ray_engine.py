"""The Ray engine matches the local engine, for all file formats and for URIs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow
import pytest
import spacy
from pyarrow import parquet
from pyarrow.fs import FileSelector, LocalFileSystem

from spacy_crf_ner.annotate import Settings, WorkerError, annotate, annotate_on_ray
from spacy_crf_ner.annotate import inputs as inputs_module
from spacy_crf_ner.annotate.inputs import find_sources
from spacy_crf_ner.annotate.output_folder import ShardReport, open_folder, write_report
from spacy_crf_ner.annotate.storage import Location, locate

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


def rows(folder, extension="jsonl"):
    """The rows of all shards of a folder, in the order of their names."""
    paths = sorted(Path(folder).glob(f"part-*.{extension}"))
    if extension == "parquet":
        return [row for path in paths for row in parquet.read_table(path).to_pylist()]
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def errors(folder):
    lines = (Path(folder) / "errors.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def pipe(model, texts):
    """The entities that a plain loop over `nlp.pipe` finds."""
    return [
        [
            {"start": e.start_char, "end": e.end_char, "label": e.label_, "confidence": None}
            for e in doc.ents
        ]
        for doc in spacy.load(model).pipe(texts)
    ]


def write_jsonl(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


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
    found = rows(tmp_path / "ray")
    assert found == rows(tmp_path / "local")
    names = [sorted(path.name for path in (tmp_path / n).iterdir()) for n in ("ray", "local")]
    assert names[0] == names[1]
    assert [row["entities"] for row in found] == pipe(model, [row["text"] for row in found])
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
    assert [row["text"] for row in rows(tmp_path / "out")] == texts
    assert summary["in"] == 20 and 0 < summary["resumed_shards"] < summary["shards"] == 7


@pytest.mark.slow
def test_annotate_on_ray_keeps_parquet_types(tmp_path, model, cluster):
    types = {
        "text": pyarrow.large_string(),
        "id": pyarrow.int8(),
        "when": pyarrow.timestamp("us", "UTC"),
        "kind": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "more": pyarrow.struct({"a": pyarrow.list_(pyarrow.float32())}),
        "none": pyarrow.int32(),
    }
    given = [
        {"text": text, "id": i, "when": i * 10**6, "kind": "k", "more": {"a": [0.5]}}
        for i, text in enumerate(["Nothing.", "No entity.", "Hanoi", "arsenic"])
    ]
    table = pyarrow.Table.from_pylist(given, schema=pyarrow.schema(types))
    parquet.write_table(table, tmp_path / "in.parquet")
    settings = Settings(format="parquet", shard_size=2)
    summary = annotate_on_ray(
        model, [str(tmp_path / "in.parquet")], str(tmp_path / "out"), settings, workers=1
    )
    assert (summary["out"], summary["errors"], summary["shards"]) == (3, 1, 2)
    entity = {"start": pyarrow.int64(), "end": pyarrow.int64(), "label": pyarrow.string()}
    entity["confidence"] = pyarrow.float64()
    expected = {**types, "entities": pyarrow.list_(pyarrow.struct(entity))}
    # The first shard has no entities: it still has the same types as the others.
    for path in sorted((tmp_path / "out").glob("part-*")):
        schema = parquet.read_schema(path)
        assert {name: schema.field(name).type for name in expected} == expected
    found = rows(tmp_path / "out", "parquet")
    kept = [{name: row[name] for name in types} for row in found]
    assert kept == table.slice(0, 3).to_pylist()


@pytest.mark.slow
def test_uris_are_read_and_written(tmp_path, model, cluster):
    corpus(tmp_path / "in")
    settings = Settings(shard_size=5, keep_text=False)
    output = f"file://{tmp_path}/far/out"
    annotate(model, [tmp_path / "in"], tmp_path / "local", settings, workers=1)
    summary = annotate_on_ray(model, [f"file://{tmp_path}/in"], output, settings, workers=2)
    # The names of the files are their URIs: in the ids that are made of them, too.
    path, uri = json.dumps(str(tmp_path))[1:-1], f"file://{tmp_path}"
    expected = json.loads(json.dumps(rows(tmp_path / "local")).replace(path, uri))
    assert rows(tmp_path / "far" / "out") == expected
    expected = json.loads(json.dumps(errors(tmp_path / "local")).replace(path, uri))
    assert errors(tmp_path / "far" / "out") == expected
    assert summary["errors"] == len(expected) > 0 and summary["ignored_files"] == 1
    with pytest.raises(ValueError, match=r"an earlier run.*--resume"):
        annotate_on_ray(model, [f"file://{tmp_path}/in"], output, settings)
    lost = sorted((tmp_path / "far" / "out").glob("part-*"))[1]
    (tmp_path / "far" / "out" / "_progress" / f"{lost.stem}.json").unlink()
    lost.unlink()
    again = annotate_on_ray(model, [f"file://{tmp_path}/in"], output, settings, resume=True)
    assert again["resumed_shards"] == summary["shards"] - 1 == again["shards"] - 1
    assert {k: v for k, v in again.items() if "second" not in k and k != "resumed_shards"} == {
        k: v for k, v in summary.items() if "second" not in k and k != "resumed_shards"
    }
    assert lost.exists() and len(errors(tmp_path / "far" / "out")) == len(expected)


@pytest.mark.slow
def test_annotate_on_ray_dead_worker_keeps_each_document_once(tmp_path, model, cluster, poison):
    mark = poison / "mark"
    mark.unlink(missing_ok=True)
    texts = [f"Hanoi {i}" + (" strychnine" if i == 20 else "") for i in range(40)]
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    settings = Settings(shard_size=3)
    summary = annotate_on_ray(
        model, [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), settings, workers=2
    )
    assert mark.exists(), "no worker has died"
    assert [row["text"] for row in rows(tmp_path / "out")] == texts
    assert (summary["in"], summary["out"], summary["entities"]) == (40, 40, 40)


@pytest.mark.slow
def test_annotate_on_ray_more_workers_than_cpus_completes(tmp_path, model, cluster):
    texts = [f"Hanoi {i}" for i in range(12)]
    write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    settings = Settings(shard_size=2)
    annotate_on_ray(model, [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), settings, workers=3)
    assert [row["text"] for row in rows(tmp_path / "out")] == texts


@pytest.mark.slow
def test_annotate_on_ray_infers_types_from_first_documents(tmp_path, model, cluster):
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "Hanoi", "n": 0.5, "o": {"a": 1}}])
    write_jsonl(tmp_path / "in" / "b.jsonl", [{"text": "Huế", "n": 2}, {"text": "x", "n": "y"}])
    settings = Settings(format="parquet", shard_size=1)
    for name, run in (("local", annotate), ("ray", annotate_on_ray)):
        kind = Path if run is annotate else str
        run(model, [str(tmp_path / "in")], kind(tmp_path / name), settings, workers=1)
    assert rows(tmp_path / "ray", "parquet") == rows(tmp_path / "local", "parquet")
    assert errors(tmp_path / "ray") == errors(tmp_path / "local")
    schemas = {parquet.read_schema(path) for path in (tmp_path / "ray").glob("part-*")}
    assert len(schemas) == 1 and len(errors(tmp_path / "ray")) == 1


@pytest.mark.slow
def test_annotate_on_ray_unloadable_model_raises(tmp_path, model, cluster):
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "config.cfg").unlink()
    write_jsonl(tmp_path / "in.jsonl", [{"text": "x"}])
    with pytest.raises(OSError, match=r"out: .*config\.cfg.*--resume"):
        annotate_on_ray(str(broken), [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), workers=1)
    assert not (tmp_path / "out" / "summary.json").exists()


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


def test_annotate_on_ray_unreachable_address_raises(tmp_path, model, monkeypatch):
    write_jsonl(tmp_path / "in.jsonl", [{"text": "Hanoi"}])
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        # Also where the tests have Ray on.
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        for each in (address, f"ray://{address}"):
            with pytest.raises(OSError, match="expected the address of a Ray cluster"):
                annotate_on_ray(
                    model, [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), address=each
                )
    assert not (tmp_path / "out").exists()


def test_annotate_on_ray_refused_connection_raises(tmp_path, model, monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("Failed to connect.")

    write_jsonl(tmp_path / "in.jsonl", [{"text": "Hanoi"}])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(OSError, match=r"got: Failed to connect\. Start it"):
        annotate_on_ray(model, [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), address="auto")


def test_annotate_on_ray_without_ray_raises_with_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install \"spacy-crf-ner\[ray\]\""):
        annotate_on_ray("model", ["in"], "out")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_shard_folder_restart_deletes_only_written_files(tmp_path, scheme):
    path = tmp_path / "out"

    def begin(fingerprint, **choice):
        with open_folder(locate(f"{scheme}{path}")) as folder:
            folder.begin(fingerprint, **{"resume": False, "restart": False, **choice})

    begin({"model": "m"})
    assert json.loads((path / "_progress" / "fingerprint.json").read_bytes()) == {"model": "m"}
    for name in ("part-000000-000000.jsonl", "errors.jsonl", "summary.json", "notes.txt"):
        (path / name).touch()
    (path / "_progress" / "part-000000-000000.json").touch()
    with pytest.raises(ValueError, match="one with an earlier run"):
        begin({})
    assert (path / "summary.json").exists()
    begin({}, restart=True)
    left = Counter(each.name for each in path.rglob("*") if each.is_file())
    assert left == Counter(["fingerprint.json", "lock", "notes.txt"])


@pytest.mark.parametrize("name", ["", "part-1.jsonl"])
def test_shard_folder_on_file_or_foreign_folder_raises(tmp_path, name):
    (tmp_path / "part-1.jsonl").touch()
    with pytest.raises(ValueError, match="expected a"), open_folder(locate(str(tmp_path / name))):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["part-1.jsonl"]


class Far:
    """The local file system, with another type name."""

    type_name = "far"

    def __init__(self):
        self.local = LocalFileSystem()

    def __getattr__(self, name):
        return getattr(self.local, name)


def test_shard_folder_on_other_file_system_writes_and_resumes(tmp_path):
    location = Location(Far(), f"{tmp_path}/out", "far://out")
    location.filesystem.create_dir(f"{tmp_path}/out/_progress")
    report = ShardReport("part-000000", 3, 1, 9, 2, 50, [{"file": "f", "line": 2}])
    with open_folder(location) as folder:
        folder.begin({"a": 1}, resume=False, restart=False)
        write_report(location, report)
        folder.add(report)
        folder.finish({"in": 3})
    with open_folder(location) as folder:
        folder.begin({"a": 1}, resume=True, restart=False)
        assert [*folder.finished] == ["part-000000"]
        assert folder.totals["documents"] == 3 and folder.totals["errors"] == 1
    assert errors(tmp_path / "out") == report.errors


def test_find_sources_uri_folder_matches_local_folder(tmp_path):
    for name in ("b.jsonl.gz", "a/2.TXT", "a/1.txt", "_c/x.txt", ".d.txt", "e.pdf", "f/.g/x.csv"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("x" * len(name))
    filesystem = Far()
    listed = filesystem.get_file_info(FileSelector(f"{tmp_path}/in", recursive=True))
    far = Location(filesystem, f"{tmp_path}/in", "far://bucket/in")
    output = locate(str(tmp_path / "out"))
    local = find_sources([str(tmp_path / "in")], output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs_module, "locate", lambda name: far)
        found = find_sources(["far://key:secret@bucket/in/"], output)
    assert len(listed) > len(found.sources) == 3
    for there, here in zip(found.sources, local.sources):
        assert there.name == here.name.replace(str(tmp_path), "far://bucket")
        assert there[1:] == here[1:]
    assert len(found.ignored) == len(local.ignored) == 4
    here = find_sources([f"file://{tmp_path}/in/"], output)
    assert [source.name for source in here.sources] == [
        f"file://{source.name}" for source in local.sources
    ]
    assert here.sources[0].location.path == local.sources[0].location.path


@pytest.mark.parametrize(
    "inputs, expected",
    [
        (["file://{}/none"], "a name that does not exist"),
        (["file://{}/*.txt"], "a name that does not exist.*globs are only for local paths"),
        (["file://{}/empty"], "whose names end with"),
        (["file://{}/a.txt", "file://{}/a.txt"], "every file once"),
        (["file://{}/a.txt", "{}/a.txt"], "every file once"),
        (["file://{}/out/b.txt"], "outside of the output"),
        (["far://{}/a.txt"], "that pyarrow rejects"),
    ],
)
def test_find_sources_invalid_uris_raise(tmp_path, inputs, expected):
    for name in ("a.txt", "out/b.txt", "empty/c.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=expected):
        find_sources([each.format(tmp_path) for each in inputs], locate(f"{tmp_path}/out"))


def test_credentials_of_a_uri_are_not_shown():
    location = locate("s3://key:secret@bucket/a/b.txt?region=eu-west-1")
    assert location.name == "s3://bucket/a/b.txt"
    assert "secret" not in (location / "c").name
