"""Linear-chain CRF: the distribution over tag sequences that a chain of potentials defines.

score(x, y)   = start[y_1] + sum_t E[t, y_t] + sum_t A[y_t, y_t+1] + end[y_T]
alpha_1(j)    = start[j] + E[1, j]                                    alpha: (B, C), E: (B, T, C)
alpha_t(j)    = logsumexp_i(alpha_t-1(i) + A[i, j]) + E[t, j]         A: (C, C), indexed [from, to]
logZ          = logsumexp_j(alpha_T(j) + end[j])                      (B,), in O(T C^2)
loss          = logZ - score(x, gold);   Viterbi is the same with max, its path read backwards

Axes: B docs, T tokens, C tags. Source: Lafferty, McCallum and Pereira (2001), ICML; Rabiner (1989).
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The score of what may not be. Finite, so that no NaN is born from inf - inf, and so large that
# a sequence that needs it is recognised: its score is at or under half of it, whatever the rest.
FORBIDDEN = -1e30

# exp() of more than 700 below the best is 0 in float64. Where scores of one token, with those of
# the transitions, spread over more than this, paths could be lost so: sums are then taken in logs.
MAX_SPREAD = 200.0

Floats = NDArray[np.float64]


class Chain(NamedTuple):
    """The potentials of a batch of sequences.

    emissions: (B, T, C) float32.
    transitions: (C, C), indexed [from, to].
    start: (C,).
    end: (C,).
    mask: (B, T) bool, True for the tokens, which come first; a row may be all False.
    """

    emissions: Tensor
    transitions: Tensor
    start: Tensor
    end: Tensor
    mask: Tensor


def constrain(chain: Chain, transitions: Tensor, start: Tensor, end: Tensor) -> Chain:
    """Forbid transitions, first tags and last tags.

    transitions, start, end: bool (C, C), (C,), (C,); False forbids.
    """
    return chain._replace(
        transitions=chain.transitions.masked_fill(~transitions, FORBIDDEN),
        start=chain.start.masked_fill(~start, FORBIDDEN),
        end=chain.end.masked_fill(~end, FORBIDDEN),
    )


def clamp(emissions: Tensor, allowed: Tensor) -> Tensor:
    """Forbid tags at tokens.

    emissions, allowed: (B, T, C) float and bool; False forbids.
    """
    return emissions.masked_fill(~allowed, FORBIDDEN)


def log_partition(chain: Chain) -> Tensor:
    """Sum over all tag sequences: logZ, (B,), 0 for an empty doc.

    Differentiable, once: its gradient for the emissions are the marginals, and for the transitions
    the expected counts, from one forward-backward pass. Nothing is recorded from token to token.
    """
    return _LogPartition.apply(*chain)  # type: ignore[no-any-return, no-untyped-call]


def marginals(chain: Chain) -> Tensor:
    """Compute the posterior probability of each tag at each token: (B, T, C), 0 in the padding."""
    return _forward_backward(chain).marginals.to(chain.emissions)


def stretch_log_posterior(chain: Chain, docs: Tensor, starts: Tensor, tags: Tensor) -> Tensor:
    """Compute the log probability that stretches of tokens carry given tags, whatever the rest.

    P(y_s..y_e) = P(y_s) P(y_s+1 | y_s) ... P(y_e | y_e-1), as given the scores a chain is Markov.
    One forward-backward pass serves all stretches.

    docs: (S,) int64, the doc of each stretch, a row of the batch.
    starts: (S,) int64, its first token.
    tags: (S, L) int64, its tags, from the first; negative beyond its end. At least one each.

    Returns (S,), -inf for what cannot be.
    """
    sums = _forward_backward(chain)
    docs, starts, tags = docs.cpu(), starts.cpu(), tags.cpu()
    log_p = sums.marginals.cpu()[docs, starts, tags[:, 0]].log()
    stretch, after = torch.nonzero(tags[:, 1:] >= 0, as_tuple=True)
    token = starts[stretch] + after
    pairs = tags[stretch, after], tags[stretch, after + 1]
    moves = sums.moves(docs[stretch], token, *pairs)
    return log_p.index_add(0, stretch, moves).to(chain.emissions)


def nbest(chain: Chain, n: int) -> Tuple[Tensor, Tensor]:
    """Find the n best tag sequences of each doc, best first, all distinct.

    Viterbi with n scores for each tag in the place of one. Source: Seshadri and Sundberg (1994),
    "List Viterbi decoding algorithms with applications".

    Returns tags (B, n, T) int64, 0 where the mask is False, and scores (B, n): -inf where a doc
    has fewer legal sequences. An empty doc has one, of score 0.
    Raises ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more, got {n}.")
    E, A, start, end = (x.detach() for x in chain[:4])
    B, T, C = E.shape
    tags = torch.zeros((B, n, T), dtype=torch.int64, device=E.device)
    scores = E.new_full((B, n), -torch.inf)
    scores[:, 0] = 0.0
    if T == 0:
        return tags, scores
    # best: (B, C, n); one path to each first tag.
    best = E.new_full((B, C, n), -torch.inf)
    best[:, :, 0] = start + E[:, 0]
    came_from = []  # T - 1 times (B, C, n), each C * n of the token before, as tag * n + rank
    stay = torch.arange(C * n, device=E.device).view(C, n).expand(B, C, n)
    for t in range(1, T):
        moved = best.view(B, 1, C * n) + A.T.repeat_interleave(n, dim=1)  # (B, C, C * n)
        ranked, previous = moved.sort(dim=2, descending=True, stable=True)
        real = chain.mask[:, t, None, None]
        best = torch.where(real, ranked[:, :, :n] + E[:, t, :, None], best)
        came_from.append(torch.where(real, previous[:, :, :n], stay))
    final = (best + end[:, None]).view(B, C * n)
    ranked, state = final.sort(dim=1, descending=True, stable=True)
    legal = ranked[:, :n] > FORBIDDEN / 2
    empty = _empty(chain.mask)[:, None]
    scores = torch.where(empty, scores, ranked[:, :n].masked_fill(~legal, -torch.inf))
    state = state[:, :n]  # (B, n)
    tags[:, :, -1] = state // n
    for t in range(T - 1, 0, -1):
        state = came_from[t - 1].reshape(B, C * n).gather(1, state)
        tags[:, :, t - 1] = state // n
    return tags.masked_fill(~chain.mask[:, None, :], 0), scores


