"""Callbacks that freeze a transformer, or its lower layers."""

import re
from collections.abc import Callable
from typing import Any

from spacy.language import Language

from ..extras import required
from ..input_error import InputError
from ..pipeline.lookup import model_layers

with required("train"):
    from ..ml.shim import module_of

Callback = Callable[[Language], None]

_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")
# In DeBERTa, `encoder.LayerNorm` is the norm of the embeddings of relative positions.
_EMBEDDINGS = re.compile(
    r"(?:^|\.)(?:\w*embeddings\w*|embed_\w+|word_embedding|embedding_hidden_mapping_in"
    r"|relative_attention_bias|wte|wpe|encoder\.LayerNorm)(?:\.|$)"
)


def freeze_layers(component: str = "ner", layers: int = 1) -> Callback:
    """Make `spacy-crf-ner.freeze_layers.v1`, for `[initialize.after_init]`.

    The embeddings and the lowest layers of a transformer keep their weights, and no gradients are
    computed for them. This is not saved with the pipeline: call it again after loading.

    The callback raises InputError if the component is missing, has no transformer with more layers,
    or has one whose weight names do not identify the layers.

    Args:
        component: The component with the transformer.
        layers: The number of frozen layers, from the lowest; 0 for the embeddings alone.
    """

    def after_init(nlp: Language) -> None:
        known = component in nlp.component_names
        nodes = model_layers(nlp.get_pipe(component)) if known else []
        modules: list[Any] = [module_of(shim) for node in nodes for shim in node.shims]
        # as `Transformer.v1` has it
        own = [getattr(module, "transformer", None) for module in modules]
        transformers = [
            each
            for each in modules + own
            if hasattr(getattr(each, "config", None), "num_hidden_layers")
        ]
        if not transformers:
            raise InputError(
                f"freeze_layers: expected a transformer in {component!r}, one of "
                f"{nlp.component_names}, got none. Name the component that has one, and initialize "
                "or load it first."
            )
        for module in transformers:
            _freeze(module, layers, component)

    return after_init


def _freeze(module: Any, layers: int, component: str) -> None:
    """Turn off the gradients of the embeddings and the lowest layers."""
    size = module.config.num_hidden_layers
    instead = "set frozen = true in the config of the transformer."
    if not 0 <= layers < size:
        raise InputError(
            f"freeze_layers: expected 0 or more layers, and fewer than the {size} layers of the "
            f"transformer in {component!r}, got {layers}. To freeze all of it, {instead}"
        )
    indices = {name: _layer_index(name) for name, _ in module.named_parameters()}
    found = {index for index in indices.values() if index is not None}
    if found != {*range(size + 1)}:
        raise InputError(
            f"freeze_layers: expected weights of embeddings and {size} layers in the transformer "
            f"in {component!r}, got names of {sorted(found)}, 0 for the embeddings. A "
            f"{type(module).__name__} cannot be frozen in part: {instead}"
        )
    for name, parameter in module.named_parameters():
        index = indices[name]
        if index is not None and index <= layers:
            parameter.requires_grad_(False)
            parameter.grad = None


def _layer_index(name: str) -> int | None:
    """Find the layer of a weight by its name, such as "encoder.layer.3.output.dense.weight".

    It is 0 for the embeddings, i + 1 for layer i, and None above the layers or elsewhere.
    """
    layer = _LAYER.search(name)
    if layer:
        return int(layer[1]) + 1
    return 0 if _EMBEDDINGS.search(name) else None
