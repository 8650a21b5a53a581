"""The losses of training, on the CPU: differentiable functions of the potentials.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of the longest doc, C tags,
S negative spans, R disjoint sets of tag sequences, W tokens of a window.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot, pad

from .. import crf
from ..tags import Constraints
from .potentials import NegativeSpan, Potentials, gold_mask


def nll_with_gradient(
    potentials: Potentials,
    gold: NDArray[np.int64],
    constraints: Constraints,
    negatives: Sequence[NegativeSpan] = (),
    hidden: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float64], Potentials]:
    """Compute the negative log likelihood of the gold tags, in nats, and its gradient.

    gold: (N,) tag ids; negative where the annotation is missing: the loss sums over all tags there.
    constraints: The legal tag sequences.
    negatives: Each adds -log(1 - P), where P is the probability of the span.
    hidden: (N, C), the tags that the gold tag "O" may stand for, besides itself: the loss sums over
        them. None for none.

    Returns the loss of each doc (B,), and the gradient of their sum for the potentials.
    """
    tensors = potentials.leaves()
    chain = _chain(tensors, potentials.lengths, constraints if potentials.constrained else None)
    losses = _nll(chain, gold, hidden, potentials.lengths).double()
    if negatives:
        losses = losses + _negative_span_loss(chain, negatives)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    # If no doc has a second token, the loss does not depend on the transitions.
    gradient = potentials.with_gradient([tensor.grad for tensor in tensors])
    return losses.detach().numpy(), gradient


def _nll(
    chain: crf.Chain,
    gold: NDArray[np.int64],
    hidden: NDArray[np.bool_] | None,
    lengths: NDArray[np.int64],
) -> Tensor:
    """The negative log likelihood of gold tags, (N,), by doc: (B,)."""
    tags, mask = _pad(torch.from_numpy(gold), lengths)
    compatible = gold_mask(gold, hidden, chain.emissions.shape[2])
    if compatible is not None:
        allowed, _ = _pad(torch.from_numpy(compatible), lengths)
        emissions = crf.clamp(chain.emissions, allowed)
        losses = crf.log_partition(chain) - crf.log_partition(chain._replace(emissions=emissions))
    else:
        losses = -crf.log_likelihood(chain, tags)
    # A doc without annotation gets a zero gradient: Adam would amplify rounding noise.
    return losses.masked_fill(~((tags >= 0) & mask).any(1), 0.0)


def _negative_span_loss(chain: crf.Chain, negatives: Sequence[NegativeSpan]) -> Tensor:
    """Sum -log(1 - P) over the negative spans of each doc: (B,), in float64.

    If P is close to 1, a float cannot hold 1 - P. So log(1 - P) is computed from the tag sequences
    without the span: logsumexp_r(logZ_r) - logZ. The sets r differ only in the window of the span:
    logZ_r runs from alpha at its first token to beta at its last, and one pass over each doc with
    negatives gives alpha and beta.
    """
    docs, doc_of = np.unique([negative.doc for negative in negatives], return_inverse=True)
    masks = [torch.from_numpy(negative.exclusion.allowed) for negative in negatives]  # (R, W, C)
    doc, first, width, sizes = torch.tensor(
        [
            (doc, negative.exclusion.start, mask.shape[1], len(mask))
            for doc, negative, mask in zip(doc_of.tolist(), negatives, masks)
        ]
    ).T
    rows = torch.from_numpy(docs)
    E, A, start, end = (scores.double() for scores in chain[:4])
    exact = crf.Chain(E, A, start, end, chain.mask).select(rows)
    alpha, beta = crf.log_messages(exact)

    steps = torch.arange(int(width.max()))
    within = steps < width[:, None]  # (S, W)
    tokens = (first[:, None] + steps).clamp(max=exact.mask.shape[1] - 1)
    E = exact.emissions[doc[:, None], tokens]  # (S, W, C)
    last = (steps == width[:, None] - 1).unsqueeze(2)
    E = torch.where((steps == 0)[:, None], alpha[doc, first].unsqueeze(1), E)
    E = torch.where(last, E + beta[doc, first + width - 1].unsqueeze(1), E)
    inner = exact._replace(start=torch.zeros_like(exact.start), end=torch.zeros_like(exact.end))
    windows = inner.select(doc)._replace(emissions=E, mask=within)
    log_z = crf.log_partition(windows)  # (S,)
    span_of = torch.arange(len(sizes)).repeat_interleave(sizes)
    padded = [pad(mask, (0, 0, 0, len(steps) - mask.shape[1]), value=True) for mask in masks]
    parts = windows.select(span_of)
    E = crf.clamp(parts.emissions, torch.cat(padded))
    log_parts = crf.log_partition(parts._replace(emissions=E))
    # logsumexp over the sets of each span, around the largest of them.
    largest = log_parts.new_full((len(sizes),), -torch.inf)
    largest = largest.scatter_reduce(0, span_of, log_parts.detach(), "amax")
    shares = (log_parts - largest[span_of]).exp()
    log_without = largest + torch.zeros_like(largest).index_add(0, span_of, shares).log()
    losses = log_z.new_zeros(len(chain.mask))
    return losses.index_add(0, rows[doc], log_z - log_without)


class Counts(NamedTuple):
    """The expected counts of tags and transitions under a distribution over tag sequences.

    Those of a mixture are the means of those of its parts, and so is its entropy here.
    """

    emissions: Tensor  # (N, C), the probability of each tag at each token
    transitions: Tensor  # (C, C), summed over docs; or (B, C, C)
    start: Tensor  # (C,), or (B, C)
    end: Tensor  # (C,), or (B, C)
    entropy: Tensor  # of the tag sequences, in nats, summed over docs: ()


def expected_counts(
    potentials: Potentials,
    constraints: Constraints,
    temperature: float = 1.0,
    images: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> Counts:
    """Compute the expected counts of tags and transitions, the gradient of the log partition.

    constraints: The legal sequences; they hold if the potentials are constrained.
    temperature: Divides all scores.
    images: If the constraints are for other tags, the tag of the potentials that each of them is
        scored as, and the tag that it is counted as: (D,) ids. So one tag scheme is mapped to
        another.
    """
    # In float64, as `distill`.
    scores = [tensor.double() / temperature for tensor in potentials.tensors()]
    if images is not None:
        E, A, start, end = scores
        own, counted = map(torch.from_numpy, images)
        scores = [E[:, own], A[..., own[:, None], own], start[..., own], end[..., own]]
    for score in scores:
        score.requires_grad_()
    chain = _chain(scores, potentials.lengths, constraints if potentials.constrained else None)
    log_z = crf.log_partition(chain).sum()
    # Without a second token, it does not depend on the transitions.
    counts = torch.autograd.grad(log_z, scores, materialize_grads=True, allow_unused=True)
    entropy = log_z.detach()
    for count, score in zip(counts, scores):
        entropy = entropy - (count * score.detach()).sum()
    E, A, start, end = counts
    if images is not None:
        to = one_hot(counted).to(E.dtype)  # (D, C)
        E, A, start, end = E @ to, to.T @ A @ to, start @ to, end @ to
    return Counts(E, A, start, end, entropy)


def mixture(parts: Sequence[Counts]) -> Counts:
    """Average distributions, with equal weights."""
    return Counts(*(torch.stack(each).mean(0) for each in zip(*parts)))


def distill(
    potentials: Potentials, teacher: Counts, constraints: Constraints, temperature: float = 1.0
) -> tuple[float, Potentials]:
    """Compute the Kullback-Leibler divergence KL(teacher || model), in nats, and its gradient.

    -sum_y p(y) log q(y) = logZ_q - sum of (expected counts under p * potentials of q), so the
    teacher's expected counts are enough, also for a mixture. For a mixture this is the mean
    divergence from its parts, which has the same gradient as the divergence from the mixture.

    teacher: Counts of the first C of the tags. If the model has more tags, its distribution over
        these C is compared.
    constraints: The legal sequences of all tags.
    temperature: Divides the scores of the model.

    Returns the divergence, summed over docs, and its gradient for the potentials.
    Source: Hinton, Vinyals and Dean (2015), arXiv:1503.02531, for a softmax.
    """
    C = teacher.emissions.shape[1]
    legal = constraints.of_first(C) if potentials.constrained else None
    ours = potentials.leaves()
    E, A, start, end = ours
    known = [E[:, :C], A[..., :C, :C], start[..., :C], end[..., :C]]
    # The divergence is a small difference of large sums.
    known = [scores.double() / temperature for scores in known]
    divergence = crf.log_partition(_chain(known, potentials.lengths, legal)).sum()
    for scores, counts in zip(known, teacher):
        divergence = divergence - (counts * scores).sum()
    gradients = torch.autograd.grad(divergence, ours, allow_unused=True)
    return float(divergence.detach() - teacher.entropy), potentials.with_gradient(gradients)


def _chain(
    tensors: list[Tensor], lengths: NDArray[np.int64], constraints: Constraints | None
) -> crf.Chain:
    """Build the chain of `Potentials.tensors`, with the constraints if there are any."""
    flat, transitions, start, end = tensors
    emissions, mask = _pad(flat, lengths)
    chain = crf.Chain(emissions, transitions, start, end, mask)
    if constraints is None:
        return chain
    return crf.constrain(chain, *map(torch.from_numpy, constraints))


def _pad(flat: Tensor, lengths: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """(N, ...) -> (B, T, ...), zeros after the end of a doc, and the mask (B, T)."""
    mask = torch.arange(int(lengths.max(initial=0))) < torch.from_numpy(lengths)[:, None]
    padded = flat.new_zeros((*mask.shape, *flat.shape[1:]))
    padded[mask] = flat
    return padded, mask
