"""Token vectors of several layers, side by side."""

from collections.abc import Callable
from typing import Any

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps
from thinc.types import Floats2d

from ..input_error import InputError

Vectors = Model[list[Doc], list[Floats2d]]


def concatenate(*layers: Vectors) -> Vectors:
    """Build `spacy-crf-ner.ConcatenateListeners.v1`: the vectors of several layers, concatenated
    per token.

    thinc's `concatenate.v1` does this for arrays; its layers cannot be initialized with docs.

    Args:
        *layers: Layers from docs to one vector per token, (T, nO) for each doc. The output has the
            sum of their widths.

    Raises:
        InputError: Without a layer.
    """
    if not layers:
        raise InputError("ConcatenateListeners: expected one layer or more, got none.")
    return Model("concatenate", _forward, init=_init, dims={"nO": None}, layers=layers)


def _forward(
    model: Vectors, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    outputs, callbacks = zip(*(layer(docs, is_train) for layer in model.layers))
    xp = model.ops.xp
    if isinstance(model.ops, NumpyOps):
        Y = [xp.hstack(of_doc) for of_doc in zip(*outputs)]
    else:  # in one kernel, not in one for each doc
        flat = xp.hstack([model.ops.flatten(of_layer) for of_layer in outputs])
        Y = xp.split(flat, np.cumsum([len(doc) for doc in docs])[:-1].tolist())
    # spacy-transformers gives empty docs vectors of width 0.
    widths = [max((y.shape[1] for y in of_layer), default=0) for of_layer in outputs]
    ends = np.cumsum(widths).tolist()

    def backprop(dY: list[Floats2d]) -> list[Doc]:
        parts = list(zip(callbacks, [0, *ends], ends))
        for i in _order_of_listeners(model):
            callback, start, end = parts[i]
            callback([xp.ascontiguousarray(dy[:, start:end]) for dy in dY])
        return docs

    return Y, backprop


def _order_of_listeners(model: Vectors) -> list[int]:
    """Return the layers in the order in which spaCy finds the last listener of each.

    It walks a model breadth-first. The last of all listeners passes the gradients on that the
    others have added up, so it must get its own after them.
    """
    found = [node for node in model.walk() if hasattr(node, "upstream_name")]
    last = [
        max((found.index(n) for n in layer.walk() if n in found), default=0)
        for layer in model.layers
    ]
    return sorted(range(len(last)), key=last.__getitem__)


def _init(model: Vectors, X: list[Doc] | None = None, Y: Any = None) -> None:
    for layer in model.layers:
        layer.initialize(X=X)
    if all(layer.has_dim("nO") for layer in model.layers):
        model.set_dim("nO", sum(layer.get_dim("nO") for layer in model.layers))
