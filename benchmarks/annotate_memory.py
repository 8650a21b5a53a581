"""Peak memory of `predict --output` for many documents: docs/benchmarks.md. Linux only."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks import common


def main(
    small: Annotated[int, typer.Option(help="Documents.")] = 10_000,
    large: Annotated[int, typer.Option(help="Documents.")] = 100_000,
) -> None:
    """Measure the peak memory of all processes for few and many documents, with two workers."""
    common.print_machine()
    peaks = []
    for number in (small, large):
        with TemporaryDirectory() as name:
            folder = Path(name)
            common.trained_a_little("cnn").to_disk(folder / "cnn")
            common.write_sample_texts(folder / "corpus.jsonl", number)
            command = [sys.executable, "-m", "spacy_crf_ner", "predict", f"{folder}/cnn"]
            command += [f"{folder}/corpus.jsonl", "-o", f"{folder}/out", "--workers", "2"]
            peaks.append(peak(command))
            print(f"{number:,} documents: {peaks[-1]:,.0f} MB", flush=True)
    print(f"Ratio: {peaks[1] / peaks[0]:.3f}")


def peak(command: list[str]) -> float:
    """Run a command, and return the sum of the peaks of its processes in MB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most: dict[int, float] = {}
    while process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with suppress(OSError, StopIteration):  # it has ended
            for pid in (process.pid, *map(int, children.read_text().split())):
                most[pid] = common.memory_mb("VmHWM", pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return sum(most.values())
