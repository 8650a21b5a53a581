"""Functions of tag sequences that training differentiates, on tensors.

The sums over paths run on the CPU, where they are faster; tensors on a GPU are copied there.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from .chain import Chain, to_array
from .forward_backward import ForwardBackward, forward_backward
from .packed import Ints
from .scaled import ScaledForwardBackward


def log_partition(chain: Chain) -> Tensor:
    """Sum over all tag sequences: logZ, (B,), 0 for an empty doc.

    Differentiable once. The gradient for the emissions is the marginals, for the transitions the
    expected counts. One forward-backward pass computes both, without autograd in the recursion.
    """
    return _Loss.apply(forward_backward(chain), None, *chain[:4])  # type: ignore


def log_likelihood(chain: Chain, tags: Tensor) -> Tensor:
    """Compute the log probability of one tag sequence of each doc: path score - logZ, (B,).

    tags: (B, T) int64; values where the mask is False are ignored.

    Differentiable once. The subtraction is in float64: two large numbers can differ by a small one.
    """
    passes = forward_backward(chain)
    if isinstance(passes, ScaledForwardBackward):
        return -_Loss.apply(passes, to_array(tags), *chain[:4])  # type: ignore
    E, A, start, end = (scores.cpu().double() for scores in chain[:4])  # MPS has no float64
    exact = Chain(E, A, start, end, chain.mask.cpu())
    log_p: Tensor = path_score(exact, tags.cpu()) - _Loss.apply(passes, None, *exact[:4])  # type: ignore
    log_p = log_p - log_p.detach().clamp(min=0.0)  # above 0 by rounding
    return log_p.to(chain.emissions)


def log_messages(chain: Chain) -> tuple[Tensor, Tensor]:
    """Compute log alpha and log beta, (B, T, C), up to a constant for each token.

    Both are in float64, and on the CPU.

    alpha_s and beta_e summarize the tokens outside s..e: the log partition of the tokens s..e, with
    log alpha_s as the emissions of s and log beta_e added to those of e, equals the log partition
    of the doc up to a constant, also if the tags of s..e are restricted.

    Differentiable once, if the result does not depend on the constants. Values in the padding are
    undefined.
    """
    return _Messages.apply(forward_backward(chain), *chain[:4])  # type: ignore


def path_score(chain: Chain, tags: Tensor) -> Tensor:
    """Score one tag sequence of each doc.

    tags: (B, T) int64; values where the mask is False are ignored.

    Returns (B,); 0 for an empty doc.
    """
    inside = tags.masked_fill(~chain.mask, 0).unsqueeze(2)
    emitted = chain.emissions.gather(2, inside).squeeze(2).masked_fill(~chain.mask, 0.0)
    # An additional tag, C, is before the first and after the last token, and in the padding.
    B, _, C = chain.emissions.shape
    path = pad(tags.masked_fill(~chain.mask, C), (1, 1), value=C)
    leave = torch.cat([chain.transitions, chain.end.unsqueeze(-1)], dim=-1)
    bounded = torch.cat([leave, pad(chain.start, (0, 1)).unsqueeze(-2)], dim=-2)
    docs = torch.arange(B, device=tags.device).unsqueeze(1)
    moved = bounded.expand(B, C + 1, C + 1)[docs, path[:, :-1], path[:, 1:]]
    score: Tensor = emitted.cpu().sum(1, dtype=torch.float64)
    score = score + moved.cpu().sum(1, dtype=torch.float64)
    return score.to(chain.emissions)


class _Loss(torch.autograd.Function):
    """logZ, minus the score of a path if one is given; one backward pass for both."""

    @staticmethod
    def forward(ctx: Any, passes: ForwardBackward, tags: Ints | None, *scores: Tensor) -> Tensor:
        ctx.passes, ctx.tags, ctx.like = passes, tags, scores[0].new_empty(0)
        loss = passes.log_z
        if isinstance(passes, ScaledForwardBackward) and tags is not None:
            score = passes.packed.score(passes.chain, tags)
            loss = (loss - score).clip(min=0.0)  # below 0 by rounding
        return torch.from_numpy(loss).to(ctx.like)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        weights = to_array(upstream[0]).astype(np.float64)
        tags = () if ctx.tags is None else (ctx.tags,)
        return None, None, *_to_tensors(ctx.passes.gradients(weights, *tags), ctx.like)


class _Messages(torch.autograd.Function):
    """Log alpha and log beta."""

    @staticmethod
    def forward(ctx: Any, passes: ForwardBackward, *scores: Tensor) -> tuple[Tensor, ...]:
        ctx.passes, ctx.like = passes, scores[0].new_empty(0)
        return tuple(map(torch.from_numpy, passes.log_messages()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.passes.message_gradients(*map(to_array, upstream))
        return None, *_to_tensors(gradients, ctx.like)


def _to_tensors(arrays: tuple[NDArray[Any], ...], like: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array).to(like) for array in arrays)
