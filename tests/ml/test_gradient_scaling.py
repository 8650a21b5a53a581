"""Training under a gradient scaler: accumulated gradients are those without the scaler.

A CPU has no mixed precision that needs a scaler. So the tests train in float32 and put a scaler
into the shims that works on a CPU; the oracle is the same training without it.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from thinc.api import SGD, PyTorchGradScaler, PyTorchShim

from pipelines import LISTENER, SENTENCES, TOK2VEC, make_examples
from spacy_crf_ner.training.rehearsal import rehearse

ROOT = Path(__file__).parents[2]
SCALE = 2.0**16
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SPANS = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96}
TEXTS = [text for text, _ in SENTENCES]


@pytest.fixture(autouse=True)
def no_sparse_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a CPU, which has no scaler, trains with them."""
    monkeypatch.setattr("spacy_crf_ner.ml.transformer.shim._training_faster", nullcontext)


class CPUScaler(PyTorchGradScaler):
    """thinc's gradient scaler, but for its check that tensors are on a GPU."""

    def _scale_tensor(self, tensor: Any, scale_per_device: Any, inplace: bool) -> Any:
        return tensor.mul_(self._scale) if inplace else tensor * self._scale


def shims_of(nlp: Language) -> dict[str, PyTorchShim]:
    """The shims of all torch modules, by their component."""
    return {
        name: shim
        for name, pipe in nlp.pipeline
        for node in cast(Any, pipe).model.walk()
        for shim in node.shims
    }


def scaled(nlp: Language) -> Language:
    """Train all torch modules with a gradient scaler."""
    for shim in shims_of(nlp).values():
        shim._grad_scaler = CPUScaler(enabled=True, init_scale=SCALE)
    return nlp


def unscaled(nlp: Language) -> Language:
    return nlp


def make(kind: str, tiny_transformer: str) -> Language:
    """A pipeline that is initialized, with a torch module in each component."""
    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    model: dict[str, Any] = {"hidden_width": 8, "tok2vec": TOK2VEC}
    if kind == "transformer":
        transformer = {
            "@architectures": "spacy-crf-ner.TransformerModel.v1",
            "name": tiny_transformer,
            "transformer_config": NO_DROPOUT,
            "get_spans": SPANS,
        }
        nlp.add_pipe("transformer", config={"model": transformer})
        model["tok2vec"] = LISTENER
    nlp.add_pipe("crf_ner", config={"model": model})
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def gradients(nlp: Language) -> dict[str, torch.Tensor]:
    return {
        f"{component}.{name}": weight.grad.to_dense().clone()
        for component, shim in shims_of(nlp).items()
        for name, weight in shim._model.named_parameters()
        if weight.grad is not None
    }


def weights(nlp: Language) -> dict[str, torch.Tensor]:
    return {
        f"{component}.{name}": value.detach().clone()
        for component, shim in shims_of(nlp).items()
        for name, value in shim._model.state_dict().items()
    }


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, of_name in expected.items():
        largest = float(of_name.abs().max())
        torch.testing.assert_close(
            found[name], of_name, rtol=1e-4, atol=1e-5 * max(largest, 1.0), msg=name
        )


def update(nlp: Language, examples: list[Example]) -> float:
    """One backward pass, which leaves its gradients to the next update."""
    return nlp.update(examples, sgd=False)["crf_ner"]  # type: ignore[arg-type]


both_shims = pytest.mark.parametrize("kind", ["head", "transformer"])


@both_shims
def test_scaled_gradients_of_parts_sum_to_batch_gradients(kind: str, tiny_transformer: str) -> None:
    """Of two parts and of seven, one for each doc."""
    nlp = make(kind, tiny_transformer)
    loss = update(nlp, make_examples(nlp))
    expected = gradients(nlp)
    assert kind == "head" or any(name.startswith("transformer.") for name in expected)
    for size in (4, 1):
        nlp = scaled(make(kind, tiny_transformer))
        examples = make_examples(nlp)
        parts = [examples[i : i + size] for i in range(0, len(examples), size)]
        assert sum(update(nlp, part) for part in parts) == pytest.approx(loss, rel=1e-5)
        assert_close(gradients(nlp), expected)


def rehearsing(nlp: Language) -> Language:
    """Keep the current model for rehearsal, and then change the head."""
    nlp.resume_training()
    head = shims_of(nlp)["crf_ner"]._model
    with torch.no_grad():
        head.projection.bias += torch.linspace(-1, 1, len(head.projection.bias))
    return nlp


def through_the_callback(nlp: Language, folder: Path) -> None:
    """As `spacy train` does: rehearse, and update with gold examples in two parts."""
    path = folder / "raw.spacy"
    DocBin(docs=[nlp.make_doc(text) for text in TEXTS]).to_disk(path)
    rehearse(path, "crf_ner", batch_size=7)(nlp, {"step": 0, "epoch": 0})
    examples = make_examples(nlp)
    update(nlp, examples[:4])
    update(nlp, examples[4:])
    for _, pipe in nlp.pipeline:
        cast(Any, pipe).finish_update(SGD(0.01, grad_clip=0.0))


