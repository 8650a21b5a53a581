"""Training by several ranks: processes of this machine, which exchange what they know by gloo."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import pytest
import spacy
import torch
from pipelines import TOK2VEC, make_examples
from spacy.cli.train import train
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import DocBin
from spacy.util import load_config, load_model_from_config, registry
from thinc.api import Config
from typer.testing import CliRunner

from spacy_crf_ner import data
from spacy_crf_ner.cli import app
from spacy_crf_ner.training.distributed import corpus as corpus_room
from spacy_crf_ner.training.distributed import optimizer as optimizer_room
from spacy_crf_ner.training.distributed import state as run_room
from spacy_crf_ner.training.distributed.checkpoint import OPTIMIZER
from spacy_crf_ner.training.distributed.config import spread
from spacy_crf_ner.training.distributed.optimizer import DistributedAdam, distributed_adam
from spacy_crf_ner.training.distributed.parameters import parameters, tensors
from spacy_crf_ner.training.distributed.process_group import Ranks
from spacy_crf_ner.training.init_config import init_config

ROOT = Path(__file__).parents[2]
OVERLAY = ROOT / "configs" / "distributed.cfg"
TIMEOUT = 120  # seconds, for what takes some ten

# What a training says of itself, for these tests: a line before each update of each rank.
CODE = """
import hashlib, json, os, signal
from pathlib import Path
from typing import Any, Callable, List, Optional
import torch.distributed
from spacy.language import Language
from spacy.util import registry
from spacy_crf_ner.distributed.parameters import tensors

RANK = os.environ.get("RANK", "0")
seen, calls, evaluated = [], [], []
for name in ("all_reduce", "broadcast"):
    def counted(*args, call=getattr(torch.distributed, name), **settings):
        calls.append(name)
        return call(*args, **settings)
    setattr(torch.distributed, name, counted)

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
            for _, tensor in tensors(nlp):
                tensor.add_(1)  # what it begins with is not what it learns from
        digest = hashlib.sha256()
        for name, tensor in tensors(nlp):
            digest.update(name.encode() + tensor.numpy().tobytes())
        line = {**info, "hash": digest.hexdigest(), "calls": len(calls), "batch": seen[-1]}
        line["evaluated"] = len(evaluated)
        with (Path(folder) / f"{RANK}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")
    return before_update

@registry.batchers("test.batches.v1")
def batches(size: int, skip: int = 0, late: bool = False) -> Callable:
    def batcher(examples):
        examples = list(examples)
        made = [examples[i : i + size] for i in range(0, len(examples), size)][skip:]
        if late and RANK == "1":
            made.insert(0, [])  # its first update finds no gradients
        for batch in made:
            seen.append([eg.reference.text for eg in batch])
            yield batch
        seen.append([])
    return batcher
