"""The precision that is predicted in: what the hardware does well, and where it is kept.

Training knows nothing of it: what learns is the module itself, in float32.
"""

from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from thinc.api import ArgsKwargs, Optimizer, PyTorchShim
from torch import nn

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # but for int8
# What a CPU multiplies bytes with, or bfloat16 numbers.
INT8 = ("avx512_vnni", "avx_vnni", "amx_int8")
AMX = ("amx_bf16",)
BF16 = ("avx512_bf16", *AMX)

Lower = Callable[[nn.Module, str], nn.Module]


def require_precision(precision: Optional[str]) -> None:
    """Refuse what is no precision: raises ValueError. None is that of the weights."""
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {[*PRECISIONS]}, got {precision!r}.")


def choose(precision: str, device: torch.device) -> str:
    """Resolve "auto": the cheapest precision that a device does well, and else what is asked for.

    That is bfloat16 on a CPU with AMX and on a GPU that has it, else float16 on a GPU, and on a CPU
    that multiplies bytes int8, where the packages for it are installed. With AVX512-BF16 alone,
    bfloat16 was slower than float32.

    Raises ValueError for a precision that a device does not have, or that lacks its packages.
    """
    if precision == "auto":
        if device.type == "cuda":
            return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        if _has(AMX):
            return "bf16"
        return "int8" if _has(INT8) and has_onnx() else "fp32"
    if device.type != "cpu" and precision == "int8":
        raise ValueError("precision: int8 is for CPUs, got a GPU. Choose fp16, bf16 or auto.")
    if precision == "int8" and not has_onnx():
        raise ValueError(
            "precision: int8 needs the packages onnx and onnxruntime. Install them: "
            'pip install "spacy-crf-ner[int8]".'
        )
    if device.type == "cpu" and precision == "fp16":
        raise ValueError("precision: fp16 is for GPUs, got a CPU. Choose bf16, int8 or auto.")
    return precision


def _has(any_of: Tuple[str, ...]) -> bool:
    """Whether the CPU has one of these instruction sets; an older torch cannot tell."""
    known: Dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name) for name in any_of)


def does_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 numbers."""
    return _has(BF16)


def has_onnx() -> bool:
    """Whether the packages for int8 are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def sharing_copy(module: nn.Module) -> nn.Module:
    """Copy a module but for its weights, which are the same."""
    weights = (*module.parameters(), *module.buffers())
    return deepcopy(module, {id(tensor): tensor for tensor in weights})


class PredictionShim(PyTorchShim):
    """A shim that trains its module, and predicts with what `lower` makes of it.

    precision: One of PRECISIONS; None to predict with the module itself.
    lower: Makes, of the module and a precision that is not "auto", another to predict with; that
        may have the same weights.
    """

    precision: Optional[str] = None
    lower: Lower

    # The module to predict with, and what it was made of.
    _lowered: Optional[nn.Module] = None
    _made_of: Tuple[Optional[nn.Module], Optional[str]] = (None, None)

    def predict(self, inputs: ArgsKwargs) -> Any:
        """Compute the outputs in the precision."""
        if self.precision is None:
            return super().predict(inputs)
        with torch.no_grad():
            return self.lowered()(*inputs.args, **inputs.kwargs)

    @property
    def chosen(self) -> str:
        """The precision, "auto" resolved."""
        return choose(str(self.precision), self.device)

    def lowered(self) -> Any:
        """The module to predict with, made anew where the weights have changed since."""
        made_of = (self._model, self.precision)
        if self._made_of != made_of:
            self._lowered = self.lower(self._model, self.chosen).eval()
            self._made_of = made_of
        return self._lowered

    def forget(self) -> None:
        """Drop the module to predict with: the weights will change."""
        self._lowered, self._made_of = None, (None, None)

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients."""
        self.forget()
        super().finish_update(optimizer)

    @contextmanager
    def use_params(self, params: Dict[Any, Any]) -> Iterator[None]:
        """Take other weights for a while, as an optimizer's averages."""
        self.forget()
        with super().use_params(params):
            yield
        self.forget()

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the module."""
        self.forget()
        super().to_device(device_type, device_id)

    def __getstate__(self) -> Dict[str, Any]:
        """What is copied: a copy makes its own module to predict with."""
        return {**self.__dict__, "_lowered": None, "_made_of": (None, None)}
