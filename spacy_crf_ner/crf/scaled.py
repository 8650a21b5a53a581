"""The forward-backward algorithm in float64 without logs, for scores of limited range."""

import math

import numpy as np
from numpy.typing import NDArray

from .chain import FORBIDDEN, Chain
from .packed import Ints, Packed

Floats = NDArray[np.float64]

# The smallest float64 is 1e-308. A sum of at least 1e-150 stays exact: the scores of one token
# lower it by a factor of at most e^200 = 1e87, a division by the total by at most e^46 = 1e20.
SMALLEST = 1e-150
MAX_SPREAD = 200.0
MAX_RISE = 46.0

CHUNK = 4096  # tokens whose transitions are counted at once, to keep their copies small


class ScaledForwardBackward:
    """Sums of probabilities in float64, rescaled every few tokens instead of taking logs.

    For N packed tokens, alpha (N, C) sums over the paths up to a tag, including its token, and beta
    over the paths after it. They are scaled so that alpha * beta is the posterior. K is exp(A),
    (C, C), or (D, C, C) if each of the D packed docs has its own.
    arrive (N, C) is exp(E) * beta, so that beta_t = K arrive_t+1.

    chain: Arrays.

    Raises FloatingPointError if float64 may not hold these sums, or if no path is legal.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.packed = packed = Packed(chain.mask)
        # Subtract the highest score of each token or kind, so that all scores are at most 0.
        emissions = packed.pack(chain.emissions).astype(np.float64)
        highest = np.ascontiguousarray(emissions.T).max(0)  # faster than max(1)
        emissions -= highest[:, None]
        parts = zip(chain[1:4], (2, 1, 1))
        kinds = [packed.own(scores, dim).astype(np.float64) for scores, dim in parts]
        peaks = [scores.max() for scores in kinds]
        kinds = [scores - peak for scores, peak in zip(kinds, peaks)]
        spread = sum(_spread(scores) for scores in (emissions, *kinds))
        if not spread <= MAX_SPREAD:
            raise FloatingPointError(f"Scores spread over {spread:.0f} in one step.")
        self.K, start, end = map(np.exp, kinds)
        self.arrive: Floats = np.exp(emissions, out=emissions)  # exp(E), until beta is known
        # A token lowers sums by a factor of at most e^spread, and raises them by at most C.
        rise = math.log(self.K.shape[-1] + 1)
        every = max(1, int(min(MAX_SPREAD / (spread + 1), MAX_RISE / rise)))

        with np.errstate(all="ignore"):  # checked below
            norms = self._forward(start, every)
            total = _positive((self.alpha[packed.last] * end).sum(1))  # (D,)
            self._backward(end / total[:, None], norms)
        for sums in (self.alpha, self.arrive):
            if ((sums > 0) & (sums < SMALLEST)).any() or not sums.max() <= 1 / SMALLEST:
                raise FloatingPointError("Sums over paths under- or overflow.")

        log_z = np.log(total) + peaks[0] * (packed.lengths - 1) + peaks[1] + peaks[2]
        for t, norm in norms.items():
            log_z[: packed.counts[t]] += np.log(norm[:, 0])
        self.log_z: Floats = packed.unsort(log_z)
        self.log_z += np.bincount(packed.doc_of, highest, len(self.log_z))

    def _forward(self, start: Floats, every: int) -> dict[int, Floats]:
        """Compute alpha. Returns the divisors of the sums, (n, 1), for each rescaled token."""
        alpha, scores, tokens = np.empty_like(self.arrive), self.arrive, self.packed.tokens
        norms = {}
        here = np.multiply(scores[tokens[0]], start, alpha[tokens[0]])
        for t, now in enumerate(tokens[1:], 1):
            before, here = here, alpha[now]
            _move(before[: len(here)], self.K, here)
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
        onward, after = self.K.swapaxes(-1, -2), None
        for t in range(len(tokens) - 1, -1, -1):
            here = beta[tokens[t]]
            if after is not None:
                _move(after, onward, here[: len(after)])
            after = self.arrive[tokens[t]]
            after *= here
            if t in norms:
                after /= norms[t]
        self.beta = beta

    def marginals(self) -> Floats:
        """Posterior probability of each tag: (B, T, C), 0 in the padding."""
        return self.packed.pad(self.alpha * self.beta)

    def gradients(
        self, weights: Floats, tags: Ints | None = None
    ) -> tuple[NDArray[np.floating], ...]:
        """Gradients of sum(weights * log_z) for emissions, transitions, start and end.

        weights: (B,). tags: (B, T); with them, of sum(weights * (log_z - score(tags))).
        """
        packed, before, D = self.packed, self.packed.before, len(self.packed.docs)
        of_row = weights[packed.doc_of]
        counts = self._count(self.alpha * of_row[:, None], self.arrive)
        counts *= self.K
        posterior = np.empty(self.alpha.shape, self.chain.emissions.dtype)
        np.multiply(self.alpha, self.beta, out=posterior, casting="same_kind")
        if tags is not None:
            tag, C = packed.pack(tags), self.K.shape[-1]
            posterior[np.arange(len(tag)), tag] -= 1.0
            moves = tag[before] * C + tag[D:]
            if counts.ndim == 3:
                moves += packed.rank_of[D:] * C * C
            counts -= np.bincount(moves, of_row[D:], counts.size).reshape(counts.shape)
        posterior *= of_row[:, None].astype(posterior.dtype)
        ends = posterior[packed.tokens[0]], posterior[packed.last]
        return (packed.pad(posterior), *self._shared(counts, *ends))

    def log_messages(self) -> tuple[Floats, Floats]:
        """Log alpha and log beta: both (B, T, C)."""
        with np.errstate(divide="ignore"):
            alpha, beta = (np.log(sums).clip(FORBIDDEN) for sums in (self.alpha, self.beta))
        return self.packed.pad(alpha), self.packed.pad(beta)

    def message_gradients(self, d_alpha: Floats, d_beta: Floats) -> tuple[Floats, ...]:
        """Gradients of sum(d_alpha * log alpha + d_beta * log beta), in the order of `gradients`.

        Gradients of alpha move to the left with P(y_t = i | y_t+1 = j) = alpha_t(i) K_ij r_t+1(j),
        where r = arrive / (alpha * beta). Gradients of beta move to the right with
        P(y_t+1 = j | y_t = i) = K_ij arrive_t+1(j) / beta_t(i).
        """
        packed = self.packed
        left, right = packed.pack(d_alpha), packed.pack(d_beta)
        arrived = np.zeros_like(right)
        with np.errstate(all="ignore"):  # if a divisor is 0, no path uses the tag
            ratio = np.nan_to_num(self.arrive / self.beta / self.alpha, posinf=0.0)
            inverse = np.nan_to_num(1.0 / self.beta, posinf=0.0)
        steps = list(zip(packed.tokens, packed.tokens[1:], packed.counts[1:]))
        for here, after, n in reversed(steps):
            flow = _move(left[after] * ratio[after], self.K.swapaxes(-1, -2))
            left[here][:n] += flow * self.alpha[here][:n]
        for here, after, n in steps:
            arrived[after] = _move((right[here] * inverse[here])[:n], self.K) * self.arrive[after]
            right[after] += arrived[after]
        counts = self._count(self.alpha, left * ratio)
        counts += self._count(right * inverse, self.arrive)
        ends = left[packed.tokens[0]], right[packed.last]
        return (packed.pad(left + arrived), *self._shared(self.K * counts, *ends))

    def _count(self, leave: Floats, arrive: Floats) -> Floats:
        """Sum the products of each pair of tags at successive tokens: the shape of K.

        leave, arrive: (N, C), of the first and of the second token.
        """
        packed, counts = self.packed, np.zeros(self.K.shape)
        if counts.ndim == 3:
            for before, here, n in zip(packed.tokens, packed.tokens[1:], packed.counts[1:]):
                counts[:n] += leave[before][:n, :, None] * arrive[here][:, None, :]
            return counts
        arrivals = arrive[len(packed.docs) :]
        for begin in range(0, len(packed.before), CHUNK):
            rows = packed.before[begin : begin + CHUNK]
            counts += leave.take(rows, axis=0).T @ arrivals[begin : begin + CHUNK]
        return counts

    def _shared(self, counts: Floats, *ends: NDArray[np.floating]) -> tuple[Floats, ...]:
        """Give gradients, (D, C) of start and end, the shapes of transitions, start and end."""
        if counts.ndim == 2:
            return (counts, *(end.sum(axis=0) for end in ends))
        found = []
        for own in (counts, *ends):
            by_doc = np.zeros((self.packed.shape[0], *own.shape[1:]), own.dtype)
            by_doc[self.packed.docs] = own
            found.append(by_doc)
        return tuple(found)

    def log_segment_marginals(self, docs: Ints, starts: Ints, tags: Ints) -> Floats:
        """Log probabilities of segments, as the function `log_segment_marginals`: (S,)."""
        here = self.packed.row(docs, starts), tags[:, 0]
        segment, at = np.nonzero(tags[:, 1:] >= 0)
        doc, token = docs[segment], starts[segment] + at
        left, right = tags[segment, at], tags[segment, at + 1]
        arrive = self.arrive[self.packed.row(doc, token + 1), right]
        K = np.broadcast_to(self.K, (len(self.packed.docs), *self.K.shape[-2:]))
        move = K[self.packed.rank[doc], left, right]
        with np.errstate(all="ignore"):  # of impossible segments: log(0), 0 / 0
            moves = np.log(move * arrive / self.beta[self.packed.row(doc, token), left])
            log_p = np.log(self.alpha[here] * self.beta[here])
        log_p += np.bincount(segment, np.nan_to_num(moves, nan=-np.inf, neginf=-np.inf), len(log_p))
        return np.minimum(log_p, 0.0)


def _move(sums: Floats, K: Floats, out: Floats | None = None) -> Floats:
    """Sum over the tags before: (n, C) -> (n, C), for the first n packed docs."""
    if K.ndim == 2:
        return sums.dot(K, out)  # with less overhead than matmul
    moved: Floats = np.einsum("di,dij->dj", sums, K[: len(sums)], out=out)
    return moved


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
