"""One chain for each label, of the potentials for all labels.

The product of these chains, restricted to at most one label at a token, is the chain of all labels.
So both are read from the same potentials. In a chain of its own, the tags of a label are scored
against "O", which scores 0.

Axes: B docs, N tokens of the batch, C tags, M labels, n tags of the chain of a label, "O" first.
"""

from collections.abc import Callable

import numpy as np

from ..crf import Chain
from ..crf.chain import ranges
from ..tags import TAG_OUTSIDE


def split(potentials: Chain, n: int) -> tuple[Chain, Callable[[Chain], Chain]]:
    """Give each label of each doc a chain, as a doc with transitions of its own.

    Args:
        potentials: Of C = 1 + M * (n - 1) tags, "O" first, then the n - 1 tags of each label.
        n: The number of tags of each label's chain.

    Returns:
        Potentials of B * M docs, all labels of a doc, then those of the next one: emissions
        (N * M, n), transitions (B * M, n, n), start and end (B * M, n); and a callback that takes
        the gradient for them and returns that for the given ones, if docs share transitions.
    """
    E, lengths, A, start, end = potentials
    B, M = len(lengths), (start.shape[-1] - 1) // (n - 1)
    of_chains = np.repeat(lengths, M)
    # For each row its token among all N, and its tags: (N * M, 1) and (N * M, n).
    token = ranges(np.repeat(potentials.begins, M), of_chains)[:, None]
    tags = np.insert(np.arange(1, 1 + M * (n - 1)).reshape(M, n - 1), 0, TAG_OUTSIDE, axis=1)
    own_tags = np.repeat(np.tile(tags, (B, 1)), of_chains, axis=0)
    pairs = tags[:, :, None], tags[:, None, :]  # of tags: (M, n, n)

    own_E, own_A = E[token, own_tags], A[..., *pairs]
    first, last = start[..., tags], end[..., tags]
    own_E[:, 0] = own_A[..., 0, 0] = first[..., 0] = last[..., 0] = 0.0
    if not potentials.has_own:
        own_A, first, last = (np.repeat(each[None], B, axis=0) for each in (own_A, first, last))
    kinds = own_A.reshape(B * M, n, n), first.reshape(B * M, n), last.reshape(B * M, n)

    def backprop(gradient: Chain) -> Chain:
        d_E, d_A, d_start, d_end = (np.zeros_like(scores) for scores in (E, A, start, end))
        d_E[token, own_tags] = gradient.emissions
        d_A[pairs] = gradient.transitions.reshape(B, M, n, n).sum(0)
        d_start[tags] = gradient.start.reshape(B, M, n).sum(0)
        d_end[tags] = gradient.end.reshape(B, M, n).sum(0)
        d_E[:, 0] = d_A[0, 0] = d_start[0] = d_end[0] = 0.0
        return Chain(d_E, lengths, d_A, d_start, d_end)

    return Chain(own_E, of_chains, *kinds), backprop