"""


def line(text: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads(text)
    return found


class Job:
    """A training of several ranks, what they said, and how each ended."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        ranks: int = 2,
        *,
        torchrun: bool = False,
        kill: Optional[int] = None,
    ) -> None:
        self.folder, self.output = folder, folder / "out"
        self.output.mkdir(parents=True)
        (folder / "code.py").write_text(CODE, encoding="utf-8")
        block = {"@callbacks": "test.record.v1", "folder": str(folder), "kill": kill}
        config = config.copy()
        config["training"]["before_update"]["then"] = block
        config.to_disk(folder / "config.cfg")
        train_it = [
            "-m",
            "spacy",
            "train",
            str(folder / "config.cfg"),
            "--output",
            str(self.output),
        ]
        command = [sys.executable, *train_it, "--code", str(folder / "code.py")]
        if torchrun:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            self._run([[command[0], *launcher, *command[1:]]], [{}])
        else:
            together = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
            own = [{**together, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
            self._run([command] * ranks, own)

    def _run(self, commands: List[List[str]], variables: List[Dict[str, str]]) -> None:
        common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
        piped: Dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = []
        try:
            for command, own in zip(commands, variables):
                processes.append(subprocess.Popen(command, env={**common, **own}, **piped))
            said = [process.communicate(timeout=TIMEOUT) for process in processes]
        finally:
            for process in processes:
                process.kill()
        self.codes = [process.returncode for process in processes]
        self.stdout, self.stderr = ([one[i] for one in said] for i in (0, 1))

    def steps(self, rank: int) -> List[Dict[str, Any]]:
        """What a rank wrote down before each update."""
        lines = (self.folder / f"{rank}.jsonl").read_text("utf-8").splitlines()
        return [line(text) for text in lines]

    def ended_well(self) -> "Job":
        assert not any(self.codes), (self.codes, self.stdout, self.stderr)
        return self


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def weights(folder: Path) -> Dict[str, np.ndarray]:
    nlp = spacy.load(folder)
    return {p.name: p.tensor.numpy().copy() for p in parameters(nlp).values()}


def assert_close(ours: Dict[str, np.ndarray], theirs: Dict[str, np.ndarray], atol: float) -> None:
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], atol=atol, rtol=0, err_msg=name)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The English sample corpus."""
    folder = tmp_path_factory.mktemp("docs")
    data.convert(ROOT / "assets" / "sample_en", folder, nlp=spacy.blank("en"))
    return folder


def few(docs: Path, folder: Path, number: int) -> Path:
    """A corpus of the first docs."""
    folder.mkdir(exist_ok=True)
    found = list(DocBin().from_disk(docs / "train.spacy").get_docs(spacy.blank("en").vocab))
    path = folder / f"few{number}.spacy"
    DocBin(docs=found[:number]).to_disk(path)
    return path


def plain(train_path: Path, dev_path: Path, batches: Dict[str, Any], **settings: Any) -> Config:
    """A config for one process, of a small network, whose steps depend on the size of gradients.

    Adam divides by that size, so that a mean would do as well as a sum, and noise where gradients
    vanish becomes a step. A large eps keeps both from happening, and clipping hides the first.
    """
    overrides = {
        "paths.train": str(train_path),
        "paths.dev": str(dev_path),
        "components.ner.model.hidden_width": 16,
        "components.ner.model.learn_rate_multiplier": 2.0,
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
    config["training"]["batcher"] = {"@batchers": "test.batches.v1", **batches}
    return config


def several(*args: Any, **settings: Any) -> Config:
    return spread(plain(*args, **settings), load_config(OVERLAY))


@pytest.fixture(scope="module")
def dev(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return few(docs, tmp_path_factory.mktemp("dev"), 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def straight(docs: Path, dev: Path, folder: Path) -> Job:
    """Seven updates of two ranks, on batches of four docs each."""
    config = several(few(docs, folder, 60), dev, {"size": 4})
    return Job(folder / "straight", config).ended_well()


@pytest.fixture(scope="module")
def killed(docs: Path, dev: Path, folder: Path) -> Job:
    """The same, but rank 1 is killed when three updates are done."""
    config = several(few(docs, folder, 60), dev, {"size": 4})
    return Job(folder / "killed", config, kill=3)


@pytest.fixture(scope="module")
def resumed(docs: Path, dev: Path, folder: Path, killed: Job) -> Job:
    """The rest of it: four updates, on the batches that are left."""
    settings = {"size": 4, "skip": 3}
    config = several(few(docs, folder, 60), dev, settings, **{"training.max_steps": 3})
    config["training"]["before_update"]["resume"] = str(killed.output / "model-last")
    return Job(folder / "resumed", config).ended_well()


@pytest.fixture(scope="module")
def uneven(docs: Path, dev: Path, folder: Path) -> Job:
    """Two epochs of ten docs, one a batch; rank 1 begins with an empty one, and has one more."""
    stop = {"training.max_epochs": 2, "training.max_steps": 0}
    config = several(few(docs, folder, 10), dev, {"size": 1, "late": True}, **stop)
    return Job(folder / "uneven", config).ended_well()


@pytest.fixture(scope="module")
def stopped(docs: Path, dev: Path, folder: Path) -> Job:
    """A training that learns nothing, and loses patience; started by torchrun."""
    stop = {"training.patience": 4, "training.max_steps": 1000, "training.eval_frequency": 2}
    config = several(few(docs, folder, 60), dev, {"size": 2}, **stop)
    config["training"]["optimizer"]["learn_rate"] = 0.0
    return Job(folder / "stopped", config, torchrun=True).ended_well()


# The weights of ranks


@pytest.mark.slow
def test_ranks_have_the_same_weights_bit_by_bit(straight: Job) -> None:
    hashes = [[step["hash"] for step in straight.steps(rank)] for rank in (0, 1)]
    assert hashes[0][1:] == hashes[1][1:] and len(set(hashes[0])) == 7


@pytest.fixture(scope="module")
def one_process(docs: Path, dev: Path, folder: Path, straight: Job) -> Path:
    """Seven updates of one process without ranks, on batches of eight docs."""
    (folder / "code.py").write_text(CODE, encoding="utf-8")
    spacy.util.import_file("code_of_distributed", folder / "code.py")
    output = folder / "one"
    plain(few(docs, folder, 60), dev, {"size": 8}).to_disk(folder / "one.cfg")
    train(folder / "one.cfg", output)
    return output / "model-last"


@pytest.mark.slow
def test_two_ranks_learn_as_one_process_with_twice_the_batch(
    straight: Job, one_process: Path
) -> None:
    assert_close(weights(straight.output / "model-last"), weights(one_process), 1e-5)
    batches = zip(straight.steps(0), straight.steps(1))
    assert all(len(a["batch"]) == len(b["batch"]) == 4 for a, b in batches)


@pytest.mark.slow
def test_a_process_that_is_alone_learns_as_without_ranks_bit_by_bit(
    docs: Path, dev: Path, folder: Path, one_process: Path
) -> None:
    config = several(few(docs, folder, 60), dev, {"size": 8})
    config.to_disk(folder / "alone.cfg")
    train(folder / "alone.cfg", folder / "alone")
    assert_close(weights(folder / "alone" / "model-last"), weights(one_process), 0.0)


@pytest.mark.slow
def test_the_calls_of_a_step_are_three_whatever_the_number_of_weights(straight: Job) -> None:
    """One for the batch, one for which weights have gradients, one for all gradients."""
    calls = [step["calls"] for step in straight.steps(0)]
    per_step = np.diff(calls[1:])  # the first step has the weights too
    evaluated = [step % 3 == 0 for step in range(1, 6)]
    assert [n - 2 * told for n, told in zip(per_step, evaluated)] == [3] * 5  # size, and scores
    assert len(weights(straight.output / "model-last")) > 10


@pytest.mark.slow
def test_a_rank_without_gradients_goes_on_with_the_others(uneven: Job) -> None:
    """In its first update, rank 1 has none at all; in the last of an epoch, rank 0 has no docs."""
    assert uneven.steps(1)[0]["batch"] == []
    hashes = [[step["hash"] for step in uneven.steps(rank)] for rank in (0, 1)]
    assert hashes[0][1:] == hashes[1][1:] and len(set(hashes[0])) == len(hashes[0])


# Shares


@pytest.mark.slow
def test_an_epoch_has_each_doc_once_and_uneven_ranks_end_together(
    uneven: Job, docs: Path, folder: Path
) -> None:
    vocab = spacy.blank("en").vocab
    all_docs = [doc.text for doc in DocBin().from_disk(folder / "few10.spacy").get_docs(vocab)]
    steps = [uneven.steps(rank) for rank in (0, 1)]
    assert [step["epoch"] for step in steps[0]] == [step["epoch"] for step in steps[1]]
    for epoch in (0, 1):
        seen = [
            text
            for rank in (0, 1)
            for text in texts(step["batch"] for step in steps[rank] if step["epoch"] == epoch)
        ]
        assert Counter(seen) == Counter(all_docs)
    assert len(steps[0]) == 12


def texts(batches: Iterator[List[str]]) -> List[str]:
    return [text for batch in batches for text in batch]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that this process is one of several."""

    def pretend(rank: int, world: int) -> Ranks:
        made = Ranks(rank, world)
        for room in (corpus_room, optimizer_room):
            monkeypatch.setattr(room, "ranks", lambda: made)
        return made

    return pretend


