"""Hardware detection: the CPU of this machine, and simulated GPU problems."""

import types
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch

from spacy_crf_ner import extras
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml import dtype, hardware
from spacy_crf_ner.ml.dtype import fastest_dtype


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A Linux machine with a GPU, a torch for CUDA 13, and CuPy; parts can be taken away."""
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=OSError)
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    machine = types.SimpleNamespace(runtime=runtime, missing={}, available=True)

    def import_module(name: str) -> Any:
        if name in machine.missing:
            raise machine.missing[name]
        return cupy

    monkeypatch.setattr(hardware.platform, "system", lambda: "Linux")
    monkeypatch.setattr(hardware, "import_module", import_module)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: machine.available)
    return machine


def test_gpu_problems_on_complete_machine_returns_empty_list(machine: Any) -> None:
    assert hardware.gpu_problems() == []


def test_gpu_problems_names_each_missing_part_and_fix(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.missing["cupy"] = ModuleNotFoundError("No module named 'cupy'", name="cupy")
    (problem,) = hardware.gpu_problems()
    assert problem == "CuPy is not installed: pip install cupy-cuda13x."
    machine.missing = {"cupy.cublas": ImportError("libcublas.so.12: not found\nand more")}
    (problem,) = hardware.gpu_problems()
    assert "cannot be imported (libcublas.so.12: not found): pip install" in problem
    machine.missing, machine.available = {}, False

    def old_driver() -> int:
        raise OSError("CUDA driver version is insufficient")

    machine.runtime.getDeviceCount = old_driver
    of_torch, of_cupy = hardware.gpu_problems()
    assert "driver for CUDA 13.0" in of_torch and "driver version is insufficient" in of_cupy
    monkeypatch.setattr(torch.version, "cuda", None)
    of_torch, _ = hardware.gpu_problems()
    assert "is built for CPUs" in of_torch


def test_use_gpu_with_unusable_gpu_raises_with_all_problems(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.missing["cupy"] = ModuleNotFoundError("No module named 'cupy'", name="cupy")
    with pytest.raises(InputError, match=r"number 1, got none.*CuPy is not installed.*`.* info`"):
        hardware.use_gpu(1)

    def no_such_gpu(gpu_id: int) -> None:
        raise RuntimeError("cudaErrorInvalidDevice")

    machine.missing = {}
    monkeypatch.setattr(hardware, "require_gpu", no_such_gpu)
    with pytest.raises(InputError, match=r"number 7, got none.*cudaErrorInvalidDevice"):
        hardware.use_gpu(7)


def test_devices_lists_each_dtype_of_cpu() -> None:
    cpu = next(iter(hardware.devices()))
    assert cpu.name.startswith("CPU: ")
    assert [*cpu.facts] == ["fp32", "bf16", "fp16", "int8", "auto", "training"]
    chosen = fastest_dtype(torch.device("cpu"), hardware.SIZES)
    assert cpu.facts["auto"].split(":")[0] == chosen
    assert cpu.facts[chosen].startswith("yes")


@pytest.mark.parametrize(
    "has, has_onnx, int8, auto",
    [
        (["avx2"], True,
         "yes, without instructions for it: a layer is 1.4 times as fast as in fp32",
         "int8: a layer of 384 x 1536 takes fp32 700, int8 500 microseconds"),
        (["avx2", "avx_vnni"], True, "yes: a layer is 1.4 times as fast as in fp32",
         "int8: a layer of 384 x 1536 takes fp32 700, int8 500 microseconds"),
        (["avx2"], False, "no: pip install onnx onnxruntime",
         "fp32: a layer of 384 x 1536 takes fp32 700 microseconds"),
    ],
)  # fmt: skip
def test_devices_shows_measured_int8_of_cpu_without_instructions(
    has: list[str], has_onnx: bool, int8: str, auto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(nI: int, nO: int, dtypes: tuple[str, ...], threads: int) -> dict[str, float]:
        return {name: {"fp32": 7e-4, "int8": 5e-4}[name] for name in dtypes}

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True))
    monkeypatch.setattr(dtype, "has_onnx", lambda: has_onnx)
    monkeypatch.setattr(dtype, "measure_linear", measure)
    monkeypatch.setattr(hardware, "measure_linear", measure)
    facts = next(iter(hardware.devices())).facts
    assert (facts["int8"], facts["auto"]) == (int8, auto)
    assert facts["bf16"].startswith("yes, but slowly")


def test_versions_finds_cupy_by_package_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "cupy-cuda12x":
            return "13.6.0"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "version", version)
    found = hardware.versions()
    assert found["cupy"] == "13.6.0, cupy-cuda12x" and found["thinc"] == "not installed"
    assert "spacy-transformers" not in found
    monkeypatch.setattr(extras, "version", lambda name: "1.4.0")
    assert hardware.versions()["spacy-transformers"] == "1.4.0"
