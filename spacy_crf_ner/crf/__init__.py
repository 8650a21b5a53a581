"""Linear-chain CRF: the distribution over tag sequences that a chain of potentials defines.

score(x, y)   = start[y_1] + sum_t E[t, y_t] + sum_t A[y_t, y_t+1] + end[y_T]
alpha_1(j)    = start[j] + E[1, j]                                    alpha: (B, C), E: (B, T, C)
alpha_t(j)    = logsumexp_i(alpha_t-1(i) + A[i, j]) + E[t, j]         A: (C, C), indexed [from, to]
logZ          = logsumexp_j(alpha_T(j) + end[j])                      (B,), in O(T C^2)
loss          = logZ - score(x, gold);   Viterbi is the same with max, its path read backwards

What training differentiates takes and returns tensors: `log_partition`, `log_likelihood`,
`log_messages`, `path_score`. All else takes arrays or tensors, and needs no torch; `clamp` and
`constrain` return what they are given, the others arrays.

Axes: B docs, T tokens, C tags. Source: Lafferty, McCallum and Pereira (2001), ICML; Rabiner (1989).
"""

from typing import TYPE_CHECKING, Any

from .chain import FORBIDDEN, Chain, clamp, constrain
from .entropy import entropy
from .forward_backward import ForwardBackward, forward_backward, log_segment_marginals, marginals
from .viterbi import nbest, trellis, viterbi

if TYPE_CHECKING:
    from .losses import log_likelihood, log_messages, log_partition, path_score

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


def __getattr__(name: str) -> Any:
    """Import the losses, and torch, when they are used."""
    if name in __all__:
        from . import losses

        return getattr(losses, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
