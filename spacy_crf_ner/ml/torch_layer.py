"""torch modules as thinc layers: conversion between arrays and tensors, and serialization.

Axes: N tokens of a batch, one doc after the other.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import srsly
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
from thinc.types import Floats2d, Ints1d
from torch import Tensor, nn

from ..input_error import InputError
from .checksummed import readable, seal, unseal
from .device import to_device
from .dtype import DTYPES, PredictionShim, check_dtype, sharing_copy
from .mixed_precision import (
    FIRST_SCALE,
    MixedPrecision,
    MixedPrecisionShim,
    in_bfloat16,
    in_float16,
    module_of,
    on_gpu,
)
from .stored_weights import build_without_weights, weights_from_bytes, weights_to_bytes

InT = TypeVar("InT")
OutT = TypeVar("OutT")
# Makes a module from its dimensions, such as nI, which the module keeps in its attribute `dims`.
Build = Callable[..., nn.Module]
ConvertInputs = Callable[
    [Model[InT, OutT], InT, bool], tuple[ArgsKwargs, Callable[[ArgsKwargs], InT]]
]
ConvertOutputs = Callable[..., tuple[OutT, Callable[[OutT], ArgsKwargs]]]


def to_array(tensor: Tensor) -> Any:
    """Return an array over the memory of a tensor: numpy on the CPU, cupy on a GPU."""
    return torch2xp(tensor.detach())


def to_tensor(array: Any) -> Tensor:
    """Return a tensor over the memory of an array, on the device of the array."""
    # xp2torch alone would copy a numpy array to the GPU in use.
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    if not array.size:  # without memory, which cupy would ask CUDA about
        return torch.from_numpy(array.get()).to(get_torch_default_device())
    return xp2torch(array)


def torch_layer(
    name: str,
    build: Build,
    convert_inputs: ConvertInputs[InT, OutT],
    convert_outputs: ConvertOutputs[OutT],
    *,
    init: Callable[..., None],
    nO: int | None = None,
    mixed_precision: MixedPrecision = False,
    dtype: str | None = None,
) -> Model[InT, OutT]:
    """Make a layer from a module that is built when its dimensions are known.

    Args:
        build: Makes the module from its dimensions.
        convert_inputs: Returns the arguments of the module and a callback for their gradient.
        convert_outputs: Takes the inputs of the layer and the outputs of the module; returns the
            outputs of the layer and a callback for their gradient. Both are as in thinc's
            PyTorchWrapper.
        init: Initializes the layer with `TorchShim.build_module`.
        nO: The width of the output, if it is known.
        mixed_precision: Train in 16 bits on a GPU: True, "auto" or "bf16".
        dtype: Dtype in prediction: "fp32", "bf16", "fp16", "auto"; None for the dtype
            of the weights.

    Raises:
        InputError: For an unknown dtype.
    """
    check_dtype(dtype)
    shim = TorchShim(build, mixed_precision)
    shim.dtype = dtype
    return Model(
        name,
        partial(_forward, convert_inputs=convert_inputs, convert_outputs=convert_outputs),
        init=init,
        dims={"nI": None, "nO": nO},
        attrs={"dropout_rate": 0.0},
        shims=[shim],
    )


def _forward(
    model: Model[InT, OutT],
    X: InT,
    is_train: bool,
    *,
    convert_inputs: ConvertInputs[InT, OutT],
    convert_outputs: ConvertOutputs[OutT],
) -> tuple[OutT, Callable[[OutT], InT]]:
    inputs, to_d_X = convert_inputs(model, X, is_train)
    outputs, backprop_module = shim_of(model)(inputs, is_train)
    Y, to_d_outputs = convert_outputs(model, (X, outputs), is_train)
    return Y, lambda dY: to_d_X(backprop_module(to_d_outputs(dY)))


def init_from_vectors(
    model: Model[list[Floats2d], Any],
    X: list[Floats2d] | None = None,
    Y: Any = None,
    *,
    dims: tuple[str, ...],
) -> None:
    """Build the module of a layer, with new weights, for the width of the vectors X.

    Args:
        dims: The dimensions that the module is built from, including nI.
    """
    if X is not None:
        # spacy-transformers gives empty docs vectors of width 0.
        model.set_dim("nI", max((x.shape[1] for x in X), default=0), force=True)
    shim_of(model).build_module(**{name: model.get_dim(name) for name in dims})


def shim_of(model: Model[Any, Any]) -> "TorchShim":
    """Return the shim of a `torch_layer`."""
    return cast(TorchShim, model.shims[0])


def read_vectors(
    model: Model[list[Floats2d], Any], X: list[Floats2d], is_train: bool
) -> tuple[ArgsKwargs, Callable[[ArgsKwargs], list[Floats2d]]]:
    """Convert the vectors of docs to arguments: features (N, nI), lengths (B,), dropout rate.

    Raises:
        InputError: For vectors of another width than those that the module was built for.
    """
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    flat = model.ops.flatten(X)
    device = shim_of(model).device  # raises an error if there are no weights
    expected = model.get_dim("nI")
    if len(flat) and flat.shape[1] != expected:
        raise InputError(
            f"{model.name}: expected token vectors of width {expected}, as in training, got "
            f"{flat.shape[1]}. If it listens to another component, that is not the one of the "
            "training: call nlp.replace_listeners in that pipeline before you source from it."
        )
    features = to_tensor(flat).to(device).requires_grad_(is_train)

    def backprop(d_inputs: ArgsKwargs) -> list[Floats2d]:
        return model.ops.unflatten(to_array(d_inputs.args[0]), cast(Ints1d, lengths))

    # thinc's set_dropout_rate does not reach inside a torch module: pass the rate along.
    args = (features, torch.from_numpy(lengths), model.attrs["dropout_rate"])
    return ArgsKwargs(args=args, kwargs={}), backprop


def write_vectors(
    model: Model[Any, list[Floats2d]], inputs_outputs: tuple[list[Any], Tensor], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], ArgsKwargs]]:
    """Split the vectors of all tokens, (N, nO), by doc."""
    docs, Y = inputs_outputs
    lengths = cast(Ints1d, np.array([len(doc) for doc in docs], dtype=np.int64))

    def backprop(dY: list[Floats2d]) -> ArgsKwargs:
        d_flat = to_device(to_tensor(model.ops.flatten(dY)), Y.device)
        return ArgsKwargs(args=([Y],), kwargs={"grad_tensors": [d_flat]})

    return model.ops.unflatten(to_array(Y), lengths), backprop


def cast_recurrent(module: nn.Module, dtype: str) -> nn.Module:
    """Copy a module and cast its recurrent layers, the most expensive ones; not to int8.

    On a GPU, bfloat16 becomes float16, because cuDNN has no bfloat16 for them.
    """
    torch_dtype = DTYPES.get(dtype, torch.float32)
    if torch_dtype is torch.float32:
        return sharing_copy(module)
    copied = deepcopy(module)
    for layer in copied.modules():
        if isinstance(layer, nn.RNNBase):
            layer.to(torch.float16 if layer.all_weights[0][0].is_cuda else torch_dtype)
    return copied


class TorchShim(MixedPrecisionShim, PredictionShim):
    """A shim whose module is built when its dimensions are known."""

    make_inference_module = staticmethod(cast_recurrent)

    def __init__(self, build: Build, mixed_precision: MixedPrecision = False) -> None:
        float16 = in_float16(mixed_precision)
        super().__init__(
            None,
            mixed_precision=float16,
            grad_scaler=PyTorchGradScaler(float16, init_scale=FIRST_SCALE),
        )
        self.bf16 = bool(on_gpu() and in_bfloat16(mixed_precision))
        self.build = build

    def build_module(self, **dims: int) -> None:
        """Build the module, with new weights, on the device in use."""
        self.replace_module(self.build(**dims).to(get_torch_default_device()))

    def replace_module(self, module: nn.Module) -> None:
        """Replace the module. Optimizers treat its weights as new ones."""
        Shim.__init__(self, module)  # with a new id

    def to_bytes(self) -> bytes:
        """Write the dimensions and the weights of the module; nothing if it is not built yet."""
        module: Any = module_of(self)
        if module is None:
            return b""
        return seal(srsly.msgpack_dumps({"dims": module.dims, "weights": weights_to_bytes(module)}))

    def from_bytes(self, bytes_data: bytes) -> "TorchShim":
        """Read the module. Raises InputError for bytes that are not its weights."""
        self.load_module(_read_module(self.build, bytes_data))
        return self

    @property
    def module(self) -> nn.Module:
        """The module. Raises InputError if it is not built yet."""
        module = module_of(self)
        if module is None:
            raise InputError(
                "The model has no weights yet: call nlp.initialize() on examples, or load a "
                "trained pipeline with spacy.load()."
            )
        return module

    @property
    def device(self) -> torch.device:
        """The device of the module; if it has no weights, the device in use."""
        weights = next(self.module.parameters(), None)
        return get_torch_default_device() if weights is None else weights.device

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients, if the module is built."""
        if module_of(self) is not None:
            super().finish_update(optimizer)


def _read_module(build: Build, data: bytes) -> nn.Module | None:
    """Build a module with stored weights, on the CPU. Raises InputError for other bytes."""
    if not data:
        return None
    with readable("the weights of a model with the settings of the config"):
        stored = srsly.msgpack_loads(unseal(data))
        weights = weights_from_bytes(stored["weights"])
        module = build_without_weights(partial(build, **stored["dims"]), weights)
        module = module.to_empty(device="cpu")
        module.load_state_dict(weights)
    return module
