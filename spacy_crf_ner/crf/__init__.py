"""Linear-chain CRF: the distribution over tag sequences that a chain of potentials defines.

score(x, y)   = start[y_1] + sum_t E[t, y_t] + sum_t A[y_t, y_t+1] + end[y_T]
alpha_1(j)    = start[j] + E[1, j]                                    alpha: (C,), E: (T, C)
alpha_t(j)    = logsumexp_i(alpha_t-1(i) + A[i, j]) + E[t, j]         A: (C, C), indexed [from, to]
logZ          = logsumexp_j(alpha_T(j) + end[j])                      in O(T C^2)
beta_t(i)     = logsumexp_j(A[i, j] + E[t+1, j] + beta_t+1(j)),  beta_T = end
P(y_t = j)    = exp(alpha_t(j) + beta_t(j) - logZ), the gradient of logZ for E[t, j]
loss          = logZ - score(x, gold);   Viterbi is alpha with max, its path read backwards

All arrays are numpy's, on the CPU. Axes: B docs, N tokens of the batch, one doc after the other,
T tokens of a doc, C tags. Source: Lafferty, McCallum and Pereira (2001), ICML; Rabiner (1989).
"""

from .chain import FORBIDDEN, Chain, clamp, constrain
from .forward_backward import ForwardBackward, forward_backward
from .losses import (
    ExpectedCounts,
    NegativeSpan,
    divergence,
    expected_counts,
    mixture,
    negative_log_likelihood,
    nll_slope,
    nll_with_gradient,
    path_score,
)
from .viterbi import nbest, trellis, viterbi

__all__ = [
    "FORBIDDEN",
    "Chain",
    "ExpectedCounts",
    "ForwardBackward",
    "NegativeSpan",
    "clamp",
    "constrain",
    "divergence",
    "expected_counts",
    "forward_backward",
    "mixture",
    "nbest",
    "negative_log_likelihood",
    "nll_slope",
    "nll_with_gradient",
    "path_score",
    "trellis",
    "viterbi",
]
