"""Linear-chain CRF: the distribution over tag sequences that a chain of potentials defines.

score(x, y)   = start[y_1] + sum_t E[t, y_t] + sum_t A[y_t, y_t+1] + end[y_T]
alpha_1(j)    = start[j] + E[1, j]                                    alpha: (B, C), E: (B, T, C)
alpha_t(j)    = logsumexp_i(alpha_t-1(i) + A[i, j]) + E[t, j]         A: (C, C), indexed [from, to]
logZ          = logsumexp_j(alpha_T(j) + end[j])                      (B,), in O(T C^2)
loss          = logZ - score(x, gold);   Viterbi is the same with max, its path read backwards

Axes: B docs, T tokens, C tags. Source: Lafferty, McCallum and Pereira (2001), ICML; Rabiner (1989).
"""

from .chain import FORBIDDEN, Chain, clamp, constrain, path_score
from .entropy import entropy
from .forward_backward import (
    ForwardBackward,
    forward_backward,
    log_likelihood,
    log_messages,
    log_partition,
    log_segment_marginals,
    marginals,
)
from .viterbi import nbest, trellis, viterbi

__all__ = [
    "FORBIDDEN",
    "Chain",
    "ForwardBackward",
    "clamp",
    "constrain",
    "entropy",
    "forward_backward",
    "log_likelihood",
    "log_messages",
    "log_partition",
    "log_segment_marginals",
    "marginals",
    "nbest",
    "path_score",
    "trellis",
    "viterbi",
]
