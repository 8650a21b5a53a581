"""Torch modules under thinc: devices, mixed precision, and threads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import ArgsKwargs, PyTorchGradScaler, PyTorchShim, Shim
from torch import nn

from pipelines import SENTENCES, TOK2VEC, ents, make_examples
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.architectures import rnn_encoder
from spacy_crf_ner.ml.mixed_precision import MixedPrecision, MixedPrecisionShim, module_of
from spacy_crf_ner.ml.torch_layer import to_array, to_tensor
from spacy_crf_ner.training.fused_adam import MIN_FUSED_SIZE
from spacy_crf_ner.training.optimizer import GroupedAdam

SPANS = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96}


def test_thinc_shim_has_expected_private_attributes() -> None:
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


def test_grouped_adam_updates_cpu_weights_while_gpu_is_default(elsewhere: None) -> None:
    weights = np.ones(MIN_FUSED_SIZE, dtype="f")
    GroupedAdam(0.1)((1, "W"), weights, np.ones_like(weights))
    assert (weights < 1).all()


def test_cpu_pipeline_trains_and_predicts_while_gpu_is_default(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 128, "tok2vec": TOK2VEC}})
    optimizer = nlp.initialize(lambda: make_examples(nlp))
    request.getfixturevalue("elsewhere")
    first, *_, last = [
        nlp.update(make_examples(nlp), sgd=optimizer, losses={})["crf_ner"] for _ in range(8)
    ]
    assert last < 0.8 * first
    assert len([*nlp.pipe(text for text, _ in SENTENCES)]) == len(SENTENCES)


# Mixed precision


class PretendsToBeOnGPU(MixedPrecisionShim):
    device = torch.device("cuda")


@pytest.fixture
def autocast_for_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch's autocast for CUDA work on a CPU, where float16 is the default as on CUDA."""
    autocast, default = torch.autocast, torch.get_autocast_dtype("cpu")

    def on_cpu(device_type: str, *args: Any, **settings: Any) -> Any:
        return autocast("cpu", *args, **settings)

    monkeypatch.setattr(torch, "autocast", on_cpu)
    torch.set_autocast_dtype("cpu", torch.float16)
    yield
    torch.set_autocast_dtype("cpu", default)


def gpu_shim(mixed_precision: MixedPrecision) -> MixedPrecisionShim:
    float16 = mixed_precision is True
    scaler = PyTorchGradScaler(float16)
    shim = PretendsToBeOnGPU(nn.Linear(3, 2), mixed_precision=float16, grad_scaler=scaler)
    shim.bf16 = mixed_precision == "bf16"
    return shim


@pytest.mark.parametrize(
    "mixed_precision, expected",
    [(False, torch.float32), (True, torch.float16), ("bf16", torch.bfloat16)],
)
def test_mixed_precision_trains_in_configured_dtype(
    mixed_precision: MixedPrecision,
    expected: torch.dtype,
    autocast_for_cpu: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bfloat16 without a scaler, and only in training: a prediction may be on another device."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    shim: Any = gpu_shim(mixed_precision)
    X = torch.ones(4, 3, requires_grad=True)
    inputs = ArgsKwargs(args=(X,), kwargs={})
    for _ in range(2):
        Y, backprop = shim.begin_update(inputs)
        assert Y.dtype == expected
        assert shim.predict(inputs).dtype == (torch.float16 if shim._mixed_precision else X.dtype)
    assert shim._grad_scaler._enabled == shim._mixed_precision == (mixed_precision is True)
    if mixed_precision is not True:
        d_Y = torch.ones(4, 2, dtype=Y.dtype)
        d_inputs = backprop(ArgsKwargs(args=([Y],), kwargs={"grad_tensors": [d_Y]}))
        assert d_inputs.args[0].dtype == torch.float32
        assert {p.grad.dtype for p in shim._model.parameters()} == {torch.float32}
    assert torch.get_autocast_dtype("cpu") == torch.float16  # the default is restored


def test_bfloat16_on_unsupported_gpu_raises_in_training_only(
    autocast_for_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may emulate it: it is then slower than float32."""
    emulated = lambda including_emulation=True: including_emulation  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", emulated)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    shim, inputs = gpu_shim("bf16"), ArgsKwargs(args=(torch.ones(4, 3),), kwargs={})
    assert shim.predict(inputs).dtype == torch.float32
    with pytest.raises(InputError, match=r"mixed_precision: expected a GPU.*\"bf16\".*Tesla T4"):
        shim.begin_update(inputs)


@pytest.mark.parametrize("mixed_precision", [True, "bf16", "auto"])
@pytest.mark.parametrize("gpu", [True, False])
def test_layers_apply_mixed_precision_on_gpu_only(
    mixed_precision: MixedPrecision, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch_layer", "mixed_precision"):
        monkeypatch.setattr(f"spacy_crf_ner.ml.{module}.on_gpu", lambda: gpu)
    monkeypatch.setattr("spacy_crf_ner.ml.mixed_precision.has_fast_bf16", lambda: False)
    model = {"mixed_precision": mixed_precision}
    crf_ner: Any = spacy.blank("en").add_pipe("crf_ner", config={"model": model})
    tok2vec = crf_ner.model.get_ref("tok2vec")
    encoder = rnn_encoder(tok2vec, mixed_precision=mixed_precision).layers[1]
    for layer in (crf_ner.model.get_ref("output_layer"), encoder):
        (shim,) = layer.shims
        assert shim.bf16 == (gpu and mixed_precision == "bf16")
        in_float16 = gpu and mixed_precision != "bf16"
        assert shim._mixed_precision == shim._grad_scaler._enabled == in_float16


class FailsInBfloat16(nn.Module):
    """As DeBERTa does, which hides scores with the lowest number of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        Y = self.linear(X)
        return Y.masked_fill(Y > 0, torch.finfo(torch.float32).min)


def test_module_failing_in_bfloat16_raises() -> None:
    shim = MixedPrecisionShim(FailsInBfloat16())
    inputs = ArgsKwargs(args=(torch.ones(1, 3),), kwargs={})
    shim.begin_update(inputs)
    shim.bf16 = True
    with pytest.raises(InputError, match="mixed_precision: expected a model that trains in bfl"):
        shim.begin_update(inputs)


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


@pytest.mark.slow
def test_forked_processes_that_predict_nothing_keep_threads_that_were_used() -> None:
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
    yield
    torch.set_num_threads(before)


def test_forked_process_without_prediction_keeps_thread_count(three_threads: None) -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(torch.get_num_threads()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read) as file:
        assert file.read() == "3"


@pytest.mark.parametrize("place", ["first", "last"])
def test_nlp_pipe_workers_use_one_thread_from_first_component(
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


def test_nlp_pipe_workers_without_crf_ner_use_one_thread(request: pytest.FixtureRequest) -> None:
    """A tagger over our encoder. With threads that were used before, the workers would hang."""
    nlp = spacy.blank("en")
    encoder = {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "tok2vec": TOK2VEC}
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": encoder}
    nlp.add_pipe("tagger", config={"model": model})
    nlp.add_pipe("test_torch_layer_threads")
    golds = [{"tags": ["A"] * 2}, {"tags": ["B"] * 2}]
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("one two"), gold) for gold in golds])
    request.getfixturevalue("three_threads")
    docs = [*nlp.pipe(["one two", "three"] * 4, n_process=2, batch_size=2)]
    assert {doc.user_data["threads"] for doc in docs} == {1}
