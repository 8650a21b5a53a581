"""Prevent memory growth in long training runs."""

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from itertools import count

# Size of oneDNN's kernel cache: more than the 20 to 30 kernels of a batch of windows, which all
# layers of a transformer share.
KERNELS = "64"
UPDATES = 50  # of modules, between two times that free memory is returned
_updates = count(1)


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
