"""What can be asked of the potentials of a batch: loss, distance, and the best tag sequences.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of the longest doc, C tags.
"""

from functools import cached_property
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from numpy.typing import NDArray
from thinc.types import Floats1d, Floats2d
from torch import Tensor

from .. import crf
from .torch_layer import to_array, to_tensor

# Bool (C, C), (C,), (C,): what may follow what, and stand first and last.
Constraints = Tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


class Potentials(NamedTuple):
    """What the model puts out: the potentials of a linear-chain CRF for each doc of a batch.

    emissions: (N, C).
    lengths: (B,) on the CPU, tokens of each doc; they sum to N, some may be 0.
    transitions: (C, C), indexed [from, to].
    start: (C,).
    end: (C,).
    constrained: Whether the distribution gives illegal tag sequences no probability. A CRF's
        does; that of a softmax, where each token stands alone, does not.
    """

    emissions: Floats2d
    lengths: NDArray[np.int64]
    transitions: Floats2d
    start: Floats1d
    end: Floats1d
    constrained: bool

    def tensors(self) -> List[Tensor]:
        """Emissions (N, C), transitions (C, C), start and end (C,)."""
        return list(map(to_tensor, (self.emissions, self.transitions, self.start, self.end)))


def loss(
    potentials: Potentials,
    gold: NDArray[np.int64],
    constraints: Constraints,
    wrong: Sequence[Tuple[int, Sequence[NDArray[np.bool_]]]] = (),
) -> Tuple[NDArray[np.float32], Potentials]:
    """Compute the negative log likelihood of the gold tags, and its gradient.

    gold: (N,) tag ids; negative where any tag may stand: those are summed over.
    constraints: The legal tag sequences.
    wrong: What is known not to be: a doc, and what would have to be allowed of it, (T, C), in one
        way or another; adds -log(1 - P), up to 13.8.

    Returns the loss of each doc (B,), and the gradient of their sum for the potentials.
    """
    tensors = [tensor.requires_grad_() for tensor in potentials.tensors()]
    free = _chain(tensors, potentials.lengths, constraints if potentials.constrained else None)
    losses = _losses(free, gold, potentials.lengths)
    if wrong:
        losses = losses + _loss_of_wrong(free, wrong)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    # Where no doc has a second token, the transitions have no part in the loss.
    d_emissions, d_transitions, d_start, d_end = (
        to_array(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)
        for tensor in tensors
    )
    gradient = potentials._replace(
        emissions=d_emissions, transitions=d_transitions, start=d_start, end=d_end
    )
    return losses.detach().cpu().numpy(), gradient


def log_loss(
    potentials: Potentials,
    gold: NDArray[np.int64],
    constraints: Constraints,
    temperature: float = 1.0,
) -> NDArray[np.float64]:
    """Compute the negative log likelihood of the gold tags in what is predicted, (B,).

    Unlike in `loss`, illegal tag sequences have no probability whatever the decoder, and there is
    no gradient.

    gold: (N,) tag ids; negative where any tag may stand: those are summed over.
    constraints: The legal tag sequences.
    temperature: Divides all scores.
    """
    # In float64: a search compares losses that lie close together.
    tensors = [tensor.double() / temperature for tensor in potentials.tensors()]
    losses = _losses(_chain(tensors, potentials.lengths, constraints), gold, potentials.lengths)
    found: NDArray[np.float64] = losses.cpu().numpy()
    return found


