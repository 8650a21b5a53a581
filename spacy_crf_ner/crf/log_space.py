"""The forward-backward algorithm in log space: for scores of any range."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .chain import FORBIDDEN, Chain
from .packed import Ints

Floats = NDArray[np.float64]


class LogForwardBackward:
    """Forward and backward log sums in float64; alpha, beta: (B, T, C).

    Both directions run in one pass: beta sums over the paths before a token of the mirrored doc, as
    alpha does, but without the token's own score.

    chain: Arrays.
    """

    def __init__(self, chain: Chain) -> None:
        self.E, self.A, start, end = (scores.astype(np.float64) for scores in chain[:4])
        self.mask = chain.mask
        C, steps = self.E.shape[2], np.arange(self.mask.shape[1])
        self._mirrored = (self.mask.sum(1)[:, None] - 1 - steps).clip(0)[:, :, None]  # (B, T, 1)
        # For both directions: (2, B, T, C), (2, 1 or B, C, C), (2, 1 or B, C).
        self._directions = np.stack([self.A, self.A.swapaxes(-1, -2)]).reshape(2, -1, C, C)
        self._starts = np.stack([start, end]).reshape(2, -1, C)
        before = _log_sums_before(
            np.stack([self.E, self._mirror(self.E)]), self._directions, self._starts
        )
        self._leave = before + np.stack([self.E, self._mirror(self.E)])
        self.alpha: Floats = self._leave[0]
        self.beta: Floats = self._mirror(before[1])
        self._first = (self.alpha + self.beta)[:, :1]  # also if T is 0
        log_z = _log_sum(self._first, 2).sum(1)
        self.log_z: Floats = np.where(self.mask.any(1), log_z, 0.0)

    def marginals(self) -> Floats:
        """Posterior probability of each tag: (B, T, C), 0 in the padding."""
        # At most 1: if no path is legal, differences of huge numbers are meaningless.
        log_p = np.minimum(self.alpha + self.beta - self.log_z[:, None, None], 0.0)
        p: Floats = np.exp(log_p) * self.mask[:, :, None]
        return p

    def gradients(self, weights: Floats) -> tuple[Floats, ...]:
        """Gradients of sum(weights * log_z) for emissions, transitions, start and end.

        weights: (B,).
        """
        d_message = np.zeros_like(self.E)
        d_message[:, :1] = _softmax(self._first, 2) * weights[:, None, None]
        return self.message_gradients(d_message, d_message)

    def log_messages(self) -> tuple[Floats, Floats]:
        """Log alpha and log beta: both (B, T, C)."""
        return self.alpha, self.beta

    def message_gradients(self, d_alpha: Floats, d_beta: Floats) -> tuple[Floats, ...]:
        """Gradients of sum(d_alpha * alpha + d_beta * beta), in the order of `gradients`."""
        d_alpha, d_beta = (d * self.mask[:, :, None] for d in (d_alpha, d_beta))
        d_before = np.stack([d_alpha, self._mirror(d_beta)]) * self.mask[:, :, None]
        d_E = np.zeros_like(d_before)
        counts = np.zeros((2, *d_before.shape[1:2], *self.A.shape[-2:]))  # (2, B, C, C)
        for t in range(d_before.shape[2] - 1, 0, -1):
            # P(y_t-1 = i | y_t = j), times the gradient of j
            flow = _softmax(self._leave[:, :, t - 1, :, None] + self._directions, 2)
            flow *= d_before[:, :, t, None]
            counts += flow
            d_E[:, :, t - 1] = flow.sum(3)
            d_before[:, :, t - 1] += d_E[:, :, t - 1]
        d_A, (d_start, d_end) = counts[0] + counts[1].swapaxes(1, 2), d_before[:, :, :1].sum(2)
        d_emissions = d_alpha + d_E[0] + self._mirror(d_E[1]) * self.mask[:, :, None]
        if self.A.ndim == 2:
            d_A, d_start, d_end = (of_docs.sum(0) for of_docs in (d_A, d_start, d_end))
        return d_emissions, d_A, d_start, d_end

    def log_segment_marginals(self, docs: Ints, starts: Ints, tags: Ints) -> Floats:
        """Log probabilities of segments, as the function `log_segment_marginals`: (S,)."""
        here = docs, starts, tags[:, 0]
        log_p = _possible(self.alpha[here] + self.beta[here] - self.log_z[docs])
        segment, at = np.nonzero(tags[:, 1:] >= 0)
        doc, token = docs[segment], starts[segment] + at
        left, right = tags[segment, at], tags[segment, at + 1]
        arrive = self.E[doc, token + 1, right] + self.beta[doc, token + 1, right]
        A = np.broadcast_to(self.A, (len(self.E), *self.A.shape[-2:]))[doc, left, right]
        moves = _possible(A + arrive - self.beta[doc, token, left])
        return log_p + np.bincount(segment, moves, len(log_p))

    def _mirror(self, values: Floats) -> Floats:
        """Reverse the tokens of each doc, (B, T, C); values in the padding are undefined."""
        return np.take_along_axis(values, self._mirrored, 1)


def _log_sums_before(E: Floats, A: Floats, start: Floats) -> Floats:
    """Compute the log sum over the paths to each tag, without the token's own score.

    before_1(j) = start[j];  before_t+1(j) = logsumexp_i(before_t(i) + E[t, i] + A[i, j])

    E: (2, B, T, C), for two directions. A, start: (2, B, C, C) and (2, B, C), with 1 instead of B
        if the docs share them.
    """
    before = np.empty_like(E)
    before[:, :, :1] = start[:, :, None]
    for t in range(1, E.shape[2]):
        leave = before[:, :, t - 1] + E[:, :, t - 1]
        before[:, :, t] = _log_sum(leave[:, :, :, None] + A, 2)
    return before


def _log_sum(scores: Floats, axis: int) -> Floats:
    highest = scores.max(axis, keepdims=True)
    log_sums: Floats = np.log(np.exp(scores - highest).sum(axis))
    log_sums += highest.squeeze(axis)
    return log_sums


def _softmax(scores: Floats, axis: int) -> Floats:
    p: Floats = np.exp(scores - scores.max(axis, keepdims=True))
    p /= p.sum(axis, keepdims=True)
    return p


def _possible(log_p: NDArray[Any]) -> Floats:
    """Set the log probabilities of forbidden paths to -inf, and clamp the others to 0."""
    return np.where(log_p < FORBIDDEN / 2, -np.inf, np.minimum(log_p, 0.0))
