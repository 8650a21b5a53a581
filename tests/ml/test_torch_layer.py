"""Torch modules under thinc: devices, mixed precision, and threads."""

import subprocess
import sys
from typing import Any, Iterator

import numpy as np
import pytest
import spacy
import torch
from pipelines import SENTENCES, TOK2VEC, ents, make_examples
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import PyTorchGradScaler, PyTorchShim, Shim
from torch import nn

from spacy_crf_ner.ml.mixed_precision import module_of
from spacy_crf_ner.ml.torch_layer import to_array, to_tensor
from spacy_crf_ner.training.fused_adam import MIN_FUSED_SIZE
from spacy_crf_ner.training.optimizer import adam

SPANS = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96}


def test_thinc_has_the_private_attributes_that_are_used() -> None:
    """Without `_model` no module is found, without `_grad_scaler` gradients are divided twice,
    and without `_mixed_precision` training in bfloat16 is in float32."""
    module = nn.Linear(2, 2)
    scaler = PyTorchGradScaler(False)
    shim = PyTorchShim(module, mixed_precision=True, grad_scaler=scaler)
    private: Any = shim
    assert module_of(shim) is private._model is module
    assert private._grad_scaler is scaler and private._mixed_precision is True
    assert module_of(Shim(None)) is None


# Devices


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make another device the default of thinc, as `spacy.prefer_gpu()` does."""
    for module in ("thinc.util", "spacy_crf_ner.ml.torch_layer", "thinc.shims.pytorch"):
        monkeypatch.setattr(f"{module}.get_torch_default_device", lambda: torch.device("meta"))


def test_a_numpy_array_stays_on_the_cpu(elsewhere: None) -> None:
    array = np.zeros((2, 3), dtype="f")
    tensor = to_tensor(array)
    tensor += 1
    assert tensor.device.type == "cpu" and (array == 1).all()
    array += 1
    assert (to_array(tensor) == 2).all()


def test_weights_on_the_cpu_learn_while_a_gpu_is_in_use(elsewhere: None) -> None:
    weights = np.ones(MIN_FUSED_SIZE, dtype="f")
    adam(0.1)((1, "W"), weights, np.ones_like(weights))
    assert (weights < 1).all()


def test_a_pipeline_on_the_cpu_trains_and_predicts_while_a_gpu_is_in_use(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 128}})
    optimizer = nlp.initialize(lambda: make_examples(nlp))
    request.getfixturevalue("elsewhere")
    first, *_, last = [
        nlp.update(make_examples(nlp), sgd=optimizer, losses={})["crf_ner"] for _ in range(8)
    ]
    assert last < 0.8 * first
    assert len([*nlp.pipe(text for text, _ in SENTENCES)]) == len(SENTENCES)


# Threads

FORK = """
import os, sys, torch
torch.set_num_threads(3)
torch.randn(600, 600) @ torch.randn(600, 600)
import spacy_crf_ner.pipeline.crf_ner
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, str(torch.get_num_threads()).encode())
    os._exit(0)
print(os.read(read, 9).decode())
"""


def test_forked_processes_that_predict_nothing_keep_their_threads() -> None:
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("3", "")


@Language.component("test_torch_layer_threads")
def note_threads(doc: Doc) -> Doc:
    """Write the number of torch's threads on a doc, before the components after this one."""
    doc.user_data["threads"] = torch.get_num_threads()
    return doc


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.randn(600, 600) @ torch.randn(600, 600)  # which starts them
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("place", ["first", "last"])
def test_workers_of_nlp_pipe_have_one_thread_from_the_first_component_on(
    trained: Language, place: str, three_threads: None
) -> None:
    """The components that come before it compute with torch too: a transformer that is not ours."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", source=trained)
    nlp.add_pipe("test_torch_layer_threads", **{place: True})
    texts = [text for text, _ in SENTENCES]
    docs = [*nlp.pipe(texts, n_process=2, batch_size=2)]
    assert {doc.user_data["threads"] for doc in docs} == {1}
    assert torch.get_num_threads() == 3
    assert [ents(doc) for doc in docs] == [ents(doc) for doc in trained.pipe(texts)]


def test_workers_without_a_crf_ner_have_one_thread_too(three_threads: None) -> None:
    """A tagger over our encoder."""
    nlp = spacy.blank("en")
    encoder = {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "tok2vec": TOK2VEC}
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": encoder}
    nlp.add_pipe("tagger", config={"model": model})
    nlp.add_pipe("test_torch_layer_threads")
    golds = [{"tags": ["A"] * 2}, {"tags": ["B"] * 2}]
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("one two"), gold) for gold in golds])
    docs = [*nlp.pipe(["one two", "three"] * 4, n_process=2, batch_size=2)]
    assert {doc.user_data["threads"] for doc in docs} == {1}
