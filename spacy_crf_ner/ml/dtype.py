"""Dtypes for prediction: choose a fast one, and convert modules to it.

Training does not use them: trained weights stay in float32.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from math import prod
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ..input_error import InputError
from .onnx_export import has_onnx, int8_session
from .torch_internals import PackedLinear, has_bf16, has_fast_bf16, has_packed_linear

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
            "dtype: int8 needs the packages onnx and onnxruntime. Install them: pip install onnx "
            "onnxruntime."
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
    `cpu_dtypes`, in a linear layer of these sizes.
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
    """Measure the shortest seconds of a linear layer in each dtype; a process measures once.

    The dtypes take turns. The shortest time of each counts: other work on the machine can only
    add to it. The number of torch's threads is only a key of the cache.
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
        session = int8_session(linear, {"X": X})
        return lambda X: session.run(X=X.numpy())
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
