"""THE thinc layer over torch modules: from docs to token vectors, or to the potentials of a CRF.

Layers of this package that are nested in each other, such as a transformer below a BiLSTM-CRF, run
in one graph of torch: an update goes from thinc to torch once, and back once. Each of them also
runs alone, in any component of spaCy. A layer of another package below them is run by thinc.

Axes: B docs, N tokens of a batch, one doc after the other.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d, Ints1d
from torch import Tensor

from .arrays import to_array, to_tensor
from .device import to_device
from .shim import TorchShim
from .torch_internals import multiply, norms
from .zero_width import has_listener, without_marks

Vectors = Model[list[Doc], list[Floats2d]]
# The token vectors of a layer (N, nO) in a graph. The layer has it as its attribute VECTORS.
InGraph = Callable[["Graph", Vectors], Tensor]
VECTORS = "token_vectors"


def torch_layer(
    name: str,
    vectors: InGraph,
    *,
    init: Callable[..., None],
    shim: TorchShim,
    layers: Sequence[Vectors] = (),
    nO: int | None = None,
) -> Vectors:
    """Make a layer from docs to token vectors, which is part of the graph of the layers above it.

    Its shim has its module. nO, the width of the vectors, may be unknown yet.
    """
    return Model(
        name,
        forward,
        init=init,
        layers=layers,
        dims={"nO": nO},
        attrs={"dropout_rate": 0.0, VECTORS: vectors},
        shims=[shim],
    )


def forward(
    model: Vectors, docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    """Run a layer alone: its token vectors by doc, and the callback for their gradient."""
    graph = Graph(model, docs, is_train)
    Y = graph.vectors(model)

    def backprop(dY: list[Floats2d]) -> list[Doc]:
        graph.backward([Y], [model.ops.flatten(dY)])
        return docs

    return model.ops.unflatten(to_array(Y), cast(Ints1d, graph.lengths)), backprop


def shim_of(model: Model[Any, Any]) -> TorchShim:
    """Return the shim of a layer that has a module."""
    return cast(TorchShim, model.shims[0])


def width_of(layer: Vectors, docs: list[Doc] | None) -> int | None:
    """Return the width of the token vectors of an initialized layer; None if it cannot be known.

    If the layer does not know its width, the vectors of the docs are computed.
    """
    if layer.has_dim("nO"):
        return layer.get_dim("nO")
    # spacy-transformers gives empty docs vectors of width 0.
    return max((each.shape[1] for each in layer.predict(docs)), default=0) if docs else None


class Graph:
    """The modules of nested layers, run on a batch of docs of `lengths` tokens, (B,) int64.

    The root is the outermost layer. If vectors are added by `add`, the batch may be any sequences
    of as many items.
    """

    def __init__(self, root: Model[Any, Any], docs: Sequence[Any], is_train: bool) -> None:
        self.root, self.docs, self.is_train = root, docs, is_train
        self.lengths = np.array([len(doc) for doc in docs], dtype=np.int64)
        self._shims: dict[int, TorchShim] = {}
        # Of layers that thinc runs: vectors (N, width), leaves of the graph, and the callback.
        self._foreign: list[tuple[Model[Any, Any], Tensor, Callable[..., Any]]] = []

    @cached_property
    def docs_to_read(self) -> list[Doc]:
        """The docs, without marks of no width; a listener reads what another component has read."""
        return [*map(without_marks, self.docs)]

    def vectors(self, layer: Vectors) -> Tensor:
        """Compute the token vectors of a layer: (N, nO)."""
        in_graph: InGraph | None = layer.attrs.get(VECTORS)
        if in_graph is not None:
            return in_graph(self, layer)
        docs = [*self.docs] if has_listener(layer) else self.docs_to_read
        return self.add(layer, *layer(docs, self.is_train))

    def run(self, layer: Model[Any, Any], *inputs: Any) -> Any:
        """Run the module of a layer on tensors of its device, and other arguments."""
        shim = shim_of(layer)
        self._shims[shim.id] = shim
        return shim.begin_update(inputs) if self.is_train else shim.predict(inputs)

    def add(
        self, layer: Model[Any, Any], Y: list[Floats2d], backprop: Callable[..., Any]
    ) -> Tensor:
        """Add the token vectors of a layer that thinc has run, and the callback: (N, width)."""
        width = max((y.shape[1] for y in Y), default=0)  # spacy-transformers: 0 for an empty doc
        X = to_tensor(self.root.ops.flatten([y for y in Y if y.shape[1] == width]))
        X.requires_grad_(self.is_train)
        self._foreign.append((layer, X, backprop))
        return X

    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Any]) -> None:
        """Add to the gradients of all weights, and give foreign layers theirs."""
        learned = [
            (Y, to_device(to_tensor(dY), Y.device))
            for Y, dY in zip(outputs, gradients)
            if Y.requires_grad
        ]
        for shim in self._shims.values():
            shim.train()  # a prediction in between has switched to evaluation
        if learned:
            Ys, dYs = zip(*learned)
            if any(shim.dtype_in_training == "fp16" for shim in self._shims.values()):
                self._backward_scaled(Ys, dYs)
            else:
                torch.autograd.backward(Ys, dYs)
        for _, X, backprop in sorted(self._foreign, key=lambda foreign: self._turn(foreign[0])):
            dX = torch.zeros_like(X) if X.grad is None else X.grad
            backprop(self.root.ops.unflatten(to_array(dX), cast(Ints1d, self.lengths)))

    def _backward_scaled(self, Ys: tuple[Tensor, ...], dYs: tuple[Tensor, ...]) -> None:
        """Do a backward pass in float16; if gradients overflow, there are none."""
        loss_scale = [*self._shims.values()][-1].loss_scale
        weights = [each for shim in self._shims.values() for each in shim.parameters.values()]
        earlier = {each: each.grad for each in weights if each.grad is not None}
        for each in earlier:
            each.grad = None
        torch.autograd.backward(Ys, [dY * loss_scale.value for dY in dYs])
        own = [each for shim in self._shims.values() for each in shim.gradients().values()]
        own += [X.grad for _, X, _ in self._foreign if X.grad is not None]
        multiply(own, [1 / loss_scale.value] * len(own))
        overflowed = not bool(norms(own).isfinite().all())
        loss_scale.update(overflowed)
        if overflowed:  # not even zeros stay: an optimizer would add its momentum
            for leaf in (*weights, *(X for _, X, _ in self._foreign)):
                leaf.grad = None
        for each, gradient in earlier.items():
            each.grad = gradient if each.grad is None else each.grad.add_(gradient)

    def _turn(self, layer: Model[Any, Any]) -> int:
        """Return the number of the last listener of a layer, in the order in which spaCy has them.

        It walks a model breadth-first. The last of all listeners passes the gradients on that the
        others have added up, so it must get its own after them.
        """
        found = [node for node in self.root.walk() if hasattr(node, "upstream_name")]
        return max((found.index(node) for node in layer.walk() if node in found), default=0)
