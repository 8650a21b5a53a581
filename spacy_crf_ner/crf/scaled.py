"""The forward-backward algorithm in float64 without logs, on a CPU, for scores of limited range."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .chain import FORBIDDEN, Chain, Indices
from .packed import Packed

Floats = NDArray[np.float64]

# The smallest float64 is 1e-308. A sum of at least 1e-150 stays exact: the scores of one token
# lower it by a factor of at most e^200 = 1e87, a division by the total by at most e^46 = 1e20.
SMALLEST = 1e-150
MAX_SPREAD = 200.0
MAX_RISE = 46.0

CHUNK = 4096  # tokens whose transitions are counted at once, to keep their copies small


class ScaledForwardBackward:
    """Sums of probabilities in float64, rescaled every few tokens instead of taking logs. CPU only.

    For N packed tokens, alpha (N, C) sums over the paths up to a tag, including its token, and beta
    over the paths after it. They are scaled so that alpha * beta is the posterior. K is exp(A).
    arrive (N, C) is exp(E) * beta, so that beta_t = K arrive_t+1.

    Raises FloatingPointError if float64 may not hold these sums, or if no path is legal.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain = Chain(*(tensor.detach() for tensor in chain))
        self.packed = packed = Packed(chain.mask)
        # Subtract the highest score of each token or kind, so that all scores are at most 0.
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
        # A token lowers sums by a factor of at most e^spread, and raises them by at most C.
        rise = math.log(len(self.K) + 1)
        every = max(1, int(min(MAX_SPREAD / (spread + 1), MAX_RISE / rise)))

        with np.errstate(all="ignore"):  # checked below
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

    def _forward(self, start: Floats, every: int) -> dict[int, Floats]:
        """Compute alpha. Returns the divisors of the sums, (n, 1), for each rescaled token."""
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

    def _backward(self, end: Floats, norms: dict[int, Floats]) -> None:
        """Compute beta and arrive. end: (D, C), for each doc."""
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
        """Posterior probability of each tag: (B, T, C), 0 in the padding."""
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

    def gradients(self, weights: Tensor, tags: Tensor | None = None) -> tuple[Tensor, ...]:
        """Gradients of sum(weights * log_z) for emissions, transitions, start and end.

        weights: (B,). tags: (B, T); with them, of sum(weights * (log_z - score(tags))).
        """
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

    def log_messages(self) -> tuple[Tensor, Tensor]:
        """Log alpha and log beta: both (B, T, C)."""
        with np.errstate(divide="ignore"):
            alpha, beta = (np.log(sums).clip(FORBIDDEN) for sums in (self.alpha, self.beta))
        return self.packed.pad(alpha), self.packed.pad(beta)

    def message_gradients(self, d_alpha: Tensor, d_beta: Tensor) -> tuple[Tensor, ...]:
        """Gradients of sum(d_alpha * log alpha + d_beta * log beta), in the order of `gradients`.

        Gradients of alpha move to the left with P(y_t = i | y_t+1 = j) = alpha_t(i) K_ij r_t+1(j),
        where r = arrive / (alpha * beta). Gradients of beta move to the right with
        P(y_t+1 = j | y_t = i) = K_ij arrive_t+1(j) / beta_t(i).
        """
        packed, before, D = self.packed, self.packed.before, len(self.packed.docs)
        left, right = (packed.pack(gradient).numpy() for gradient in (d_alpha, d_beta))
        arrived = np.zeros_like(right)
        with np.errstate(all="ignore"):  # if a divisor is 0, no path uses the tag
            ratio = np.nan_to_num(self.arrive / self.beta / self.alpha, posinf=0.0)
            inverse = np.nan_to_num(1.0 / self.beta, posinf=0.0)
        steps = list(zip(packed.tokens, packed.tokens[1:], packed.counts[1:]))
        for here, after, n in reversed(steps):
            left[here][:n] += (left[after] * ratio[after]) @ self.K.T * self.alpha[here][:n]
        for here, after, n in steps:
            arrived[after] = (right[here] * inverse[here])[:n] @ self.K * self.arrive[after]
            right[after] += arrived[after]
        counts = self.alpha[before].T @ (left * ratio)[D:]
        counts += (right * inverse)[before].T @ self.arrive[D:]
        ends = left[packed.tokens[0]].sum(0), right[packed.last].sum(0)
        scores = map(torch.from_numpy, (self.K * counts, *ends))
        return (packed.pad(left + arrived), *scores)

    def _pack(self, tags: Tensor) -> NDArray[np.int64]:
        """(B, T) -> (N,)."""
        return tags.numpy().reshape(-1)[self.packed.padded]

    def log_segment_marginals(self, docs: Indices, starts: Indices, tags: Indices) -> Tensor:
        """Log probabilities of segments, as the function `log_segment_marginals`: (S,)."""
        doc, start, tag = map(np.asarray, (docs, starts, tags))
        here = self.packed.row(doc, start), tag[:, 0]
        segment, at = np.nonzero(tag[:, 1:] >= 0)
        doc, token = doc[segment], start[segment] + at
        left, right = tag[segment, at], tag[segment, at + 1]
        arrive = self.arrive[self.packed.row(doc, token + 1), right]
        with np.errstate(all="ignore"):  # of impossible segments: log(0), 0 / 0
            moves = np.log(
                self.K[left, right] * arrive / self.beta[self.packed.row(doc, token), left]
            )
            log_p = np.log(self.alpha[here] * self.beta[here])
        log_p += np.bincount(segment, np.nan_to_num(moves, nan=-np.inf, neginf=-np.inf), len(log_p))
        return torch.from_numpy(log_p).clamp(max=0.0)


def _spread(scores: Floats) -> float:
    """Return how far the lowest score that is not forbidden is below 0."""
    lowest = scores.min()
    if lowest <= FORBIDDEN / 2:
        lowest = scores.min(where=scores > FORBIDDEN / 2, initial=0.0)
    return -float(lowest)


def _positive(sums: Floats) -> Floats:
    if not (sums > 0).all():
        raise FloatingPointError("No path is left.")
    return sums