def _losses(free: crf.Chain, gold: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tensor:
    """The negative log likelihood of gold tags, (N,), by doc: (B,)."""
    tags, mask = _pad(torch.from_numpy(gold).to(free.mask.device), lengths)
    missing = (tags < 0) & mask
    if missing.any():
        allowed = torch.nn.functional.one_hot(tags.clamp(min=0), free.emissions.shape[2]).bool()
        emissions = crf.clamp(free.emissions, allowed | missing.unsqueeze(2))
        clamped = free._replace(emissions=emissions)
        losses = crf.log_partition(free) - crf.log_partition(clamped)
    else:
        losses = -crf.log_likelihood(free, tags)
    # A doc without annotation teaches exactly nothing: Adam would make steps of rounding noise.
    return losses.masked_fill(~((tags >= 0) & mask).any(1), 0.0)


def _loss_of_wrong(
    free: crf.Chain, wrong: Sequence[Tuple[int, Sequence[NDArray[np.bool_]]]]
) -> Tensor:
    """Sum -log(1 - P) of what is wrong in each doc: (B,)."""
    device, (B, T, C) = free.mask.device, free.emissions.shape
    ways = [(doc, i, allowed) for i, (doc, ways) in enumerate(wrong) for allowed in ways]
    docs = torch.tensor([doc for doc, _, _ in ways], dtype=torch.int64, device=device)
    allowed = torch.ones((len(ways), T, C), dtype=torch.bool)
    for row, (_, _, part) in zip(allowed, ways):
        row[: len(part)] = torch.from_numpy(part)
    rows = free._replace(emissions=free.emissions[docs], mask=free.mask[docs])
    clamped = rows._replace(emissions=crf.clamp(rows.emissions, allowed.to(device)))
    p = (crf.log_partition(clamped) - crf.log_partition(rows)).exp()
    group = torch.tensor([i for _, i, _ in ways], dtype=torch.int64, device=device)
    p = p.new_zeros(len(wrong)).index_add(0, group, p)
    # Not quite 1, where the gradient would be infinite.
    losses = -torch.log1p(-p * (1.0 - 1e-6))
    of_doc = torch.tensor([doc for doc, _ in wrong], device=device)
    return losses.new_zeros(B).index_add(0, of_doc, losses)


def distill(
    potentials: Potentials, teacher: Potentials, constraints: Constraints
) -> Tuple[float, Potentials]:
    """Compute how far a distribution is from a teacher's: KL(teacher || it), and its gradient.

    The gradient is the difference of what both expect to see of each tag and transition. Of a
    model that knows more tags than its teacher, the distribution over the teacher's is compared.

    teacher: Potentials for the first C of the tags.
    constraints: The legal sequences of all tags.

    Returns the divergence, summed over docs, and its gradient for the potentials.
    """
    C = teacher.emissions.shape[1]
    follows, start, end = constraints
    legal = (follows[:C, :C], start[:C], end[:C]) if potentials.constrained else None
    theirs = [tensor.requires_grad_() for tensor in teacher.tensors()]
    log_z = crf.log_partition(_chain(theirs, teacher.lengths, legal)).sum()
    expected = torch.autograd.grad(log_z, theirs)
    ours = [tensor.requires_grad_() for tensor in potentials.tensors()]
    emissions, transitions, first, last = ours
    known = [emissions[:, :C], transitions[:C, :C], first[:C], last[:C]]
    divergence = crf.log_partition(_chain(known, potentials.lengths, legal)).sum() - log_z.detach()
    for counts, own, other in zip(expected, known, theirs):
        divergence = divergence + (counts * (other.detach() - own)).sum()
    gradients = torch.autograd.grad(divergence, ours, materialize_grads=True)
    d_emissions, d_transitions, d_start, d_end = map(to_array, gradients)
    gradient = potentials._replace(
        emissions=d_emissions, transitions=d_transitions, start=d_start, end=d_end
    )
    return float(divergence.detach()), gradient


class Distribution:
    """The tag sequences of each doc of a batch, by their probability.

    potentials: Of the docs.
    constraints: The legal tag sequences.
    allowed: (N, C) bool, which tags may stand at which tokens; None for all.
    temperature: Divides all scores. It changes no order of sequences, only how far they lie apart.
    """

    def __init__(
        self,
        potentials: Potentials,
        constraints: Constraints,
        allowed: Optional[NDArray[np.bool_]] = None,
        temperature: float = 1.0,
    ) -> None:
        self._potentials, self._constraints, self._allowed = potentials, constraints, allowed
        self._lengths, self._temperature = potentials.lengths, temperature
        self._chain = self._at(1.0)

    def best(self) -> List[NDArray[np.int64]]:
        """Find the most probable tag sequence of each doc: B arrays of tag ids, one a token."""
        tags, _ = crf.viterbi(self._chain)
        return [row[:length] for row, length in zip(tags.cpu().numpy(), self._lengths)]

    def trellises(self) -> List[Tuple[NDArray[Any], ...]]:
        """Compute all that Viterbi decoding and the forward-backward algorithm say of each doc.

        Returns for each doc of T tokens emissions (T, C), whatever is allowed; best (T, C) and
        came_from (T, C), as `crf.trellis` has them; the best path (T,); marginals (T, C).
        """
        best, came_from = crf.trellis(self._chain)
        path, _ = crf.viterbi(self._chain)
        padded = best, came_from, path, self._sums.marginals().float()
        emissions = self._potentials.tensors()[0].detach()
        flat = [emissions, *(found[self._chain.mask] for found in padded)]  # each of N tokens
        begins = np.cumsum(self._lengths)[:-1]
        return list(zip(*(np.split(found.cpu().numpy(), begins) for found in flat)))

    def nbest(self, n: int) -> List[List[Tuple[NDArray[np.int64], float]]]:
        """Find the n most probable tag sequences of each doc, fewer where fewer are legal.

        Returns for each doc pairs of tag ids, one a token, and their probability; best first.
        Raises ValueError for n below 1.
        """
        tags, scores = crf.nbest(self._chain, n)
        log_p = torch.stack([crf.log_likelihood(self._tempered, tags[:, i]) for i in range(n)], 1)
        log_p = log_p.masked_fill(scores == -torch.inf, -torch.inf)
        return [
            [(row[:length], p) for row, p in zip(rows, ps) if p > 0.0]
            for rows, ps, length in zip(tags.cpu().numpy(), log_p.exp().tolist(), self._lengths)
        ]

    def stretches(self, starts: NDArray[np.int64], tags: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the probability that stretches of tokens carry given tags: (S,).

        starts: (S,) first tokens, among all N. tags: (S, L), negative beyond; none goes over the
            end of its doc.
        """
        if not len(starts):
            return np.zeros(0)
        begins = self._lengths.cumsum() - self._lengths
        docs = np.repeat(np.arange(len(begins)), self._lengths)[starts]
        device = self._chain.mask.device
        where = (
            torch.from_numpy(array).to(device) for array in (docs, starts - begins[docs], tags)
        )
        return self._sums.log_stretches(*where).exp().cpu().numpy()

    def _at(self, temperature: float) -> crf.Chain:
        tensors = self._potentials.tensors()
        if temperature != 1.0:
            tensors = [tensor / temperature for tensor in tensors]
        if self._allowed is not None:
            allowed = torch.from_numpy(self._allowed).to(tensors[0].device)
            tensors[0] = crf.clamp(tensors[0], allowed)
        return _chain(tensors, self._lengths, self._constraints)

    @cached_property
    def _tempered(self) -> crf.Chain:
        return self._chain if self._temperature == 1.0 else self._at(self._temperature)

    @cached_property
    def _sums(self) -> crf.Sums:
        return crf.sum_paths(self._tempered)


def _chain(
    tensors: List[Tensor], lengths: NDArray[np.int64], constraints: Optional[Constraints]
) -> crf.Chain:
    """The chain of `Potentials.tensors`, with the forbidden transitions, unless there are none."""
    flat, transitions, start, end = tensors
    emissions, mask = _pad(flat, lengths)
    result = crf.Chain(emissions, transitions, start, end, mask)
    if constraints is None:
        return result
    return crf.constrain(result, *(torch.from_numpy(c).to(flat.device) for c in constraints))


def _pad(flat: Tensor, lengths: NDArray[np.int64]) -> Tuple[Tensor, Tensor]:
    """(N, ...) -> (B, T, ...), zeros beyond the end of a doc, and the mask (B, T)."""
    ends = torch.from_numpy(lengths).to(flat.device)
    steps = torch.arange(int(lengths.max(initial=0)), device=flat.device)
    mask = steps[None, :] < ends[:, None]
    padded = flat.new_zeros((*mask.shape, *flat.shape[1:]))
    padded[mask] = flat
    return padded, mask
