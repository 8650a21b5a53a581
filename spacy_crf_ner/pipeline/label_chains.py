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
    B, M, docs = len(lengths), (start.shape[-1] - 1) // (n - 1), start.shape[:-1]
    of_chains = np.repeat(lengths, M)
    # For each row, its token among all N, and its label.
    token = ranges(np.repeat(potentials.begins, M), of_chains)
    source = token * M + np.repeat(np.tile(np.arange(M), B), of_chains)

    own_E = np.zeros((len(source), n), E.dtype)
    own_E[:, 1:] = E[:, 1:].reshape(-1, n - 1)[source]
    own_A = np.zeros((*docs, M, n, n), A.dtype)
    blocks = A[..., 1:, 1:].reshape(*docs, M, n - 1, M, n - 1)
    own_A[..., 1:, 1:] = np.einsum("...mamb->...mab", blocks)
    own_A[..., 0, 1:] = A[..., 0, 1:].reshape(*docs, M, n - 1)
    own_A[..., 1:, 0] = A[..., 1:, 0].reshape(*docs, M, n - 1)
    first, last = np.zeros((2, *docs, M, n), start.dtype)
    first[..., 1:] = start[..., 1:].reshape(*docs, M, n - 1)
    last[..., 1:] = end[..., 1:].reshape(*docs, M, n - 1)
    kinds = (
        np.array(np.broadcast_to(each, (B, *shape))).reshape(B * M, *shape[1:])
        for each, shape in ((each, each.shape[len(docs) :]) for each in (own_A, first, last))
    )

    def backprop(gradient: Chain) -> Chain:
        d_rows, _, d_chains, d_first, d_last = gradient
        of_labels = np.empty((len(source), n - 1), E.dtype)
        of_labels[source] = d_rows[:, 1:]
        d_E, d_A, d_start, d_end = (np.zeros_like(scores) for scores in (E, A, start, end))
        d_E[:, 1:] = of_labels.reshape(len(E), -1)
        d_chains = d_chains.reshape(B, M, n, n).sum(0)
        blocks, label = np.zeros((M, n - 1, M, n - 1), A.dtype), np.arange(M)
        blocks[label, :, label] = d_chains[:, 1:, 1:]
        d_A[1:, 1:] = blocks.reshape(len(d_A) - 1, -1)
        d_A[0, 1:], d_A[1:, 0] = d_chains[:, 0, 1:].ravel(), d_chains[:, 1:, 0].ravel()
        d_start[1:] = d_first.reshape(B, M, n).sum(0)[:, 1:].ravel()
        d_end[1:] = d_last.reshape(B, M, n).sum(0)[:, 1:].ravel()
        return Chain(d_E, lengths, d_A, d_start, d_end)

    return Chain(own_E, of_chains, *kinds), backprop


def extended(teacher: Chain, scores: Chain) -> Chain:
    """Give a teacher of the first labels the potentials of other labels."""
    C = len(teacher.start)
    whole = scores.map(np.copy)
    whole.emissions[:, :C] = teacher.emissions
    whole.transitions[:C, :C] = teacher.transitions
    whole.start[:C], whole.end[:C] = teacher.start, teacher.end
    return whole
