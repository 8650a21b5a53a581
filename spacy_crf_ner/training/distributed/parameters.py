"""The weights of a pipeline, by names that are the same in every process."""

from typing import Any, Dict, Iterator, NamedTuple, Tuple

from spacy.language import Language
from thinc.api import Model
from thinc.optimizers import KeyT

from ...ml.torch_layer import to_tensor


class Parameter(NamedTuple):
    """Weights that can learn.

    name: Of the component, the number of the layer in it, and the name in that.
    tensor: Over the memory of the model.
    lr_scale: Times the learning rate.
    """

    name: str
    tensor: Any
    lr_scale: float


def parameters(nlp: Language) -> Dict[KeyT, Parameter]:
    """Find the weights of all components, by the keys under which optimizers know them.

    They have one order in every process; their keys have not.
    """
    found: Dict[KeyT, Parameter] = {}
    for place, node in _nodes(nlp):
        for name in node.param_names:
            if node.has_param(name):
                tensor = to_tensor(node.get_param(name))
                found.setdefault((node.id, name), Parameter(f"{place}/{name}", tensor, 1.0))
        for number, shim in enumerate(node.shims):
            scale = getattr(shim, "learn_rate_multiplier", 1.0)
            for name, tensor in _of_module(shim, "named_parameters"):
                parameter = Parameter(f"{place}/{number}/{name}", tensor.detach(), scale)
                found.setdefault((shim.id, name), parameter)
    return found


def tensors(nlp: Language) -> Iterator[Tuple[str, Any]]:
    """Yield names and tensors of all weights, and of what else torch modules keep."""
    for parameter in parameters(nlp).values():
        yield parameter.name, parameter.tensor
    for place, node in _nodes(nlp):
        for number, shim in enumerate(node.shims):
            for name, tensor in _of_module(shim, "named_buffers"):
                yield f"{place}/{number}/{name}", tensor.detach()


def _nodes(nlp: Language) -> Iterator[Tuple[str, Model[Any, Any]]]:
    for name, pipe in nlp.components:
        model = getattr(pipe, "model", None)
        if isinstance(model, Model):
            for number, node in enumerate(model.walk()):
                yield f"{name}/{number}", node


def _of_module(shim: Any, names: str) -> Iterator[Tuple[str, Any]]:
    module = getattr(shim, "_model", None)
    if hasattr(module, names):
        yield from getattr(module, names)()
