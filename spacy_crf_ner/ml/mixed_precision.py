"""Mixed precision training of the torch modules that thinc's shims hold.

Of the private attributes of thinc's PyTorchShim, `_grad_scaler` and `_mixed_precision` are used
here alone, and `_model` here and in precision.py.
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


def on_gpu() -> bool:
    """Tell whether a GPU is in use: `spacy-crf-ner.on_gpu.v1`, a value for `mixed_precision`."""
    return bool(get_torch_default_device().type == "cuda")


def module_of(shim: Any) -> nn.Module | None:
    """The torch module of a shim; None before it has one, and for other shims."""
    module = getattr(shim, "_model", None)
    return module if isinstance(module, nn.Module) else None


class MixedPrecisionShim(PyTorchShim):
    """A shim that trains in float32, bfloat16, or float16 with scaled gradients.

    In float16 thinc scales the gradient of the output before a backward pass, and after it
    unscales the gradients of all weights. This shim lets gradients of several passes add up: it
    scales those that are already there, which thinc then unscales together with the new ones.

    bf16: Train in bfloat16; weights and gradients stay in float32, and need no scaling.
    """

    bf16 = False

    def begin_update(self, inputs: ArgsKwargs) -> tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Compute the outputs; returns them and a callback for the backward pass.

        Raises InputError for bfloat16 on a GPU that has none.
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
        if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise InputError(
                'mixed_precision: expected a GPU that computes in bfloat16 for "bf16", got '
                f"{torch.cuda.get_device_name()}. Set it to true, for float16, or to false."
            )
        before = self._mixed_precision
        # thinc's own autocast is for CUDA; it takes the type of the one around it.
        self._mixed_precision = device == "cuda"
        try:
            with torch.autocast(device, torch.bfloat16):
                yield
        finally:
            self._mixed_precision = before
