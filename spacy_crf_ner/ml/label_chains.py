"""One chain for each label, of the potentials for all labels.

The product of these chains, restricted to at most one label at a token, is the chain of all labels.
So both are read from the same potentials. In a chain of its own, the tags of a label are scored
against "O", which scores 0.

Axes: B docs, N tokens of the batch, C tags, M labels, n tags of the chain of a label, "O" first.
"""

from collections.abc import Callable

import numpy as np

from .potentials import SCORES, Potentials


def split(potentials: Potentials, n: int) -> tuple[Potentials, Callable[[Potentials], Potentials]]:
    """Give each label of each doc a chain, as a doc with transitions of its own.

    potentials: Of C = 1 + M * (n - 1) tags, "O" first, then the n - 1 tags of each label.

    Returns potentials of B * M docs, all labels of a doc, then those of the next one: emissions
    (N * M, n), transitions (B * M, n, n), start and end (B * M, n); and a callback that takes the
    gradient for them and returns that for the given ones, if their transitions are (C, C).
    """
    B, M = len(potentials.lengths), (potentials.start.shape[-1] - 1) // (n - 1)
    emissions, transitions, start, end = (getattr(potentials, name) for name in SCORES)
    lengths = np.repeat(potentials.lengths, M)
    # For each row, its token among all N, and its label.
    begins = np.repeat(potentials.lengths.cumsum() - potentials.lengths, M) - (
        lengths.cumsum() - lengths
    )
    token = np.repeat(begins, lengths) + np.arange(lengths.sum())
    label = np.repeat(np.tile(np.arange(M), B), lengths)
    source, own, docs = token * M + label, np.arange(M), start.shape[:-1]

    E = np.zeros((len(source), n), emissions.dtype)
    E[:, 1:] = emissions[:, 1:].reshape(-1, n - 1)[source]
    A = np.zeros((*docs, M, n, n), transitions.dtype)
    blocks = transitions[..., 1:, 1:].reshape(*docs, M, n - 1, M, n - 1)
    A[..., 1:, 1:] = np.einsum("...mamb->...mab", blocks)
    A[..., 0, 1:] = transitions[..., 0, 1:].reshape(*docs, M, n - 1)
    A[..., 1:, 0] = transitions[..., 1:, 0].reshape(*docs, M, n - 1)
    first, last = np.zeros((2, *docs, M, n), start.dtype)
    first[..., 1:] = start[..., 1:].reshape(*docs, M, n - 1)
    last[..., 1:] = end[..., 1:].reshape(*docs, M, n - 1)
    A, first, last = (
        np.array(np.broadcast_to(each, (B, *shape))).reshape(B * M, *shape[1:])
        for each, shape in ((each, each.shape[len(docs) :]) for each in (A, first, last))
    )
    rows = Potentials(E, lengths, A, first, last, potentials.constrained)

    def backprop(gradient: Potentials) -> Potentials:
        d_rows, d_chains, d_first, d_last = (getattr(gradient, name) for name in SCORES)
        d_E, d_A = np.zeros_like(emissions), np.zeros_like(transitions)
        of_labels = np.empty((len(source), n - 1), emissions.dtype)
        of_labels[source] = d_rows[:, 1:]
        d_E[:, 1:] = of_labels.reshape(len(emissions), -1)
        d_chains = d_chains.reshape(B, M, n, n).sum(0)
        blocks = np.zeros((M, n - 1, M, n - 1), transitions.dtype)
        blocks[own, :, own] = d_chains[:, 1:, 1:]
        d_A[1:, 1:] = blocks.reshape(len(d_A) - 1, -1)
        d_A[0, 1:], d_A[1:, 0] = d_chains[:, 0, 1:].ravel(), d_chains[:, 1:, 0].ravel()
        d_start, d_end = np.zeros_like(start), np.zeros_like(end)
        d_start[1:] = d_first.reshape(B, M, n).sum(0)[:, 1:].ravel()
        d_end[1:] = d_last.reshape(B, M, n).sum(0)[:, 1:].ravel()
        return potentials._replace(emissions=d_E, transitions=d_A, start=d_start, end=d_end)

    return rows, backprop


def extended(teacher: Potentials, scores: Potentials) -> Potentials:
    """Give a teacher of the first labels the potentials of other labels."""
    C = len(teacher.start)
    whole = {name: getattr(scores, name).copy() for name in SCORES}
    whole["emissions"][:, :C] = teacher.emissions
    whole["transitions"][:C, :C] = teacher.transitions
    whole["start"][:C], whole["end"][:C] = teacher.start, teacher.end
    return scores._replace(**whole)