def reader(path: Optional[Path], **settings: Any) -> Any:
    block = {"@readers": "spacy-crf-ner.RankCorpus.v1", "gold_preproc": False, **settings}
    return registry.resolve({"r": {**block, "path": path}})["r"]


@pytest.mark.parametrize("number, world", [(7, 3), (6, 3), (2, 2)])
def test_shares_are_the_whole_corpus(
    number: int, world: int, docs: Path, tmp_path: Path, ranks: Any
) -> None:
    path, nlp = few(docs, tmp_path, number), spacy.blank("en")
    whole = [eg.text for eg in registry.readers.get("spacy.Corpus.v1")(path, False)(nlp)]
    shares = []
    for rank in range(world):
        ranks(rank, world)
        # What initializes a pipeline is the whole corpus.
        assert [eg.text for eg in reader(path)(nlp)] == whole
        run_room.begin(nlp)
        shares.append([eg.text for eg in reader(path)(nlp)])
        run_room.begin(None)  # type: ignore[arg-type]
    assert sorted(text for share in shares for text in share) == sorted(whole)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert shares == [whole[rank::world] for rank in range(world)]


def test_fewer_docs_than_ranks_are_an_error_in_each(docs: Path, tmp_path: Path, ranks: Any) -> None:
    path, nlp = few(docs, tmp_path, 2), spacy.blank("en")
    for rank in range(3):
        ranks(rank, 3)
        run_room.begin(nlp)
        with pytest.raises(ValueError, match="a doc for each of 3 ranks, got 2"):
            list(reader(path)(nlp))
    run_room.begin(None)  # type: ignore[arg-type]


