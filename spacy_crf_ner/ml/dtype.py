"""Dtypes for prediction: choose a fast one, and convert modules to it.

Training does not use them: trained weights stay in float32.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from math import prod
from time import perf_counter
from typing import Any, cast

import torch
from thinc.api import ArgsKwargs, Optimizer, PyTorchShim, Shim, get_torch_default_device
from torch import nn

from ..input_error import InputError
from .memory import keep_storage, return_free_memory
from .onnx_export import OnnxModule, has_onnx
from .threads import use_one_thread_after_fork
from .torch_internals import (
    PackedLinear,
    has_bf16,
    has_fast_bf16,
    has_packed_linear,
    zero,
)

DTYPE_NAMES = ("auto", "fp32", "bf16", "fp16", "int8")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # not of int8

# The probe: tokens of a batch, duration in seconds, the least number of turns, and the share of the
# time that a dtype must save to be preferred to a more exact one.
PROBE_TOKENS = 128
PROBE_SECONDS = 0.05
MIN_TURNS = 8
MIN_GAIN = 0.1


def check_dtype(dtype: str | None) -> None:
    """Raise InputError for an unknown dtype; None, the dtype of the weights, is valid."""
    if dtype is not None and dtype not in DTYPE_NAMES:
        raise InputError(f"dtype: expected one of {[*DTYPE_NAMES]}, got {dtype!r}.")


def check_available(dtype: str, device: torch.device) -> None:
    """Raise InputError if a device does not support a dtype, or its packages are missing."""
    if dtype == "int8" and device.type != "cpu":
        raise InputError("dtype: int8 is for CPUs, got a GPU. Choose fp16, bf16 or auto.")
    if dtype == "int8" and not has_onnx():
        raise InputError(
            "dtype: int8 needs the packages onnx and onnxruntime. Install them: "
            'pip install "spacy-crf-ner[int8]".'
        )
    if dtype == "fp16" and device.type == "cpu":
        raise InputError("dtype: fp16 is for GPUs, got a CPU. Choose bf16, int8 or auto.")


def cpu_dtypes(int8: bool = True) -> tuple[str, ...]:
    """Return what is worth measuring on the CPU, the most exact one first.

    bfloat16 is slow without instructions for it. int8 may be faster than float32 with AVX2 alone,
    but needs its packages.
    """
    return ("fp32", *["bf16"] * has_bf16(), *["int8"] * (int8 and has_onnx()))


def fastest_dtype(device: torch.device, sizes: tuple[int, int], int8: bool = True) -> str:
    """Choose a dtype: float32, or one that saves a tenth of the time of a more exact one.

    On a GPU it is bfloat16, or float16 if the GPU emulates bfloat16. On a CPU it measures those of
    `cpu_dtypes`.

    Args:
        sizes: Widths of the linear layer to measure.
        int8: Whether int8 may be chosen.
    """
    if device.type == "cuda":
        return "bf16" if has_fast_bf16() else "fp16"
    best, *others = cpu_dtypes(int8) if device.type == "cpu" else ("fp32",)
    if others:
        seconds = measure_linear(*sizes, (best, *others), torch.get_num_threads())
        for other in others:
            if seconds[other] < (1 - MIN_GAIN) * seconds[best]:
                best = other
    return best


@cache
def measure_linear(nI: int, nO: int, dtypes: tuple[str, ...], threads: int) -> dict[str, float]:
    """Measure the seconds of a linear layer in each dtype; a process measures once.

    The dtypes take turns. The shortest time of each counts: other work on the machine can only
    add to it.

    Args:
        threads: Number of torch's threads; only a key of the cache.

    Returns:
        The shortest time for each dtype.
    """
    taken: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        linear, X = nn.Linear(nI, nO), torch.randn(1, PROBE_TOKENS, nI)
        layers = {dtype: _linear_in(linear, X, dtype) for dtype in dtypes}
        inputs = {each: X.to(DTYPES.get(each, torch.float32)) for each in dtypes}
        for dtype, layer in layers.items():
            layer(inputs[dtype])  # warm up
        end = perf_counter() + PROBE_SECONDS
        while len(taken[dtypes[-1]]) < MIN_TURNS or perf_counter() < end:
            for dtype, layer in layers.items():
                start = perf_counter()
                layer(inputs[dtype])
                taken[dtype].append(perf_counter() - start)
    return {dtype: min(seconds) for dtype, seconds in taken.items()}


def _linear_in(linear: nn.Linear, X: torch.Tensor, dtype: str) -> Callable[..., Any]:
    """Convert a linear layer to a dtype, as for prediction."""
    if dtype == "int8":
        onnx = OnnxModule(linear, {"X": X})
        return lambda X: onnx(X=X)
    lower = deepcopy(linear).to(DTYPES[dtype])
    return PackedLinear(lower) if dtype == "bf16" and has_packed_linear() else lower


def largest_weight(module: nn.Module) -> tuple[int, int] | None:
    """Return the shape of the largest matrix of a module, without embeddings, or None."""
    tables = nn.Embedding, nn.EmbeddingBag
    layers = (layer for layer in module.modules() if not isinstance(layer, tables))
    weights = (weight for layer in layers for weight in layer.parameters(recurse=False))
    shapes = [(w.shape[0], w.shape[1]) for w in weights if w.dim() == 2]
    return max(shapes, key=prod, default=None)


def sharing_copy(module: nn.Module) -> nn.Module:
    """Copy a module; the copy shares its weights."""
    weights = (*module.parameters(), *module.buffers())
    return deepcopy(module, {id(tensor): tensor for tensor in weights})


class PredictionShim(PyTorchShim):
    """A shim that trains its module, and predicts with another one made from it.

    Attributes:
        dtype: One of DTYPE_NAMES; None to predict with the module itself.
        make_inference_module: Makes the module to predict with from the trained one and a dtype
            that is not "auto"; they may share weights.
        int8: Whether "auto" may be int8.
    """

    dtype: str | None = None
    make_inference_module: Callable[[nn.Module, str], nn.Module]
    int8 = False

    # The trained module, the dtype, and the module to predict with.
    _inference: tuple[nn.Module, str, nn.Module] | None = None
    # A type of device, and the dtype that "auto" is there.
    _fastest: tuple[str, str] = ("", "")

    def set_dtype(self, dtype: str | None) -> None:
        """Set the dtype. "auto" is resolved at once, or when there are weights.

        So all processes of `nlp.pipe(n_process=2)` use the dtype that their parent chose.
        """
        self.dtype = dtype
        if dtype == "auto" and self._model is not None:
            _ = self.resolved_dtype

    def load_module(self, module: nn.Module | None) -> None:
        """Take a module with stored weights, on the device in use; None if it is not built yet."""
        device = get_torch_default_device()
        self._model: Any = module and module.to(device)
        self._grad_scaler.to_(device)  # type: ignore[no-untyped-call]
        self.set_dtype(self.dtype)

    def predict(self, inputs: ArgsKwargs) -> Any:
        """Compute the outputs in the dtype.

        thinc would switch the module back to training, and so on dropout of other threads that
        predict with it. It stays in evaluation until the next update.
        """
        use_one_thread_after_fork()
        own = self.dtype is None
        module = self._model.eval() if own else self.inference_module()
        with torch.no_grad(), torch.autocast("cuda", enabled=own and self._mixed_precision):
            return module(*inputs.args, **inputs.kwargs)

    @property
    def resolved_dtype(self) -> str | None:
        """The dtype, with "auto" resolved once for a type of device; None for the weights' own.

        Raises:
            InputError: If the device does not support the dtype, or its packages are missing.
        """
        if self.dtype is None:
            return None
        if self.dtype != "auto":
            check_available(self.dtype, self.device)
            return self.dtype
        if self._fastest[0] != self.device.type:
            sizes = largest_weight(self._model)
            fastest = fastest_dtype(self.device, sizes, self.int8) if sizes else "fp32"
            self._fastest = self.device.type, fastest
        return self._fastest[1]

    def inference_module(self) -> Any:
        """Return the module to predict with; rebuild it if the weights have changed."""
        if self._inference is None or self._inference[:2] != (self._model, self.dtype):
            dtype = self.resolved_dtype
            assert self.dtype is not None and dtype is not None
            module = self.make_inference_module(self._model, dtype).eval()
            self._inference = self._model, self.dtype, module
        return self._inference[2]

    def invalidate(self) -> None:
        """Drop the module to predict with, before the weights change."""
        self._inference = None

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients.

        Args:
            optimizer: An optimizer, or the function by which `nlp.rehearse` collects gradients. It
                keeps them, and gets copies, as the shim sets its own to zero.
        """
        self.invalidate()
        if _update_together(self, optimizer):
            return
        if not isinstance(optimizer, Optimizer):
            collect: Any = optimizer
            optimizer = cast(Optimizer, lambda key, weights, d: collect(key, weights, d.copy()))
        with keep_storage(self._model):
            super().finish_update(optimizer)
        return_free_memory()

    @contextmanager
    def use_params(self, params: dict[Any, Any]) -> Iterator[None]:
        """Use other weights temporarily, such as an optimizer's averages.

        Args:
            params: The weights by the key that an optimizer has for them: the id of the shim, and
                their name. thinc's shim expects other keys, so that averages have no effect there.
        """
        named = self._model.named_parameters() if self._model is not None else ()
        own = [(weights, weights.data, params.get((self.id, name))) for name, weights in named]
        self.invalidate()
        try:
            for weights, before, other in own:
                if other is not None:
                    weights.data = torch.as_tensor(other, device=before.device)
            yield
        finally:
            for weights, before, _ in own:
                weights.data = before
            self.invalidate()

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the module."""
        self.invalidate()
        super().to_device(device_type, device_id)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without the module to predict with."""
        return {**self.__dict__, "_inference": None}

    def copy(self) -> "PredictionShim":
        """Copy the shim and its module."""
        copied: PredictionShim = super().copy()  # type: ignore[no-untyped-call]
        copied.take_new_id()
        return copied

    def take_new_id(self) -> None:
        """Let optimizers treat the weights as new ones: they keep moments by the id."""
        self.id = Shim(None).id


def _update_together(shim: PyTorchShim, optimizer: Any) -> bool:
    """Update all weights of a module on a GPU at once, if the optimizer has `update_together`.

    Returns:
        Whether it did. thinc updates one array at a time, in eleven kernels.
    """
    update = getattr(optimizer, "update_together", None)
    if update is None or shim.device.type != "cuda":
        return False
    named = shim._model.named_parameters()
    learning = {(shim.id, name): weights for name, weights in named if weights.grad is not None}
    if learning:
        # After an overflow, no weights are updated.
        if not shim._grad_scaler.found_inf and not update(learning):
            return False
        zero([weights.grad for weights in learning.values() if weights.grad is not None])
    shim._grad_scaler.update()  # type: ignore[no-untyped-call]
    return True
