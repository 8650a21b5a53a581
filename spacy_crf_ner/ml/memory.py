"""Prevent memory growth in long training runs."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

from torch import nn

# Size of oneDNN's kernel cache: more than the 20 to 30 kernels of a batch of windows, which all
# layers of a transformer share.
KERNELS = "64"
UPDATES = 50  # of modules, between two times that free memory is returned
_updates = count(1)


@contextmanager
def keep_storage(module: nn.Module) -> Iterator[None]:
    """Keep the parameters of a module in their own tensors while an optimizer updates them.

    thinc makes an array over the memory of a tensor, updates it, and makes a tensor over the array.
    The new tensor keeps the array alive, and the array keeps the old tensor alive: every update
    adds a link for every parameter, which is never freed. A parameter that an optimizer replaces by
    another array stays replaced.
    """
    owners = [(weights, weights.data) for weights in module.parameters()]
    yield
    for weights, owner in owners:
        if weights.data_ptr() == owner.data_ptr():
            weights.data = owner


def limit_kernel_cache() -> None:
    """Limit oneDNN's cache of compiled kernels; has no effect once oneDNN has compiled one.

    oneDNN compiles a kernel for each shape, and by default keeps the last 1,024. Batches differ in
    shape, so training almost never uses one again. The kernels are small, but they fragment the
    heap, which grows with each of them. Prediction does not call this, because text lengths recur.
    A value in the environment is kept.
    """
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)


def return_free_memory() -> None:
    """Return free memory to the system, at every `UPDATES`th call; glibc keeps it otherwise.

    Tensors of batches of many shapes leave gaps in the heap. Without this, MiniLM used 3.3 GB after
    500 batches of tweets, of which 1.8 GB were free, and more with each batch.
    """
    trim = _malloc_trim()
    if next(_updates) % UPDATES == 0 and trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's function; None for other libraries."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
