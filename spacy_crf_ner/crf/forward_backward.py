"""The forward-backward algorithm: log partition, its gradient, and posterior probabilities.

beta_t(i)     = logsumexp_j(A[i, j] + E[t+1, j] + beta_t+1(j)),  beta_T = end       beta: (B, C)
P(y_t = j)    = exp(alpha_t(j) + beta_t(j) - logZ), the gradient of logZ for E[t, j]
"""

import math
from typing import Any, Dict, Optional, Protocol, Tuple, Union

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from .chain import FORBIDDEN, Chain, is_empty, path_score
from .packed import Packed

Floats = NDArray[np.float64]
Indices = Union[Tensor, NDArray[np.int64]]

# float64 ends at 1e-308. From a sum of at least 1e-150 the scores of one token take off a factor of
# at most e^200 = 1e87, and a division by the total one of at most e^46 = 1e20: it stays exact.
SMALLEST = 1e-150
MAX_SPREAD = 200.0
MAX_RISE = 46.0

CHUNK = 4096  # tokens whose transitions are counted at once: their copies stay small


def log_partition(chain: Chain) -> Tensor:
    """Sum over all tag sequences: logZ, (B,), 0 for an empty doc.

    Differentiable, once: its gradient for the emissions are the marginals, and for the transitions
    the expected counts, from one forward-backward pass. Nothing is recorded from token to token.
    """
    return _LogPartition.apply(*chain)  # type: ignore[no-any-return, no-untyped-call]


def log_likelihood(chain: Chain, tags: Tensor) -> Tensor:
    """Compute the log probability of one tag sequence of each doc: path score - logZ, (B,).

    tags: (B, T) int64; what stands where the mask is False does not matter.

    Differentiable, once. The difference is taken in float64: both may be large, and it small.
    """
    scaled = _scaled(chain)
    if scaled is not None:
        return _LogLikelihood.apply(scaled, tags, *chain)  # type: ignore
    emissions, transitions, start, end = (scores.double() for scores in chain[:4])
    exact = Chain(emissions, transitions, start, end, chain.mask)
    return (path_score(exact, tags) - log_partition(exact)).to(chain.emissions.dtype)


def marginals(chain: Chain) -> Tensor:
    """Compute the posterior probability of each tag at each token: (B, T, C), 0 in the padding."""
    return forward_backward(chain).marginals().to(chain.emissions.dtype)


