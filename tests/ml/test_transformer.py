"""A transformer: each kind trains and is stored; its vectors are those of each window alone."""

import json
import pickle
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc
from thinc.api import Adam, Optimizer
from torch import Tensor

from damage import Intruder
from encoders import ENCODERS, TEXTS, belongs
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml import dtype
from spacy_crf_ner.ml.layer import Vectors, shim_of
from spacy_crf_ner.ml.transformer import model
from spacy_crf_ner.ml.transformer.model import transformer
from spacy_crf_ner.ml.transformer.spans import doc_spans, strided_spans
from spacy_crf_ner.ml.transformer.subwords import BatchLimits

Encoder = Callable[[str], str]
NLP = spacy.blank("en")
DOCS = [NLP.make_doc(text) for text in (*TEXTS, "", " \n ")]
WINDOWS = strided_spans(6, 4)
DROPOUT = {"attention_probs_dropout_prob": 0.9}


def layer_over(folder: str | Path, **settings: Any) -> Vectors:
    layer = transformer(str(folder), **{"get_spans": WINDOWS, **settings})
    layer.initialize()
    return layer


def module_of(layer: Vectors) -> Any:
    return shim_of(layer).module


def predict(layer: Vectors) -> Any:
    return np.concatenate(layer.predict(DOCS))


def update(layer: Vectors, optimizer: Optimizer | None = None) -> Any:
    """Learn from some gradient; returns the vectors before."""
    Y, backprop = layer.begin_update(DOCS)
    chance = np.random.default_rng(0)
    backprop([chance.normal(size=y.shape).astype("f") for y in Y])
    if optimizer is not None:
        layer.finish_update(optimizer)
    return np.concatenate(Y)


def gradients(layer: Vectors) -> dict[str, Tensor]:
    named = module_of(layer).named_parameters()
    return {name: w.grad.to_dense().clone() for name, w in named if w.grad is not None}


