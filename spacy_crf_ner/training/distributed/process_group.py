"""The group of processes that train together, and their communication."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ...input_error import InputError
from ...ml.hardware import can_use_gpu, use_gpu

T = TypeVar("T")

TIMEOUT = 30.0  # minutes
AUTO = "auto"


class RankError(OSError):
    """Another process of the group ended or hangs, so this one cannot go on."""


class ProcessGroup:
    """The group of processes that train together, as one sees it; its GPU is -1 for the CPU."""

    def __init__(self, rank: int = 0, size: int = 1, gpu_id: int = -1) -> None:
        self.rank, self.size, self.gpu_id = rank, size, gpu_id
        self.device = "cpu" if gpu_id < 0 else "cuda"

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor, in place, by its sum over all ranks."""
        self._collective(dist.all_reduce, tensor)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any rank."""
        flags = torch.tensor([float(flag)], device=self.device)
        self.all_reduce(flags)
        return bool(flags.item())

    def broadcast(self, value: T) -> T:
        """Return the object of rank 0, which must be picklable, in all ranks."""
        values = [value if self.rank == 0 else None]
        self._collective(dist.broadcast_object_list, values, 0)
        return values[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the objects of all ranks, which must be picklable, in all ranks."""
        values = [value] * self.size
        self._collective(dist.all_gather_object, values, value)
        return values

    def leave(self) -> None:
        """Close the connections; call it when all processes have finished."""
        if self.size > 1:
            dist.destroy_process_group()

    def _collective(self, call: Callable[..., Any], *args: Any) -> None:
        if self.size == 1:
            return
        try:
            call(*args)
        except RuntimeError as error:
            message = (
                f"Rank {self.rank}: expected an answer from all {self.size} ranks, got {error} "
                "Another rank ended or hangs: its output says why. Fix the cause, then run the "
                "same command with --resume."
            )
            # Print now: when one rank ends, torchrun ends the others before they can report it.
            print(message, file=sys.stderr, flush=True)
            raise RankError(message) from error


def choose_gpu(gpu: str | int = AUTO) -> int:
    """Return the number of the GPU of this process, -1 for the CPU.

    Raises InputError for another word, and for a machine with fewer GPUs than processes.

    Args:
        gpu: A number, -1 for the CPU, or "auto": a GPU if torch and CuPy can use one. Of several
            processes, each uses the GPU whose number is LOCAL_RANK, which torchrun sets; or the
            only one, if CUDA_VISIBLE_DEVICES hides the others and LOCAL_WORLD_SIZE is not over 1.
    """
    if gpu != AUTO:
        try:
            number = int(gpu)
        except ValueError as error:
            raise InputError(
                f"gpu: expected auto, a number, or -1 for the CPU, got {gpu}."
            ) from error
        if number >= 0 and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise InputError(
                f"gpu: expected auto or -1, got {gpu}. Each process of torchrun has a GPU of its "
                "own."
            )
        return max(number, -1)
    if not can_use_gpu():
        return -1
    available = torch.cuda.device_count()
    # Slurm, for example, can show each process its own GPU alone, which then has the number 0.
    # Processes of torchrun share what they see, and it sets LOCAL_WORLD_SIZE.
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == 1
    shown = alone and available == 1 and "CUDA_VISIBLE_DEVICES" in os.environ
    number = 0 if shown else int(os.environ.get("LOCAL_RANK", 0))
    if number >= available:
        raise InputError(
            f"gpu: expected a GPU with the number {number}, got a machine with {available}. "
            "Start at most one process per GPU (torchrun --nproc-per-node), or use the CPU (-1)."
        )
    return number


def join(gpu_id: int = -1, timeout: float = TIMEOUT) -> ProcessGroup:
    """Join the processes that torchrun started; without torchrun, a group of one.

    Raises InputError if the GPU cannot be used; -1 is the CPU. The timeout is in minutes.
    """
    if gpu_id >= 0:
        use_gpu(gpu_id)
        if torch.cuda.is_available():  # else it is the GPU of a Mac
            torch.cuda.set_device(gpu_id)
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        return ProcessGroup(gpu_id=gpu_id)
    dist.init_process_group(
        "gloo" if gpu_id < 0 else "nccl",
        timeout=timedelta(minutes=timeout),
        device_id=None if gpu_id < 0 else torch.device("cuda", gpu_id),
    )
    return ProcessGroup(dist.get_rank(), size, gpu_id)