def path_score(chain: Chain, tags: Tensor) -> Tensor:
    """Score one tag sequence of each doc.

    tags: (B, T) int64; what stands where the mask is False does not matter.

    Returns (B,); 0 for an empty doc.
    """
    if chain.mask.shape[1] == 0:
        return chain.emissions.new_zeros(len(chain.mask))
    tags = tags.masked_fill(~chain.mask, 0)
    emitted = chain.emissions.gather(2, tags.unsqueeze(2)).squeeze(2)
    moved = chain.transitions[tags[:, :-1], tags[:, 1:]]
    last = tags.gather(1, (chain.mask.sum(1) - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    score = emitted.masked_fill(~chain.mask, 0.0).sum(1)
    score = score + moved.masked_fill(~chain.mask[:, 1:], 0.0).sum(1)
    score = score + chain.start[tags[:, 0]] + chain.end[last]
    return score.masked_fill(_empty(chain.mask), 0.0)


def viterbi(chain: Chain) -> Tuple[Tensor, Tensor]:
    """Find the best tag sequence of each doc, ties broken towards the lower tag index.

    Of several best sequences it is the one with the lowest last tag, and so on backwards.

    Returns tags (B, T) int64, 0 where the mask is False, and their scores (B,).
    """
    on_cpu = chain.emissions.device.type == "cpu"
    tags, score = _viterbi_numpy(chain) if on_cpu else _viterbi_torch(chain)
    return tags.masked_fill(~chain.mask, 0), score.masked_fill(_empty(chain.mask), 0.0)


def _viterbi_numpy(chain: Chain) -> Tuple[Tensor, Tensor]:
    """Keep the best scores, not where they came from: that is found again along the one path.

    The batch is the innermost axis, and the docs are sorted by length, so that at each token the
    docs that are not at their end are the first n columns.
    """
    emissions, transitions, start, end = (x.detach().numpy() for x in chain[:4])
    B, T, C = emissions.shape
    length = chain.mask.sum(1).numpy()
    order = np.argsort(-length, kind="stable")
    going = _going(length[order], T)
    scores = np.ascontiguousarray(emissions[order].transpose(1, 2, 0))  # (T, C, B)
    moved = np.empty((C, C, B), dtype=scores.dtype)
    best = scores  # in place: (T, C, B)
    if T:
        best[0] += start[:, None]
    for t in range(1, T):
        n = going[t]
        np.add(best[t - 1, :, None, :n], transitions[:, :, None], out=moved[:, :, :n])
        best[t, :, :n] += np.maximum.reduce(moved[:, :, :n], axis=0)
    tags = np.zeros((B, T), dtype=np.int64)
    top = np.zeros(B, dtype=scores.dtype)
    tag = np.zeros(B, dtype=np.int64)
    going.append(0)
    for t in range(T - 1, -1, -1):
        m, n = going[t + 1], going[t]  # docs 0..m come from token t + 1; m..n end here
        back = best[t, :, :m] + transitions[:, tag[:m]]
        tag[:m] = back.argmax(axis=0)
        last = best[t, :, m:n] + end[:, None]
        tag[m:n] = last.argmax(axis=0)
        top[m:n] = last.max(axis=0)
        tags[order[:n], t] = tag[:n]
    score = np.empty_like(top)
    score[order] = top
    return torch.from_numpy(tags), torch.from_numpy(score)


def _viterbi_torch(chain: Chain) -> Tuple[Tensor, Tensor]:
    """Viterbi with back-pointers, on any device."""
    B, T, C = chain.emissions.shape
    tags = torch.zeros((B, T), dtype=torch.int64, device=chain.emissions.device)
    if T == 0:
        return tags, chain.emissions.new_zeros(B)
    best = chain.start + chain.emissions[:, 0]  # (B, C)
    came_from = []  # T - 1 times (B, C)
    # Past the end of its doc each tag comes from itself: the best last tag is carried on.
    stay = torch.arange(C, device=tags.device).expand(B, C)
    for t in range(1, T):
        moved = best.unsqueeze(2) + chain.transitions  # (B, C, C)
        # Not max(dim=1), which wakes all of torch's threads for even the smallest tensor.
        step, previous = moved.amax(dim=1), moved.argmax(dim=1)
        real = chain.mask[:, t, None]
        best = torch.where(real, step + chain.emissions[:, t], best)
        came_from.append(torch.where(real, previous, stay))
    last = best + chain.end
    tag = last.argmax(dim=1)
    tags[:, -1] = tag
    for t in range(T - 1, 0, -1):
        tag = came_from[t - 1].gather(1, tag.unsqueeze(1)).squeeze(1)
        tags[:, t - 1] = tag
    return tags, last.amax(dim=1)


class _LogPartition(torch.autograd.Function):
    """logZ, with the gradients that the forward-backward pass gives."""

    @staticmethod
    def forward(ctx: Any, *chain: Tensor) -> Tensor:
        ctx.sums = _forward_backward(Chain(*chain))
        ctx.mask = chain[4]
        ctx.like = chain[0].dtype
        log_z: Tensor = ctx.sums.log_z
        return log_z.to(ctx.like)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Optional[Tensor], ...]:
        d_log_z = gradients[0].double().masked_fill(_empty(ctx.mask), 0.0)  # (B,)
        weighted = ctx.sums.marginals * d_log_z[:, None, None]
        steps = torch.arange(ctx.mask.shape[1], device=ctx.mask.device)
        last = steps[None, :] == ctx.mask.sum(1, keepdim=True) - 1
        d_start, d_end = weighted[:, :1].sum((0, 1)), weighted[last].sum(0)
        d_all = (weighted, ctx.sums.expected(d_log_z), d_start, d_end)
        return (*(d.to(ctx.like) for d in d_all), None)


class _Sums(NamedTuple):
    """What sums over all paths say, in float64.

    log_z: (B,).
    marginals: (B, T, C), 0 in the padding.
    expected: From weights of the docs (B,) the expected counts of transitions (C, C), summed over
        tokens and weighted docs.
    moves: From S docs, tokens, and tags of these and of the next tokens, all (S,), the log
        probabilities (S,) of the second tag given the first.
    """

    log_z: Tensor
    marginals: Tensor
    expected: Callable[[Tensor], Tensor]
    moves: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _forward_backward(chain: Chain) -> _Sums:
    """Sum over all paths, from the left and from the right."""
    sums = None
    if chain.emissions.device.type == "cpu":
        sums = _forward_backward_scaled(chain)
    return sums or _forward_backward_in_logs(chain)


def _forward_backward_scaled(chain: Chain) -> Optional[_Sums]:
    """Sum probabilities, scaled to 1 at each token; None where float64 is too small for that.

    Both directions run as one batch: to the right with docs as they are, to the left with each
    doc reversed. The docs are sorted by length, as for Viterbi.
    """
    E, A, start, end = (x.detach().double().numpy() for x in chain[:4])
    B, T, C = E.shape
    length = chain.mask.sum(1).numpy()
    if not B or not length.any():
        return None
    order = np.argsort(-length, kind="stable")
    E, mask, length = E[order], chain.mask.numpy()[order], length[order]
    spread = sum(_spread(x.reshape(1, -1)) for x in (A, start, end))
    if spread + _spread(E[mask]) > MAX_SPREAD:
        return None
    # exp() of all scores, each over its peak, which comes back as a log.
    peak = E.max(2)
    e = np.exp(E - peak[:, :, None])
    K, first, last = (np.exp(x - x.max()) for x in (A, start, end))
    constant = (peak * mask).sum(1) + (length - 1) * A.max() + start.max() + end.max()  # (B,)
    # Token t of the reversed doc is token length - 1 - t.
    steps = np.arange(T)
    reverse = np.where(mask, length[:, None] - 1 - steps, steps)  # (B, T)
    e_reverse = np.take_along_axis(e, reverse[:, :, None], axis=1)
    both = np.ascontiguousarray(np.stack([e, e_reverse]).transpose(2, 0, 1, 3))  # (T, 2, B, C)
    both[0] *= np.stack([first, last])[:, None, :]
    towards = np.stack([K, K.T])
    norms = np.ones((T, 2, B))
    some = length > 0
    rows, final = np.arange(B), np.maximum(length - 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # all paths lost: seen below
        for t, n in enumerate(_going(length, T)):
            here = both[t, :, :n]
            if t:
                here *= both[t - 1, :, :n] @ towards
            norms[t, :, :n] = here.sum(2)
            here /= norms[t, :, :n, None]
        ends = (both[final, :, rows] * np.stack([last, first])).sum(2)  # (B, 2)
        log_z = np.log(norms).sum(0).T + np.log(ends) + constant[:, None]  # (B, 2)
    if not _agree(*log_z[some].T):
        return None
    # alpha (B, T, C): sums of the paths up to a token; arrive: from a token on, itself included.
    alpha = both[:, 0].transpose(1, 0, 2)
    arrive = np.take_along_axis(both[:, 1].transpose(1, 0, 2), reverse[:, :, None], axis=1)
    beta = np.zeros((B, T, C))
    beta[:, :-1] = arrive[:, 1:] @ K.T
    beta[rows, final] = last
    posterior = alpha * beta * mask[:, :, None]
    total = posterior.sum(2, keepdims=True)
    if not (total[mask] > 0).all():
        return None
    total[~mask] = 1.0
    posterior /= total
    inverse = np.argsort(order)

    def expected(weights: Tensor) -> Tensor:
        onward = mask[:, 1:]  # transitions from token t to t + 1
        leave = (alpha / total * weights.numpy()[order, None, None])[:, :-1][onward]
        return torch.from_numpy(K * (leave.T @ arrive[:, 1:][onward]))

    def moves(docs: Tensor, tokens: Tensor, tags: Tensor, after: Tensor) -> Tensor:
        row, t, i, j = inverse[docs], tokens.numpy(), tags.numpy(), after.numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            p = K[i, j] * arrive[row, t + 1, j] / beta[row, t, i]
            return torch.from_numpy(np.log(np.nan_to_num(p)))

    result = np.where(some, log_z[:, 0], 0.0)
    posterior = posterior[inverse]
    return _Sums(torch.from_numpy(result[inverse]), torch.from_numpy(posterior), expected, moves)


def _forward_backward_in_logs(chain: Chain) -> _Sums:
    """Sum in logs, on any device and over any range of scores."""
    E, A, start, end = (x.detach().double() for x in chain[:4])
    mask = chain.mask
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
    log_z = log_z.masked_fill(_empty(mask), 0.0)
    # At most 1: where no path is legal, differences of huge numbers mean nothing.
    posterior = (alpha + beta - log_z[:, None, None]).clamp(max=0.0).exp()
    posterior = posterior.masked_fill(~mask[:, :, None], 0.0)

    def expected(weights: Tensor) -> Tensor:
        counts = torch.zeros_like(A)
        for t in range(T - 1):
            arrive = E[:, t + 1] + beta[:, t + 1] - log_z[:, None]
            pairs = alpha[:, t, :, None] + A + arrive[:, None, :]  # (B, C, C)
            kept = weights * mask[:, t + 1]
            counts += (pairs.clamp(max=0.0).exp() * kept[:, None, None]).sum(0)
        return counts

    def moves(docs: Tensor, tokens: Tensor, tags: Tensor, after: Tensor) -> Tensor:
        arrive = E[docs, tokens + 1, after] + beta[docs, tokens + 1, after]
        log_p = A[tags, after] + arrive - beta[docs, tokens, tags]
        return log_p.masked_fill(log_p < FORBIDDEN / 2, -torch.inf).clamp(max=0.0).cpu()

    return _Sums(log_z, posterior, expected, moves)


def _going(length: NDArray[np.int64], T: int) -> "list[int]":
    """Count, for each of T tokens, the docs that have it."""
    counts: NDArray[np.int64] = (length[:, None] > np.arange(T)).sum(0)
    return list(counts.tolist())


def _spread(scores: Floats) -> float:
    """The widest range of the scores in a row of (N, C) that are not forbidden."""
    low = np.where(scores > FORBIDDEN / 2, scores, np.inf).min(1)
    return float(np.maximum(scores.max(1) - low, 0.0).max(initial=0.0))


def _agree(left: Floats, right: Floats) -> bool:
    """Whether both directions found the same finite sums: no path was lost on the way."""
    return bool(np.allclose(left, right, rtol=1e-9, atol=1e-9) and np.isfinite(left).all())


def _empty(mask: Tensor) -> Tensor:
    return ~mask.any(dim=1)