def through_the_pipeline(nlp: Language, folder: Path) -> None:
    """As users do, by nlp.rehearse and nlp.update in turn."""
    optimizer = SGD(0.01, grad_clip=0.0)
    annotated = nlp.get_pipe("transformer").pipe if "transformer" in nlp.pipe_names else list
    for _ in range(2):
        docs = [*cast(Any, annotated)([nlp.make_doc(text) for text in TEXTS])]
        # nlp.rehearse applies the gradients of one component, the last of a random order.
        raw = [Example(doc, doc) for doc in docs]
        nlp.rehearse(raw, sgd=optimizer, exclude=["transformer"])
        nlp.update(make_examples(nlp), sgd=optimizer)


@both_shims
@pytest.mark.parametrize("learn", [through_the_callback, through_the_pipeline])
def test_rehearsal_weights_with_scaler_match_weights_without(
    kind: str, learn: Callable[..., None], tiny_transformer: str, tmp_path: Path
) -> None:
    found, expected = (
        rehearsing(make_with(make(kind, tiny_transformer))) for make_with in (scaled, unscaled)
    )
    before = weights(expected)
    for nlp in (found, expected):
        learn(nlp, tmp_path)
    assert_close(weights(found), weights(expected))
    moved = (weights(expected)["crf_ner.projection.bias"] - before["crf_ner.projection.bias"]).abs()
    assert float(moved.max()) > 1e-2
    # Control: without rehearsal, the weights of the head differ.
    alone = rehearsing(make(kind, tiny_transformer))
    alone.get_pipe("crf_ner")._rehearsal_model = None  # type: ignore[attr-defined]
    if learn is through_the_pipeline:
        learn(alone, tmp_path)
        bias = "crf_ner.projection.bias"
        assert not torch.allclose(weights(alone)[bias], weights(expected)[bias], atol=1e-3)


def trained(name: str, folder: Path, transformer: str, parts: int, with_: Any) -> Any:
    """The losses and the weights after `spacy train` with batches of so many parts."""
    path = folder / "train.spacy"
    examples = make_examples(spacy.blank("en"))
    DocBin(docs=[eg.reference for eg in examples]).to_disk(path)
    overrides = {"paths.train": str(path), "paths.dev": str(path)}
    overrides["components.ner.model.hidden_width"] = 16
    if name == "transformer":
        overrides["paths.transformer"] = transformer
    config = load_config(ROOT / "configs" / f"{name}.cfg", overrides=overrides)
    if name == "transformer":
        config["components"]["transformer"]["model"]["transformer_config"] = NO_DROPOUT
    losses: list[float] = []

    def log(nlp: Language, *_: Any) -> Any:
        return lambda info: info and losses.append(info["losses"]["ner"]), lambda: None

    spacy.registry.loggers.register("test_gradient_scaling.v1", func=lambda: log)
    config["training"].update(
        max_steps=6,
        eval_frequency=3,
        dropout=0.0,
        accumulate_gradient=parts,
        optimizer={"@optimizers": "SGD.v1", "learn_rate": 0.002, "grad_clip": 0.0},
        logger={"@loggers": "test_gradient_scaling.v1"},
    )
    nlp = with_(init_nlp(config))
    train(nlp, None)
    return losses, weights(nlp)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("cnn", marks=pytest.mark.slow), "transformer"])
def test_spacy_train_with_accumulation_matches_one_large_batch(
    name: str, tiny_transformer: str, tmp_path: Path
) -> None:
    arguments = name, tmp_path, tiny_transformer
    expected, expected_weights = trained(*arguments, 1, unscaled)
    found, found_weights = trained(*arguments, 3, scaled)
    assert len(expected) == 3 and expected[2] < expected[1]  # each of three steps
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert_close(found_weights, expected_weights)


@both_shims
@pytest.mark.parametrize("overflowing", [0, 1, 2])
def test_an_overflow_of_one_part_skips_the_update(
    kind: str, overflowing: int, tiny_transformer: str
) -> None:
    """Whichever part it is; the next update learns again, with half the scale."""
    nlp = scaled(make(kind, tiny_transformer))
    before = weights(nlp)
    shim = shims_of(nlp)["crf_ner" if kind == "head" else "transformer"]
    bias = next(p for name, p in shim._model.named_parameters() if name.endswith("bias"))
    parts = [[eg] for eg in make_examples(nlp) if len(eg.x)][:3]
    for i, part in enumerate(parts):
        factor = torch.inf if i == overflowing else 1.0
        handle = bias.register_hook(lambda gradient, factor=factor: gradient * factor)
        update(nlp, part)
        handle.remove()
    assert shim._grad_scaler.found_inf
    shim.finish_update(SGD(0.1))
    name = f"{'crf_ner' if kind == 'head' else kind}."
    after = weights(nlp)
    assert all(torch.equal(after[key], before[key]) for key in before if key.startswith(name))
    assert float(shim._grad_scaler._scale) == SCALE / 2
    update(nlp, parts[0])
    shim.finish_update(SGD(0.1))
    after = weights(nlp)
    assert any((after[key] != before[key]).any() for key in before if key.startswith(name))
    assert all(value.isfinite().all() for value in after.values())
