"""Networks of torch in ONNX, in float32 or with int8 linear layers."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from ..input_error import InputError
from .onnx_session import Session
from .torch_internals import has_int8

MAX_BYTES = 2**31  # of a network in ONNX


def has_onnx() -> bool:
    """Whether the packages for int8 are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def int8_session(module: nn.Module, examples: dict[str, Tensor]) -> Session:
    """Quantize a module on the CPU, for inputs (B, T) or (B, T, nI) of any B and T."""
    axes = dict.fromkeys([*examples, "Y"], "BT")
    return Session(to_onnx(module, examples, axes, int8=True))


def to_onnx(
    module: nn.Module, examples: dict[str, Tensor], axes: dict[str, str], int8: bool = False
) -> bytes:
    """Convert a module that takes tensors by position and returns one tensor, "Y", to ONNX.

    The first axes of each input and of "Y", a letter each, may have any size. With int8, linear
    layers are quantized: weights once, inputs at each call. Raises InputError for 2 GB or more.
    """
    size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
    if size >= MAX_BYTES:
        raise InputError(
            f"expected a network of less than 2 GB, which ONNX can store, got {size / 1e9:.1f} GB. "
            "Export a pipeline with a smaller transformer."
        )
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        whole = Path(folder) / "whole.onnx"
        torch.onnx.export(
            module.eval(),
            tuple(examples.values()),
            str(whole),
            input_names=[*examples],
            output_names=["Y"],
            dynamic_axes={name: dict(enumerate(letters)) for name, letters in axes.items()},
            opset_version=17,
            dynamo=False,
        )
        return (_quantize(whole) if int8 else whole).read_bytes()


def _quantize(whole: Path) -> Path:
    """Quantize a network to int8; returns its file, beside the given one."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, quantized = (whole.with_name(f"{step}.onnx") for step in ("prepared", "quantized"))
    quant_pre_process(str(whole), str(prepared), skip_symbolic_shape=True)
    # Without int8 instructions, ONNX Runtime's sums of 8-bit products overflow: use 7-bit weights.
    settings = {"per_channel": True, "reduce_range": not has_int8()}
    quantize_dynamic(str(prepared), str(quantized), weight_type=QuantType.QInt8, **settings)
    return quantized
