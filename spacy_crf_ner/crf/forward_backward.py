"""The forward-backward algorithm: log partition and posterior probabilities.

beta_t(i)     = logsumexp_j(A[i, j] + E[t+1, j] + beta_t+1(j)),  beta_T = end       beta: (B, C)
P(y_t = j)    = exp(alpha_t(j) + beta_t(j) - logZ), the gradient of logZ for E[t, j]
"""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from .chain import Chain, Indices, to_array
from .log_space import LogForwardBackward
from .scaled import ScaledForwardBackward

# Both have the log partition `log_z` (B,), `marginals` and `log_segment_marginals`, in float64.
ForwardBackward = ScaledForwardBackward | LogForwardBackward


def marginals(chain: Chain) -> NDArray[np.floating]:
    """Compute the posterior probability of each tag at each token: (B, T, C), 0 in the padding."""
    chain = chain.arrays()
    return forward_backward(chain).marginals().astype(chain.emissions.dtype)


def log_segment_marginals(
    chain: Chain, docs: Indices, starts: Indices, tags: Indices
) -> NDArray[np.floating]:
    """Compute the log probability that segments of tokens have given tags.

    P(y_s..y_e) = P(y_s) P(y_s+1 | y_s) ... P(y_e | y_e-1), since the chain is Markov.
    One forward-backward pass serves all segments.

    docs: (S,) int64, the doc of each segment, a row of the batch.
    starts: (S,) int64, its first token.
    tags: (S, L) int64, its tags, at least one; negative after its end.

    Returns (S,), -inf for an impossible segment.
    """
    chain = chain.arrays()
    segments = map(to_array, (docs, starts, tags))
    log_p = forward_backward(chain).log_segment_marginals(*segments)
    return log_p.astype(chain.emissions.dtype)


def forward_backward(chain: Chain) -> ForwardBackward:
    """Run both passes over a chain once, for several results."""
    chain = chain.arrays()
    if chain.mask.any():
        with suppress(FloatingPointError):
            return ScaledForwardBackward(chain)
    return LogForwardBackward(chain)
