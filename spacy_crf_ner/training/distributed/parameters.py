"""The weights of a pipeline and their gradients, by names that are the same in every process.

The gradient scalers of thinc's shims have no public name; only this module of the folder uses them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from spacy.language import Language
from thinc.api import Model, PyTorchGradScaler
from thinc.optimizers import KeyT
from torch import Tensor, nn

from ...ml.mixed_precision import module_of
from ...ml.torch_layer import to_array, to_tensor


class Parameter(NamedTuple):
    """The weights that an optimizer updates in one call.

    name: The component, the number of the layer in it, and the name in the layer.
    key: How optimizers identify the weights; it differs between processes.
    tensor: Over the memory of the weights.
    owner: The thinc layer, or the parameter of a torch module.
    """

    name: str
    key: KeyT
    tensor: Tensor
    owner: Model[Any, Any] | nn.Parameter

    @property
    def gradient(self) -> Tensor | None:
        """The accumulated gradient, which may be sparse; None where there is none."""
        if isinstance(self.owner, nn.Parameter):
            return self.owner.grad
        name = self.key[1]
        return to_tensor(self.owner.get_grad(name)) if self.owner.has_grad(name) else None

    def set_gradient(self, values: Tensor) -> None:
        """Replace the accumulated gradient."""
        if isinstance(self.owner, nn.Parameter):
            self.owner.grad = values
        else:
            self.owner.set_grad(self.key[1], to_array(values))


def parameters(nlp: Language) -> list[Parameter]:
    """Find the weights of all components, in an order that is the same in every process."""
    found: dict[KeyT, Parameter] = {}
    for place, layer in _layers(nlp):
        for name in layer.param_names:
            if layer.has_param(name):
                key, tensor = (layer.id, name), to_tensor(layer.get_param(name))
                found.setdefault(key, Parameter(f"{place}/{name}", key, tensor, layer))
        for number, shim in enumerate(layer.shims):
            module = module_of(shim)
            for name, owner in module.named_parameters() if module is not None else ():
                key, full_name = (shim.id, name), f"{place}/{number}/{name}"
                found.setdefault(key, Parameter(full_name, key, owner.detach(), owner))
    return list(found.values())


def grad_scalers(nlp: Language) -> list[PyTorchGradScaler]:
    """Find the gradient scalers of all components, in an order that is the same everywhere."""
    shims = (shim for _, layer in _layers(nlp) for shim in layer.shims)
    scalers = (getattr(shim, "_grad_scaler", None) for shim in shims)
    return [scaler for scaler in scalers if scaler is not None]


def update_scale(scaler: PyTorchGradScaler, found_inf: bool) -> None:
    """Adapt the scale as after a step whose gradients overflowed or not."""
    scaler._found_inf = found_inf
    scaler.update()  # type: ignore[no-untyped-call]


def _layers(nlp: Language) -> Iterator[tuple[str, Model[Any, Any]]]:
    for name, pipe in nlp.components:
        model = getattr(pipe, "model", None)
        if isinstance(model, Model):
            for number, layer in enumerate(model.walk()):
                yield f"{name}/{number}", layer
