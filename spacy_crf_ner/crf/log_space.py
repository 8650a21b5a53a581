"""The forward-backward algorithm in log space: for scores of any range, on any device."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .chain import FORBIDDEN, Chain, Indices, is_empty


class LogForwardBackward:
    """Forward and backward log sums in float64; alpha, beta: (B, T, C).

    Differentiable once. Both directions run in one pass: beta sums over the paths before a token of
    the mirrored doc, as alpha does, but without the token's own score.
    """

    def __init__(self, chain: Chain) -> None:
        self.E, self.A, start, end = (scores.double() for scores in chain[:4])
        self.mask = mask = chain.mask
        (B, T, C), lengths = self.E.shape, mask.sum(1, keepdim=True)
        mirrored = (lengths - 1 - torch.arange(T, device=mask.device)).clamp(min=0)  # (B, T)
        mirrored = mirrored.unsqueeze(2).expand(B, T, C)
        before, after = _LogSumsBefore.apply(  # type: ignore[no-untyped-call]
            torch.stack([self.E, self.E.gather(1, mirrored)]),
            torch.stack([self.A, self.A.mT]).view(2, -1, C, C),
            torch.stack([start, end]).view(2, -1, C),
        )
        self.alpha: Tensor = self.E + before
        self.beta: Tensor = after.gather(1, mirrored)
        log_z = torch.logsumexp((self.alpha + self.beta)[:, :1], dim=2).sum(1)  # also if T is 0
        self.log_z = log_z.masked_fill(is_empty(mask), 0.0)

    def marginals(self) -> Tensor:
        """Posterior probability of each tag: (B, T, C), 0 in the padding."""
        # At most 1: if no path is legal, differences of huge numbers are meaningless.
        log_p = (self.alpha + self.beta - self.log_z[:, None, None]).clamp(max=0.0)
        return log_p.exp() * self.mask.unsqueeze(2)

    def log_segment_marginals(self, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
        """Log probabilities of segments, as the function `log_segment_marginals`: (S,)."""
        device = self.mask.device
        docs, starts, tags = (torch.as_tensor(x, device=device) for x in (docs, starts, tags))
        here = docs, starts, tags[:, 0]
        log_p = _possible(self.alpha[here] + self.beta[here] - self.log_z[docs])
        segment, at = torch.nonzero(tags[:, 1:] >= 0, as_tuple=True)
        doc, token = docs[segment], starts[segment] + at
        left, right = tags[segment, at], tags[segment, at + 1]
        arrive = self.E[doc, token + 1, right] + self.beta[doc, token + 1, right]
        A = self.A.expand(len(self.E), *self.A.shape[-2:])[doc, left, right]
        moves = _possible(A + arrive - self.beta[doc, token, left])
        return log_p.index_add(0, segment, moves)


class _LogSumsBefore(torch.autograd.Function):
    """The log sum over the paths to each tag at each token, without the token's own score.

    before_1(j) = start[j];  before_t+1(j) = logsumexp_i(before_t(i) + E[t, i] + A[i, j])

    Takes E (2, B, T, C), A (2, B, C, C) and start (2, B, C), for two directions, the last two with
    1 instead of B if the docs share them. Returns (2, B, T, C). The backward pass stores only the
    log sums of the tags, not of the transitions.
    """

    @staticmethod
    def forward(ctx: Any, E: Tensor, A: Tensor, start: Tensor) -> Tensor:
        before = [start.expand(2, E.shape[1], -1)]
        for emitted in E.unbind(2)[:-1]:
            moved = (before[-1] + emitted).unsqueeze(3) + A  # (2, B, C, C)
            before.append(torch.logsumexp(moved, dim=2))
        result = torch.stack(before, 2)[:, :, : E.shape[2]]
        ctx.save_for_backward(E + result, A)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        leave, A = ctx.saved_tensors
        d_E, d_before = torch.zeros_like(leave), upstream[0].clone()
        counts = leave.new_zeros(*leave.shape[:2], *A.shape[2:])  # (2, B, C, C)
        for t in range(leave.shape[2] - 1, 0, -1):
            # P(y_t-1 = i | y_t = j), times the gradient of j
            flow = torch.softmax(leave[:, :, t - 1].unsqueeze(3) + A, dim=2)
            flow *= d_before[:, :, t].unsqueeze(2)
            counts += flow
            d_E[:, :, t - 1] = flow.sum(3)
            d_before[:, :, t - 1] += d_E[:, :, t - 1]
        d_start = d_before[:, :, :1].sum(2)  # also if T is 0
        return d_E, counts.sum_to_size(A.shape), d_start.sum_to_size(A.shape[:3])


def _possible(log_p: Tensor) -> Tensor:
    """Set the log probabilities of forbidden paths to -inf, and clamp the others to 0."""
    return log_p.masked_fill(log_p < FORBIDDEN / 2, -torch.inf).clamp(max=0.0)