def test_the_examples_of_other_ranks_are_not_made(docs: Path, tmp_path: Path, ranks: Any) -> None:
    nlp = spacy.blank("en")
    tokenize, made = nlp.tokenizer, []
    nlp.tokenizer = lambda text: made.append(text) or tokenize(text)
    ranks(1, 3)
    run_room.begin(nlp)
    assert len(list(reader(few(docs, tmp_path, 7))(nlp))) == len(made) == 2
    run_room.begin(None)  # type: ignore[arg-type]


def test_files_that_are_no_docbins_are_an_error(docs: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    with pytest.raises(ValueError, match="got none"):
        list(reader(tmp_path)(nlp))
    few(docs, tmp_path, 3)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "notes.txt").write_text("not of the corpus")
    assert len(list(reader(tmp_path)(nlp))) == 3
    (tmp_path / "more.txt").write_text("text")
    for path in (tmp_path, tmp_path / "more.txt"):
        with pytest.raises(ValueError, match=r"nothing but files that end in \.spacy, .*more\.txt"):
            list(reader(path)(nlp))
    with pytest.raises(ValueError, match=r"paths\.train"):
        reader(None)


# One of the ranks writes


@pytest.mark.slow
def test_patience_ends_all_ranks_at_one_step(stopped: Job) -> None:
    # Evaluated at 0, 2 and 4, with one score: at step 4 the best one is four updates old.
    assert [len(stopped.steps(rank)) for rank in (0, 1)] == [5, 5]


@pytest.mark.slow
def test_only_rank_0_logs_and_writes(stopped: Job, straight: Job) -> None:
    (said,) = stopped.stdout
    rows = [row.split()[:2] for row in said.splitlines() if row.split()[1:2] in (["0"], ["2"])]
    assert rows == [["0", "0"], ["0", "2"]]
    for job in (stopped, straight):
        assert [job.steps(rank)[-1]["evaluated"] for rank in (0, 1)] == [2, 0]
    assert said.count("Saved pipeline") == straight.stdout[0].count("Saved pipeline") == 1
    assert "LOSS" not in straight.stdout[1] and "Saved" not in straight.stdout[1]
    assert {path.name for path in straight.output.iterdir()} == {"model-best", "model-last"}
    assert (straight.output / "model-last" / OPTIMIZER).exists()
    assert not (straight.output / "model-best" / OPTIMIZER).exists()
    assert "LOSS" in straight.stdout[0]


@pytest.mark.slow
def test_what_is_trained_loads_and_predicts_without_ranks(straight: Job) -> None:
    nlp = spacy.load(straight.output / "model-best")
    assert nlp("Ada Lovelace was in Paris.").has_annotation("ENT_IOB")
    assert nlp.meta["performance"].keys() >= {"ents_f", "ner_loss"}


# A rank that dies, and what goes on


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_with_a_message(killed: Job) -> None:
    assert killed.codes[1] == -signal.SIGKILL and killed.codes[0] not in (0, None)
    message = "Rank 0, step 3: expected an answer of all 2 ranks, got "
    assert message in killed.stderr[0]
    assert "start again with resume = model-last" in killed.stderr[0]
    assert {path.name for path in killed.output.iterdir()} == {"model-best", "model-last"}


@pytest.mark.slow
def test_a_training_that_is_resumed_learns_as_one_that_was_never_ended(
    straight: Job, resumed: Job
) -> None:
    rest = [step["batch"] for step in straight.steps(0)[3:]]
    assert [step["batch"] for step in resumed.steps(0)] == rest
    hashes = [[step["hash"] for step in job.steps(1)] for job in (straight, resumed)]
    assert hashes[1][1:] == hashes[0][4:]
    assert_close(*(weights(job.output / "model-last") for job in (straight, resumed)), 0.0)


