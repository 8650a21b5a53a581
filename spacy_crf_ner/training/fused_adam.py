"""The step of thinc's Adam in one pass over memory, with torch's fused AdamW."""

from typing import Any

import numpy as np
import torch
from thinc.api import Optimizer
from thinc.backends import get_array_ops
from thinc.optimizers import KeyT
from torch.optim.adamw import adamw

from ..ml.torch_layer import to_tensor

# For smaller arrays, a call to torch takes more time than it saves.
MIN_FUSED_SIZE = 2**15


def can_fuse(optimizer: Optimizer, weights: Any, gradient: Any) -> bool:
    """Whether this is an Adam step with decoupled decay, on large contiguous CPU arrays."""
    return (
        weights.size >= MIN_FUSED_SIZE
        and optimizer.b1 > 0
        and optimizer.b2 > 0
        and (optimizer.L2_is_weight_decay or not optimizer.L2)
        and weights.shape == gradient.shape
        and all(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in (weights, gradient))
        and all(a.flags.carray for a in (weights, gradient))
    )


def fused_step(
    optimizer: Optimizer, key: KeyT, weights: Any, gradient: Any, lr_scale: float
) -> None:
    """Update weights as thinc's Adam does, with the same result; requires `can_fuse`.

    thinc makes many passes over its arrays, with copies, on one thread. torch makes one pass, on
    all threads, which also clips the gradient and decays the weights.
    """
    optimizer.nr_update[key] += 1
    step = optimizer.nr_update[key]
    ops: Any = get_array_ops(weights)  # type: ignore[no-untyped-call]
    for moments in (optimizer.mom1, optimizer.mom2):
        if key not in moments:
            moments[key] = ops.alloc1f(weights.size)
    norm, largest = np.linalg.norm(gradient), optimizer.grad_clip
    # thinc rounds beta, and so 1 - beta.
    beta1, beta2 = (float(np.float32(beta)) for beta in (optimizer.b1, optimizer.b2))
    learn_rate = lr_scale * optimizer.learn_rate
    # torch decays weights before the step, thinc after it: (1 - d) (w - s) = (1 - d) w - (1 - d) s.
    kept = 1 - learn_rate * optimizer.L2
    adamw(
        [to_tensor(weights).view(-1)],
        [to_tensor(gradient).view(-1)],
        [to_tensor(optimizer.mom1[key])],
        [to_tensor(optimizer.mom2[key])],
        max_exp_avg_sqs=[],
        state_steps=[torch.tensor(step - 1.0)],
        fused=True,
        grad_scale=torch.tensor(norm / largest) if 0 < largest <= norm else None,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=kept * learn_rate,
        weight_decay=optimizer.L2 / kept,
        # torch adds eps to the second moment after bias correction, thinc before.
        eps=optimizer.eps / (1 - beta2**step) ** 0.5,
        maximize=False,
    )
    gradient.fill(0.0)
    if optimizer.averages is not None:
        if key not in optimizer.averages:
            optimizer.averages[key] = ops.alloc(weights.shape)
        ops.update_averages(optimizer.averages[key], weights, step)
