"""A torch module as a layer of thinc: the crossing between their arrays, and its storage.

Axes: N tokens of a batch, one doc after the other.
"""

import os
from copy import deepcopy
from functools import partial
from io import BytesIO
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, cast

import numpy as np
import torch
from thinc.api import (
    ArgsKwargs,
    Model,
    Optimizer,
    PyTorchGradScaler,
    Shim,
    get_torch_default_device,
    torch2xp,
    xp2torch,
)
from thinc.layers.pytorchwrapper import forward as pytorch_forward
from thinc.types import Floats2d, Ints1d
from torch import Tensor, nn

from .precision import DTYPES, PredictionShim, require_precision, sharing_copy

InT = TypeVar("InT")
OutT = TypeVar("OutT")
# Makes a module of its sizes, as they are stored; the module has them in its attribute `sizes`.
Build = Callable[..., nn.Module]

# The child of a fork, as nlp.pipe(n_process=2) makes them, cannot use the threads that torch has
# started in its parent: it would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def on_gpu() -> bool:
    """Tell whether a GPU is in use: `spacy-crf-ner.on_gpu.v1`, a value for `mixed_precision`."""
    return bool(get_torch_default_device().type == "cuda")


def to_array(tensor: Tensor) -> Any:
    """An array of thinc over the memory of a tensor; of which kind, the tensor's device says."""
    return torch2xp(tensor.detach())


def to_tensor(array: Any) -> Tensor:
    """A tensor over the memory of an array of thinc."""
    return xp2torch(array)


def torch_layer(
    name: str,
    build: Build,
    init: Callable[..., None],
    read: Callable[[Model[InT, OutT], InT, bool], Tuple[ArgsKwargs, Callable[[ArgsKwargs], InT]]],
    write: Callable[..., Tuple[OutT, Callable[[OutT], ArgsKwargs]]],
    *,
    nO: Optional[int] = None,
    learn_rate_multiplier: float = 1.0,
    mixed_precision: bool = False,
    precision: Optional[str] = None,
) -> Model[InT, OutT]:
    """Make a layer of a module that is built when its sizes are known.

    name: Of the layer.
    build: Makes the module of its sizes.
    init: Initializes the layer; it attaches the module to the shim.
    read: What goes into the module, and the way back of its gradient, as thinc's PyTorchWrapper
        has it.
    write: What comes out of it, and the way back.
    nO: Width of the output, where it is known.
    learn_rate_multiplier: Times the optimizer's learning rate.
    mixed_precision: float16 where the module runs on a GPU.
    precision: What its recurrent layers predict in; None for that of the weights.

    Raises ValueError for an unknown precision.
    """
    require_precision(precision)
    shim = TorchShim(build, learn_rate_multiplier, mixed_precision)
    shim.precision = precision
    return Model(
        name,
        pytorch_forward,
        init=init,
        dims={"nI": None, "nO": nO},
        attrs={"convert_inputs": read, "convert_outputs": write, "dropout_rate": 0.0},
        shims=[shim],
    )


def shim_of(model: Model[Any, Any]) -> "TorchShim":
    """The shim of a `torch_layer`."""
    return cast(TorchShim, model.shims[0])


def read_vectors(
    model: Model[List[Floats2d], Any], X: List[Floats2d], is_train: bool
) -> Tuple[ArgsKwargs, Callable[[ArgsKwargs], List[Floats2d]]]:
    """Hand the vectors of the tokens of docs to a module: (N, nI), lengths (B,), dropout rate."""
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    flat = model.ops.flatten(X)
    features = xp2torch(flat, requires_grad=is_train, device=shim_of(model).device)

    def backprop(d_inputs: ArgsKwargs) -> List[Floats2d]:
        return model.ops.unflatten(to_array(d_inputs.args[0]), cast(Ints1d, lengths))

    # thinc's set_dropout_rate does not reach inside a torch module: the rate goes along.
    args = (features, torch.from_numpy(lengths), model.attrs["dropout_rate"])
    return ArgsKwargs(args=args, kwargs={}), backprop


