"""The arithmetic of Adam: weights, moments and their decay in one pass over memory."""

from typing import Any

import numpy as np
import torch
from torch.optim.adamw import adamw

from ..ml.torch_layer import to_tensor


def adam_step(
    weights: Any,
    gradient: Any,
    mom1: Any,
    mom2: Any,
    *,
    step: int,
    learn_rate: float,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
    grad_clip: float,
) -> None:
    """Update weights and moments in place, with the results of thinc's Optimizer.

    thinc goes over its arrays again and again, with copies of them, on one thread; torch does so
    once, on all, and scales the gradient down and decays the weights on the way.

    weights, gradient: numpy arrays of one shape, in C order; the gradient is set to zero.
    mom1, mom2: As many numbers, in one axis.
    step: How many updates these weights have had, with this one.
    learn_rate: That of these weights.
    decay: The share of themselves that they lose after the step; below 1.
    beta1, beta2, eps: As in Adam.
    grad_clip: The largest norm of the gradient; 0 for none.
    """
    norm = np.linalg.norm(gradient)
    scale = torch.tensor(norm / grad_clip) if grad_clip and norm >= grad_clip else None
    flat = [to_tensor(array).view(-1) for array in (weights, gradient, mom1, mom2)]
    # torch decays weights before the step, thinc after it: (1 - d) (w - s) = (1 - d) w - (1 - d) s.
    rate = (1 - decay) * learn_rate * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
    adamw(
        [flat[0]],
        [flat[1]],
        [flat[2]],
        [flat[3]],
        max_exp_avg_sqs=[],
        # thinc corrects the moments in the rate: torch is told that there is nothing to correct.
        state_steps=[torch.tensor(torch.inf)],
        fused=True,
        grad_scale=scale,
        amsgrad=False,
        # thinc rounds them, and so what they leave of 1.
        beta1=float(np.float32(beta1)),
        beta2=float(np.float32(beta2)),
        lr=rate,
        weight_decay=decay / rate if decay else 0.0,
        eps=eps,
        maximize=False,
    )
    gradient.fill(0.0)
