"""The entropy of the distribution over tag sequences.

H = -E[log p(y)] = logZ - E[score(y)], and the expected score is the sum of all potentials, each
times its expected count, which is the gradient of logZ for it.

Axes: B docs, T tokens, C tags.
"""

import numpy as np
from numpy.typing import NDArray

from .chain import Chain
from .forward_backward import forward_backward


def entropy(chain: Chain) -> NDArray[np.float64]:
    """Compute the entropy of the distribution over the tag sequences of each doc.

    Returns (B,) in nats, 0 for an empty doc; undefined for a doc without a legal path.
    """
    chain = chain.arrays()
    B, _, C = chain.emissions.shape
    # Each doc has transitions, start and end of its own, so that its counts are its own.
    shapes = chain.emissions.shape, (B, C, C), (B, C), (B, C)
    scores = [np.broadcast_to(each, s).astype(np.float64) for each, s in zip(chain, shapes)]
    passes = forward_backward(Chain._make([*scores, chain.mask]))
    H = passes.log_z
    for counts, each in zip(passes.gradients(np.ones(B)), scores):
        # A forbidden score has no counts, and no weight.
        H = H - np.where(counts > 0, counts * each, 0.0).sum(tuple(range(1, each.ndim)))
    return np.maximum(H, 0.0)  # below 0 by rounding
