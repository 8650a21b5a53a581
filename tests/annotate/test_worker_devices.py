"""The device of each worker of the local engine."""

import json
import subprocess
import sys
from multiprocessing import get_context
from types import ModuleType

import pytest
import spacy
from thinc.api import Linear, NumpyOps, get_current_ops, get_ops, set_current_ops

from spacy_crf_ner.annotate import Settings, annotate, multiprocess
from spacy_crf_ner.annotate.files import find_sources, locate
from spacy_crf_ner.annotate.multiprocess import processes, worker_devices
from spacy_crf_ner.input_error import InputError


@pytest.mark.parametrize(
    "workers, gpu_ids, cores, expected",
    [
        (0, [], 4, [-1] * 4),
        (0, [], 64, [-1] * 8),
        (3, [], 1, [-1] * 3),
        (0, [0], 6, [0] * 6),
        (0, [0, 2], 7, [0, 2, 0, 2, 0, 2]),
        (0, [0, 1], 64, [0, 1] * 8),
        (0, [0, 1, 2, 3], 2, [0, 1, 2, 3]),
        (3, [0, 1], 64, [0, 1, 0]),
        (0, [1, 1], 4, [1] * 4),
    ],
)
def test_worker_devices_distributes_workers_over_gpus(workers, gpu_ids, cores, expected):
    """One for each core, at most eight for each device, and at least one."""
    assert worker_devices(workers, gpu_ids, cores) == expected


def multiplies_with_blis(item: None, device: int) -> bool:
    return get_current_ops().use_blis


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_workers_use_openblas(start, monkeypatch):
    """They have one thread, with which it is faster; the pipeline of this process keeps BLIS.

    They are spawned; those that are forked need not import everything again.
    """
    monkeypatch.setattr(multiprocess, "get_context", lambda method: get_context(start))
    with processes(2, [], [], Settings()) as engine:
        assert [*engine.map(multiplies_with_blis, [None] * 2)] == [False, False]
    assert get_current_ops().use_blis


def sources_of(folder, texts):
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return find_sources([folder / "texts.txt"], locate(str(folder / "out"))).sources


@pytest.fixture
def no_processes(monkeypatch):
    def fail(devices):
        raise AssertionError(f"{len(devices)} workers were started")

    monkeypatch.setattr(multiprocess, "_processes", fail)


@pytest.mark.parametrize(
    "docs, cores, workers", [(0, 4, 1), (5, 4, 3), (5, 2, 2), (2, 4, 1), (999, 4, 4)]
)
def test_workers_are_as_many_as_shards_at_most(tmp_path, monkeypatch, docs, cores, workers):
    """A large corpus is not read for that."""
    sources = sources_of(tmp_path, ["Oslo"] * docs)
    monkeypatch.setattr(multiprocess, "_processes", lambda devices: len(devices))
    monkeypatch.setattr(multiprocess, "_this_process", lambda cores: 1)
    monkeypatch.setattr(multiprocess.os, "sched_getaffinity", lambda _: range(cores))
    if docs > 5:
        monkeypatch.setattr(multiprocess, "SHARD_CHARACTERS", 1000)
        monkeypatch.setattr(multiprocess, "cut_shards", None)
    assert processes(0, [], sources, Settings(shard_size=2)) == workers


def save_ruler(folder, label):
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": label, "pattern": "Oslo"}])
    nlp.to_disk(folder)
    return str(folder)


@pytest.mark.parametrize("workers", [0, 1])
def test_small_corpus_is_annotated_in_this_process_by_the_model_as_it_is_now(
    tmp_path, no_processes, workers
):
    sources_of(tmp_path, ["Oslo", "it"])
    for label in ("GPE", "ORG"):
        model, out = save_ruler(tmp_path / "model", label), tmp_path / label
        summary = annotate(model, [tmp_path / "texts.txt"], out, workers=workers)
        first, _ = map(json.loads, (out / "part-000000.jsonl").read_text().splitlines())
        assert [ent["label"] for ent in first["entities"]] == [label]
        assert summary["out"] == 2
    assert multiprocess.load.cache_info().currsize == 0


