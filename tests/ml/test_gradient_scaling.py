"""Training in float16: scaled gradients are those without a scale, and an overflow adds nothing.

The tests compute in float32, with the scale of float16; the oracle is the same without it.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from spacy.language import Language
from thinc.api import Adam

from graphs import assert_near, model_of, modules_of, nested, take_gradients, weights_of
from pipelines import make_examples
from spacy_crf_ner.ml.shim import LossScale, TorchShim

SCALE = 2.0**16


@pytest.fixture
def nlp(tiny_transformer: str) -> Language:
    return nested(tiny_transformer)


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Scale the gradients of pipelines from now on."""

    def scale(nlp: Language) -> LossScale:
        monkeypatch.setattr(TorchShim, "dtype_in_training", "fp16")
        monkeypatch.setattr(TorchShim, "_autocast", lambda self: nullcontext())
        loss_scale: LossScale = model_of(nlp).get_ref("output_layer").shims[0].loss_scale
        loss_scale.value = SCALE
        return loss_scale

    return scale


def update(nlp: Language, parts: list[Any]) -> None:
    """Do a backward pass for each part, which leaves its gradients to the next update."""
    for part in parts:
        nlp.update(part, sgd=False)


def overflow(nlp: Language, parts: list[Any], layer: str) -> None:
    """Do backward passes in which a gradient of a layer, or of all of them, overflows."""
    modules = modules_of(nlp)
    of_layer = [modules[layer]] if layer else modules.values()
    hooks = [
        weights.register_hook(lambda gradient: gradient * torch.inf)
        for module in of_layer
        for name, weights in module.named_parameters()
        if "bias" in name
    ]
    update(nlp, parts)
    for hook in hooks:
        hook.remove()


def test_scaled_gradients_of_parts_sum_to_batch_gradients(nlp: Language, scaled: Any) -> None:
    """Those of spaCy's CNN too."""
    examples = make_examples(nlp)
    update(nlp, [examples])
    expected = take_gradients(nlp)
    loss_scale = scaled(nlp)
    for size in (4, 1):
        update(nlp, [examples[i : i + size] for i in range(0, len(examples), size)])
        assert_near(take_gradients(nlp), expected)
    assert loss_scale.value == SCALE


@pytest.mark.parametrize(
    "place, layer", [(0, "transformer"), (1, "rnn_encoder"), (2, "bilstm_crf")]
)
def test_a_part_that_overflows_adds_nothing_to_the_others(
    place: int, layer: str, nlp: Language, scaled: Any
) -> None:
    """Nor in other layers: each reads what the others give it."""
    parts = [[eg] for eg in make_examples(nlp) if len(eg.x)][:3]
    update(nlp, [part for i, part in enumerate(parts) if i != place])
    expected = take_gradients(nlp)
    loss_scale = scaled(nlp)
    update(nlp, parts[:place])
    overflow(nlp, [parts[place]], layer)
    assert loss_scale.value == SCALE / 2
    update(nlp, parts[place + 1 :])
    assert_near(take_gradients(nlp), expected)


def test_an_update_that_overflows_changes_no_weight_of_a_module(nlp: Language, scaled: Any) -> None:
    """Not even by the momentum and the decay of the optimizer; the next one learns again."""
    optimizer, batch = Adam(0.01, L2=0.1), make_examples(nlp)
    nlp.update(batch, sgd=optimizer)
    scaled(nlp)
    before = weights_of(nlp)
    overflow(nlp, [batch], "")
    model_of(nlp).finish_update(optimizer)
    modules = (*modules_of(nlp),)
    of_modules = [name for name in before if name.startswith(modules)]
    after = weights_of(nlp)
    assert all((after[name] == before[name]).all() for name in of_modules)
    nlp.update(batch, sgd=optimizer)
    after = weights_of(nlp)
    assert sum((after[name] != before[name]).any() for name in of_modules) > 40


def test_loss_scale_halves_at_overflow_and_doubles_after_2000_batches_without() -> None:
    scale, found = LossScale(), []
    for batch in range(1, 6001):
        scale.update(overflowed=batch in (1500, 1501))
        if not found or scale.value != found[-1][1]:
            found.append((batch, scale.value))
    assert found == [(1, 8.0), (1500, 4.0), (1501, 2.0), (3501, 4.0), (5501, 8.0)]