def alone(layer: Vectors, pooling: str) -> Tensor:
    """The vectors if each window runs alone, and subwords are chosen by counting characters."""
    tokenizer, module = shim_of(layer).tokenizer, module_of(layer)  # type: ignore[attr-defined]
    rows = []
    for doc in DOCS:
        found: list[list[Tensor]] = [[] for _ in doc]
        for start, end in WINDOWS(doc):
            if start == end:
                continue
            base, last = doc[start].idx, doc[end - 1]
            (encoded,) = tokenizer.encode([doc.text[base : last.idx + len(last)]])
            ids = torch.tensor(encoded.ids[None], dtype=torch.int64)
            output = module.transformer(input_ids=ids, output_hidden_states=True)
            states = output.last_hidden_state[0]
            if module.mix is not None:
                stacked = torch.stack(output.hidden_states)[:, 0]
                states = (module.mix.softmax(0)[:, None, None] * stacked).sum(0)
            for state, pair in zip(states, encoded.characters + base):
                for i in range(start, end):
                    token = doc[i].idx, doc[i].idx + len(doc[i])
                    if belongs(token, tuple(pair), doc.text):
                        found[i].append(state)
        chosen = {"mean": slice(None), "first": slice(1), "last": slice(-1, None)}[pooling]
        zeros = torch.zeros(layer.get_dim("nO"))
        rows += [torch.stack(each[chosen]).mean(0) if each else zeros for each in found]
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ENCODERS)
def test_each_encoder_trains_and_loads_with_the_same_results_without_its_folder(
    kind: str, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(encoder(kind), tmp_path / "folder-of-the-training")
    layer = layer_over(folder)
    before, optimizer = predict(layer), Adam(0.01)
    for _ in range(2):
        update(layer, optimizer)
    shutil.rmtree(folder)
    stored, expected = layer.to_bytes(), predict(layer)
    assert np.abs(expected - before).max() > 1e-3
    assert str(tmp_path).encode() not in stored and folder.name.encode() not in stored
    monkeypatch.setattr(socket.socket, "connect", None)
    for _ in range(2):  # what is loaded can be stored again
        loaded = transformer(str(folder), get_spans=WINDOWS).from_bytes(stored)
        np.testing.assert_array_equal(predict(loaded), expected)
        stored = loaded.to_bytes()
    assert b"tmp" not in stored


# Subwords of a batch: each window is one, some are, all are.
BATCHES = [*((kind, 40, "mean") for kind in ENCODERS), ("bert", 1, "first"), ("bert", 9999, "last")]


@pytest.mark.parametrize("kind, most, pooling", BATCHES)
def test_vectors_and_gradients_are_those_of_each_window_alone(
    kind: str, most: int, pooling: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "CPU", BatchLimits(most, most))
    for layers in model.LAYERS:
        layer = layer_over(encoder(kind), layers=layers, pooling=pooling)
        module = module_of(layer)
        if module.mix is not None:
            module.mix.data = torch.arange(float(len(module.mix)))
        expected = alone(layer, pooling)
        np.testing.assert_allclose(predict(layer), expected.detach(), atol=1e-5)
        np.testing.assert_allclose(update(layer), expected.detach(), atol=1e-5)
        found = gradients(layer)
        module.zero_grad()
        chance = np.random.default_rng(0)
        expected.backward(torch.tensor(chance.normal(size=expected.shape).astype("f")))
        own = gradients(layer)
        assert found.keys() == own.keys()
        for name, gradient in own.items():
            torch.testing.assert_close(found[name], gradient, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("texts", [[], [""], [" \n ", ""]])
def test_docs_without_words_have_zeros(texts: list[str], encoder: Encoder) -> None:
    layer, docs = layer_over(encoder("bert")), [NLP.make_doc(text) for text in texts]
    Y, backprop = layer.begin_update(docs)
    backprop(Y)
    for found in (Y, layer.predict(docs)):
        assert [each.shape for each in found] == [(len(doc), 16) for doc in docs]
        assert not any(each.any() for each in found)


def test_a_mix_learns_over_a_frozen_transformer(encoder: Encoder) -> None:
    layer = layer_over(encoder("bert"), layers="mix", frozen=True, transformer_config=DROPOUT)
    before = {name: w.detach().clone() for name, w in module_of(layer).named_parameters()}
    expected = predict(layer)
    np.testing.assert_allclose(update(layer, Adam(0.01)), expected, atol=1e-6)  # no dropout
    changed = {n for n, w in module_of(layer).named_parameters() if not torch.equal(w, before[n])}
    assert changed == {"mix"}
    loaded = transformer("", layers="mix", frozen=True).from_bytes(layer.to_bytes())
    for each in (layer, loaded):
        assert {n for n, w in module_of(each).named_parameters() if w.requires_grad} == {"mix"}


def test_dropout_of_the_config_is_for_training_only(encoder: Encoder) -> None:
    """Also if threads predict at the same time, after an update."""
    plain = layer_over(encoder("bert"))
    layer = layer_over(encoder("bert"), transformer_config=DROPOUT)
    expected = predict(plain)
    torch.manual_seed(0)
    assert np.abs(update(layer) - expected).max() > 1e-3
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: predict(layer), range(8)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind, name", [("bert", "bf16"), ("t5", "bf16"), ("bert", "int8")])
def test_a_dtype_of_prediction_does_not_affect_training(
    kind: str, name: str, encoder: Encoder
) -> None:
    if name == "int8":
        pytest.importorskip("onnxruntime")
    expected = predict(layer_over(encoder(kind)))
    layer = layer_over(encoder(kind), dtype=name)
    for _ in range(2):
        difference = np.abs(predict(layer) - expected).max()
        assert 0 < difference < 0.1
        np.testing.assert_allclose(update(layer), expected, atol=1e-5)


def test_a_dtype_that_is_set_after_a_prediction_is_that_of_the_next_one(encoder: Encoder) -> None:
    expected = predict(layer_over(encoder("bert"), dtype="bf16"))
    layer = layer_over(encoder("bert"), dtype="fp32")
    assert (predict(layer) != expected).any()
    shim_of(layer).set_dtype("bf16")
    np.testing.assert_array_equal(predict(layer), expected)


def trained_in(encoder: Encoder, setting: Any) -> Tensor:
    layer = layer_over(encoder("bert"), mixed_precision=setting)
    update(layer)
    return torch.cat([each.flatten() for each in gradients(layer).values()])


@pytest.mark.parametrize(
    "setting, has_bf16, seconds, expected",
    [
        (True, True, 1.0, "fp32"),  # which is for GPUs
        ("bf16", True, 2.0, "bf16"),
        ("auto", True, 1.0, "bf16"),
        ("auto", True, 2.0, "fp32"),
        ("auto", False, 1.0, "fp32"),
    ],
)
def test_mixed_precision_on_a_cpu(
    setting: Any,
    has_bf16: bool,
    seconds: float,
    expected: str,
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dtype, "has_bf16", lambda: has_bf16)
    monkeypatch.setattr(dtype, "measure_linear", lambda *_: {"fp32": 2.0, "bf16": seconds})
    plain, found = trained_in(encoder, False), trained_in(encoder, setting)
    assert found.dtype == torch.float32
    assert torch.equal(found, plain) == (expected == "fp32")
    assert torch.cosine_similarity(found, plain, dim=0) > 0.99


# Windows with too many subwords


def without_length(folder: str, target: Path) -> Path:
    """Copy a transformer; its tokenizer does not know how many subwords the transformer reads."""
    shutil.copytree(folder, target)
    file = target / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["model_max_length"]
    file.write_text(json.dumps(settings))
    return target


@pytest.mark.parametrize("kind, positions", [("bert", 66), ("roberta", 64)])
def test_a_window_beyond_the_positions_is_divided(
    kind: str, positions: int, encoder: Encoder, tmp_path: Path
) -> None:
    whole = {"get_spans": doc_spans()}
    layer = layer_over(without_length(encoder(kind), tmp_path / "unlimited"), **whole)
    known = layer_over(encoder(kind), **whole, tokenizer_config={"model_max_length": positions})
    docs = [Doc(NLP.vocab, words=["abc", "defgh"] * 50), Doc(NLP.vocab, words=["w" * 200])]
    for each in (layer, transformer("", **whole).from_bytes(layer.to_bytes())):
        found = each.predict(docs)
        for vectors, expected in zip(found, known.predict(docs), strict=True):
            np.testing.assert_allclose(vectors, expected, atol=1e-6)
            assert np.abs(vectors).max(axis=1).min() > 0
    layer.begin_update(docs)


# Storage


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_checkpoint_in_16_bits_is_float32(name: str, encoder: Encoder, tmp_path: Path) -> None:
    from transformers import AutoModel

    shutil.copytree(encoder("bert"), tmp_path / "half")
    half: Any = AutoModel.from_pretrained(encoder("bert")).to(getattr(torch, name))
    half.save_pretrained(tmp_path / "half")
    layer = layer_over(tmp_path / "half")
    loaded = transformer("").from_bytes(layer.to_bytes())
    expected = half.state_dict()
    for each in (layer, loaded):
        for weights, found in module_of(each).transformer.state_dict().items():
            torch.testing.assert_close(found, expected[weights].float(), atol=0, rtol=0)
        assert module_of(each).transformer.config.layer_norm_eps == 1e-12


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Intruder(folder / "intruded")))


