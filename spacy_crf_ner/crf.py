"""Linear-chain CRF: the distribution over tag sequences that a chain of potentials defines.

score(x, y)   = start[y_1] + sum_t E[t, y_t] + sum_t A[y_t, y_t+1] + end[y_T]
alpha_1(j)    = start[j] + E[1, j]                                    alpha: (B, C), E: (B, T, C)
alpha_t(j)    = logsumexp_i(alpha_t-1(i) + A[i, j]) + E[t, j]         A: (C, C), indexed [from, to]
logZ          = logsumexp_j(alpha_T(j) + end[j])                      (B,), in O(T C^2)
loss          = logZ - score(x, gold);   Viterbi is the same recursion with max, and back-pointers

Axes: B docs, T tokens, C tags. Source: Lafferty, McCallum and Pereira (2001), ICML; Rabiner (1989).
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor

# The score of what may not be. Finite, so that no NaN is born from inf - inf, and so large that
# a sequence that needs it is recognised: its score is at or under half of it, whatever the rest.
FORBIDDEN = -1e30


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
    """Sum over all tag sequences: logZ, (B,), by the forward algorithm; 0 for an empty doc."""
    B, T, C = chain.emissions.shape
    # alpha: (B, C)
    alpha = chain.start + chain.emissions[:, 0] if T else chain.start.expand(B, C)
    for t in range(1, T):
        # (B, C, 1) + (C, C) -> (B, C, C) -> (B, C)
        step = torch.logsumexp(alpha.unsqueeze(2) + chain.transitions, dim=1)
        alpha = torch.where(chain.mask[:, t, None], step + chain.emissions[:, t], alpha)
    return torch.logsumexp(alpha + chain.end, dim=1).masked_fill(_empty(chain.mask), 0.0)


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

    Returns tags (B, T) int64, 0 where the mask is False, and their scores (B,).
    """
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
    score, tag = (best + chain.end).max(dim=1)
    tags[:, -1] = tag
    for t in range(T - 1, 0, -1):
        tag = came_from[t - 1].gather(1, tag.unsqueeze(1)).squeeze(1)
        tags[:, t - 1] = tag
    return tags.masked_fill(~chain.mask, 0), score.masked_fill(_empty(chain.mask), 0.0)


def _empty(mask: Tensor) -> Tensor:
    return ~mask.any(dim=1)
