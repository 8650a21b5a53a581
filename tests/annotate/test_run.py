"""A run counts each document once, reports the error that ends it, and resumes only itself.

The engine here is a loop in this process; the pipelines are rules.
"""

import json
import shutil
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import fsspec
import pyarrow.parquet
import pytest
import spacy
import srsly
from filelock import FileLock
from spacy.tokens import DocBin

from annotated import errors, records
from pipelines import OWN_TRANSFORMER, make_examples
from spacy_crf_ner.annotate import Settings, WorkerError, files, shards
from spacy_crf_ner.annotate import run as module
from spacy_crf_ner.annotate.files import StorageError, find_sources, locate
from spacy_crf_ner.annotate.run import PACKAGES, Run, write_shard
from spacy_crf_ner.annotate.shards import Shard, ShardReport, cut_shards
from spacy_crf_ner.input_error import InputError


@spacy.language.Language.component("fails_at_run")
def fails_at_run(doc):
    if "poison" in doc.text:
        raise RuntimeError("not to be swallowed")
    return doc


class Loop:
    """An engine of one worker; `fail` is raised after that number of shards."""

    size = 1

    def __init__(self, fail=None, after=0):
        self.fail, self.after = fail, after

    def map(self, work, items):
        for done, item in enumerate(items):
            if isinstance(item, Shard) and self.fail is not None and done == self.after:
                raise self.fail
            yield work(item, -1)


def make_nlp():
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Hanoi"}])
    nlp.add_pipe("fails_at_run")
    return nlp


@pytest.fixture(scope="module")
def nlp():
    """A pipeline, not to be changed."""
    return make_nlp()


@pytest.fixture(scope="module")
def saved(nlp, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    nlp.to_disk(folder)
    return folder


def loads(monkeypatch, nlp):
    monkeypatch.setattr(shards, "load", lambda *arguments: nlp)


@pytest.fixture
def model(nlp, saved, tmp_path, monkeypatch):
    """The folder of a pipeline; it is not loaded from there."""
    loads(monkeypatch, nlp)
    return str(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def dtypes(monkeypatch):
    """The dtypes that shards were annotated in; "auto", or what was saved, is `dtypes.auto`."""

    class Dtypes(list):
        auto = "fp32"

    seen = Dtypes()

    def annotate(shard, gpu_id, settings, **others):
        seen.append(settings.dtype)
        return annotate_shard(shard, gpu_id, settings, **others)

    annotate_shard = module.annotate_shard
    monkeypatch.setattr(module, "annotate_shard", annotate)
    monkeypatch.setattr(
        module,
        "load_model",
        lambda dtype, gpu_id, model: seen.auto if dtype in ("auto", None) else dtype,
    )
    return seen


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"in Hanoi {i}"}) + "\n" for i in range(10)))
    return str(path)


def execute(model, corpus, output, engine=None, resume=False, restart=False, **settings):
    return annotate(
        model, [corpus], output, Settings(**{"shard_size": 2, **settings}), engine, resume, restart
    )


def annotate(model, inputs, output, settings, engine=None, resume=False, restart=False):
    run = Run(inputs, output, settings, resume, restart)
    return run.annotate(model, nullcontext(engine or Loop()), lambda progress: None)


def fingerprint_of(output):
    return json.loads((output / "_progress" / "fingerprint.json").read_text())


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def write(tmp_path):
    """Write records to a file, and return its path: `write(records)`, or of a table."""

    def to_file(records):
        if isinstance(records, pyarrow.Table):
            pyarrow.parquet.write_table(records, tmp_path / "in.parquet")
            return str(tmp_path / "in.parquet")
        srsly.write_jsonl(tmp_path / "in.jsonl", records)
        return str(tmp_path / "in.jsonl")

    return to_file


def write_lines(folder, **files):
    """Write files of lines; return them as the sources of a corpus."""
    for name, lines in files.items():
        (folder / name.replace("_", ".")).write_text("".join(f"{line}\n" for line in lines))
    return find_sources([folder], locate(f"{folder}.out")).sources


