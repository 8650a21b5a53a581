"""The local engine: every document once and in order, also after kills and errors.

The oracle is a plain loop over `nlp.pipe`.
"""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest
import spacy
from spacy.tokens import DocBin

from annotated import entities, errors, read_lines, records
from spacy_crf_ner.annotate import Settings, WorkerError, annotate

COMMAND = [sys.executable, "-m", "spacy_crf_ner", "predict"]
PATIENCE = 900  # seconds, until a process that hangs is given up; the machine may be busy
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see processes"),
]


def make_texts(number, seed=0):
    rng = random.Random(seed)
    words = ["Hanoi", "Lagos", "is", "not", "far", "from", "Oslo", "the", "sea", "."]
    return [" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(number)]


TEXTS = make_texts(20_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("annotate")


@pytest.fixture(scope="module")
def nlp():
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "GPE", "pattern": name} for name in ("Hanoi", "Lagos", "Oslo")])
    return nlp


@pytest.fixture(scope="module")
def model(nlp, folder):
    nlp.to_disk(folder / "model")
    return str(folder / "model")


@pytest.fixture(scope="module")
def corpus(folder):
    """JSON lines of 20,000 documents."""
    path = folder / "corpus.jsonl"
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(nlp):
    """The records of a plain loop over `nlp.pipe`."""
    return [
        {"id": i, "text": doc.text, "entities": entities(doc)}
        for i, doc in enumerate(nlp.pipe(TEXTS))
    ]


def shards(output):
    return sorted(output.glob("part-*"))


def start(model, corpus, output, *options):
    """Start the command."""
    arguments = [model, str(corpus), "--output", str(output), "--workers", "2", *options]
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Background processes of a shell ignore Ctrl-C, as do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def wait_for_progress(process, output, before=0):
    """Wait until the process has finished a shard. Returns whether it is still alive."""
    until = time.monotonic() + PATIENCE
    while len(shards(output)) <= before and is_alive(process.pid):
        assert time.monotonic() < until, "no shard was finished"
        time.sleep(0.005)
    return is_alive(process.pid)


