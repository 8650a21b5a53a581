"""The forward-backward algorithm: log partition, marginals, expected counts and entropy.

Sums of probabilities are rescaled every few tokens; where float64 could not hold them, they are
computed again as logs. Both agree to rounding.

Axes: B docs, D of them with tokens, N tokens of the batch, C tags, S segments, L tokens of the
longest one. Arrays of tokens inside are in the order of `TimeMajor`.
"""

import math
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from .chain import FORBIDDEN, Chain, Ints, TimeMajor, sum_by

Floats = NDArray[np.float64]

# A sum below this may have lost digits: the smallest float64 is 1e-308.
SMALLEST = 1e-150
MAX_SPREAD = 200.0  # range of the scores of one step, in nats: e^200 = 1e87
MAX_FALL = 300.0  # what the steps between two rescalings may lower a sum by, in nats
MAX_RISE = 46.0  # what they may raise it by, in nats

CHUNK = 4096  # pairs of tokens that are counted at once, to keep their copies small


def forward_backward(chain: Chain) -> "ForwardBackward":
    """Run the forward and the backward pass over a batch, once for all results."""
    if len(chain.emissions):  # `Scaled` refuses scores of a large range
        with suppress(FloatingPointError):
            return Scaled(chain)
    return ForwardBackward(chain)


