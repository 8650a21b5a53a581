"""Training keeps no memory: neither on docs, nor in chains of tensors, nor in oneDNN's kernels."""

import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from thinc.api import Adam
from torch import nn

from graphs import modules_of, nested
from pipelines import listening, make_examples
from spacy_crf_ner.ml import memory
from spacy_crf_ner.ml.memory import KERNELS, limit_kernel_cache
from spacy_crf_ner.training.optimizer import GroupedAdam

KINDS = ["transformer", "tok2vec", "nested"]


def pipeline(kind: str, tiny_transformer: str) -> Language:
    """A pipeline over a shared layer, or with many layers of its own, that is initialized."""
    if kind == "nested":
        return nested(tiny_transformer)
    nlp = listening(kind, tiny_transformer=tiny_transformer)
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


@pytest.fixture
def frozen() -> Iterator[None]:
    """Leave what is there already out of `gc.get_objects()`, which are many."""
    gc.freeze()
    yield
    gc.unfreeze()


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@pytest.mark.parametrize("kind", KINDS)
def test_updates_keep_tensor_count_constant(kind: str, tiny_transformer: str, frozen: None) -> None:
    """thinc alone keeps one more tensor for each parameter at each update."""
    nlp = pipeline(kind, tiny_transformer)
    examples, optimizer = make_examples(nlp), Adam(0.001)
    counts = []
    for _ in range(3):
        for _ in range(2):
            nlp.update(examples, sgd=optimizer)
        counts.append(tensors())
    assert counts[1] == counts[2]


@pytest.mark.parametrize("optimizer", [Adam, GroupedAdam])
def test_update_changes_weights_in_place(optimizer: Any, tiny_transformer: str) -> None:
    nlp = nested(tiny_transformer)
    weights = [w for module in modules_of(nlp).values() for w in module.parameters()]
    before = [(w.untyped_storage().data_ptr(), w.detach().clone()) for w in weights]
    nlp.update(make_examples(nlp), sgd=optimizer(0.001))
    assert [w.untyped_storage().data_ptr() for w in weights] == [place for place, _ in before]
    changed = [not torch.equal(w, old) for w, (_, old) in zip(weights, before)]
    assert sum(changed) > len(changed) / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_return_free_memory_lowers_resident_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def used() -> float:
        """Resident memory, in MB."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    monkeypatch.setattr(memory, "UPDATES", 2)
    monkeypatch.setattr(memory, "_updates", count(1))
    before = used()
    blocks = [torch.ones(16_000) for _ in range(4_000)]  # 256 MB, below the size that is mapped
    kept = blocks[::50]
    del blocks
    memory.return_free_memory()
    assert used() - before > 200  # not yet
    memory.return_free_memory()
    assert used() - before < 50
    assert all(block.sum() == len(block) for block in kept)


@pytest.mark.parametrize("kind", KINDS)
def test_training_returns_free_memory(
    kind: str, tiny_transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    nlp = pipeline(kind, tiny_transformer)
    examples, optimizer = make_examples(nlp), Adam(0.001)
    monkeypatch.setattr(memory, "UPDATES", 3)
    monkeypatch.setattr(memory, "_updates", count(1))
    monkeypatch.setattr(memory, "_malloc_trim", lambda: calls.append)
    for _ in range(7):
        nlp.update(examples, sgd=optimizer)
    assert calls == [0] * (7 * len(modules_of(nlp)) // 3)


def reachable_bytes(roots: Iterable[Any]) -> int:
    """The bytes of the arrays and tensors that can be reached from objects, vocabulary left out."""
    seen, total, pending = set(), 0, list(roots)
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, (type, spacy.vocab.Vocab, Language)):
            continue
        seen.add(id(each))
        if isinstance(each, (np.ndarray, torch.Tensor)):
            total += each.nbytes
        elif not (callable(each) and not isinstance(each, nn.Module)):
            pending += gc.get_referents(each)
            pending += [getattr(each, "user_data", None), getattr(each, "tensor", None)]
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_update_leaves_no_arrays_on_examples(kind: str, tiny_transformer: str) -> None:
    nlp = pipeline(kind, tiny_transformer)
    examples, optimizer = make_examples(nlp), Adam(0.001)
    before = reachable_bytes(examples)
    nlp.update(examples, sgd=optimizer)
    nlp.evaluate(examples)
    assert reachable_bytes(examples) == before
    # Control: an added array is counted.
    examples[0].predicted.user_data["states"] = [np.zeros(100, dtype=np.float32)]
    assert reachable_bytes(examples) == before + 400


COUNTS_KERNELS = """
import sys
import spacy
import torch
sys.path.insert(0, {tests!r})
import pipelines
nlp = spacy.blank("en")
pipelines.add_shared(nlp, {folder!r})
{train}
for repeat in range(2):
    for n in range(1, 91):
        torch.nn.functional.gelu(torch.ones(1, n, 16))
"""


def compiled(folder: str, train: str) -> list[str]:
    """How oneDNN gets each kernel: "cache_miss" compiles it, "cache_hit" does not."""
    tests = str(Path(__file__).parents[1])
    script = COUNTS_KERNELS.format(tests=tests, folder=folder, train=train)
    env = {"ONEDNN_VERBOSE": "2", "PATH": "/usr/bin", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
    )
    created = [line for line in done.stdout.splitlines() if ",create" in line and "gelu" in line]
    return [line.split(",create:")[1].split(",")[0] for line in created[-180:]]


@pytest.mark.slow
def test_training_limits_onednn_kernel_cache(tiny_transformer: str) -> None:
    """Ninety shapes, twice: training evicts each kernel before reuse, prediction keeps all."""
    probe = compiled(tiny_transformer, "")
    if len(probe) != 180:
        pytest.skip("torch does not compute GELU by oneDNN here")
    assert int(KERNELS) < 90
    assert probe[-90:] == ["cache_hit"] * 90
    trained = compiled(tiny_transformer, "nlp.initialize()")
    assert trained[-90:] == ["cache_miss"] * 90


def test_limit_kernel_cache_keeps_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"):
        with monkeypatch.context() as own:
            own.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
            own.setenv(name, "500")
            limit_kernel_cache()
            assert os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "500") == "500"
