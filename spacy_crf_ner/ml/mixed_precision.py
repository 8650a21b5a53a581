"""Mixed precision training of the torch modules that thinc's shims hold.

This package uses three private attributes of thinc's PyTorchShim: `_mixed_precision` here, `_model`
here and in precision.py, `_grad_scaler` here and in training/distributed/sync.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, cast

import torch
from thinc.api import ArgsKwargs, PyTorchShim, get_torch_default_device
from torch import nn

from ..input_error import InputError
from .memory import limit_kernel_cache
from .threads import use_one_thread_after_fork

MixedPrecision = bool | Literal["bf16"]


# The first scale of gradients in float16, which ends at 65,504. Losses are sums over tokens: with
# MiniLM, a gradient of the first 1,000 words of GMB is 780. With thinc's scale, 2^16, gradients
# overflow in the first updates, which then have no effect.
FIRST_SCALE = 2.0**3


def on_gpu() -> bool:
    """Return whether a GPU is in use: `spacy-crf-ner.on_gpu.v1`, a value for `mixed_precision`."""
    return bool(get_torch_default_device().type == "cuda")


def has_fast_bf16() -> bool:
    """Return whether the GPU computes in bfloat16; older ones emulate it."""
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def in_bfloat16(mixed_precision: MixedPrecision) -> bool:
    """Return whether this setting is bfloat16 on the device in use."""
    return mixed_precision == "bf16" or (mixed_precision is True and on_gpu() and has_fast_bf16())


def in_float16(mixed_precision: MixedPrecision) -> bool:
    """Return whether this setting is float16, with scaled gradients, on the device in use."""
    return mixed_precision is True and on_gpu() and not has_fast_bf16()


def module_of(shim: Any) -> nn.Module | None:
    """Return the torch module of a shim; None if it has none, or not yet."""
    module = getattr(shim, "_model", None)
    return module if isinstance(module, nn.Module) else None


def update_together(shim: PyTorchShim, optimizer: Any) -> bool:
    """Update all weights of a module on a GPU at once, if the optimizer has `update_together`.

    Returns whether it did. thinc updates one array at a time, in eleven kernels.
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
        torch._foreach_zero_([weights.grad for weights in learning.values()])
    shim._grad_scaler.update()  # type: ignore[no-untyped-call]
    return True


class MixedPrecisionShim(PyTorchShim):
    """A shim that trains in float32, bfloat16, or float16 with scaled gradients.

    In float16, thinc scales the gradient of the output before a backward pass and unscales the
    gradients of all weights after it. To accumulate gradients over several passes, this shim first
    scales the existing gradients, so that thinc unscales old and new ones together.

    bf16: Train in bfloat16. Weights and gradients stay in float32 and need no scaling.
    """

    bf16 = False

    def begin_update(self, inputs: ArgsKwargs) -> tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Return the outputs and a callback for the backward pass.

        Raises InputError for bfloat16 on a GPU that does not support it.
        """
        use_one_thread_after_fork()
        limit_kernel_cache()
        with self._autocast() if self.bf16 else nullcontext():
            outputs, backprop = super().begin_update(inputs)

        def accumulate(d_outputs: ArgsKwargs) -> ArgsKwargs:
            gradients = (weights.grad for weights in self._model.parameters())
            earlier = [gradient for gradient in gradients if gradient is not None]
            self._grad_scaler.scale(earlier, inplace=True)
            return cast(ArgsKwargs, backprop(d_outputs))

        return outputs, accumulate

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        """Run a module in bfloat16."""
        device = self.device.type
        if device == "cuda" and not has_fast_bf16():
            raise InputError(
                'mixed_precision: expected a GPU that supports bfloat16 for "bf16", got '
                f"{torch.cuda.get_device_name()}. Set it to true, for float16, or to false."
            )
        before = self._mixed_precision
        # thinc's own autocast is for CUDA; it uses the dtype of the surrounding one.
        self._mixed_precision = device == "cuda"
        try:
            with torch.autocast(device, torch.bfloat16):
                yield
        finally:
            self._mixed_precision = before