def test_the_only_core_multiplies_with_openblas_and_the_caller_keeps_blis(monkeypatch, tmp_path):
    for cores, is_faster in ((1, True), (4, False)):
        monkeypatch.setattr(multiprocess.os, "sched_getaffinity", lambda _, n=cores: range(n))
        with processes(1, [], [], Settings()) as engine:
            (use_blis,) = engine.map(multiplies_with_blis, [None])
        assert use_blis is not is_faster
        assert type(get_current_ops()) is NumpyOps and get_current_ops().use_blis


class OtherOps(NumpyOps):
    """The device of a caller that is not the CPU."""

    name = "other"


def device_of_model(item: None, device: int) -> tuple[type, int]:
    return type(Linear(1, 1).initialize().ops), device


@pytest.mark.parametrize("cores", [1, 4])
def test_one_worker_on_the_cpu_uses_it_and_the_caller_keeps_its_device(monkeypatch, cores):
    monkeypatch.setattr(multiprocess.os, "sched_getaffinity", lambda _: range(cores))
    caller, before = OtherOps(), get_current_ops()
    set_current_ops(caller)
    try:
        with pytest.raises(ZeroDivisionError), processes(1, [], [], Settings()) as engine:
            assert [*engine.map(device_of_model, [None])] == [(type(get_ops("cpu")), -1)]
            raise ZeroDivisionError
        assert get_current_ops() is caller
    finally:
        set_current_ops(before)


def test_script_without_guard_is_refused_before_processes_start(
    tmp_path, monkeypatch, no_processes
):
    script = tmp_path / "script.py"
    monkeypatch.setitem(sys.modules, "__main__", main := ModuleType("__main__"))
    main.__file__ = str(script)
    for source, started in (("annotate()", False), ('if __name__ == "__main__":\n  x()', True)):
        script.write_text(source)
        with pytest.raises(AssertionError if started else InputError) as caught:
            processes(2, [], [], Settings())
        assert ("2 workers" if started else 'if __name__ == "__main__":') in str(caught.value)
    script.unlink()  # without a file, a worker runs nothing again
    with pytest.raises(AssertionError, match="2 workers"):
        processes(2, [], [], Settings())


@pytest.mark.slow
def test_package_without_guard_annotates_with_processes(tmp_path):
    sources_of(tmp_path, ["Oslo", "it"])
    save_ruler(tmp_path / "model", "GPE")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__main__.py").write_text(
        "from spacy_crf_ner.annotate import annotate\n"
        "annotate('model', ['texts.txt'], 'out', workers=2)\n"
    )
    command = [sys.executable, "-m", "mine"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=300)
    assert len((tmp_path / "out" / "part-000000.jsonl").read_text().splitlines()) == 2


def test_worker_that_runs_its_script_again_exits_with_one_line(no_processes):
    called = {"__name__": "__mp_main__", "processes": processes, "settings": Settings()}
    with pytest.raises(SystemExit, match="runs the whole script again"):
        exec("processes(2, [], [], settings)", called)
    exec("processes(1, [], [], settings)", called)


@pytest.mark.slow
@pytest.mark.parametrize("comment", ["", "# as __main__"])
def test_script_without_guard_fails_with_one_line(tmp_path, comment):
    sources_of(tmp_path, ["Oslo", "it"])
    save_ruler(tmp_path / "model", "GPE")
    script = f"from spacy_crf_ner.annotate import annotate {comment}\n"
    script += "annotate('model', ['texts.txt'], 'out{0}', workers={0})\n"
    for workers, line in ((1, ""), (2, "each of them runs the whole script again")):
        (tmp_path / "script.py").write_text(script.format(workers))
        command = [sys.executable, "script.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert line in done.stderr and bool(line) == bool(done.returncode)
        assert ("Traceback" in done.stderr) == bool(line) and "bootstrapping" not in done.stderr
