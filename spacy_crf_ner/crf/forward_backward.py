"""The forward-backward algorithm: log partition, its gradient, and posterior probabilities.

beta_t(i)     = logsumexp_j(A[i, j] + E[t+1, j] + beta_t+1(j)),  beta_T = end       beta: (B, C)
P(y_t = j)    = exp(alpha_t(j) + beta_t(j) - logZ), the gradient of logZ for E[t, j]
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .chain import Chain, Indices, path_score
from .log_space import LogForwardBackward
from .scaled import ScaledForwardBackward

# Both have the log partition `log_z` (B,), `marginals` and `log_segment_marginals`, in float64.
ForwardBackward = ScaledForwardBackward | LogForwardBackward


def log_partition(chain: Chain) -> Tensor:
    """Sum over all tag sequences: logZ, (B,), 0 for an empty doc.

    Differentiable once. The gradient for the emissions is the marginals, for the transitions the
    expected counts. One forward-backward pass computes both, without autograd in the recursion.
    """
    scaled = _scaled(chain)
    if scaled is not None:
        return _ScaledLoss.apply(scaled, None, *chain)  # type: ignore
    return LogForwardBackward(chain).log_z.to(chain.emissions.dtype)


def log_likelihood(chain: Chain, tags: Tensor) -> Tensor:
    """Compute the log probability of one tag sequence of each doc: path score - logZ, (B,).

    tags: (B, T) int64; values where the mask is False are ignored.

    Differentiable once. The subtraction is in float64: two large numbers can differ by a small one.
    """
    scaled = _scaled(chain)
    if scaled is not None:
        return -_ScaledLoss.apply(scaled, tags, *chain)  # type: ignore
    emissions, transitions, start, end = (scores.double() for scores in chain[:4])
    exact = Chain(emissions, transitions, start, end, chain.mask)
    log_p = path_score(exact, tags) - LogForwardBackward(exact).log_z
    log_p = log_p - log_p.detach().clamp(min=0.0)  # above 0 by rounding
    return log_p.to(chain.emissions.dtype)


def log_messages(chain: Chain) -> tuple[Tensor, Tensor]:
    """Compute log alpha and log beta, both (B, T, C) in float64, up to a constant for each token.

    alpha_s and beta_e summarize the tokens outside s..e: the log partition of the tokens s..e, with
    log alpha_s as the emissions of s and log beta_e added to those of e, equals the log partition
    of the doc up to a constant, also if the tags of s..e are restricted.

    Differentiable once, if the result does not depend on the constants. Values in the padding are
    undefined.
    """
    scaled = _scaled(chain)
    if scaled is not None:
        return _ScaledMessages.apply(scaled, *chain)  # type: ignore
    passes = LogForwardBackward(chain)
    return passes.alpha, passes.beta


def marginals(chain: Chain) -> Tensor:
    """Compute the posterior probability of each tag at each token: (B, T, C), 0 in the padding."""
    return forward_backward(chain).marginals().to(chain.emissions.dtype)


def log_segment_marginals(chain: Chain, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
    """Compute the log probability that segments of tokens have given tags.

    P(y_s..y_e) = P(y_s) P(y_s+1 | y_s) ... P(y_e | y_e-1), since the chain is Markov.
    One forward-backward pass serves all segments.

    docs: (S,) int64, the doc of each segment, a row of the batch.
    starts: (S,) int64, its first token.
    tags: (S, L) int64, its tags, at least one; negative after its end.

    Returns (S,), -inf for an impossible segment.
    """
    log_p = forward_backward(chain).log_segment_marginals(docs, starts, tags)
    return log_p.to(chain.emissions.dtype)


def forward_backward(chain: Chain) -> ForwardBackward:
    """Run both passes over a chain once, for several results."""
    with torch.no_grad():
        return _scaled(chain) or LogForwardBackward(chain)


def _scaled(chain: Chain) -> ScaledForwardBackward | None:
    if chain.emissions.device.type != "cpu" or not chain.mask.any():
        return None
    try:
        return ScaledForwardBackward(chain)
    except FloatingPointError:
        return None


class _ScaledLoss(torch.autograd.Function):
    """logZ, minus the score of a path if one is given; one backward pass for both."""

    @staticmethod
    def forward(
        ctx: Any, passes: ScaledForwardBackward, tags: Tensor | None, *chain: Tensor
    ) -> Tensor:
        ctx.passes, ctx.tags, ctx.dtype = passes, tags, chain[0].dtype
        loss: Tensor = passes.log_z
        if tags is not None:
            loss = (loss - passes.score(tags)).clamp(min=0.0)  # below 0 by rounding
        return loss.to(chain[0].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.passes.gradients(upstream[0].double(), ctx.tags)
        return None, None, *(gradient.to(ctx.dtype) for gradient in gradients), None


class _ScaledMessages(torch.autograd.Function):
    """Log alpha and log beta."""

    @staticmethod
    def forward(ctx: Any, passes: ScaledForwardBackward, *chain: Tensor) -> tuple[Tensor, Tensor]:
        ctx.passes, ctx.dtype = passes, chain[0].dtype
        return passes.log_messages()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.passes.message_gradients(*upstream)
        return None, *(gradient.to(ctx.dtype) for gradient in gradients), None
