"""Token vectors of several layers, side by side."""

from collections.abc import Callable
from typing import Any

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from ..input_error import InputError
from .zero_width import docs_to_read

Vectors = Model[list[Doc], list[Floats2d]]


def concatenate(*layers: Vectors) -> Vectors:
    """Build `spacy-crf-ner.ConcatenateVectors.v1`: the token vectors of several layers, joined.

    thinc's `concatenate.v1` does this for arrays; its layers cannot be initialized with docs.

    Args:
        *layers: Layers from docs to one vector per token, (T, nO) for each doc. The output has the
            sum of their widths.

    Raises:
        InputError: Without a layer.
    """
    if not layers:
        raise InputError("ConcatenateVectors: expected one layer or more, got none.")
    attrs = {"token_vectors": _vectors_in_graph}  # see `layer`
    return Model("concatenate", _forward, init=_init, dims={"nO": None}, layers=layers, attrs=attrs)


def _forward(
    model: Vectors, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    if is_train:  # which needs torch
        from .layer import forward

        return forward(model, docs, is_train)
    outputs = [layer.predict(docs_to_read(layer, docs)) for layer in model.layers]
    return [model.ops.xp.hstack(of_doc) for of_doc in zip(*outputs)], lambda dY: docs


def _vectors_in_graph(graph: Any, layer: Vectors) -> Any:
    import torch

    parts = [graph.vectors(part) for part in layer.layers]
    # thinc's layers are on the CPU where thinc has no arrays of the device, as of MPS.
    device = next((each.device for each in parts if each.device.type != "cpu"), parts[0].device)
    return torch.cat([each.to(device) for each in parts], dim=1)


def _init(model: Vectors, X: list[Doc] | None = None, Y: Any = None) -> None:
    for layer in model.layers:
        layer.initialize(X=X)
    if all(layer.has_dim("nO") for layer in model.layers):
        model.set_dim("nO", sum(layer.get_dim("nO") for layer in model.layers))
