"""Layers of torch under thinc: one graph of nested layers, devices, 16 bits, and threads."""

import os
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from numpy.testing import assert_allclose, assert_array_equal
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Adam, Model
from torch import nn

from graphs import (
    assert_near,
    linear_layer,
    model_of,
    modules_of,
    nested,
    take_gradients,
    weights_of,
)
from pipelines import SENTENCES, TOK2VEC, ents, make_examples
from spacy_crf_ner import accelerate
from spacy_crf_ner.crf import Chain
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.arrays import to_array
from spacy_crf_ner.ml.network import bilstm_crf, rnn_encoder
from spacy_crf_ner.ml.shim import MixedPrecision, TorchShim
from spacy_crf_ner.training.optimizer import GroupedAdam

TEXTS = [text for text, _ in SENTENCES]

# One graph


def random_gradient(scores: Chain) -> Chain:
    rng = np.random.default_rng(0)
    emissions, *others = (rng.normal(size=each.shape).astype("f") for each in scores.scores)
    return Chain(emissions, scores.lengths, *others)


def backward(nlp: Language, between: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """The gradients of one batch, for the same gradient of the scores."""
    scores, backprop = model_of(nlp).begin_update([*map(nlp.make_doc, TEXTS)])
    between()
    backprop(random_gradient(scores))
    return take_gradients(nlp)


def test_gradients_of_nested_layers_match_autograd_over_their_modules(
    tiny_transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of spaCy's CNN match its own backward pass, with the gradient of its output."""
    nlp = nested(tiny_transformer)
    model, modules = model_of(nlp), modules_of(nlp)
    layers = model.get_ref("tok2vec").layers
    (cnn,) = (layer for layer in layers if layer.name not in modules)
    twin = cnn.copy()
    inputs: dict[str, Any] = {}
    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: inputs.update({name: given}))
        for name, module in modules.items()
    ]
    docs = [*map(nlp.make_doc, TEXTS)]
    found, backprop = model.begin_update(docs)
    d_scores = random_gradient(found)
    with monkeypatch.context() as counted:
        run, calls = torch.autograd.backward, []
        counted.setattr(torch.autograd, "backward", lambda *a: calls.append(a) or run(*a))
        assert backprop(d_scores) is docs
    assert len(calls) == 1
    gradients = take_gradients(nlp)
    for hook in hooks:
        hook.remove()

    arrays, backprop_twin = twin.begin_update(docs)
    X = torch.from_numpy(np.concatenate(arrays)).requires_grad_()
    words = modules["char_word_embed"](*inputs["char_word_embed"])
    vectors = {
        "transformer": modules["transformer"](*inputs["transformer"]),
        "rnn_encoder": modules["rnn_encoder"](words, *inputs["rnn_encoder"][1:]),
        cnn.name: X,
    }
    of_layers = torch.cat([vectors[layer.name] for layer in layers], 1)
    scores = modules["bilstm_crf"](of_layers, *inputs["bilstm_crf"][1:])
    for ours, theirs in zip(found.scores, scores, strict=True):
        assert_allclose(ours, theirs.detach(), atol=1e-6)
    torch.autograd.backward(scores, [*map(torch.from_numpy, d_scores.scores)])
    expected = take_gradients(nlp)  # those of thinc are zeros again
    backprop_twin(model.ops.unflatten(to_array(X.grad), found.lengths))
    numbers = {id(node): i for i, node in enumerate(model.walk())}
    for node, other in zip(cnn.walk(), twin.walk(), strict=True):
        expected |= {f"{numbers[id(node)]}.{n}": other.get_grad(n) for n in other.grad_names}
    assert_near(gradients, expected)
    assert sum(gradient.any() for gradient in gradients.values()) > 50


@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_prediction_between_forward_and_backward_changes_nothing(
    dtype: str | None, tiny_transformer: str
) -> None:
    """On a GPU, the backward pass of an LSTM needs a module in training."""
    nlp = nested(tiny_transformer)
    expected = backward(nlp)
    accelerate(nlp, dtype)
    for between in (lambda: None, lambda: nlp("Some other text")):
        assert_near(backward(nlp, between), expected, rtol=0)
        modules = [each for module in modules_of(nlp).values() for each in module.modules()]
        assert all(module.training for module in modules)


def from_bytes(model: Model[Any, Any]) -> Any:
    return deepcopy(model).from_bytes(model.to_bytes())


