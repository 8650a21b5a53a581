"""Training by several ranks: processes of this machine that exchange gradients by gloo."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import spacy
import torch
from spacy.cli.train import train as spacy_train
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.util import load_config
from thinc.api import Config
from torch import Tensor, nn

from pipelines import LISTENER, TOK2VEC, add_shared, make_examples
from spacy_crf_ner import data
from spacy_crf_ner.atomic import MACHINE, UNFINISHED
from spacy_crf_ner.cli import app
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.shim import TorchShim
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.seen_texts import hashes_of
from spacy_crf_ner.training import optimizer
from spacy_crf_ner.training.distributed import process_group
from spacy_crf_ner.training.distributed.checkpoint import (
    STATE,
    Progress,
    read_state,
    restore,
    save_state,
)
from spacy_crf_ner.training.distributed.corpus import lockstep, shard
from spacy_crf_ner.training.distributed.loop import Trainer, train
from spacy_crf_ner.training.distributed.process_group import ProcessGroup, choose_gpu, join
from spacy_crf_ner.training.distributed.sync import (
    broadcast_weights,
    get_weights,
    parameters,
    sum_gradients,
)
from spacy_crf_ner.training.optimizer import GroupedAdam

ROOT = Path(__file__).parents[2]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TIMEOUT = 300  # seconds, for what takes some ten

# What each rank writes down of a training: a line before each update.
CODE = """
import hashlib, json, os, signal
from pathlib import Path
from typing import Callable, Optional
from spacy.language import Language
from spacy.util import registry
from spacy_crf_ner.training.distributed.sync import get_weights

RANK = os.environ.get("RANK", "0")
seen, evaluated = [], []

def evaluate(nlp, *args, call=Language.evaluate, **settings):
    evaluated.append(RANK)
    return call(nlp, *args, **settings)

Language.evaluate = evaluate

@registry.callbacks("test.record.v1")
def record(folder: str, kill: Optional[int] = None) -> Callable:
    def before_update(nlp, info):
        if kill == info["step"] and RANK == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if info["step"] == 0 and RANK == "1":
            for tensor in get_weights(nlp).values():
                tensor.add_(1)  # other initial weights, which the broadcast must replace
        digest = hashlib.sha256()
        for name, tensor in get_weights(nlp).items():
            digest.update(name.encode() + tensor.numpy().tobytes())
        line = {**info, "hash": digest.hexdigest(), "batch": seen[-1]}
        line["evaluated"] = len(evaluated)
        with (Path(folder) / f"{RANK}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")
    return before_update

@registry.batchers("test.batches.v1")
def batches(size: int, late: bool = False) -> Callable:
    def batcher(examples):
        examples = list(examples)
        made = [examples[i : i + size] for i in range(0, len(examples), size)]
        if late and RANK == "1":
            made.insert(0, [])  # its first update finds no gradients
        for batch in made:
            seen.append([eg.reference.text for eg in batch])
            yield batch
        seen.append([])
    return batcher
"""


class Job:
    """A training of several ranks, what they wrote, and how each ended.

    Each rank runs the command in a copy of this process, which has imported all that it needs, and
    has its tokenizers; only torchrun starts new ones.
    """

    def __init__(
        self, folder: Path, config: Config, ranks: int = 2, *options: str, **record: Any
    ) -> None:
        self.folder, self.output = folder, folder / "out"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.jsonl"):
            old.unlink()
        (folder / "code.py").write_text(CODE, encoding="utf-8")
        config = config.copy()
        block = {"@callbacks": "test.record.v1", "folder": str(folder), **record}
        config["training"]["before_update"] = block
        config.to_disk(folder / "config.cfg")
        command = ["train", "-", str(self.output), "--config", str(folder / "config.cfg")]
        command += ["--gpu", "-1", "--code", str(folder / "code.py")]
        if "torchrun" in options:
            self._launch(ranks, command)
        else:
            self._fork(ranks, [*command, *options])

    def _launch(self, ranks: int, command: list[str]) -> None:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launched = subprocess.run(
            [sys.executable, *launcher, "-m", "spacy_crf_ner", *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        self.codes = [launched.returncode]
        self.stdout, self.stderr = [launched.stdout], [launched.stderr]

    def _fork(self, ranks: int, command: list[str]) -> None:
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        together["WORLD_SIZE"] = str(ranks)
        own = [{**together, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
        files = [[self.folder / f"{r}.{name}" for name in ("out", "err")] for r in range(ranks)]
        processes = [
            get_context("fork").Process(target=run_rank, args=(command, *each))
            for each in zip(own, files)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT)
        alive = [process for process in processes if process.is_alive()]
        for process in alive:
            process.kill()
        assert not alive
        self.codes = [process.exitcode for process in processes]
        said = [[file.read_text("utf-8") for file in of_rank] for of_rank in files]
        self.stdout, self.stderr = ([one[i] for one in said] for i in (0, 1))

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """What a rank wrote down before each update."""
        lines = (self.folder / f"{rank}.jsonl").read_text("utf-8").splitlines()
        return [json.loads(text) for text in lines]

    def hashes(self, rank: int) -> list[str]:
        """The weights of a rank before each update."""
        return [step["hash"] for step in self.steps(rank)]

    def succeeded(self) -> "Job":
        assert not any(self.codes), (self.codes, self.stdout, self.stderr)
        return self


def run_rank(command: list[str], variables: dict[str, str], files: list[Path]) -> None:
    """Run the command in this process, which a test has forked."""
    os.environ.update(variables)
    out, err = (file.open("w", encoding="utf-8") for file in files)
    with out, err, redirect_stdout(out), redirect_stderr(err):
        app(command)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in get_weights(spacy.load(folder)).items()}


def assert_close(ours: dict[str, Any], theirs: dict[str, Any], atol: float) -> None:
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], atol=atol, rtol=0, err_msg=name)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The English sample corpus."""
    folder = tmp_path_factory.mktemp("docs")
    data.convert(ROOT / "assets" / "sample_en", folder, nlp=spacy.blank("en"))
    return folder


