"""A stand-in for GPUs, in processes of their own: it must be there before torch is imported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def guard(tmp_path_factory):
    """The device guard of the stand-in, compiled once for all workers of pytest."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or torch.version.cuda is not None:
        pytest.skip("the stand-in needs a C++ compiler, and a torch without CUDA")
    library = tmp_path_factory.getbasetemp().parent / f"device_guard_{torch.__version__}.so"
    with FileLock(f"{library}.lock"):
        if not library.exists():
            folder = Path(torch.__file__).parent
            command = [compiler, "-O1", "-w", "-shared", "-fPIC", "-std=c++20"]
            command += [str(HERE / "standin" / "device_guard.cpp"), f"-I{folder / 'include'}"]
            command += [f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", "-o", str(library)]
            subprocess.run(command, check=True)
    return library


@pytest.fixture
def run(guard):
    """Run Python with the stand-in for two GPUs; returns its output, and fails if it does."""

    def run(*args, capability="9.0"):
        env = os.environ | {"STANDIN_GUARD": str(guard), "STANDIN_CAPABILITY": capability}
        env |= {"PYTHONPATH": str(HERE / "standin"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *map(str, args)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run