def pickled(model: Model[Any, Any]) -> Any:
    """As `nlp.pipe(n_process=2)` does where processes are not forked."""
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copy", [Model.copy, deepcopy, pickled, from_bytes])
def test_copies_predict_and_learn_alike_and_apart(copy: Any, tiny_transformer: str) -> None:
    nlp, twin = nested(tiny_transformer), nested(tiny_transformer)
    nlp.update(make_examples(nlp), sgd=Adam(0.01))
    twin.get_pipe("crf_ner").model = copy(model_of(nlp))
    # By these numbers, an optimizer has moments; whole pipelines are copied with their optimizer.
    ids = [
        [shim.id for node in model_of(each).walk() for shim in node.shims] for each in (nlp, twin)
    ]
    assert {*ids[0]}.isdisjoint(ids[1]) if copy is Model.copy else ids[0] == ids[1]
    before = weights_of(nlp)
    assert_near(weights_of(twin), before, rtol=0)
    for one, other in zip(*(model_of(each).predict([nlp(TEXTS[0])]) for each in (nlp, twin))):
        assert_array_equal(one, other)
    gradients = backward(twin)
    assert_near(backward(nlp), gradients, rtol=0)
    scores, backprop = model_of(twin).begin_update([nlp.make_doc(TEXTS[0])])
    backprop(random_gradient(scores))
    model_of(twin).finish_update(Adam(0.01))
    assert all((before[name] == now).all() for name, now in weights_of(nlp).items())
    assert sum((before[name] != now).any() for name, now in weights_of(twin).items()) > 40


@pytest.mark.parametrize("dtype", [None, "bf16"])
def test_use_params_predicts_with_averages_until_it_ends(
    dtype: str | None, tiny_transformer: str
) -> None:
    nlp = nested(tiny_transformer)
    optimizer = GroupedAdam(0.01)
    for _ in range(3):
        nlp.update(make_examples(nlp), sgd=optimizer)
    averaged, docs = deepcopy(nlp), [*map(nlp.make_doc, TEXTS)]
    keys = {id(node.shims[0]): node for node in model_of(nlp).walk() if node.shims}
    assert len(keys) == 4
    for node, other in zip(model_of(nlp).walk(), model_of(averaged).walk(), strict=True):
        for name in node.param_names:
            other.set_param(name, optimizer.averages[node.id, name])
        for shim in other.shims:
            for name, weights in shim.module.named_parameters():
                average = torch.as_tensor(optimizer.averages[node.shims[0].id, name])
                weights.data.copy_(average.view_as(weights))
    for each in (nlp, averaged):
        accelerate(each, dtype)
    expected = model_of(averaged).predict(docs).emissions
    before, last = weights_of(nlp), model_of(nlp).predict(docs).emissions
    assert abs(last - expected).max() > 1e-3
    with model_of(nlp).use_params(optimizer.averages):
        assert_allclose(model_of(nlp).predict(docs).emissions, expected, atol=1e-6)
    assert_array_equal(model_of(nlp).predict(docs).emissions, last)
    assert_near(weights_of(nlp), before, rtol=0)


# Devices


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make another device the default of thinc, as `spacy.prefer_gpu()` does."""
    for module in ("thinc.util", "spacy_crf_ner.ml.arrays", "spacy_crf_ner.ml.shim"):
        monkeypatch.setattr(f"{module}.get_torch_default_device", lambda: torch.device("meta"))


def test_cpu_pipeline_trains_and_predicts_while_gpu_is_default(
    tiny_transformer: str, request: pytest.FixtureRequest
) -> None:
    nlp = nested(tiny_transformer)
    optimizer = GroupedAdam(0.01)
    request.getfixturevalue("elsewhere")
    first, *_, last = [
        nlp.update(make_examples(nlp), sgd=optimizer, losses={})["crf_ner"] for _ in range(8)
    ]
    assert last < 0.8 * first
    assert len([*nlp.pipe(TEXTS)]) == len(TEXTS)


# Mixed precision


class LargeShim(TorchShim):
    is_large = True


class PretendsToBeOnGPU(LargeShim):
    device = torch.device("cuda")


def shim_over(
    module: nn.Module, mixed_precision: MixedPrecision, kind: Any = PretendsToBeOnGPU
) -> TorchShim:
    shim: TorchShim = kind(lambda: module, mixed_precision)
    shim.build_module()
    return shim


@pytest.fixture
def autocast_for_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's autocast for CUDA work on a CPU."""
    autocast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda device, dtype: autocast("cpu", dtype))