@cache
def train_docs(docs: Path) -> list[Doc]:
    return list(DocBin().from_disk(docs / "train.spacy").get_docs(spacy.blank("en").vocab))


def few(docs: Path, folder: Path, number: int) -> Path:
    """A corpus of the first docs."""
    folder.mkdir(exist_ok=True)
    path = folder / f"few{number}.spacy"
    DocBin(docs=train_docs(docs)[:number]).to_disk(path)
    return path


def small(
    train_path: Path,
    dev_path: Path,
    batches: dict[str, Any],
    *,
    is_calibrated: bool = False,
    **settings: Any,
) -> Config:
    """A config of a small network, whose steps depend on the size of gradients.

    Adam divides by that size, so a mean would do as well as a sum, and noise where gradients
    vanish becomes a step. A large eps keeps both from happening, and clipping hides the first.
    """
    overrides = {
        "paths.train": str(train_path),
        "paths.dev": str(dev_path),
        "components.ner.model.hidden_width": 16,
        "components.ner.model.tok2vec.width": 16,
        "components.ner.model.tok2vec.depth": 1,
        "components.ner.model.tok2vec.embed_size": 200,
        "training.dropout": 0.0,
        "training.max_steps": 6,
        "training.max_epochs": -1,  # docs in their order, as they are in the file
        "training.eval_frequency": 3,
        "training.optimizer.eps": 1.0,
        "training.optimizer.grad_clip": 0.0,
        "training.optimizer.learn_rate.warmup_steps": 0,
        "training.optimizer.learn_rate.total_steps": 20,
        **settings,
    }
    config = load_config(ROOT / "configs" / "cnn.cfg", overrides=overrides, interpolate=False)
    if batches:
        config["training"]["batcher"] = {"@batchers": "test.batches.v1", **batches}
    if not is_calibrated:
        config["training"]["before_to_disk"] = None
    return config