def log_segment_marginals(chain: Chain, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
    """Compute the log probability that segments of tokens carry given tags, whatever the rest.

    P(y_s..y_e) = P(y_s) P(y_s+1 | y_s) ... P(y_e | y_e-1), since the chain is Markov.
    One forward-backward pass serves all segments.

    docs: (S,) int64, the doc of each segment, a row of the batch.
    starts: (S,) int64, its first token.
    tags: (S, L) int64, its tags, from the first; negative beyond its end. At least one each.

    Returns (S,), -inf for what cannot be.
    """
    return (
        forward_backward(chain).log_segment_marginals(docs, starts, tags).to(chain.emissions.dtype)
    )


class _LogPartition(torch.autograd.Function):
    """logZ, with the gradients that the forward-backward pass gives."""

    @staticmethod
    def forward(ctx: Any, *chain: Tensor) -> Tensor:
        ctx.passes = forward_backward(Chain(*chain))
        ctx.dtype = chain[0].dtype
        return ctx.passes.log_z.to(ctx.dtype)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Tuple[Optional[Tensor], ...]:
        gradients = ctx.passes.gradients(upstream[0].double())
        return (*(gradient.to(ctx.dtype) for gradient in gradients), None)


class _LogLikelihood(torch.autograd.Function):
    """The score of a path, less logZ, with the gradients of both in one."""

    @staticmethod
    def forward(ctx: Any, passes: "_ScaledForwardBackward", tags: Tensor, *chain: Tensor) -> Tensor:
        ctx.passes, ctx.tags, ctx.dtype = passes, tags, chain[0].dtype
        return (passes.score(tags) - passes.log_z).to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Tuple[Optional[Tensor], ...]:
        gradients = ctx.passes.gradients(-upstream[0].double(), ctx.tags)
        return None, None, *(gradient.to(ctx.dtype) for gradient in gradients), None


class ForwardBackward(Protocol):
    """The result of one forward and one backward pass over a batch, in float64.

    log_z: (B,), the log partition.
    """

    log_z: Tensor

    def marginals(self) -> Tensor:
        """Posterior probability of each tag: (B, T, C), 0 in the padding."""

    def gradients(self, weights: Tensor) -> Tuple[Tensor, ...]:
        """Gradients of sum(weights * log_z), (B,), for emissions, transitions, start and end."""

    def log_segment_marginals(self, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
        """Log probabilities of segments, (S,), as the function of this name defines them."""


def forward_backward(chain: Chain) -> ForwardBackward:
    """Run both passes over a chain once, to take more than one result from them."""
    return _scaled(chain) or _LogForwardBackward(chain)


def _scaled(chain: Chain) -> "Optional[_ScaledForwardBackward]":
    if chain.emissions.device.type != "cpu" or not chain.mask.any():
        return None
    try:
        return _ScaledForwardBackward(chain)
    except FloatingPointError:
        return None


class _ScaledForwardBackward:
    """Sums of probabilities in float64, rescaled every few tokens: a step takes no log. CPU only.

    For N packed tokens, alpha (N, C) sums over the paths up to a tag, its token included, and beta
    over the paths after it, both scaled so that alpha * beta is the posterior. K = exp(A), and
    arrive (N, C) is exp(E) * beta, so that beta_t = K arrive_t+1.

    Raises FloatingPointError where float64 may not hold these sums, or where no path is legal.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain = Chain(*(tensor.detach() for tensor in chain))
        self.packed = packed = Packed(chain.mask)
        # All scores become differences to the highest of their token or kind: at most 0.
        emissions = packed.pack(chain.emissions).double()
        highest = emissions.amax(1)
        emissions -= highest.unsqueeze(1)
        kinds = [scores.double().numpy() for scores in chain[1:4]]
        peaks = [scores.max() for scores in kinds]
        kinds = [scores - peak for scores, peak in zip(kinds, peaks)]
        spread = sum(_spread(scores) for scores in (emissions.numpy(), *kinds))
        if not spread <= MAX_SPREAD:
            raise FloatingPointError(f"Scores spread over {spread:.0f} in one step.")
        self.K, start, end = map(np.exp, kinds)
        self.arrive = emissions.exp_().numpy()  # exp(E), until beta is known
        # In a token sums fall to e^-spread of what they were at worst, and rise to C times that.
        rise = math.log(len(self.K) + 1)
        every = max(1, int(min(MAX_SPREAD / (spread + 1), MAX_RISE / rise)))

        with np.errstate(all="ignore"):  # what goes wrong is seen below
            norms = self._forward(start, every)
            total = _positive(self.alpha[packed.last] @ end)  # (D,)
            self._backward(end / total[:, None], norms)
        for sums in (self.alpha, self.arrive):
            if ((sums > 0) & (sums < SMALLEST)).any() or not sums.max() <= 1 / SMALLEST:
                raise FloatingPointError("Sums over paths under- or overflow.")

        log_z = np.log(total) + peaks[0] * (packed.lengths - 1) + peaks[1] + peaks[2]
        for t, norm in norms.items():
            log_z[: packed.counts[t]] += np.log(norm[:, 0])
        self.log_z = packed.unsort(log_z)
        self.log_z.index_add_(0, torch.from_numpy(packed.doc_of), highest)

    def _forward(self, start: Floats, every: int) -> Dict[int, Floats]:
        """Fill alpha. Returns by what the sums of every so many tokens were divided: (n, 1)."""
        alpha, scores, tokens = np.empty_like(self.arrive), self.arrive, self.packed.tokens
        norms = {}
        here = np.multiply(scores[tokens[0]], start, alpha[tokens[0]])
        for t, now in enumerate(tokens[1:], 1):
            before, here = here, alpha[now]
            before[: len(here)].dot(self.K, here)
            here *= scores[now]
            if t % every == 0:
                norms[t] = _positive(here.sum(1, keepdims=True))
                here /= norms[t]
        self.alpha = alpha
        return norms

    def _backward(self, end: Floats, norms: Dict[int, Floats]) -> None:
        """Fill beta, and arrive. end: (D, C), for each doc."""
        beta, tokens = np.empty_like(self.alpha), self.packed.tokens
        beta[self.packed.last] = end
        onward, after = self.K.T, None
        for t in range(len(tokens) - 1, -1, -1):
            here = beta[tokens[t]]
            if after is not None:
                after.dot(onward, here[: len(after)])
            after = self.arrive[tokens[t]]
            after *= here
            if t in norms:
                after /= norms[t]
        self.beta = beta

    def marginals(self) -> Tensor:
        return self.packed.pad(self.alpha * self.beta)

    def score(self, tags: Tensor) -> Tensor:
        """Score one tag sequence of each doc, (B, T), as `path_score`: (B,) float64."""
        packed, tag = self.packed, self._pack(tags)
        E, A, start, end = (scores.numpy() for scores in self.chain[:4])
        emitted = E.reshape(-1)[packed.padded * len(A) + tag]
        moved = A[tag[packed.before], tag[len(packed.docs) :]]
        arrived = np.concatenate([start[tag[: len(packed.docs)]], moved])
        score = np.bincount(packed.doc_of, emitted, len(E))
        score += np.bincount(packed.doc_of, arrived, len(E))
        score[packed.docs] += end[tag[packed.last]]
        return torch.from_numpy(score)

    def gradients(self, weights: Tensor, tags: Optional[Tensor] = None) -> Tuple[Tensor, ...]:
        """As the protocol; with tags (B, T), of sum(weights * (log_z - score(tags)))."""
        packed, before, D = self.packed, self.packed.before, len(self.packed.docs)
        of_row = weights.numpy()[packed.doc_of]
        counts = torch.zeros(self.K.shape, dtype=torch.float64)
        for begin in range(0, len(before), CHUNK):
            rows = before[begin : begin + CHUNK]
            leave = torch.from_numpy(self.alpha.take(rows, axis=0))
            leave *= torch.from_numpy(of_row[rows, None])
            counts.addmm_(leave.T, torch.from_numpy(self.arrive[D + begin :][: len(rows)]))
        counts *= torch.from_numpy(self.K)
        posterior = np.empty(self.alpha.shape, self.chain.emissions.numpy().dtype)
        np.multiply(self.alpha, self.beta, out=posterior, casting="same_kind")
        if tags is not None:
            tag, C = self._pack(tags), len(self.K)
            posterior[np.arange(len(tag)), tag] -= 1.0
            moved = np.bincount(tag[before] * C + tag[D:], of_row[D:], C * C)
            counts -= torch.from_numpy(moved.reshape(C, C))
        torch.from_numpy(posterior).mul_(torch.from_numpy(of_row[:, None]))
        ends = posterior[packed.tokens[0]].sum(axis=0), posterior[packed.last].sum(axis=0)
        return (packed.pad(posterior), counts, *map(torch.from_numpy, ends))

    def _pack(self, tags: Tensor) -> NDArray[np.int64]:
        """(B, T) -> (N,)."""
        return tags.numpy().reshape(-1)[self.packed.padded]

    def log_segment_marginals(self, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
        doc, start, tag = map(np.asarray, (docs, starts, tags))
        here = self.packed.row(doc, start), tag[:, 0]
        segment, at = np.nonzero(tag[:, 1:] >= 0)
        doc, token = doc[segment], start[segment] + at
        left, right = tag[segment, at], tag[segment, at + 1]
        arrive = self.arrive[self.packed.row(doc, token + 1), right]
        with np.errstate(all="ignore"):  # of what cannot be: log(0), 0 / 0
            moves = np.log(
                self.K[left, right] * arrive / self.beta[self.packed.row(doc, token), left]
            )
            log_p = np.log(self.alpha[here] * self.beta[here])
        log_p += np.bincount(segment, np.nan_to_num(moves, nan=-np.inf, neginf=-np.inf), len(log_p))
        return torch.from_numpy(log_p).clamp(max=0.0)


class _LogForwardBackward:
    """Log sums in float64, for scores of any range, on any device; alpha, beta: (B, T, C)."""

    def __init__(self, chain: Chain) -> None:
        self.E, self.A, start, end = (scores.detach().double() for scores in chain[:4])
        self.mask = chain.mask
        E, A, mask = self.E, self.A, self.mask
        B, T, _ = E.shape
        alpha, beta = torch.zeros_like(E), torch.zeros_like(E)
        if T:
            alpha[:, 0] = start + E[:, 0]
            beta[:, -1] = end
        for t in range(1, T):
            step = torch.logsumexp(alpha[:, t - 1, :, None] + A, dim=1) + E[:, t]
            alpha[:, t] = torch.where(mask[:, t, None], step, alpha[:, t - 1])
        for t in range(T - 2, -1, -1):
            step = torch.logsumexp(A + (E[:, t + 1] + beta[:, t + 1])[:, None, :], dim=2)
            beta[:, t] = torch.where(mask[:, t + 1, None], step, end)
        log_z = torch.logsumexp(alpha[:, -1] + end, dim=1) if T else E.new_zeros(B)
        self.log_z = log_z.masked_fill(is_empty(mask), 0.0)
        self.alpha, self.beta = alpha, beta

    def marginals(self) -> Tensor:
        # At most 1: where no path is legal, differences of huge numbers mean nothing.
        posterior = (self.alpha + self.beta - self.log_z[:, None, None]).clamp_(max=0.0).exp_()
        return posterior * self.mask.unsqueeze(2)

    def gradients(self, weights: Tensor) -> Tuple[Tensor, ...]:
        posterior = self.marginals() * weights[:, None, None]
        last = self.mask.clone()
        last[:, :-1] &= ~self.mask[:, 1:]
        counts = torch.zeros_like(self.A)
        for t in range(self.mask.shape[1] - 1):
            arrive = self.E[:, t + 1] + self.beta[:, t + 1] - self.log_z[:, None]
            pairs = self.alpha[:, t, :, None] + self.A + arrive[:, None, :]  # (B, C, C)
            kept = weights * self.mask[:, t + 1]
            counts += (pairs.clamp_(max=0.0).exp_() * kept[:, None, None]).sum(0)
        return posterior, counts, posterior[:, :1].sum((0, 1)), posterior[last].sum(0)

    def log_segment_marginals(self, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
        device = self.mask.device
        docs, starts, tags = (torch.as_tensor(x, device=device) for x in (docs, starts, tags))
        here = docs, starts, tags[:, 0]
        log_p = _possible(self.alpha[here] + self.beta[here] - self.log_z[docs])
        segment, at = torch.nonzero(tags[:, 1:] >= 0, as_tuple=True)
        doc, token = docs[segment], starts[segment] + at
        left, right = tags[segment, at], tags[segment, at + 1]
        arrive = self.E[doc, token + 1, right] + self.beta[doc, token + 1, right]
        moves = _possible(self.A[left, right] + arrive - self.beta[doc, token, left])
        return log_p.index_add(0, segment, moves)


def _spread(scores: Floats) -> float:
    """How far scores that are not forbidden lie below 0."""
    lowest = scores.min()
    if lowest <= FORBIDDEN / 2:
        lowest = scores.min(where=scores > FORBIDDEN / 2, initial=0.0)
    return -float(lowest)


def _positive(sums: Floats) -> Floats:
    if not (sums > 0).all():
        raise FloatingPointError("No path is left.")
    return sums


def _possible(log_p: Tensor) -> Tensor:
    """Log probabilities, -inf where something forbidden is needed, and never above 0."""
    return log_p.masked_fill(log_p < FORBIDDEN / 2, -torch.inf).clamp(max=0.0)