@pytest.mark.parametrize(
    "mixed_precision, has_bf16, expected",
    [
        (False, True, torch.float32),
        (True, True, torch.bfloat16),
        (True, False, torch.float16),
        ("auto", False, torch.float16),
        ("bf16", True, torch.bfloat16),
    ],
)
def test_mixed_precision_on_gpu_computes_in_its_dtype(
    mixed_precision: MixedPrecision,
    has_bf16: bool,
    expected: torch.dtype,
    autocast_for_cpu: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In training, and in prediction without a dtype; the gradients are in float32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    shim = shim_over(nn.Linear(3, 2), mixed_precision)
    X = torch.ones(4, 3, requires_grad=True)
    Y = shim.begin_update((X,))
    assert Y.dtype == shim.predict((X,)).dtype == expected
    Y.sum().backward()
    assert {each.grad.dtype for each in (X, *shim.module.parameters())} == {torch.float32}
    shim.set_dtype("fp32")
    assert shim.predict((X,)).dtype == torch.float32


def test_bfloat16_on_unsupported_gpu_raises_in_training_only(
    autocast_for_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may emulate it: it is then slower than float32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    shim, inputs = shim_over(nn.Linear(3, 2), "bf16"), (torch.ones(4, 3),)
    assert shim.predict(inputs).dtype == torch.float32
    with pytest.raises(InputError, match=r"mixed_precision: expected a GPU.*\"bf16\".*Tesla T4"):
        shim.begin_update(inputs)


@pytest.mark.parametrize("build", [bilstm_crf, rnn_encoder])
@pytest.mark.parametrize("mixed_precision", [True, "bf16", "auto"])
def test_recurrent_layers_train_in_16_bits_on_gpu_only(
    mixed_precision: MixedPrecision, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    model = build(linear_layer()[0], hidden_width=5, mixed_precision=mixed_precision)
    (shim,) = [shim for node in model.walk() for shim in node.shims]
    shim.load_module(nn.Linear(3, 2))
    assert shim.dtype_in_training == "fp32"
    monkeypatch.setattr(TorchShim, "device", torch.device("cuda"))
    assert shim.dtype_in_training == "bf16"


class FailsInBfloat16(nn.Module):
    """As DeBERTa does, which hides scores with the lowest number of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        Y = self.linear(X)
        return Y.masked_fill(Y > 0, torch.finfo(torch.float32).min)


def test_module_failing_in_bfloat16_raises() -> None:
    inputs = (torch.ones(1, 3),)
    shim_over(FailsInBfloat16(), False, LargeShim).begin_update(inputs)
    shim = shim_over(FailsInBfloat16(), "bf16", LargeShim)
    with pytest.raises(InputError, match="mixed_precision: expected a model that trains in bfl"):
        shim.begin_update(inputs)


# Threads


@Language.component("test_layer_threads")
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
    place: str, tiny_transformer: str, three_threads: None
) -> None:
    """The components that come before it compute with torch too: a transformer that is not ours."""
    nlp = nested(tiny_transformer)
    for _ in range(8):
        nlp.update(make_examples(nlp), sgd=Adam(0.01))
    expected = [ents(doc) for doc in nlp.pipe(TEXTS)]
    assert any(expected)
    nlp.add_pipe("test_layer_threads", **{place: True})
    docs = [*nlp.pipe(TEXTS, n_process=2, batch_size=2)]
    assert {doc.user_data["threads"] for doc in docs} == {1}
    assert torch.get_num_threads() == 3
    assert [ents(doc) for doc in docs] == expected


def test_nlp_pipe_workers_without_crf_ner_use_one_thread(request: pytest.FixtureRequest) -> None:
    """A tagger over our encoder. With threads that were used before, the workers would hang."""
    nlp = spacy.blank("en")
    encoder = {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "tok2vec": TOK2VEC}
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": encoder}
    nlp.add_pipe("tagger", config={"model": model})
    nlp.add_pipe("test_layer_threads")
    golds = [{"tags": ["A"] * 2}, {"tags": ["B"] * 2}]
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("one two"), gold) for gold in golds])
    request.getfixturevalue("three_threads")
    docs = [*nlp.pipe(["one two", "three"] * 4, n_process=2, batch_size=2)]
    assert {doc.user_data["threads"] for doc in docs} == {1}