@pytest.fixture(scope="module")
def dev(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return few(docs, tmp_path_factory.mktemp("dev"), 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def straight(docs: Path, dev: Path, folder: Path) -> Job:
    """Seven updates of two ranks, on batches of four docs each."""
    config = small(few(docs, folder, 60), dev, {"size": 4}, is_calibrated=True)
    return Job(folder / "straight", config).succeeded()


@pytest.fixture(scope="module")
def one_process(docs: Path, dev: Path, folder: Path) -> Path:
    return train_alone(docs, dev, folder, "one")


def train_alone(docs: Path, dev: Path, folder: Path, name: str, **settings: Any) -> Path:
    """Seven updates by `spacy train`, on batches of eight docs."""
    (folder / "code.py").write_text(CODE, encoding="utf-8")
    spacy.util.import_file("code_of_distributed", folder / "code.py")
    small(few(docs, folder, 60), dev, {"size": 8}, **settings).to_disk(folder / f"{name}.cfg")
    spacy_train(folder / f"{name}.cfg", folder / name)
    return folder / name / "model-last"


# Two epochs of ten docs, one a batch, shuffled; rank 1 begins with an empty batch.
UNEVEN = {"training.max_epochs": 2, "training.max_steps": 0}


@pytest.fixture(scope="module")
def uneven(docs: Path, dev: Path, folder: Path) -> Job:
    config = small(few(docs, folder, 10), dev, {"size": 1, "late": True}, **UNEVEN)
    return Job(folder / "uneven", config).succeeded()


@pytest.fixture(scope="module")
def killed(docs: Path, dev: Path, folder: Path) -> Job:
    """The same, but rank 1 is killed in the second epoch, when eight updates are done."""
    config = small(few(docs, folder, 10), dev, {"size": 1, "late": True}, **UNEVEN)
    return Job(folder / "killed", config, kill=8)


@pytest.fixture(scope="module")
def stopped(docs: Path, dev: Path, folder: Path) -> Job:
    """A training that learns nothing, and loses patience; started by torchrun."""
    stop = {"training.patience": 4, "training.max_steps": 1000, "training.eval_frequency": 2}
    config = small(few(docs, folder, 60), dev, {"size": 2}, **stop)
    config["training"]["optimizer"]["learn_rate"] = 0.0
    return Job(folder / "stopped", config, 2, "torchrun").succeeded()


# Two processes


def test_rank_0_knows_the_texts_of_the_share_of_another(
    docs: Path, dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that the other rank has read before the training was resumed."""
    config = small(few(docs, tmp_path, 10), dev, {}, **{"training.max_epochs": 0})
    nlp = init_nlp(config)
    monkeypatch.setattr(ProcessGroup, "any", lambda self, flag: flag)
    epoch, batch = next(Trainer(nlp, ProcessGroup(0, 2))._batches())
    assert epoch == 0 and 0 < len(batch) <= 5
    found = recognizer(nlp).seen_texts.known().train
    assert found == hashes_of(doc.text for doc in train_docs(docs)[:10])


def test_ranks_have_the_same_weights_bit_by_bit(straight: Job) -> None:
    hashes = [straight.hashes(rank) for rank in (0, 1)]
    assert hashes[0][1:] == hashes[1][1:] and len(set(hashes[0])) == 7


def test_two_ranks_match_one_process_with_double_batch(straight: Job, one_process: Path) -> None:
    assert_close(weights(straight.output / "model-last"), weights(one_process), 1e-5)
    batches = zip(straight.steps(0), straight.steps(1))
    assert all(len(a["batch"]) == len(b["batch"]) == 4 for a, b in batches)


def test_only_rank_0_evaluates_logs_and_writes(straight: Job) -> None:
    assert [straight.steps(rank)[-1]["evaluated"] for rank in (0, 1)] == [2, 0]
    assert straight.stdout[0].count("model-best") == 1 and "LOSS" in straight.stdout[0]
    assert straight.stdout[1] == ""
    assert {path.name for path in straight.output.iterdir()} == {"model-best", "model-last", STATE}


def test_pipeline_trained_by_ranks_knows_the_texts_of_all(
    straight: Job, docs: Path, dev: Path
) -> None:
    """The corpus is a stream, of which each rank reads a part."""
    nlp = spacy.load(straight.output / "model-last")
    is_complete, train_texts, dev_texts = recognizer(nlp).seen_texts.known()
    batches = [step["batch"] for rank in (0, 1) for step in straight.steps(rank)]
    used = {text for batch in batches for text in batch}
    assert len(used) >= 56 and is_complete and train_texts >= hashes_of(used)
    assert dev_texts == hashes_of(doc.text for doc in train_docs(docs)[:10])


@pytest.mark.slow
def test_rank_without_gradients_keeps_weights_equal_to_other_ranks(uneven: Job) -> None:
    """In its first update, rank 1 has none at all; in the last of an epoch, rank 0 has no docs."""
    assert uneven.steps(1)[0]["batch"] == []
    hashes = [uneven.hashes(rank) for rank in (0, 1)]
    assert hashes[0][1:] == hashes[1][1:] and len(set(hashes[0])) == len(hashes[0])


@pytest.mark.slow
def test_uneven_ranks_read_each_doc_once_per_epoch_and_stop_together(
    uneven: Job, folder: Path
) -> None:
    vocab = spacy.blank("en").vocab
    all_docs = [doc.text for doc in DocBin().from_disk(folder / "few10.spacy").get_docs(vocab)]
    steps = [uneven.steps(rank) for rank in (0, 1)]
    assert [step["epoch"] for step in steps[0]] == [step["epoch"] for step in steps[1]]
    for epoch in (0, 1):
        own = [step for rank in (0, 1) for step in steps[rank] if step["epoch"] == epoch]
        assert Counter(text for step in own for text in step["batch"]) == Counter(all_docs)
    orders = [[s["batch"] for s in steps[1] if s["epoch"] == epoch] for epoch in (0, 1)]
    assert len(steps[0]) == 12 and orders[0] != orders[1]


@pytest.mark.slow
def test_patience_ends_all_ranks_at_one_step(stopped: Job) -> None:
    # Evaluated at 0, 2 and 4, with one score: at step 4 the best one is four updates old.
    assert [len(stopped.steps(rank)) for rank in (0, 1)] == [5, 5]
    rows = [row.split()[:2] for row in stopped.stdout[0].splitlines()]
    assert [row for row in rows if row[1:] in (["0"], ["2"], ["4"])] == [
        ["0", "0"],
        ["0", "2"],
        ["0", "4"],
    ]


@pytest.mark.slow
def test_killed_rank_stops_other_ranks_with_error_message(killed: Job) -> None:
    assert killed.codes[1] == -signal.SIGKILL and killed.codes[0] not in (0, None)
    message = "Rank 0: expected an answer from all 2 ranks, got "
    assert killed.stderr[0].count(message) == 1 and "--resume" in killed.stderr[0]
    assert "Traceback" not in killed.stderr[0]
    assert {path.name for path in killed.output.iterdir()} == {"model-best", "model-last", STATE}


@pytest.mark.slow
def test_resumed_ranks_match_uninterrupted_training(uneven: Job, killed: Job) -> None:
    config = load_config(killed.folder / "config.cfg", interpolate=False)
    resumed = Job(killed.folder, config, 2, "--resume").succeeded()
    for rank in (0, 1):
        ours, theirs = resumed.steps(rank), uneven.steps(rank)[8:]
        for name in ("batch", "step", "epoch"):
            assert [step[name] for step in ours] == [step[name] for step in theirs]
        assert resumed.hashes(rank)[1:] == uneven.hashes(rank)[9:]
    assert_close(*(weights(job.output / "model-last") for job in (uneven, resumed)), 0.0)
    # The best pipeline and the scores for early stopping come from the checkpoint.
    meta = [spacy.load(job.output / "model-best").meta["performance"] for job in (uneven, resumed)]
    assert meta[0]["ents_f"] == meta[1]["ents_f"]
    states = [torch.load(job.output / STATE)["progress"] for job in (uneven, resumed)]
    assert states[0] == states[1] and states[0]["steps"] == 12


# One process


@pytest.mark.parametrize("averages", [pytest.param(False, marks=pytest.mark.slow), True])
def test_single_process_training_matches_spacy_train_bitwise(
    averages: bool, docs: Path, dev: Path, tmp_path: Path
) -> None:
    """Also with dropout, shuffled docs, accumulated gradients and an end by patience."""
    settings = {
        "training.dropout": 0.2,
        "training.max_epochs": 0,
        "training.max_steps": 1000,
        "training.patience": 2,
        "training.eval_frequency": 1,
        "training.accumulate_gradient": 2,
        "training.optimizer.use_averages": averages,
    }
    config = small(few(docs, tmp_path, 20), dev, {}, is_calibrated=True, **settings)
    config.to_disk(tmp_path / "config.cfg")
    spacy_train(tmp_path / "config.cfg", tmp_path / "theirs")
    saved = train(config, tmp_path / "folder" / "ours")
    assert saved == tmp_path / "folder" / "ours" / "model-last"
    for name in ("model-best", "model-last"):
        ours, theirs = tmp_path / "folder" / "ours" / name, tmp_path / "theirs" / name
        assert_close(weights(ours), weights(theirs), 0.0)
        meta = [spacy.load(path).meta["performance"] for path in (ours, theirs)]
        assert meta[0] == meta[1]


def assert_alike(folder: Path) -> None:
    assert_close(*(weights(folder / name / "model-last") for name in ("parts", "whole")), 0.0)


def assert_resumes(config: Config, folder: Path) -> None:
    """Train at once, and in two parts, which give the same weights."""
    train(config, folder / "whole")
    config["training"]["max_steps"] = 2
    train(config, folder / "parts")
    config["training"]["max_steps"] = 6
    train(config, folder / "parts", resume=True)
    assert_alike(folder)


@pytest.mark.parametrize("averages", [pytest.param(False, marks=pytest.mark.slow), True])
def test_single_process_resume_matches_uninterrupted_training(
    averages: bool, docs: Path, dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are done again do not count for the warning of a group without parameters."""
    monkeypatch.setattr(optimizer, "STEPS_TO_MATCH", 3)
    settings = {"training.max_epochs": 0, "training.optimizer.use_averages": averages}
    config = small(few(docs, tmp_path, 20), dev, {}, **settings)
    config["training"]["optimizer"]["groups"] = {"head": {"names": "projection"}}
    config["training"]["batcher"]["size"] = 100
    assert_resumes(config, tmp_path)
    train(config, tmp_path / "parts", resume=True)  # there is nothing left to do
    assert_alike(tmp_path)
    results = [read_state(tmp_path / name)["progress"] for name in ("whole", "parts")]
    assert results[0] == results[1]


def test_resume_with_another_evaluation_frequency_keeps_what_was_learned(
    docs: Path, dev: Path, tmp_path: Path
) -> None:
    """Steps that are done are not evaluated by the new one: the weights are those of the start."""
    config = small(few(docs, tmp_path, 20), dev, {}, **{"training.max_epochs": 0})
    config["training"]["batcher"]["size"] = 100
    train(config, tmp_path / "whole")
    config["training"]["max_steps"] = 4
    train(config, tmp_path / "parts")
    before = read_state(tmp_path / "parts")["progress"]["results"]
    config["training"] |= {"max_steps": 6, "eval_frequency": 2}
    train(config, tmp_path / "parts", resume=True)
    results = read_state(tmp_path / "parts")["progress"]["results"]
    assert [step for _, step in results] == [0, 3, 4, 6] and results[:2] == before
    assert_alike(tmp_path)


def interrupted(config: Config, output: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until an evaluation that fails, the first one or a later one."""
    with monkeypatch.context() as patch:
        calls = iter(range(100))
        evaluate = spacy.language.Language.evaluate

        def failing(*args: Any, **settings: Any) -> Any:
            if next(calls) == at:
                raise MemoryError
            return evaluate(*args, **settings)

        patch.setattr(spacy.language.Language, "evaluate", failing)
        with pytest.raises(MemoryError):
            train(config, output)


@pytest.mark.slow
@pytest.mark.parametrize(
    "max_epochs, ends", [(0, (0, 1)), (0, (2,)), pytest.param(1, (2,), marks=pytest.mark.slow)]
)
def test_resume_repeats_interrupted_evaluation(
    max_epochs: int,
    ends: tuple[int, ...],
    docs: Path,
    dev: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one, one between, and the one after the last step, by either limit."""
    limits = {"training.max_epochs": max_epochs, "training.max_steps": 0 if max_epochs else 6}
    config = small(few(docs, tmp_path, 21), dev, {}, **limits)
    batcher = {"@batchers": "spacy.batch_by_sequence.v1", "size": 3}  # seven steps in an epoch
    config["training"]["batcher"] = batcher
    train(config, tmp_path / "whole")
    for at in ends:
        parts = tmp_path / f"{at}"
        interrupted(config, parts, at, monkeypatch)
        train(config, parts, resume=True)
        results = [read_state(folder)["progress"] for folder in (tmp_path / "whole", parts)]
        assert results[0] == results[1] and len(results[0]["results"]) == 3
        for name in ("model-best", "model-last"):
            assert_close(weights(parts / name), weights(tmp_path / "whole" / name), 0.0)


@pytest.mark.slow
def test_resume_with_spacy_ner_restores_random_state(
    docs: Path, dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spaCy's ner draws a number in each step, another one each time."""
    config = small(few(docs, tmp_path, 6), dev, {}, **{"training.max_epochs": 0})
    config["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 2}
    config["components"]["ner"] = {"factory": "ner"}
    drawn: list[float] = []
    update = spacy.language.Language.update

    def drawing(*args: Any, **settings: Any) -> Any:
        drawn.append(random.random())
        return update(*args, **settings)

    monkeypatch.setattr(spacy.language.Language, "update", drawing)
    train(config, tmp_path / "whole")
    whole = [*drawn]
    assert len(set(whole)) == len(whole) == 7
    drawn.clear()
    config["training"]["max_steps"] = 4
    train(config, tmp_path / "parts")
    config["training"]["max_steps"] = 6
    train(config, tmp_path / "parts", resume=True)
    assert drawn == whole


@pytest.mark.parametrize("labels", [pytest.param([], marks=pytest.mark.slow), ["NEW"]])
def test_resume_with_rehearsal_matches_uninterrupted_training(
    labels: list[str], docs: Path, dev: Path, tmp_path: Path
) -> None:
    """With the docs that are next, and with gradients at the weights of the checkpoint."""
    settings = {"training.max_epochs": 0}
    some = few(docs, tmp_path, 20)
    old = train(small(some, dev, {}, **settings, **{"training.max_steps": 1}), tmp_path / "old")
    config = small(dev, dev, {}, **settings)
    config["training"]["batcher"]["size"] = 50
    config["components"]["ner"] = {"source": str(old)}
    rehearsed = {"path": str(some), "component": "ner", "labels": labels, "batch_size": 3}
    config["training"]["before_update"] = {
        "@callbacks": "spacy-crf-ner.rehearse.v1",
        **rehearsed,
    }
    assert_resumes(config, tmp_path)


# Labels that were added


def with_added_labels(docs: Path, dev: Path, folder: Path) -> Config:
    """A config that adds three labels; the second and the fourth doc have one of them each."""
    old = train(small(dev, dev, {}, **{"training.max_steps": 1}), folder / "old")
    nlp = spacy.blank("en")
    drug = [(4, 9, "DRUG")], [(4, 9, "PLANT")]
    texts = [("Ada.", []), ("The Xanax.", drug[0]), ("Bob.", []), ("The Basil.", drug[1])]
    own = [eg.reference for eg in make_examples(nlp, texts)]
    DocBin(docs=own).to_disk(folder / "own.spacy")
    config = small(folder / "own.spacy", dev, {"size": 1}, **{"training.eval_frequency": 10})
    config["components"]["ner"] = {"source": str(old)}
    config["initialize"]["after_init"] = {
        "@callbacks": "spacy-crf-ner.add_labels.v1",
        "labels": ["DRUG", "PLANT", "OTHER"],
    }
    return config


def added_and_enabled(folder: Path) -> set[str]:
    return {"DRUG", "PLANT", "OTHER"} & {*recognizer(spacy.load(folder)).enabled_labels}


def test_rank_0_enables_labels_that_another_rank_has_trained_on(
    docs: Path, dev: Path, tmp_path: Path
) -> None:
    """One before an evaluation, and one after the last."""
    config = with_added_labels(docs, dev, tmp_path)
    config["training"]["max_steps"] = 1
    (tmp_path / "code.py").write_text(CODE, encoding="utf-8")
    spacy.util.import_file("code_of_distributed", tmp_path / "code.py")
    pipelines = [init_nlp(config) for _ in range(2)]

    def run(group: ProcessGroup) -> None:
        output = tmp_path / "out" if group.rank == 0 else None
        Trainer(pipelines[group.rank], group, output).run()

    assert together(run) == [None, None]
    enabled = [added_and_enabled(tmp_path / "out" / name) for name in ("model-best", "model-last")]
    assert enabled == [{"DRUG"}, {"DRUG", "PLANT"}]


def test_resume_keeps_labels_enabled_that_were_trained_before(
    docs: Path, dev: Path, tmp_path: Path
) -> None:
    config = with_added_labels(docs, dev, tmp_path)
    config["training"]["max_steps"] = 1
    config["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 1}
    train(config, tmp_path / "out")
    assert added_and_enabled(tmp_path / "out" / "model-last") == {"DRUG"}
    config["training"]["max_steps"] = 2
    train(config, tmp_path / "out", resume=True)
    assert added_and_enabled(tmp_path / "out" / "model-last") == {"DRUG"}


def test_resume_of_stream_by_fewer_ranks_keeps_texts_that_were_read_before(
    docs: Path, dev: Path, tmp_path: Path
) -> None:
    """One rank begins with the first doc again, and ends before those that two have read."""
    config = small(few(docs, tmp_path, 10), dev, {}, **{"training.max_steps": 3})
    config["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 1}
    pipelines, output = [init_nlp(config) for _ in range(2)], tmp_path / "out"

    def run(group: ProcessGroup) -> None:
        Trainer(pipelines[group.rank], group, None if group.rank else output).run()

    def known() -> tuple[bool, set[int], set[int]]:
        return recognizer(spacy.load(output / "model-last")).seen_texts.known()

    assert together(run) == [None, None]
    is_complete, train_texts, dev_texts = known()
    assert is_complete and train_texts >= hashes_of(doc.text for doc in train_docs(docs)[:8])
    config["training"]["max_steps"] = 4
    train(config, output, resume=True)
    assert known() == (True, train_texts, dev_texts)


# Gradients: ranks that are threads of this process


class ThreadGroup(ProcessGroup):
    """A rank that exchanges tensors with the other threads of a process."""

    def __init__(self, rank: int, size: int, values: list[Any], barrier: Any) -> None:
        super().__init__(rank, size)
        self.values, self.barrier = values, barrier

    def _collective(self, call: Callable[..., Any], *args: Any) -> None:
        self.values[self.rank] = args[0]
        self.barrier.wait()
        total = None if isinstance(args[0], list) else torch.stack(self.values).sum(0)
        first = self.values[0]
        self.barrier.wait()
        if total is None:
            args[0][:] = first
        else:
            args[0].copy_(total)
        self.barrier.wait()

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait()
        found = [*self.values]
        self.barrier.wait()
        return found


def together(call: Callable[[ProcessGroup], Any], size: int = 2) -> list[Any]:
    """Call a function in each rank; returns its results, or raises the error of a rank."""
    values: list[Any] = [None] * size
    results: list[Any] = [None] * size
    barrier = threading.Barrier(size, timeout=60)

    def run(rank: int) -> None:
        try:
            results[rank] = call(ThreadGroup(rank, size, values, barrier))
        except BaseException as error:
            results[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def small_pipeline(width: int = 8) -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": width, "tok2vec": TOK2VEC}})
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def transformer_pipeline(folder: str) -> Any:
    """A CRF over a transformer without dropout, whose words have a sparse gradient."""
    nlp = spacy.blank("en")
    spans = {"@misc": "spacy-crf-ner.strided_spans.v1", "window": 8, "stride": 6}
    add_shared(nlp, folder, get_spans=spans, transformer_config=NO_DROPOUT)
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": LISTENER}})
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def gradients(nlp: Any) -> dict[str, Tensor | None]:
    found = {p.name: p.gradient for p in parameters(nlp)}
    return {name: None if d is None else d.to_dense().clone() for name, d in found.items()}


def accumulate(nlp: Any, parts: Iterable[slice]) -> Any:
    """Add the gradients of parts of the sentences."""
    for part in parts:
        nlp.update(make_examples(nlp)[part], sgd=False)
    return nlp


@contextmanager
def scaling_gradients() -> Iterator[None]:
    """Train as in float16, on a GPU; the arithmetic is in float32."""
    with (
        patch.object(TorchShim, "dtype_in_training", "fp16"),
        patch.object(TorchShim, "_autocast", lambda shim: nullcontext()),
    ):
        yield


@pytest.mark.parametrize("transformer", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_sum_gradients_of_accumulated_parts_matches_whole_batch(
    transformer: bool, scaled: bool, tiny_transformer: str
) -> None:
    def make() -> Any:
        return transformer_pipeline(tiny_transformer) if transformer else small_pipeline()

    whole = gradients(accumulate(make(), [slice(None)]))
    whole = {name: d for name, d in whole.items() if d is not None}
    parts = [[slice(0, 1), slice(1, 4)], [slice(4, 5), slice(5, None)]]
    nlps = [make(), make()]
    with scaling_gradients() if scaled else nullcontext():
        for nlp, own in zip(nlps, parts):
            accumulate(nlp, own)
    together(lambda group: sum_gradients(nlps[group.rank], group))
    sums = [{name: d for name, d in gradients(nlp).items() if d is not None} for nlp in nlps]
    assert_close(sums[0], whole, 1e-4 if transformer else 1e-5)
    assert_close(sums[0], sums[1], 0.0)
    learned = []
    for nlp in nlps:
        for _, pipe in nlp.pipeline:
            pipe.finish_update(GroupedAdam())
        learned.append(get_weights(nlp))
    assert_close(learned[0], learned[1], 0.0)


def test_sum_gradients_with_missing_gradients_adds_zeros_or_keeps_none() -> None:
    nlps = [accumulate(small_pipeline(), [slice(None)]), small_pipeline()]
    unused = next(p for p in parameters(nlps[0]) if isinstance(p.owner, nn.Parameter))
    unused.owner.grad = None
    alone = gradients(nlps[0])
    assert [name for name, d in alone.items() if d is None] == [unused.name]
    together(lambda group: sum_gradients(nlps[group.rank], group))
    for nlp in nlps:
        found = gradients(nlp)
        assert found.pop(unused.name) is None
        assert all(d is not None and torch.equal(d, alone[name]) for name, d in found.items())


def test_rank_whose_gradients_overflow_adds_zeros() -> None:
    nlps = [small_pipeline() for _ in range(2)]
    heads = [nlp.get_pipe("crf_ner").model.get_ref("output_layer").shims[0] for nlp in nlps]
    next(heads[1].module.parameters()).register_hook(lambda d: d * float("inf"))
    with scaling_gradients():
        for nlp in nlps:
            accumulate(nlp, [slice(None)])
    assert heads[1].loss_scale.value == heads[0].loss_scale.value / 2
    alone = gradients(nlps[0])
    together(lambda group: sum_gradients(nlps[group.rank], group))
    for nlp in nlps:
        for name, gradient in gradients(nlp).items():
            assert gradient is not None and gradient.any(), name
            assert torch.equal(gradient, alone[name]), name


def test_broadcast_weights_with_other_shapes_raises() -> None:
    nlps = [small_pipeline(), small_pipeline(width=9)]
    results = together(lambda group: broadcast_weights(nlps[group.rank], group))
    assert isinstance(results[1], InputError)
    assert "expected weights of shape" in str(results[1])


def test_parameters_have_equal_unique_names_across_pipelines() -> None:
    first, second = small_pipeline(), small_pipeline()
    names = [[p.name for p in parameters(nlp)] for nlp in (first, second)]
    assert names[0] == names[1] and len(set(names[0])) == len(names[0]) > 10
    assert not {p.key for p in parameters(first)} & {p.key for p in parameters(second)}


def test_parameters_returns_all_weights_with_equal_keys() -> None:
    """As in a transformer of spacy-transformers and its copy; shared weights are found once."""
    nlp = small_pipeline()
    number = len(parameters(nlp))
    for name in ("copied", "shared"):
        pipe: Any = nlp.add_pipe("crf_ner", name=name)
        pipe.model = nlp.get_pipe("crf_ner").model
    assert len(parameters(nlp)) == number
    copied: Any = nlp.get_pipe("copied")
    copied.model = copied.model.copy()
    pairs = zip(copied.model.walk(), nlp.get_pipe("crf_ner").model.walk())
    for shim, other in ((a, b) for one, two in pairs for a, b in zip(one.shims, two.shims)):
        shim.id = other.id
    found = parameters(nlp)
    assert len(found) == 2 * number and len({p.name for p in found}) == 2 * number


# Shares of a corpus


@pytest.mark.parametrize("number, size", [(7, 3), (6, 3), (2, 2)])
def test_shard_splits_corpus_by_rank(number: int, size: int, docs: Path, tmp_path: Path) -> None:
    corpus, nlp = Corpus(few(docs, tmp_path, number)), spacy.blank("en")
    whole = [eg.text for eg in corpus(nlp)]
    groups = [ProcessGroup(rank, size) for rank in range(size)]
    shares = [[eg.text for eg in shard(corpus, group)(nlp)] for group in groups]
    assert shares == [whole[rank::size] for rank in range(size)]
    assert len(whole) == number


def test_shard_with_fewer_docs_than_ranks_raises_in_each_rank(docs: Path, tmp_path: Path) -> None:
    corpus = Corpus(few(docs, tmp_path, 2))
    for rank in range(3):
        with pytest.raises(InputError, match="one example for each of 3 processes, got 2"):
            list(shard(corpus, ProcessGroup(rank, 3))(spacy.blank("en")))


def test_lockstep_returns_empty_batches_to_exhausted_ranks() -> None:
    def batcher(examples: Iterable[int]) -> Iterable[list[int]]:
        return ([eg] for eg in examples)

    shares = [[1, 2, 3], [4], []]
    batches = together(
        lambda group: list(lockstep(batcher, group)(shares[group.rank])),  # type: ignore
        size=3,
    )
    assert batches == [[[1], [2], [3]], [[4], [], []], [[], [], []]]


# Checkpoints


def test_restore_into_pipeline_with_other_shapes_raises(tmp_path: Path) -> None:
    nlp, optimizer = small_pipeline(), GroupedAdam()
    nlp.update(make_examples(nlp), sgd=optimizer)
    save_state(nlp, optimizer, Progress(1), tmp_path)
    state = torch.load(tmp_path / STATE, weights_only=True)
    restore(small_pipeline(), GroupedAdam(), state)
    with pytest.raises(InputError, match="expected weights of shape"):
        restore(small_pipeline(width=9), GroupedAdam(), state)


@pytest.mark.parametrize("is_given", [False, True])
def test_train_resume_without_state_file_raises(is_given: bool, dev: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"a file {STATE} in the output folder, got none"):
        train(small(dev, dev, {}), str(tmp_path) if is_given else None, resume=True)


def test_train_replaces_old_files_in_output_folder(dev: Path, tmp_path: Path) -> None:
    killed = f"model-last.{MACHINE}.{2**30}.1{UNFINISHED}"
    for path in (tmp_path / "model-best" / "old", tmp_path / killed / "old"):
        path.mkdir(parents=True)
    (tmp_path / STATE).write_text("of another pipeline")
    train(small(dev, dev, {}, **{"training.max_steps": 1}), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model-best", "model-last", STATE}
    assert not (tmp_path / "model-best" / "old").exists()


# The command


def test_each_process_takes_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = [True]
    monkeypatch.setattr(process_group, "can_use_gpu", lambda: usable[0])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose_gpu("auto") == 1 and choose_gpu("-1") == choose_gpu(-1) == -1
    with pytest.raises(InputError, match=r"expected auto or -1, got 0\. Each process of torchrun"):
        choose_gpu("0")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="number 2, got a machine with 2"):
        choose_gpu()
    # A launcher shows each process its own GPU alone.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert choose_gpu() == 0
    # Processes of torchrun see the same GPUs.
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(InputError, match="number 1, got a machine with 1"):
        choose_gpu()
    usable[0] = False
    assert choose_gpu() == -1
    # One process alone can use any.
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert choose_gpu("3") == 3
    with pytest.raises(InputError, match="expected auto, a number, or -1 for the CPU, got cuda"):
        choose_gpu("cuda")


def test_process_joins_with_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(process_group, "use_gpu", taken.append)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join().gpu_id == -1 and not taken
    assert join(1).gpu_id == 1 and taken == [1, 1]
