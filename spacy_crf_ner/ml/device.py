"""Copies from the host to a GPU."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the host does not wait for a copy to a GPU of CUDA.

    CUDA reads memory that is not pinned before the copy returns, so it may be freed at once. MPS
    does not.
    """
    return tensor.to(device, non_blocking=device.type == "cuda")