def damaged(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    "change, reason",
    [
        (shutil.rmtree, ""),
        (lambda folder: (folder / "config.json").unlink(), ""),
        (pickled, "no file named model.safetensors"),
        (damaged("model.safetensors", b"x"), "SafetensorError"),
        (damaged("config.json", b"[]"), ""),
        (damaged("config.json", b'{"model_type": "vit"}'), ""),
        (damaged("tokenizer.json", b"{}"), ""),
        (damaged("tokenizer.json", b"["), ""),
        # Its special subwords are then those of another vocabulary.
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "index out of range"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_error_that_names_it(
    change: Callable[[Path], Any], reason: str, encoder: Encoder, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(encoder("bert"), tmp_path / "bert"))
    change(folder)
    with pytest.raises(InputError, match=rf"^transformer: .*'{folder}'.*{reason}[^\n]*$"):
        layer_over(folder)
    assert not (folder / "intruded").exists()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"layers": "first"}, "layers: expected one of"),
        ({"pooling": "max"}, "pooling: expected one of"),
        ({"dtype": "int4"}, "dtype: expected one of"),
        ({"tokenizer_config": {"model_max_length": 2}}, "expected 3 at least, of which 2 are"),
        ({"tokenizer_config": {"model_max_length": "x"}}, "invalid literal"),
        ({"transformer_config": {"hidden_size": "x"}}, "transformer: expected"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, Any], message: str, encoder: Encoder
) -> None:
    with pytest.raises(InputError, match=message):
        layer_over(encoder("bert"), **settings)