def workers_of(process):
    """The ids of the workers of a process; none if it has ended."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = []
    for pid in map(int, children.read_text().split()) if is_alive(process.pid) else ():
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
            found.append(pid)
    return found


def is_alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until_dead(pids):
    until = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)):
        assert time.monotonic() < until, "workers have outlived their parent"
        time.sleep(0.02)


def test_annotate_writes_every_document_once_in_order(model, corpus, expected, tmp_path) -> None:
    seen = []
    output = tmp_path / "out"
    summary = annotate(model, [corpus], output, workers=2, on_progress=seen.append)
    assert records(output) == expected
    assert len(shards(output)) == summary["shards"] == 10
    assert summary["in"] == summary["out"] == 20_000
    assert summary["errors"] == 0
    assert summary["entities"] == sum(len(record["entities"]) for record in expected)
    assert errors(output) == []
    assert json.loads((output / "summary.json").read_text()) == summary
    assert [each.total for each in seen] == [corpus.stat().st_size] * 11
    assert seen[0].documents == 0
    assert seen[-1].size == corpus.stat().st_size
    assert seen[-1].documents == 20_000
    assert seen[-1].words == summary["words"]


def test_annotate_resume_after_kills_matches_nlp_pipe(model, corpus, expected, tmp_path) -> None:
    """At random moments: at the start, while reading, annotating, writing, and on resume."""
    output, settings = tmp_path / "out", Settings(shard_size=20)
    # These processes import less than the command does.
    context = get_context("forkserver")
    context.set_forkserver_preload(["spacy_crf_ner.annotate"])
    rng = random.Random(0)
    kills = 0
    while kills < 10:
        before = len(shards(output))
        process = context.Process(
            target=annotate,
            args=(model, [corpus], output, settings),
            kwargs={"workers": 1 + kills % 2, "resume": True},
        )
        process.start()
        if kills % 4 == 0:
            process.join(rng.uniform(0, 4))
        elif wait_for_progress(process, output, before):
            process.join(rng.uniform(0, 0.2))
        pids = workers_of(process)
        process.kill()
        process.join(PATIENCE)
        wait_until_dead(pids)
        for shard in shards(output):
            number = int(shard.stem.removeprefix("part-"))
            assert read_lines(shard) == expected[20 * number : 20 * number + 20]
        if process.exitcode == -signal.SIGKILL:
            kills += 1
        else:  # it finished before the kill
            assert process.exitcode == 0
            shutil.rmtree(output)
    summary = annotate(model, [corpus], output, settings, workers=2, resume=True)
    assert records(output) == expected
    assert summary["in"] == 20_000
    assert not list(output.rglob("*.tmp"))


@pytest.mark.parametrize(
    "killed, code, says", [("all", 130, "Interrupted"), ("worker", 1, "terminated abruptly")]
)
def test_predict_command_killed_leaves_no_partial_shard_and_resumes(
    killed, code, says, model, corpus, expected, tmp_path
) -> None:
    output = tmp_path / "out"
    process = start(model, corpus, output, "--shard-size", "20")
    assert wait_for_progress(process, output)
    pids = workers_of(process)
    if killed == "all":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    else:
        os.kill(pids[0], signal.SIGKILL)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert says in error and "--resume" in error and "Traceback" not in error
    wait_until_dead(pids)
    assert not list(output.rglob("*.tmp"))
    assert 0 < len(shards(output)) < 1000
    assert run(model, corpus, output, "--shard-size", "20", "--resume")[0] == 0
    assert records(output) == expected


def test_predict_command_counts_bad_records_and_continues(model, tmp_path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    (inputs / "a.jsonl").write_bytes(
        b'{"text": "Hanoi", "n": 1}\n\n{"text": 7}\nrubbish\n{"text": "\xff"}\n'
        b'{"text": "poison \\ud800"}\n{"text": "Oslo", "entities": []}\n{"text": "Lagos"}'
    )
    (inputs / "b.parquet").write_bytes(b"PAR1 rubbish")
    (inputs / "c.txt.gz").write_bytes(gzip.compress(b"Oslo\n\nLagos\n" * 5000)[:-20])
    (inputs / "d.spacy").write_bytes(b"rubbish")
    (inputs / "e.csv").write_text("id,text\n1,Hanoi\n2\n3,Oslo\n")
    (inputs / "README.md").write_text("not data")
    code, out, error = run(model, inputs, tmp_path / "out", "--json")
    assert code == 2, error
    summary = json.loads(out)
    left_out, found = errors(tmp_path / "out"), records(tmp_path / "out")
    assert summary["in"] == summary["out"] + summary["errors"] == len(found) + len(left_out)
    assert summary["blank_lines"] == summary["ignored_files"] == 1
    at = [(Path(each["file"]).name, each["line"]) for each in left_out]
    assert at == [
        *[("a.jsonl", line) for line in (3, 4, 5, 6, 7)],
        *[("b.parquet", None), ("c.txt.gz", None), ("d.spacy", None), ("e.csv", 3)],
    ]
    assert all(each["reason"] for each in left_out) and found[0]["n"] == 1
    first, second, *texts, before, last = (record["text"] for record in found)
    assert (first, second, before, last) == ("Hanoi", "Lagos", "Hanoi", "Oslo")
    assert texts == (["Oslo", "", "Lagos"] * 5000)[: len(texts)] and len(texts) > 1000


@pytest.mark.parametrize("format", ["jsonl", "parquet", "spacy"])
def test_annotate_all_input_formats_match_nlp_pipe_in_each_output_format(
    nlp, model, format, tmp_path
) -> None:
    inputs, texts = tmp_path / "in", TEXTS[:50]
    inputs.mkdir()
    table = pd.DataFrame({"id": range(50), "text": texts})
    table.to_json(inputs / "a.jsonl", orient="records", lines=True)
    table.to_csv(inputs / "b.csv", index=False)
    table.to_parquet(inputs / "c.parquet")
    (inputs / "d.txt").write_text("\n".join(texts) + "\n")
    DocBin(docs=map(nlp.make_doc, texts)).to_disk(inputs / "e.spacy")
    output = tmp_path / "out"
    summary = annotate(model, [inputs], output, Settings(format=format), workers=1)
    expected = [entities(doc) for doc in nlp.pipe(texts)] * 5
    assert summary["out"] == 250
    if format == "jsonl":
        found = [record["entities"] for record in records(output)]
    elif format == "parquet":
        found = [[*map(dict, row)] for shard in shards(output) for row in _entities_of(shard)]
    else:
        docs = [
            doc for shard in shards(output) for doc in DocBin().from_disk(shard).get_docs(nlp.vocab)
        ]
        assert [doc.text for doc in docs] == texts * 5
        found = [entities(doc) for doc in docs]
    assert found == expected


def _entities_of(shard):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(shard)["entities"].to_pylist()


def test_annotate_keep_text_false_reports_table_without_text(model, tmp_path) -> None:
    pd.DataFrame({"id": ["1"], "text": ["Hanoi"]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"id": ["2"], "body": ["Oslo"]}).to_parquet(tmp_path / "b.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    settings = Settings(format="parquet", keep_text=False)
    annotate(model, paths, tmp_path / "out", settings, workers=1)
    assert [row for shard in shards(tmp_path / "out") for row in _entities_of(shard)]
    (error,) = errors(tmp_path / "out")
    assert error["id"] == "2" and "expected a column 'text'" in error["reason"]


def test_annotate_table_without_ids_adds_file_and_row_ids(model, tmp_path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"text": ["Hanoi", "Oslo"], "n": [1, 2]}).to_parquet(path)
    annotate(model, [path], tmp_path / "out", Settings(format="parquet"), workers=1)
    (shard,) = shards(tmp_path / "out")
    table = pd.read_parquet(shard)
    assert [*table["id"]] == [f"{path}:1", f"{path}:2"]
    assert [*table["n"]] == [1, 2]


def test_annotate_error_report_accepts_timestamp_id(model, tmp_path) -> None:
    path = tmp_path / "a.parquet"
    dates = pd.to_datetime(["2020-01-02", "2020-01-03"])
    pd.DataFrame({"id": dates, "text": ["Hanoi", "Oslo"], "entities": [1, 1]}).to_parquet(path)
    annotate(model, [path], tmp_path / "out", workers=1)
    found = [error["id"][:10] for error in errors(tmp_path / "out")]
    assert found == ["2020-01-02", "2020-01-03"]


def test_annotate_broken_model_raises_with_reason(model, corpus, tmp_path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model, broken)
    (broken / "config.cfg").write_text("[nlp]\nlang = 3")
    with pytest.raises((WorkerError, ValueError), match="lang"):
        annotate(str(broken), [corpus], tmp_path / "out", workers=2)
