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
from ...ml.hardware import use_gpu

T = TypeVar("T")

TIMEOUT = 30.0  # minutes


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


def join(gpu: bool = False, timeout: float = TIMEOUT) -> ProcessGroup:
    """Join the processes that torchrun started; without torchrun, a group of one.

    With `gpu`, each uses the GPU whose number is LOCAL_RANK, which torchrun sets; or the only one,
    if CUDA_VISIBLE_DEVICES hides the others and LOCAL_WORLD_SIZE is not over 1. Raises InputError
    if no GPU can be used, or a machine has fewer than processes. The timeout is in minutes.
    """
    available = torch.cuda.device_count() if gpu else 0
    # Slurm, for example, can show each process its own GPU alone, which then has the number 0.
    # Processes of torchrun share what they see, and it sets LOCAL_WORLD_SIZE.
    alone = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) == 1
    shown = alone and available == 1 and "CUDA_VISIBLE_DEVICES" in os.environ
    gpu_id = -1 if not gpu else 0 if shown else int(os.environ.get("LOCAL_RANK", 0))
    if gpu_id >= available > 0:
        raise InputError(
            f"--gpu: expected a GPU with the number {gpu_id}, got a machine with {available}. "
            "Start at most one process per GPU (torchrun --nproc-per-node), or omit --gpu."
        )
    if gpu:
        use_gpu(gpu_id)
        torch.cuda.set_device(gpu_id)
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        return ProcessGroup(gpu_id=gpu_id)
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        timeout=timedelta(minutes=timeout),
        device_id=torch.device("cuda", gpu_id) if gpu else None,
    )
    return ProcessGroup(dist.get_rank(), size, gpu_id)