def small_pipeline() -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": TOK2VEC}})
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def test_state_is_of_one_pipeline_alone() -> None:
    nlp, optimizer = small_pipeline(), distributed_adam(use_averages=False)
    nlp.update(make_examples(nlp), sgd=optimizer)
    state = optimizer.state(nlp)
    distributed_adam(use_averages=False).restore(small_pipeline(), state)
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"model": {"hidden_width": 9, "tok2vec": TOK2VEC}})
    other.initialize(lambda: make_examples(other))
    with pytest.raises(ValueError, match=r"an optimizer of this pipeline, got weights"):
        distributed_adam(use_averages=False).restore(other, state)
    with pytest.raises(ValueError, match=r"optimizer\.npz, got 100 bytes"):
        distributed_adam(use_averages=False).restore(nlp, state[:100])
    with pytest.raises(ValueError, match="use_averages = false"):
        distributed_adam().restore(nlp, state)


def test_layers_that_learn_slowly_are_known_after_a_resume() -> None:
    """The optimizer refuses a second update before it has seen all layers: they were seen."""
    key = "encoder.layer.1.output.dense.weight"
    nlp = small_pipeline()
    optimizer = distributed_adam(use_averages=False, layer_decay=0.5, layers=2)
    model = nlp.get_pipe("crf_ner").model
    shim = model.get_ref("output_layer").shims[0]
    shim.module.register_parameter("encoder_", None)
    shim.module.add_module("bert", named(key))
    found = {parameter.name: key for key, parameter in parameters(nlp).items()}
    (name,) = (name for name in found if name.endswith(key))
    array = np.ones((2, 2), dtype="f")
    optimizer(found[name], array, array.copy())
    again = distributed_adam(use_averages=False, layer_decay=0.5, layers=2)
    again.restore(nlp, optimizer.state(nlp))
    again(found[name], array, array.copy())
    assert again.nr_update[found[name]] == 2


def named(path: str) -> torch.nn.Module:
    """A module with one parameter of this name."""
    first, _, rest = path.partition(".")
    module = torch.nn.Module()
    if rest:
        module.add_module(first, named(rest))
    else:
        module.register_parameter(first, torch.nn.Parameter(torch.ones(2, 2)))
    return module


def test_a_checkpoint_without_state_or_in_the_output_folder_is_an_error(
    docs: Path, dev: Path, tmp_path: Path, trained: Any
) -> None:
    config = several(few(docs, tmp_path, 20), dev, {"size": 8}, **{"training.max_steps": 1})
    config["training"]["batcher"]["batcher"] = {
        "@batchers": "spacy.batch_by_sequence.v1",
        "size": 8,
    }
    last = tmp_path / "out" / "model-last"
    last.parent.mkdir()
    trained.to_disk(last)
    config["training"]["before_update"]["resume"] = str(last)
    config.to_disk(tmp_path / "config.cfg")
    with pytest.raises(ValueError, match=r"outside of the output folder, .*another --output"):
        train(tmp_path / "config.cfg", tmp_path / "out")
    assert (last / "config.cfg").exists()
    with pytest.raises(ValueError, match=r"a file optimizer\.npz, .* which has none"):
        train(tmp_path / "config.cfg", tmp_path / "other")


# What several ranks refuse


def test_two_updates_without_a_step_of_the_schedules_are_an_error(ranks: Any) -> None:
    ranks(0, 2)
    nlp, optimizer = small_pipeline(), distributed_adam()
    nlp.update(make_examples(nlp), sgd=optimizer)
    with pytest.raises(ValueError, match=r"step_schedules\(\) between two updates"):
        nlp.update(make_examples(nlp), sgd=optimizer)
    with pytest.raises(ValueError, match=r"configs/distributed\.cfg"):
        optimizer.step_schedules()


def test_names_of_weights_are_the_same_in_every_process() -> None:
    first, second = small_pipeline(), small_pipeline()
    names = [[p.name for p in parameters(nlp).values()] for nlp in (first, second)]
    assert names[0] == names[1] and len(set(names[0])) == len(names[0]) > 10
    assert not parameters(first).keys() & parameters(second).keys()
    assert [name for name, _ in tensors(first)] == names[0]  # it has no buffers


# Configs


