"""Synchronization of weights and gradients across ranks."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from spacy.language import Language
from thinc.api import Model
from thinc.optimizers import KeyT
from torch import Tensor, nn

from ...input_error import InputError
from ...ml.arrays import to_array, to_tensor
from ...ml.shim import module_of
from ...pipeline.lookup import model_layers
from .process_group import ProcessGroup


class Parameter(NamedTuple):
    """The weights that an optimizer updates in one call."""

    name: str  # the component, the number of the layer in it, and the name in the layer
    key: KeyT  # by which optimizers know the weights; it differs between processes
    tensor: Tensor  # shares the memory of the weights
    owner: Model[Any, Any] | nn.Parameter  # the thinc layer, or the parameter of a torch module

    @property
    def gradient(self) -> Tensor | None:
        """The accumulated gradient, which may be sparse; None if there is none."""
        if isinstance(self.owner, nn.Parameter):
            return self.owner.grad
        name = self.key[1]
        return to_tensor(self.owner.get_grad(name)) if self.owner.has_grad(name) else None

    def dense_gradient(self) -> Tensor:
        """Return the accumulated gradient, to change in place; zeros if there was none."""
        found = self.gradient
        gradient = torch.zeros_like(self.tensor) if found is None else found.to_dense()
        if isinstance(self.owner, nn.Parameter):
            self.owner.grad = gradient
        elif found is None:
            self.owner.set_grad(self.key[1], to_array(gradient))
        return gradient


def parameters(nlp: Language) -> list[Parameter]:
    """Find the weights of all components, in an order that is the same in every process."""
    found: dict[Hashable, Parameter] = {}  # by what is the same for shared weights only
    layers = [
        (f"{name}/{number}", layer)
        for name, pipe in nlp.components
        for number, layer in enumerate(model_layers(pipe))
    ]
    for place, layer in layers:
        for name in layer.param_names:
            if layer.has_param(name):
                key, tensor = (layer.id, name), to_tensor(layer.get_param(name))
                found.setdefault(key, Parameter(f"{place}/{name}", key, tensor, layer))
        for number, shim in enumerate(layer.shims):
            module = module_of(shim)
            for name, owner in module.named_parameters() if module is not None else ():
                key, full_name = (shim.id, name), f"{place}/{number}/{name}"
                found.setdefault(owner, Parameter(full_name, key, owner.detach(), owner))
    return list(found.values())


def get_weights(nlp: Language) -> dict[str, Tensor]:
    """Return all weights by name, without copying them."""
    return {parameter.name: parameter.tensor for parameter in parameters(nlp)}


def set_weights(nlp: Language, weights: dict[str, Tensor]) -> None:
    """Copy weights of `get_weights` into a pipeline; raise InputError if names or shapes differ."""
    own = get_weights(nlp)
    for name in own | weights:
        got, expected = (tensors.get(name, torch.empty(0)).shape for tensors in (own, weights))
        if got != expected:
            raise InputError(
                f"{name}: expected weights of shape {[*expected]}, as rank 0 or the checkpoint "
                f"has them, got {[*got]}. Use the same config and corpus in all ranks, and those "
                "of the checkpoint to resume."
            )
        own[name].copy_(weights[name])


def drop_gradients(nlp: Language) -> None:
    """Set all gradients to zero."""
    for parameter in parameters(nlp):
        if parameter.gradient is not None:
            parameter.dense_gradient().zero_()


def broadcast_weights(nlp: Language, group: ProcessGroup) -> None:
    """Copy the weights of rank 0 to all ranks; raises InputError if names or shapes differ."""
    if group.size > 1:
        weights = {name: tensor.cpu() for name, tensor in get_weights(nlp).items()}
        set_weights(nlp, group.broadcast(weights))


def sum_gradients(nlp: Language, group: ProcessGroup) -> None:
    """Replace all gradients by their sums over ranks, in two collective calls.

    The loss of a batch is a sum over its docs, so N ranks with batches of b docs train like one
    process with batches of N * b docs. A rank without a gradient for some weights adds zeros.
    """
    if group.size == 1:
        return
    found = parameters(nlp)
    flags = [parameter.gradient is not None for parameter in found]
    counts = torch.tensor(flags, dtype=torch.float32, device=group.device)
    group.all_reduce(counts)
    gradients = [p.dense_gradient() for p, count in zip(found, counts.tolist()) if count]
    if gradients:
        flat = torch.cat([gradient.reshape(-1).to(group.device) for gradient in gradients])
        group.all_reduce(flat)
        for gradient, part in zip(gradients, torch.split(flat, [d.numel() for d in gradients])):
            gradient.copy_(part.view_as(gradient))