def test_cut_shards_splits_by_size_and_kind(tmp_path):
    table = ["id,text", "1,p", "2,q"]
    rows = ['{"text": "k"}', "", "no", '{"text": "l"}']
    sources = write_lines(
        tmp_path, a_txt="abcde", b_txt="fg", c_jsonl=rows, d_csv=table, e_csv=table, f_txt="xyz"
    )
    found = [*cut_shards(sources, Settings(shard_size=4))]
    texts = ["".join(item.row["text"] if item.row else "-" for item in s.items) for s in found]
    assert texts == ["abcd", "efg", "k--l", "pq", "pq", "xyz"]
    assert sum(shard.size for shard in found) == sum(source.size for source in sources)
    report = found[2].report(5, 6)
    assert report[1:5] == (3, 1, 5, 6) and report.size == found[2].size
    assert [(error["line"], error["id"]) for error in report.errors] == [(3, None)]


def test_cut_shards_ends_shard_after_exceeding_character_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 5)
    lines = ["abc", "d", "ef", "ghijkl", "m", "", "nop"]
    found = cut_shards(write_lines(tmp_path, a_txt=lines), Settings())
    texts = [[item.row["text"] for item in shard.items] for shard in found]
    assert texts == [["abc", "d", "ef"], ["ghijkl"], ["m", "", "nop"]]


def test_run_applies_batch_size_and_max_characters(model, corpus, output, tmp_path, monkeypatch):
    seen, nlp = [], make_nlp()
    loads(monkeypatch, nlp)

    class Spy:
        def __call__(self, doc):
            return doc

        def pipe(self, docs, batch_size):
            docs = list(docs)
            seen.append([len(doc.text) for doc in docs])
            return docs

    spacy.language.Language.component("spy_at_run", func=Spy())
    nlp.add_pipe("spy_at_run")
    execute(model, corpus, output, shard_size=10, batch_size=3)
    assert [len(batch) for batch in seen] == [3, 3, 3, 1]
    seen.clear()
    (tmp_path / "long.txt").write_text("word " * 2000)
    long = str(tmp_path / "long.txt")
    execute(model, long, tmp_path / "long", shard_size=10, max_characters=1000)
    assert sum(map(len, seen)) == 10


@pytest.mark.parametrize("format", ["jsonl", "parquet", "spacy"])
@pytest.mark.parametrize("name", ["doc", "error", "words", "text"])
def test_run_accepts_any_text_column_name(model, write, output, name, format, nlp):
    row = {name: "in Hanoi", "id": 1, "doc" if name != "doc" else "n": "mine"}
    summary = execute(model, write([row]), output, text_column=name, format=format)
    assert (summary["out"], summary["entities"]) == (1, 1)
    (shard,) = output.glob("part-*")
    kept = {key: value for key, value in row.items() if key != name}
    if format == "spacy":
        (doc,) = DocBin().from_disk(shard).get_docs(nlp.vocab)
        assert (doc.text, doc.ents[0].text) == ("in Hanoi", "Hanoi")
        assert doc.user_data["meta"] == kept
    elif format == "parquet":
        (found,) = pyarrow.parquet.read_table(shard).to_pylist()
        assert {**found, "entities": ()} == {**row, "entities": ()}
    else:
        (found,) = records(output)
        assert {**found, "entities": ()} == {**row, "entities": ()}


def test_run_row_with_mismatched_type_is_reported_as_error(model, write, output):
    rows = [{"text": "in Hanoi", "id": 7, "n": 1}, {"text": "to Hanoi now", "id": 8, "n": "x"}]
    summary = execute(model, write(rows), output, format="parquet", shard_size=1)
    assert [summary[name] for name in ("in", "out", "errors")] == [2, 1, 1]
    assert [summary[name] for name in ("words", "entities")] == [2, 1], "only of written rows"
    (error,) = errors(output)
    assert (error["line"], error["id"]) == (2, 8) and "expected int64" in error["reason"]


def test_the_id_of_a_record_without_text_is_reported(model, write, output):
    rows = [{"id": 6, "text": "in Hanoi"}, {"id": 7, "body": "x"}, {"id": 8, "text": None}, 9]
    execute(model, write(rows), output)
    found = [(error["line"], error["id"]) for error in errors(output)]
    assert found == [(2, 7), (3, 8), (4, None)]


