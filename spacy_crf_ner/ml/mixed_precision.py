"""Mixed precision training of the torch modules that thinc's shims hold.

This package uses three private attributes of thinc's PyTorchShim: `_mixed_precision` here and in
dtype.py, `_model` also in transformer/shim.py, and `_grad_scaler` here, in dtype.py and in
training/distributed/sync.py, with its `_found_inf`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, cast

import torch
from thinc.api import ArgsKwargs, PyTorchShim, get_torch_default_device
from torch import nn

from ..input_error import InputError
from .dtype import fastest_dtype, largest_weight
from .memory import limit_kernel_cache
from .threads import use_one_thread_after_fork
from .torch_internals import has_fast_bf16

MixedPrecision = bool | Literal["bf16", "auto"]


# The first scale of gradients in float16, which ends at 65,504. Losses are sums over tokens: with
# MiniLM, a gradient of the first 1,000 words of GMB is 780. With thinc's scale, 2^16, gradients
# overflow in the first updates, which then have no effect.
FIRST_SCALE = 2.0**3


def on_gpu() -> bool:
    """Return whether a GPU is in use."""
    return bool(get_torch_default_device().type == "cuda")


def in_bfloat16(mixed_precision: MixedPrecision) -> bool | None:
    """Return whether this setting is bfloat16 on the device in use; None to measure the speed."""
    if mixed_precision == "auto" and not on_gpu():
        return None
    return mixed_precision == "bf16" or (bool(mixed_precision) and on_gpu() and has_fast_bf16())


def in_float16(mixed_precision: MixedPrecision) -> bool:
    """Return whether this setting is float16, with scaled gradients, on the device in use."""
    return mixed_precision in (True, "auto") and on_gpu() and not has_fast_bf16()


def module_of(shim: Any) -> nn.Module | None:
    """Return the torch module of a shim; None if it has none, or not yet."""
    module = getattr(shim, "_model", None)
    return module if isinstance(module, nn.Module) else None


class MixedPrecisionShim(PyTorchShim):
    """A shim that trains in float32, bfloat16, or float16 with scaled gradients.

    In float16, thinc scales the gradient of the output before a backward pass and unscales the
    gradients of all weights after it. To accumulate gradients over several passes, this shim first
    scales the existing gradients, so that thinc unscales old and new ones together.

    Attributes:
        bf16: Train in bfloat16. Weights and gradients stay in float32 and need no scaling. None: if
            it is faster, which a CPU with instructions for it measures before the first update.
    """

    bf16: bool | None = False

    @property
    def trains_in_bf16(self) -> bool:
        """Whether it trains in bfloat16, which is measured once if it depends on the speed."""
        if self.bf16 is None:
            sizes = largest_weight(self._model)
            self.bf16 = bool(sizes and fastest_dtype(self.device, sizes, int8=False) == "bf16")
        return self.bf16

    def begin_update(self, inputs: ArgsKwargs) -> tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Return the outputs and a callback for the backward pass.

        Raises:
            InputError: For bfloat16 on a GPU that does not support it, and in a module that fails
                in it.
        """
        use_one_thread_after_fork()
        limit_kernel_cache()
        with self._autocast() if self.trains_in_bf16 else nullcontext():
            outputs, backprop = super().begin_update(inputs)

        def accumulate(d_outputs: ArgsKwargs) -> ArgsKwargs:
            gradients = (weights.grad for weights in self._model.parameters())
            earlier = [gradient for gradient in gradients if gradient is not None]
            self._grad_scaler.scale(earlier, inplace=True)
            # A prediction in between leaves evaluation on; gradient checkpoints run layers again.
            self._model.train()
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
        except RuntimeError as error:
            if "bfloat16" not in str(error).lower():
                raise
            raise InputError(
                f"mixed_precision: expected a model that trains in bfloat16, got one that fails: "
                f"{error}. Set it to false in the config of the model."
            ) from error
        finally:
            self._mixed_precision = before