def write_vectors(
    model: Model[Any, List[Floats2d]], inputs_outputs: Tuple[List[Any], Tensor], is_train: bool
) -> Tuple[List[Floats2d], Callable[[List[Floats2d]], ArgsKwargs]]:
    """Hand the vectors of all tokens, (N, nO), back as those of each doc."""
    docs, Y = inputs_outputs
    lengths = cast(Ints1d, np.array([len(doc) for doc in docs], dtype=np.int64))

    def backprop(dY: List[Floats2d]) -> ArgsKwargs:
        d_flat = xp2torch(model.ops.flatten(dY), device=Y.device)
        return ArgsKwargs(args=([Y],), kwargs={"grad_tensors": [d_flat]})

    return model.ops.unflatten(to_array(Y), lengths), backprop


def lower_recurrent(module: nn.Module, precision: str) -> nn.Module:
    """Copy a module, its recurrent layers in another precision; these have the most to compute.

    In int8 they stay as they are.
    """
    dtype = DTYPES.get(precision, torch.float32)
    if dtype is torch.float32:
        return sharing_copy(module)
    lowered = deepcopy(module)
    for layer in lowered.modules():
        if isinstance(layer, nn.RNNBase):
            layer.to(dtype)
    return lowered


class TorchShim(PredictionShim):
    """Hold a module that is built when its sizes are known, and let it learn at its own rate.

    build: Makes the module of its sizes.
    learn_rate_multiplier: Times the optimizer's learning rate.
    mixed_precision: float16 where the module runs on a GPU.
    """

    make_inference_module = staticmethod(lower_recurrent)

    def __init__(
        self, build: Build, learn_rate_multiplier: float = 1.0, mixed_precision: bool = False
    ) -> None:
        mixed_precision = mixed_precision and on_gpu()
        super().__init__(
            None,
            mixed_precision=mixed_precision,
            grad_scaler=PyTorchGradScaler(mixed_precision),
            serialize_model=_serialize,
            deserialize_model=partial(_deserialize, build),
        )
        self.build = build
        self.learn_rate_multiplier = learn_rate_multiplier

    def attach(self, sizes: Dict[str, Any]) -> None:
        """Build the module, with new weights, on the device in use."""
        self._model = self.build(**sizes).to(get_torch_default_device())

    @property
    def module(self) -> nn.Module:
        """The module. Raises ValueError where it is not built yet."""
        if self._model is None:
            raise ValueError(
                "The model has no weights yet: call nlp.initialize() on examples, or load a "
                "trained pipeline with spacy.load()."
            )
        return cast(nn.Module, self._model)

    @property
    def device(self) -> torch.device:
        """Where the module is; without any weights, the device in use."""
        weights = next(self.module.parameters(), None)
        return get_torch_default_device() if weights is None else weights.device

    def exchange(self, module: nn.Module) -> None:
        """Take another module. Optimizers see other weights in it."""
        self._model = module
        with Shim.global_id_lock:
            Shim.global_id += 1
            self.id = Shim.global_id

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients, at the multiplied rate."""
        if self._model is None:
            return
        if isinstance(optimizer, Optimizer):
            step = partial(optimizer, lr_scale=self.learn_rate_multiplier)
        else:
            # nlp.rehearse notes gradients for later: these here are set to zero.
            step = lambda key, weights, gradient: optimizer(key, weights, gradient.copy())  # noqa: E731
        super().finish_update(cast(Optimizer, step))


def _serialize(module: Optional[nn.Module]) -> bytes:
    if module is None:
        return b""
    stream = BytesIO()
    torch.save({"sizes": module.sizes, "state": module.state_dict()}, stream)
    return stream.getvalue()


def _deserialize(build: Build, _: Any, data: bytes, device: torch.device) -> Optional[nn.Module]:
    """Build the module from its stored sizes; nothing but tensors and plain values is read."""
    if not data:
        return None
    try:
        stored = torch.load(BytesIO(data), map_location=device, weights_only=True)
        module = build(**stored["sizes"])
        module.load_state_dict(stored["state"])
    except Exception as error:
        raise ValueError(
            "The stored weights cannot be read: expected what this architecture wrote, sizes and a "
            f"state dict, got {len(data)} bytes that fail with a {type(error).__name__}. "
            "The file is truncated, or of another architecture: save the pipeline again."
        ) from error
    return module.to(device)
