"""The step of thinc's Adam in few passes over memory, with torch's fused AdamW."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from thinc.api import Optimizer
from thinc.optimizers import KeyT
from torch import Tensor
from torch.optim.adamw import adamw

from ..ml.arrays import to_array, to_tensor
from ..ml.torch_internals import lerp, multiply, norms


def can_fuse(optimizer: Optimizer) -> bool:
    """Whether this is Adam with decoupled decay."""
    decoupled = optimizer.L2_is_weight_decay or not optimizer.L2
    return optimizer.b1 > 0 and optimizer.b2 > 0 and bool(decoupled)


def is_plain(tensor: Tensor | None) -> bool:
    """Whether a tensor is of float32, dense and contiguous."""
    return (
        tensor is not None
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
    )


def fused_steps(
    optimizer: Optimizer,
    keys: Sequence[KeyT],
    weights: list[Tensor],
    gradients: list[Tensor],
    lr_scale: float,
) -> None:
    """Update weights as thinc's Adam does; on a GPU, in few kernels and without a wait.

    `can_fuse` is true for the optimizer, and `is_plain` for the tensors, which all had the same
    number of updates. Gradients are not set to zero.
    """
    averages: Any = optimizer.averages
    for key, of_key in zip(keys, weights):
        optimizer.nr_update[key] += 1
        for table in _tables(optimizer):
            if key not in table:
                moment = torch.zeros_like(of_key).view(-1)
                table[key] = of_key.clone() if table is averages else moment
            elif not isinstance(table[key], Tensor):  # of a resumed training, or a step of thinc
                table[key] = to_tensor(table[key])
    if optimizer.grad_clip:
        factors = optimizer.grad_clip / norms(gradients).clamp(min=optimizer.grad_clip)
        multiply(gradients, factors.unbind())
    step = optimizer.nr_update[keys[0]]
    # thinc rounds beta, and so 1 - beta.
    beta1, beta2 = (float(np.float32(beta)) for beta in (optimizer.b1, optimizer.b2))
    learn_rate = lr_scale * optimizer.learn_rate
    # torch decays weights before the step, thinc after it: (1 - d) (w - s) = (1 - d) w - (1 - d) s.
    kept = 1 - learn_rate * optimizer.L2
    adamw(
        [tensor.view(-1) for tensor in weights],
        [tensor.view(-1) for tensor in gradients],
        [cast(Any, optimizer.mom1[key]) for key in keys],
        [cast(Any, optimizer.mom2[key]) for key in keys],
        max_exp_avg_sqs=[],
        state_steps=[*torch.full((len(keys),), step - 1.0, device=weights[0].device).unbind()],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=kept * learn_rate,
        weight_decay=optimizer.L2 / kept,
        # torch adds eps to the second moment after bias correction, thinc before.
        eps=optimizer.eps / (1 - beta2**step) ** 0.5,
        maximize=False,
    )
    if averages is not None:
        kept_share = min((1.0 + step) / (10.0 + step), 0.9999)  # as thinc's Ops.update_averages
        lerp([averages[key] for key in keys], weights, 1.0 - kept_share)


def to_numpy_state(optimizer: Optimizer, key: KeyT) -> None:
    """Make arrays of the tensors that `fused_steps` keeps for some weights, over their memory."""
    for kept in _tables(optimizer):
        if isinstance(kept.get(key), Tensor):
            kept[key] = to_array(kept[key])


def _tables(optimizer: Optimizer) -> list[dict[KeyT, Any]]:
    """Return thinc's per-parameter state tables (mom1, mom2, averages)."""
    kept = optimizer.mom1, optimizer.mom2, optimizer.averages
    return [cast(Any, of) for of in kept if of is not None]