@pytest.mark.parametrize("columns", [("entities", "id"), ("text", "entities"), ("text", "text")])
def test_run_reserved_or_equal_column_names_raise(model, corpus, output, columns):
    with pytest.raises(InputError, match="text_column, id_column: expected two names"):
        execute(model, corpus, output, text_column=columns[0], id_column=columns[1])


@pytest.mark.parametrize("given", ["auto", None])
def test_auto_dtype_is_resolved_once_for_all_shards(model, corpus, output, dtypes, given):
    engine = Loop(OSError("full"), after=2)
    with pytest.raises(OSError, match="full"):
        execute(model, corpus, output, engine, dtype=given)
    dtypes.auto = "bf16"  # on another machine
    with pytest.raises(InputError, match="expected the dtype of the earlier run"):
        execute(model, corpus, output, dtype="fp32", resume=True)
    assert execute(model, corpus, output, dtype=given, resume=True)["shards"] == 5
    assert dtypes == ["fp32"] * 5
    execute(model, corpus, output, dtype=given, restart=True)
    assert dtypes[5:] == ["bf16"] * 5


def test_load_model_returns_dtype_of_transformer(tiny_transformer, monkeypatch):
    from spacy_crf_ner import accelerate
    from spacy_crf_ner.ml import shim

    words = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1"}
    parts = {"words": words, "transformer": {**OWN_TRANSFORMER, "name": tiny_transformer}}
    tok2vec = {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": parts}
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    monkeypatch.setattr(shards, "load", lambda *arguments: nlp)
    assert shards.load_model(None, -1, model="m") is None
    # Of "auto", the transformer may be faster in another dtype than other layers.
    monkeypatch.setattr(shim, "fastest_dtype", lambda device, sizes, int8: ("fp32", "int8")[int8])
    accelerate(nlp, "auto")
    assert shards.load_model("auto", -1, model="m") == "int8"
    assert shards.load_model(None, -1, model="m") == "int8", "as it was saved"
    accelerate(nlp, "bf16")
    assert shards.load_model("bf16", -1, model="m") == "bf16"


@pytest.mark.parametrize("package", PACKAGES)
def test_run_resume_with_other_package_versions_raises(model, corpus, output, package):
    execute(model, corpus, output)
    before = fingerprint_of(output)
    assert before["versions"][package]
    before["versions"][package] = "0.0"
    (output / "_progress" / "fingerprint.json").write_text(json.dumps(before))
    with pytest.raises(InputError, match="expected the versions of the earlier run"):
        execute(model, corpus, output, resume=True)


@pytest.mark.parametrize(
    "error, kind, said",
    [
        (StorageError("a.gz: OSError: [Errno 5] Input/output error"), OSError, "Errno 5"),
        (MemoryError(), WorkerError, "MemoryError"),
        (RuntimeError("CUDA error: x\nmore"), WorkerError, "RuntimeError: CUDA error: x"),
    ],
)
def test_run_machine_error_raises_and_resume_completes(model, corpus, output, error, kind, said):
    with pytest.raises(kind, match=f"{said}.* 3 finished shards are kept: continue with --resume"):
        execute(model, corpus, output, Loop(error, after=3))
    assert not (output / "summary.json").exists()
    summary = execute(model, corpus, output, resume=True)
    assert (summary["in"], summary["errors"], summary["resumed_shards"]) == (10, 0, 3)
    assert [record["text"] for record in records(output)] == [f"in Hanoi {i}" for i in range(10)]


def test_run_resume_redoes_shard_without_report(model, corpus, output):
    execute(model, corpus, output)
    expected = records(output)
    (output / "part-000001.jsonl").write_text("half a li")
    (output / "_progress" / "part-000001.json").unlink()
    (output / "_part-000002.jsonl.1.tmp").write_text("killed as it wrote")
    assert execute(model, corpus, output, resume=True)["resumed_shards"] == 4
    assert records(output) == expected
    assert not list(output.rglob("*.tmp"))


def test_run_zero_elapsed_time_reports_zero_speed(model, corpus, output, monkeypatch):
    monkeypatch.setattr(module, "monotonic", lambda: 7.0)
    execute(model, corpus, output)
    summary = execute(model, corpus, output, resume=True)
    assert (summary["seconds"], summary["words_per_second"]) == (0.0, 0.0)


def test_shard_folder_finish_merges_errors_in_bounded_memory(output, tmp_path):
    (tmp_path / "in.txt").touch()
    folder = Run([tmp_path / "in.txt"], output, Settings(), False, False)
    with folder.opened():
        folder.begin({})
        for i in reversed(range(100)):
            errors = [{"shard": i, "reason": "x" * 1000} for _ in range(20)]
            report = ShardReport(f"part-{i:06}", 20, 0, 0, 0, 40, errors)
            work = Mock(return_value=(None, report))
            write_shard(work, "", Settings(), folder.output, None, -1)
            folder.add(report)
        tracemalloc.start()
        try:
            folder.finish({})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    with (output / "errors.jsonl").open() as file:
        numbers = [json.loads(line)["shard"] for line in file]
    assert numbers == [i for i in range(100) for _ in range(20)], "in the order of the input"
    assert peak < 100_000


def test_location_write_failure_leaves_the_earlier_file_or_none(tmp_path):
    location = locate(str(tmp_path / "shard"))
    for before in ([], ["shard"]):
        with pytest.raises(TypeError):
            location.write([b"begun", "no bytes"])  # type: ignore[list-item]
        assert [path.name for path in tmp_path.iterdir()] == before
        location.write([b"whole"])
    assert location.read() == b"whole"


@pytest.mark.parametrize("deleted", range(10))
def test_an_interrupted_restart_loses_no_shard(model, corpus, output, monkeypatch, deleted):
    execute(model, corpus, output, shard_size=4)
    expected = records(output)
    location = locate(str(output))

    class Interrupted:
        """The file system, until that number of files is deleted."""

        left = deleted

        def __getattr__(self, name):
            return getattr(location.filesystem, name)

        def delete_file(self, path):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            location.filesystem.delete_file(path)

    proxy = location._replace(filesystem=Interrupted())
    try:
        with monkeypatch.context() as patch:
            patch.setattr(module, "locate", lambda name: proxy)
            execute(model, corpus, output, restart=True, shard_size=4)
    except KeyboardInterrupt:
        execute(model, corpus, output, resume=True, shard_size=4)
    assert records(output) == expected


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("entities", [[1], None])
def test_run_record_with_entities_column_is_reported_and_skipped(
    model, write, output, at, entities
):
    rows = [{"text": f"in Hanoi {i}"} for i in range(5)]
    rows.insert(at, {"text": "Hanoi", "entities": entities})
    summary = execute(model, write(rows), output, format="parquet")
    assert (summary["out"], summary["errors"]) == (5, 1)
    (error,) = errors(output)
    assert error["line"] == at + 1 and "expected no column 'entities'" in error["reason"]
    tables = [pyarrow.parquet.read_table(each) for each in sorted(output.glob("*.p*"))]
    assert [text for each in tables for text in each["text"].to_pylist()] == [
        f"in Hanoi {i}" for i in range(5)
    ]


@pytest.mark.parametrize(
    "columns, ids, failed",
    [
        ({"text": ["in Hanoi"], "entities": [[1]]}, [], 1),
        ({"id": [7, None], "text": ["in Hanoi", "in Hue"]}, [7, None], 0),
    ],
)
def test_run_parquet_refuses_entities_and_keeps_null_ids(
    model, write, output, columns, ids, failed
):
    summary = execute(model, write(pyarrow.table(columns)), output, format="parquet")
    assert (summary["out"], summary["errors"]) == (len(ids), failed)
    (shard,) = output.glob("*.parquet")
    assert pyarrow.parquet.read_table(shard)["id"].to_pylist() == ids


def test_run_nan_id_is_null_in_error_report(model, write, output):
    execute(model, write(pyarrow.table({"id": [float("nan")], "text": ["poison"]})), output)
    (error,) = errors(output)
    assert "NaN" not in (output / "errors.jsonl").read_text() and error["id"] is None


def test_corpus_in_a_store_of_fsspec_is_annotated_as_a_local_one(model, output, tmp_path):
    """Pipes, hidden files and other kinds are not read."""
    store = fsspec.filesystem("memory")
    store.rm("/", recursive=True)
    files = {"b.jsonl": '{"text": "in Hanoi"}\n{"text": 3}\n', "a/1.txt": "Hanoi\nno\n"}
    files |= {"_c/x.txt": "x", ".d.txt": "x", "e.pdf": "x"}
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(content)
        store.pipe(f"/in/{name}", content.encode())
    settings, out = Settings(shard_size=2), "memory://out"
    with pytest.raises(OSError, match="full"):
        annotate(model, ["memory://in"], out, settings, Loop(OSError("full"), after=1))
    found = annotate(model, ["memory://in"], out, settings, resume=True)
    local = annotate(model, [tmp_path / "in"], output, settings)
    differ = {"resumed_shards", "seconds", "documents_per_second", "words_per_second", "output"}
    assert {k: v for k, v in found.items() if k not in differ} == {
        k: v for k, v in local.items() if k not in differ
    }
    assert found["resumed_shards"] == 1 and found["ignored_files"] == 3
    path, uri = json.dumps(str(tmp_path / "in"))[1:-1], found["output"].replace("out", "in")
    for file in output.glob("*.jsonl"):
        assert store.cat(f"/out/{file.name}").decode() == file.read_text().replace(path, uri)
    with pytest.raises(InputError, match="an earlier run"):
        annotate(model, ["memory://in"], out, settings)


def test_restart_deletes_only_written_files(model, corpus, output):
    execute(model, corpus, output)
    (output / "notes.txt").touch()
    before = {path for path in output.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="one with an earlier run"):
        execute(model, corpus, output)
    with pytest.raises(OSError, match="full"):
        execute(model, corpus, output, Loop(OSError("full"), after=0), restart=True)
    left = {path.name for path in before if path.exists()}
    assert left == {"fingerprint.json", "lock", "notes.txt"}


def test_run_resume_with_changed_input_model_or_settings_raises(model, corpus, output, tmp_path):
    execute(model, corpus, output)
    before = records(output)

    def refused(changed, **settings):
        with pytest.raises(InputError, match=f"expected the {changed} of the earlier .*--restart"):
            execute(model, corpus, output, resume=True, **settings)

    refused("format", format="parquet")
    refused("keep_text", keep_text=False)
    other = shutil.copy(corpus, tmp_path / "other.jsonl")
    with pytest.raises(InputError, match="expected the input of the earlier run"):
        annotate(model, [corpus, other], output, Settings(shard_size=2), resume=True)
    Path(corpus).write_text('{"text": "Oslo"}\n')
    refused("input")
    with pytest.raises(InputError, match=r"--resume.*--restart"):
        execute(model, corpus, output)
    assert records(output) == before
    execute(model, corpus, output, restart=True)
    assert [record["text"] for record in records(output)] == ["Oslo"]
    Path(model, "meta.json").write_text("{}")
    refused("model")


def test_run_into_used_or_foreign_folder_raises(model, corpus, output, tmp_path):
    (output / "_progress").mkdir(parents=True)
    with (
        FileLock(output / "_progress" / "lock"),
        pytest.raises(InputError, match="no other process"),
    ):
        execute(model, corpus, output)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part-1").write_text("mine")
    for choice in ({}, {"resume": True}, {"restart": True}):
        with pytest.raises(InputError, match="one with other files"):
            execute(model, corpus, tmp_path / "mine", **choice)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["part-1"]
    with pytest.raises(InputError, match="expected a folder, got a file"):
        execute(model, corpus, tmp_path / "mine" / "part-1")


def test_shard_that_cannot_be_written_is_written_by_resume(model, corpus, output, monkeypatch):
    write = files.Location.write

    def fail(location, content):
        if location.path.endswith("part-000002.jsonl"):
            raise OSError(28, "No space left on device")
        write(location, content)

    with monkeypatch.context() as patch:
        patch.setattr(files.Location, "write", fail)
        with pytest.raises(OSError, match=r"No space left.*2 finished shards are kept"):
            execute(model, corpus, output)
    assert execute(model, corpus, output, resume=True)["resumed_shards"] == 2
    assert [record["text"] for record in records(output)] == [f"in Hanoi {i}" for i in range(10)]
