"""The devices of this machine, their dtypes, and what is missing to use a GPU."""

import os
import platform
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from thinc.api import require_gpu

from ..extras import versions as installed
from ..input_error import InputError
from .dtype import cpu_dtypes, fastest_dtype, measure_linear
from .torch_internals import cpu_has, has_bf16, has_int8

PACKAGES = ("spacy-crf-ner", "spacy", "thinc", "torch", "cupy", "spacy-transformers",
            "transformers", "onnxruntime")  # fmt: skip
# Its package has the version of CUDA in its name.
CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
# The largest linear layer of MiniLM, to measure.
SIZES = (384, 1536)
INSTRUCTIONS = ("avx2", "avx512_f", "avx512_vnni", "avx_vnni", "avx512_bf16",
                "amx_bf16", "amx_int8")  # fmt: skip


class Device(NamedTuple):
    """A device, by its kind, model and size, and what it computes in.

    The facts say for each dtype whether the device has it; "auto" and "training", what is chosen,
    and why.
    """

    name: str
    facts: dict[str, str]


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter for speed, by their names."""
    cupy = [f"{number}, {name}" for name, number in installed(CUPY).items() if number]
    found = {**installed(PACKAGES), "cupy": cupy[0] if cupy else None}
    cuda = torch.version.cuda or torch.version.hip
    found["torch"] = f"{found['torch']}, built for {f'CUDA {cuda}' if cuda else 'CPUs'}"
    python = {"python": platform.python_version()}
    if found["spacy-transformers"] is None:  # few pipelines have it
        del found["spacy-transformers"]
    return python | {name: number or "not installed" for name, number in found.items()}


def gpu_problems() -> list[str]:
    """Explain what is missing to use a GPU, and what to do; empty if nothing is."""
    if platform.system() == "Darwin":
        problem = "torch has no MPS: it needs macOS 12.3 or later, and an Apple GPU."
        return [] if torch.backends.mps.is_available() else [problem]
    problems = []
    cuda = torch.version.cuda
    if cuda is None and torch.version.hip is None:
        problems.append(
            f"torch {torch.__version__} is built for CPUs: install one for CUDA, as "
            "https://pytorch.org/get-started/locally says."
        )
    elif not torch.cuda.is_available():
        problems.append(
            f"torch finds no GPU with a driver for CUDA {cuda}. If nvidia-smi lists one, its "
            "driver is older: update it, or install a torch for the CUDA version that it prints."
        )
    major = (cuda or "13").split(".")[0]
    install = f"pip install cupy-cuda{major}x"
    try:
        for module in ("cupy", "cupy.cublas", "cupyx"):  # those that thinc imports
            import_module(module)
    except ImportError as error:
        what = "is not installed"
        if error.name != "cupy":
            what = f"cannot be imported ({str(error).strip().splitlines()[0]})"
        problems.append(f"CuPy {what}: {install}.")
    else:
        runtime: Any = import_module("cupy").cuda.runtime
        try:
            runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            problems.append(f"CuPy finds no GPU ({error}): update the driver, or {install}.")
    return problems


def can_use_gpu() -> bool:
    """Return whether torch and CuPy can use a GPU with CUDA."""
    return torch.cuda.is_available() and not gpu_problems()


def device_name(gpu_id: int) -> str:
    """Name a GPU, or the CPU for -1."""
    if gpu_id < 0:
        return "CPU"
    if not torch.cuda.is_available():
        return "GPU"
    return f"GPU {gpu_id}, {torch.cuda.get_device_name(gpu_id)}"


def use_gpu(gpu_id: int) -> None:
    """Let spaCy compute on a GPU; raise InputError, with what is missing, if it cannot."""
    problems = gpu_problems()
    if not problems:
        try:
            require_gpu(gpu_id)
            return
        except Exception as error:  # of CuPy's own types
            problems = [f"{error}. This machine has {torch.cuda.device_count()}."]
    raise InputError(
        f"expected a GPU with the number {gpu_id}, got none that can be used. {' '.join(problems)} "
        "`spacy-crf-ner info` shows all devices."
    )


def devices() -> Iterator[Device]:
    """Find the CPU and the GPUs."""
    yield _cpu()
    if gpu_problems():
        return
    if platform.system() == "Darwin":
        yield Device("GPU: MPS", {"auto": "fp32", "training": "float32"})
    for i in range(torch.cuda.device_count()):
        with torch.cuda.device(i):
            yield _gpu(i)


def _cpu() -> Device:
    has = [name for name in INSTRUCTIONS if cpu_has(name)]
    sets = f" ({', '.join(has)})" if has else ""
    seconds = measure_linear(*SIZES, cpu_dtypes(), torch.get_num_threads())
    auto = fastest_dtype(torch.device("cpu"), SIZES)
    times = ", ".join(f"{name} {1e6 * each:.0f}" for name, each in seconds.items())
    int8 = "no: pip install onnx onnxruntime"
    if "int8" in seconds:
        gain = seconds["fp32"] / seconds["int8"]
        instructions = "" if has_int8() else ", without instructions for it"
        int8 = f"yes{instructions}: a layer is {gain:.1f} times as fast as in fp32"
    fastest = fastest_dtype(torch.device("cpu"), SIZES, int8=False)
    trained = "bfloat16, which is faster," if fastest == "bf16" else "float32"
    return Device(
        f"CPU: {_cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads of torch"
        f"{sets}",
        {
            "fp32": "yes",
            "bf16": "yes" if has_bf16() else "yes, but slowly: the CPU has no instructions for it",
            "fp16": "no: for GPUs",
            "int8": int8,
            "auto": f"{auto}: a layer of {SIZES[0]} x {SIZES[1]} takes {times} microseconds",
            "training": f'float32; {trained} for a transformer with mixed_precision = "auto"',
        },
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpu(number: int) -> Device:
    of_gpu = torch.cuda.get_device_properties(number)
    capability = f"compute capability {of_gpu.major}.{of_gpu.minor}"
    auto = fastest_dtype(torch.device("cuda"), SIZES)
    fast = auto == "bf16"
    return Device(
        f"GPU {number}: {of_gpu.name}, {of_gpu.total_memory / 2**30:.0f} GiB, {capability}",
        {
            "fp32": "yes",
            "bf16": "yes" if fast else "no: emulated below compute capability 8.0",
            "fp16": "yes",
            "int8": "no: for CPUs",
            "auto": f"{auto}: {'has the range of float32' if fast else 'bf16 would be emulated'}",
            "training": 'float32; mixed_precision = "auto" for '
            + ("bfloat16" if fast else "float16, with scaled gradients"),
        },
    )
