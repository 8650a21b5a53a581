"""The ranks: the processes that torchrun starts to train one pipeline together."""

import os
import sys
from datetime import timedelta
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, Callable, Optional, Type

from spacy.language import Language
from thinc.api import CupyOps, get_current_ops, require_gpu

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = 30.0  # minutes
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets

_joined: Optional["Ranks"] = None


class Ranks:
    """The processes that train together, as one of them sees them; without others, it is alone.

    rank: Which of them this is, from 0.
    world: How many there are.
    device: Where the tensors are that they exchange: "cpu" or "cuda".
    step: Updates so far, for messages.
    """

    def __init__(self, rank: int = 0, world: int = 1, device: str = "cpu") -> None:
        self.rank, self.world, self.device, self.step = rank, world, device, 0

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.world == 1

    def sum(self, tensor: "Tensor") -> None:
        """Replace a tensor, which each rank has, by the sum over ranks."""
        from torch.distributed import all_reduce

        if not self.alone:
            self._together(all_reduce, tensor)

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is set in any rank."""
        import torch

        flags = torch.tensor([float(flag)], device=self.device)
        self.sum(flags)
        return bool(flags.item())

    def copy(self, tensor: "Tensor") -> None:
        """Replace a tensor, bit for bit, by that of rank 0."""
        import torch
        from torch.distributed import broadcast

        if self.alone or not tensor.numel():
            return
        # As bytes: a backend does not know every type.
        content = tensor.detach().reshape(-1).clone().view(torch.uint8).to(self.device)
        self._together(broadcast, content, 0)
        tensor.detach().copy_(content.view(tensor.dtype).view(tensor.shape))

    def tell(self, data: bytes = b"") -> bytes:
        """Hand the bytes of rank 0 to all."""
        import torch

        if self.alone:
            return data
        size = torch.tensor([len(data)])
        self.copy(size)
        content = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == 0 and data:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.copy(content)
        return content.numpy().tobytes()

    def _together(self, collective: Callable[..., Any], *args: Any) -> None:
        try:
            collective(*args)
        except RuntimeError as error:
            message = (
                f"Rank {self.rank}, step {self.step}: expected an answer of all {self.world} "
                f"ranks, got {error} Another rank ended or hangs: what it wrote says why. Mend "
                "that, and start again with resume = model-last in [training.before_update], and "
                "another --output."
            )
            # At once: when a rank ends, torchrun ends the others before they can say more.
            print(message, file=sys.stderr, flush=True)
            raise OSError(message) from error


def ranks(timeout: float = TIMEOUT) -> Ranks:
    """Find the ranks, and join them where this process has not done so yet.

    timeout: Minutes that a rank waits for another; of the first call.

    Returns a rank that is alone where torchrun has not started this process, or only this one.
    """
    global _joined
    if _joined is None:
        launched = all(name in os.environ for name in _LAUNCHED)
        together = launched and int(os.environ["WORLD_SIZE"]) > 1
        _joined = _join(timeout) if together else Ranks()
    return _joined


def take_gpu(
    then: Optional[Callable[[Type[Language]], Type[Language]]] = None,
) -> Callable[[Type[Language]], Type[Language]]:
    """Make `spacy-crf-ner.take_gpu.v1`, for `[nlp.before_creation]`.

    Where torchrun has started this process, and it is told to use a GPU, whichever, it takes the
    one with the number LOCAL_RANK. Otherwise nothing is done.

    then: Another such callback; None for none.

    The callback raises ValueError where there are fewer GPUs than processes on a machine.
    """

    def before_creation(language: Type[Language]) -> Type[Language]:
        if "LOCAL_RANK" in os.environ and _uses_gpu():
            _take_gpu(int(os.environ["LOCAL_RANK"]))
        return language if then is None else then(language)

    return before_creation


def _uses_gpu() -> bool:
    return isinstance(get_current_ops(), CupyOps)


def _take_gpu(number: int) -> None:
    import torch

    there = torch.cuda.device_count()
    if number >= there:
        raise ValueError(
            f"Expected a GPU with the number {number}, got a machine with {there}. Start {there} "
            f"processes on it: torchrun --nproc-per-node {there}."
        )
    torch.cuda.set_device(number)
    require_gpu(number)


def _join(timeout: float) -> Ranks:
    from torch.distributed import init_process_group

    backend, device = ("nccl", "cuda") if _uses_gpu() else ("gloo", "cpu")
    init_process_group(backend, timeout=timedelta(minutes=timeout))
    rank = int(os.environ["RANK"])
    if rank != 0:
        _leave_output_to_rank_0()
    return Ranks(rank, int(os.environ["WORLD_SIZE"]), device)


def _leave_output_to_rank_0() -> None:
    """Let `spacy train` train without an output folder, and say nothing.

    It is the one place where that can be said: spaCy deletes old checkpoints, and copies the last
    one to the best, whatever is done about `nlp.to_disk`.
    """
    command: Any = import_module("spacy.cli.train")
    train = command.train_nlp

    def train_without_output(nlp: Language, output_path: Any = None, **settings: Any) -> Any:
        return train(nlp, None, **{**settings, "stdout": StringIO()})

    command.train_nlp = train_without_output
