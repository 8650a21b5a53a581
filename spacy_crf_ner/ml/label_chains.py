"""One chain for each label, of the potentials for all labels.

The product of these chains, restricted to at most one label at a token, is the chain of all labels.
So both are read from the same potentials. In a chain of its own, the tags of a label are scored
against "O", which scores 0.

Axes: B docs, N tokens of the batch, C tags, M labels, n tags of the chain of a label, "O" first.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .potentials import Potentials
from .torch_layer import to_array


def split(potentials: Potentials, n: int) -> tuple[Potentials, Callable[[Potentials], Potentials]]:
    """Give each label of each doc a chain, as a doc with transitions of its own.

    potentials: Of C = 1 + M * (n - 1) tags, "O" first, then the n - 1 tags of each label.

    Returns potentials of B * M docs, all labels of a doc, then those of the next one: emissions
    (N * M, n), transitions (B * M, n, n), start and end (B * M, n); and a callback that takes the
    gradient for them and returns that for the given ones.
    """
    B, M = len(potentials.lengths), (len(potentials.start) - 1) // (n - 1)
    lengths = np.repeat(potentials.lengths, M)
    leaves = [tensor.detach().requires_grad_() for tensor in potentials.tensors()]
    emissions, transitions, start, end = leaves
    # For each row, its token among all N, and its label.
    begins = np.repeat(potentials.lengths.cumsum() - potentials.lengths, M) - (
        lengths.cumsum() - lengths
    )
    token = np.repeat(begins, lengths) + np.arange(lengths.sum())
    label = np.repeat(np.tile(np.arange(M), B), lengths)
    source = torch.from_numpy(token * M + label).to(emissions.device)
    with torch.enable_grad():
        of_labels = emissions[:, 1:].reshape(-1, n - 1).index_select(0, source)
        blocks = transitions[1:, 1:].reshape(M, n - 1, M, n - 1)
        A = pad(blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1), (1, 0, 1, 0))
        A = A + pad(transitions[0, 1:].reshape(M, 1, n - 1), (1, 0, 0, n - 1))
        A = A + pad(transitions[1:, 0].reshape(M, n - 1, 1), (0, n - 1, 1, 0))
        outputs = [
            pad(of_labels, (1, 0)),
            A.repeat(B, 1, 1),
            *(_of_docs(scores, M, B) for scores in (start, end)),
        ]
    E, A, start, end = map(to_array, outputs)
    rows = Potentials(E, lengths, A, start, end, potentials.constrained)

    def backprop(gradient: Potentials) -> Potentials:
        return potentials.with_gradient(
            torch.autograd.grad(outputs, leaves, gradient.tensors(), allow_unused=True)
        )

    return rows, backprop


def extended(teacher: Potentials, scores: Potentials) -> Potentials:
    """Give a teacher of the first labels the potentials of other labels."""
    C = len(teacher.start)
    whole = [tensor.detach().clone() for tensor in scores.tensors()]
    emissions, transitions, start, end = whole
    known = emissions[:, :C], transitions[:C, :C], start[:C], end[:C]
    for place, taught in zip(known, teacher.tensors()):
        place.copy_(taught)
    return scores.with_gradient(whole)


def _of_docs(scores: Tensor, M: int, B: int) -> Tensor:
    """(C,) -> (B * M, n)."""
    return pad(scores[1:].reshape(M, -1), (1, 0)).repeat(B, 1)
