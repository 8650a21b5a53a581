"""Arrays of thinc and tensors of torch, over the same memory."""

from typing import Any

import numpy as np
import torch
from thinc.api import get_torch_default_device, torch2xp, xp2torch
from torch import Tensor


def to_array(tensor: Tensor) -> Any:
    """Return an array over the memory of a tensor: numpy on the CPU, cupy on a GPU."""
    return torch2xp(tensor.detach())


def to_tensor(array: Any) -> Tensor:
    """Return a tensor over the memory of an array, on the device of the array."""
    # xp2torch alone would copy a numpy array to the GPU in use.
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    if not array.size:  # without memory, which cupy would ask CUDA about
        return torch.from_numpy(array.get()).to(get_torch_default_device())
    return xp2torch(array)