@pytest.mark.parametrize("name", ["cnn", "char", "transformer"])
def test_a_shipped_config_is_spread_and_complete(name: str) -> None:
    config = load_config(ROOT / "configs" / f"{name}.cfg", interpolate=False)
    before = config.to_str()
    made = spread(config, load_config(OVERLAY))
    assert config.to_str() == before
    training, was = made["training"], config["training"]
    assert training["batcher"]["batcher"] == was["batcher"]
    assert training["logger"]["logger"] == was["logger"]
    ours = {"@optimizers": "spacy-crf-ner.DistributedAdam.v1"}
    assert training["optimizer"] == {**was["optimizer"], **ours}
    expected = {**config["corpora"]["train"], "@readers": "spacy-crf-ner.RankCorpus.v1"}
    assert made["corpora"] == {**config["corpora"], "train": expected}
    with pytest.raises(ValueError, match=r"\[training\.optimizer\] @optimizers.*only once"):
        spread(made, load_config(OVERLAY))


def test_a_spread_config_is_valid(docs: Path) -> None:
    nlp = load_model_from_config(spread(init_config("en"), load_config(OVERLAY)), auto_fill=True)
    config = nlp.config.interpolate()
    resolved = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    assert type(resolved["optimizer"]) is DistributedAdam
    config["corpora"]["train"]["path"] = str(docs / "dev.spacy")
    examples = list(registry.resolve({"train": config["corpora"]["train"]})["train"](nlp))
    assert [len(batch) for batch in resolved["batcher"](examples)]


def test_callbacks_that_are_there_are_kept() -> None:
    config = init_config("en")
    mine = {"@callbacks": "spacy-crf-ner.rehearse.v1", "path": "old.spacy"}
    config["training"]["before_update"] = mine
    assert spread(config, load_config(OVERLAY))["training"]["before_update"]["then"] == mine


@pytest.mark.parametrize(
    "place, kind, name",
    [
        ("training.optimizer", "@optimizers", "RAdam.v1"),
        ("corpora.train", "@readers", "spacy.JsonlCorpus.v1"),
    ],
)
def test_what_cannot_be_spread_is_an_error(place: str, kind: str, name: str) -> None:
    config = init_config("en")
    section, block = place.split(".")
    config[section][block][kind] = name
    with pytest.raises(ValueError, match=rf"\[{place}\] {kind}: expected one of .*got '{name}'"):
        spread(config, load_config(OVERLAY))


def test_the_entry_points_are_found_without_an_import_of_the_package() -> None:
    code = (
        "import sys; from spacy.util import registry;"
        "names = [('readers', 'RankCorpus'), ('batchers', 'RankBatcher'),"
        " ('loggers', 'RankZeroLogger'), ('callbacks', 'take_gpu'),"
        " ('callbacks', 'keep_ranks_equal'), ('optimizers', 'DistributedAdam')];"
        "print(*(getattr(registry, kind).get(f'spacy-crf-ner.{name}.v1').__module__"
        " for kind, name in names))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = result.stdout.split()
    assert len(modules) == 6 and all(
        m.startswith("spacy_crf_ner.training.distributed.") for m in modules
    )


# What it is for


@pytest.mark.slow
def test_two_ranks_reach_the_score_of_one_process(docs: Path, tmp_path: Path) -> None:
    """On the sample corpus, of 68 sentences to evaluate on.

    Ranks draw their batches in another order, as another seed does. The margin is twice the
    standard error of an F-score near 0.4 on the 106 entities: sqrt(0.4 * 0.6 / 106).
    """
    settings = {
        "training.max_steps": 150,
        "training.max_epochs": 0,
        "training.eval_frequency": 50,
        "training.optimizer.eps": 1e-8,
        "training.optimizer.grad_clip": 1.0,
        "training.optimizer.learn_rate.initial_rate": 0.005,
        "training.optimizer.learn_rate.total_steps": 150,
        "components.ner.model.tok2vec.width": 48,
        "components.ner.model.hidden_width": 48,
    }
    files = docs / "train.spacy", docs / "dev.spacy"
    scores = []
    for number, size in ((2, 8), (1, 16)):
        config = several(*files, {"size": size}, **settings)
        job = Job(tmp_path / str(number), config, number).ended_well()
        scores.append(spacy.load(job.output / "model-best").meta["performance"]["ents_f"])
    assert min(scores) > 0.3 and abs(scores[0] - scores[1]) < 0.1, scores


def test_distribute_writes_a_config(tmp_path: Path) -> None:
    before, after = str(ROOT / "configs" / "cnn.cfg"), tmp_path / "folder" / "distributed.cfg"
    result = CliRunner().invoke(app, ["distribute", before, str(after)])
    assert result.exit_code == 0, result.output
    assert load_config(after) == spread(load_config(before), load_config(OVERLAY))
    again = CliRunner().invoke(app, ["distribute", before, str(after)])
    assert again.exit_code == 1
    assert "--force" in again.stderr
