"""What keeps the memory of a long training run from growing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

# Kernels that oneDNN keeps: more than the 20 to 30 of one training step, which the layers of a
# transformer share.
KERNELS = "64"


@contextmanager
def keep_storage(module: nn.Module) -> Iterator[None]:
    """Keep the parameters of a module in their own tensors while an optimizer updates them.

    thinc makes an array over the memory of a tensor, updates it, and makes a tensor over the array.
    The new tensor keeps the array alive, and the array the old tensor: one more link at every
    update, for every parameter, which nothing ever frees. A parameter that an optimizer replaces
    by an array of its own stays replaced.
    """
    owners = [(weights, weights.data) for weights in module.parameters()]
    yield
    for weights, owner in owners:
        if weights.data_ptr() == owner.data_ptr():
            weights.data = owner


def limit_kernel_cache() -> None:
    """Let oneDNN keep few compiled kernels, if it has not made any yet; called before training.

    It compiles a kernel for each shape, and by default keeps the last 1,024. Batches differ in
    shape, so training uses almost none of them again. They are small, but they lie between the
    large blocks of the heap, which then cannot be joined: the heap grows with each of them.
    Prediction does not call this, as the lengths of texts recur. A value in the environment stays.
    """
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