class ForwardBackward:
    """The distribution over the tag sequences of each doc.

    It is computed with log sums in float64, for scores of any range. alpha and beta (N, C) are
    known up to a constant for each token: the highest beta is 0, except at last tokens, and
    alpha + beta are log marginals. So these do not suffer from the rounding of the sums over a long
    doc. arrive (N, C) is E + beta, up to a constant: beta_t = logsumexp(A + arrive_t+1).

    Attributes:
        log_z: The log partition of each doc, 0 for an empty one, at most FORBIDDEN / 2 for one
            without a legal path: (B,) float64.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain, self.order = chain, TimeMajor(chain.lengths)
        self.log_z: Floats = self._by_doc(self._run())

    def _run(self) -> Floats:
        """Compute alpha and beta; return the log partition of each doc: (D,)."""
        chain, order = self.chain, self.order
        # With an axis of docs, of length 1 if they share scores.
        own = order.docs if chain.per_doc else np.newaxis
        self.A, start, end = (scores[own].astype(np.float64) for scores in chain.transition_scores)
        self.K = self.A if chain.per_doc else self.A[0]
        self.arrive = chain.emissions[order.rows].astype(np.float64)
        self.alpha, self.beta = np.empty_like(self.arrive), np.empty_like(self.arrive)
        log_z, before = np.zeros(len(order.docs)), start
        for now, n in zip(order.steps, order.n_docs):
            here = before[:n] + self.arrive[now]
            highest = here.max(1, keepdims=True)
            log_z[:n] += highest[:, 0]
            self.alpha[now] = here - highest
            before = _log_sum(self.alpha[now][:, :, None] + self.A[:n], 1)
        self.beta[order.last] = end
        for before, now, n in reversed([*zip(order.steps, order.steps[1:], order.n_docs[1:])]):
            arrive = self.arrive[now]
            arrive += self.beta[now]
            here = _log_sum(self.A[:n] + arrive[:, None, :], 2)
            highest = here.max(1, keepdims=True)
            self.beta[before][:n] = here - highest
            arrive -= highest
        log_z += _log_sum(self.alpha[order.last] + end, 1)
        self.alpha -= _log_sum(self.alpha + self.beta, 1)[:, None]
        return log_z

    def marginals(self) -> Floats:
        """Return the posterior probability of each tag at each token: (N, C)."""
        return self._marginals()[self.order.position]

    def expected_counts(self, weights: Floats | None = None) -> Chain:
        """Return the expected counts of tags and transitions: the gradient of sum(log_z).

        Args:
            weights: Multiply the log_z of the docs: (B,). None for ones.

        Returns:
            The gradient for the chain, in float64: the marginals as emissions, and the expected
            numbers of each transition, first tag and last tag, summed over docs that share them.
        """
        order, p = self.order, self._marginals()
        of_docs = np.ones(len(order.docs)) if weights is None else weights[order.docs]
        if weights is not None:
            p = p * of_docs[order.rank][:, None]
        return self._gradient(p, self._pair_counts(of_docs), p[: len(order.docs)], p[order.last])

    def entropy(self) -> Floats:
        """Return the entropy of the distribution of each doc, in nats: (B,).

        It is log_z minus the expected score; 0 for an empty doc, and undefined for a doc without a
        legal path.
        """
        order, p = self.order, self._marginals()
        E, own = self.chain.emissions[order.rows], order.docs if self.chain.per_doc else slice(None)
        start, end = self.chain.start[own], self.chain.end[own]
        score = sum_by(order.rank, np.einsum("nc,nc->n", p, E), len(order.docs))
        score += (p[: len(order.docs)] * start).sum(1) + (p[order.last] * end).sum(1)
        score += self._expected_transitions()
        return np.maximum(self.log_z - self._by_doc(score), 0.0)  # below 0 by rounding

    def log_segments(self, starts: Ints, tags: Ints) -> Floats:
        """Return the log probabilities that segments of tokens have given tags.

        P(y_s..y_e) = P(y_s) P(y_s+1 | y_s) ... P(y_e | y_e-1), since the chain is Markov.

        Args:
            starts: Rows of the first tokens, among all N: (S,).
            tags: Tags of the segments, at least one each, negative after its end: (S, L). No
                segment crosses the end of its doc.

        Returns:
            (S,), -inf for an impossible segment.
        """
        position = self.order.position
        first = position[starts], tags[:, 0]
        log_p = self._log_p(self.alpha[first], self.beta[first])
        segment, step = np.nonzero(tags[:, 1:] >= 0)
        token = starts[segment] + step
        here, after = position[token], position[token + 1]
        left, right = tags[segment, step], tags[segment, step + 1]
        own = (self.order.rank[here],) if self.chain.per_doc else ()
        arrive, beta = self.arrive[after, right], self.beta[here, left]
        moves = self._log_p(self.K[*own, left, right], arrive, beta)
        return np.minimum(log_p + sum_by(segment, moves, len(log_p)), 0.0)

    def _log_p(self, x: Floats, y: Floats, divisor: Floats | float = 0.0) -> Floats:
        """Return log(x y / divisor), -inf for 0 and 0 / 0; here, all of them are logs."""
        log_p = x + y - divisor
        return np.where(log_p < FORBIDDEN / 2, -np.inf, np.minimum(log_p, 0.0))

    def log_messages(self) -> tuple[Floats, Floats]:
        """Return log alpha and log beta, each up to a constant for each token: (N, C)."""
        return self.alpha[self.order.position], self.beta[self.order.position]

    def message_gradient(self, d_alpha: Floats, d_beta: Floats) -> Chain:
        """Return the gradient of sum(d_alpha * log alpha + d_beta * log beta) for the chain.

        `d_alpha` and `d_beta`, (N, C), are the gradients for `log_messages`. They sum to 0 at each
        token, as alpha and beta are known up to a constant. Gradients of alpha move to the left
        with P(y_t = i | y_t+1 = j), those of beta to the right with P(y_t+1 = j | y_t = i).
        """
        order = self.order
        d_alpha, d_beta_here = d_alpha[order.rows], d_beta[order.rows]
        d_beta = d_beta_here.copy()
        d_A = self._move_gradients(d_alpha, d_beta)
        ends = d_alpha[: len(order.docs)], d_beta[order.last]
        return self._gradient(d_alpha + d_beta - d_beta_here, d_A, *ends)

    def _gradient(self, d_E: Floats, d_A: Floats, d_start: Floats, d_end: Floats) -> Chain:
        """Build a gradient for the chain from (N, C), the shape of A, (D, C) and (D, C)."""
        d_E, lengths = d_E[self.order.position], self.chain.lengths
        if self.chain.per_doc:
            return Chain(d_E, lengths, *map(self._by_doc, (d_A, d_start, d_end)))
        return Chain(d_E, lengths, d_A, d_start.sum(0), d_end.sum(0))

    def _by_doc(self, values: Floats) -> Floats:
        """(D, ...) -> (B, ...), zeros for empty docs."""
        found = np.zeros((len(self.chain.lengths), *values.shape[1:]))
        found[self.order.docs] = values
        return found

    def _pairs(self) -> Iterator[tuple[int, Floats]]:
        """Yield for each token but the first the number of docs, and the pair marginals there."""
        order = self.order
        for before, now, n in zip(order.steps, order.steps[1:], order.n_docs[1:]):
            arrive = self.arrive[now][:, None, :]
            scores = self.alpha[before][:n, :, None] + self.A[:n] + arrive
            yield n, _softmax(scores.reshape(n, -1)).reshape(scores.shape)

    def _marginals(self) -> Floats:
        """Return the marginals of the tags, in the order of the recursion: (N, C)."""
        return _softmax(self.alpha + self.beta)

    def _pair_counts(self, weights: Floats) -> Floats:
        """Sum the marginals of tag pairs, weighted by doc (D,): (C, C), or (D, C, C)."""
        counts = np.zeros_like(self.A)
        for n, p in self._pairs():
            p *= weights[:n, None, None]
            counts[:n] += p if self.chain.per_doc else p.sum(0)
        return counts if self.chain.per_doc else counts[0]

    def _expected_transitions(self) -> Floats:
        """Return the expected sum of the transition scores of each doc: (D,)."""
        scores = np.zeros(len(self.order.docs))
        for n, p in self._pairs():
            scores[:n] += (p * self.A[:n]).sum((1, 2))
        return scores

    def _move_gradients(self, d_alpha: Floats, d_beta: Floats) -> Floats:
        """Add gradients (N, C) for log alpha and log beta to those of the tokens they depend on.

        Returns the gradient for the transitions: (C, C), or (D, C, C) if docs have their own.
        """
        order, d_A = self.order, np.zeros_like(self.A)
        steps = [*zip(order.steps, order.steps[1:], order.n_docs[1:])]
        for before, now, n in reversed(steps):
            scores = self.alpha[before][:n, :, None] + self.A[:n]
            flow = _softmax(scores, 1) * d_alpha[now][:, None, :]
            d_A[:n] += flow if self.chain.per_doc else flow.sum(0)
            d_alpha[before][:n] += flow.sum(2)
        for before, now, n in steps:
            scores = self.A[:n] + self.arrive[now][:, None, :]
            flow = _softmax(scores, 2) * d_beta[before][:n, :, None]
            d_A[:n] += flow if self.chain.per_doc else flow.sum(0)
            d_beta[now] += flow.sum(1)
        return d_A if self.chain.per_doc else d_A[0]


class Scaled(ForwardBackward):
    """The same, faster, with sums of probabilities in float64.

    alpha (N, C) sums over the paths up to a tag, including its token, and beta over the paths after
    it. They are scaled so that alpha * beta are the marginals. K is exp(A - max A): (C, C), or
    (D, C, C) if docs have their own. arrive (N, C) is exp(E - max E) * beta, so that
    beta_t = K arrive_t+1; at tokens that are rescaled it is divided by the same number as alpha.

    Raises FloatingPointError if float64 may not hold these sums, or if no path of a doc is legal.
    """

    def _run(self) -> Floats:
        chain, order = self.chain, self.order
        # Subtract the highest score of each kind, so that all scores are at most 0.
        own = order.docs if chain.per_doc else slice(None)
        kinds = [chain.emissions[order.rows], *(scores[own] for scores in chain.transition_scores)]
        peaks = [float(scores.max()) for scores in kinds]
        kinds = [scores - np.float64(peak) for scores, peak in zip(kinds, peaks)]
        spread = sum(map(_spread, kinds))
        if not spread <= MAX_SPREAD:
            raise FloatingPointError(f"Scores spread over {spread:.0f} in one step.")
        # exp(E - max E), which `_backward` multiplies by beta
        self.arrive, self.K, start, end = (np.exp(scores, out=scores) for scores in kinds)
        # A token lowers sums by a factor of at most e^spread, and raises them by at most C.
        rise = math.log(self.K.shape[-1] + 1)
        every = max(1, int(min(MAX_FALL / (spread + 1), MAX_RISE / rise)))

        with np.errstate(all="ignore"):  # checked below
            norms = self._forward(start, every)
            total = _positive((self.alpha[order.last] * end).sum(1))  # (D,)
            self._backward(end / total[:, None], norms)
        for sums in (self.alpha, self.arrive):
            exact = np.count_nonzero(sums >= SMALLEST) == np.count_nonzero(sums > 0)
            if not (exact and sums.max() <= 1 / SMALLEST):
                raise FloatingPointError("Sums over paths under- or overflow.")

        lengths = chain.lengths[order.docs]
        log_z: Floats = np.log(total) + peaks[0] * lengths + peaks[1] * (lengths - 1)
        log_z += peaks[2] + peaks[3]
        for t, norm in norms.items():
            log_z[: order.n_docs[t]] += np.log(norm[:, 0])
        return log_z

    def _forward(self, start: Floats, every: int) -> dict[int, Floats]:
        """Compute alpha; return the divisors of the sums, (n, 1), for each rescaled token."""
        self.alpha, norms = np.empty_like(self.arrive), {}
        scores, sums = self._steps(self.arrive), self._steps(self.alpha)
        np.multiply(scores[0], start, sums[0])
        for t, (before, here, n) in enumerate(zip(sums, sums[1:], self.order.n_docs[1:]), 1):
            _move(before[:n], self.K, here)
            here *= scores[t]
            if t % every == 0:
                norms[t] = _positive(here.sum(1, keepdims=True))
                here /= norms[t]
        return norms

    def _backward(self, end: Floats, norms: dict[int, Floats]) -> None:
        """Compute beta and arrive. end: (D, C), for each doc."""
        self.beta = np.empty_like(self.alpha)
        self.beta[self.order.last] = end
        arrive, sums, n_docs = self._steps(self.arrive), self._steps(self.beta), self.order.n_docs
        onward = self.K.swapaxes(-1, -2)
        for t in reversed(range(len(n_docs))):
            if t + 1 < len(n_docs):
                _move(arrive[t + 1], onward, sums[t][: n_docs[t + 1]])
            arrive[t] *= sums[t]
            if t in norms:
                arrive[t] /= norms[t]

    def _steps(self, values: Floats) -> list[Floats]:
        """Split by position."""
        return [values[step] for step in self.order.steps]

    def _marginals(self) -> Floats:
        marginals: Floats = self.alpha * self.beta
        return marginals

    def _pair_counts(self, weights: Floats) -> Floats:
        return self._count(self.alpha * weights[self.order.rank][:, None], self.arrive)

    def _count(self, leave: Floats, arrive: Floats) -> Floats:
        """Sum K_ij leave_t(i) arrive_t+1(j) over pairs of tokens: the shape of K."""
        order = self.order
        counts: Floats = np.zeros(self.K.shape)
        if self.chain.per_doc:
            for here, now, n in zip(order.steps, order.steps[1:], order.n_docs[1:]):
                counts[:n] += leave[here][:n, :, None] * arrive[now][:, None, :]
            counts *= self.K
            return counts
        arrivals = arrive[len(order.docs) :]
        for begin in range(0, len(order.before), CHUNK):
            rows = order.before[begin : begin + CHUNK]
            counts += leave.take(rows, axis=0).T @ arrivals[begin : begin + CHUNK]
        counts *= self.K
        return counts

    def _move_gradients(self, d_alpha: Floats, d_beta: Floats) -> Floats:
        # P(y_t = i | y_t+1 = j) = alpha_t(i) K_ij r_t+1(j), where r = arrive / (alpha * beta), and
        # P(y_t+1 = j | y_t = i) = K_ij arrive_t+1(j) / beta_t(i). If a divisor is 0, no path uses
        # the tag.
        with np.errstate(all="ignore"):
            ratio = np.nan_to_num(self.arrive / self.beta / self.alpha, posinf=0.0)
            inverse = np.nan_to_num(1.0 / self.beta, posinf=0.0)
        n_docs, onward = self.order.n_docs, self.K.swapaxes(-1, -2)
        d_alphas, d_betas, alphas, ratios, inverses, arrivals = map(
            self._steps, (d_alpha, d_beta, self.alpha, ratio, inverse, self.arrive)
        )
        for t in range(len(n_docs) - 1, 0, -1):
            n = n_docs[t]
            d_alphas[t - 1][:n] += _move(d_alphas[t] * ratios[t], onward) * alphas[t - 1][:n]
        for t, n in enumerate(n_docs[1:], 1):
            flow = (d_betas[t - 1] * inverses[t - 1])[:n]
            d_betas[t] += _move(flow, self.K) * arrivals[t]
        return self._count(self.alpha, d_alpha * ratio) + self._count(d_beta * inverse, self.arrive)

    def _expected_transitions(self) -> Floats:
        order, D = self.order, len(self.order.docs)
        A = self.chain.transitions[order.docs] if self.chain.per_doc else self.chain.transitions
        weighted = self.K * A
        if self.chain.per_doc:
            moved = np.einsum("ni,nij->nj", self.alpha[order.before], weighted[order.rank[D:]])
        else:
            moved = self.alpha[order.before] @ weighted
        of_pairs = np.einsum("nc,nc->n", moved, self.arrive[D:])
        return sum_by(order.rank[D:], of_pairs, D)

    def log_messages(self) -> tuple[Floats, Floats]:
        """Return log alpha and log beta, each up to a constant for each token: (N, C)."""
        with np.errstate(divide="ignore"):
            alpha, beta = (np.log(sums).clip(FORBIDDEN) for sums in super().log_messages())
        return alpha, beta

    def _log_p(self, x: Floats, y: Floats, divisor: Floats | float = 1.0) -> Floats:
        with np.errstate(all="ignore"):
            return np.fmax(np.log(x * y / divisor), -np.inf)  # fmax ignores the NaN of 0 / 0


def _move(sums: Floats, K: Floats, out: Floats | None = None) -> Floats:
    """Sum over the tags before: (n, C) -> (n, C), for the first n docs."""
    if K.ndim == 2:
        return sums.dot(K, out)  # with less overhead than matmul
    moved: Floats = np.einsum("di,dij->dj", sums, K[: len(sums)], out=out)
    return moved


def _spread(scores: NDArray[np.floating]) -> float:
    """Return how far the lowest score that is not forbidden is below 0."""
    lowest = scores.min()
    if lowest <= FORBIDDEN / 2:
        lowest = scores.min(where=scores > FORBIDDEN / 2, initial=0.0)
    return -float(lowest)


def _positive(sums: Floats) -> Floats:
    if not (sums > 0).all():
        raise FloatingPointError("No path is left.")
    return sums


def _log_sum(scores: Floats, axis: int) -> Floats:
    highest = scores.max(axis, keepdims=True)
    log_sums: Floats = np.log(np.exp(scores - highest).sum(axis))
    log_sums += highest.squeeze(axis)
    return log_sums


def _softmax(scores: Floats, axis: int = -1) -> Floats:
    p: Floats = np.exp(scores - scores.max(axis, keepdims=True))
    p /= p.sum(axis, keepdims=True)
    return p
