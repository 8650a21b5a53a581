"""The potentials, what is forbidden in them, and the score of one path."""

from typing import NamedTuple, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

# The score of what may not be. Finite, so that no NaN is born from inf - inf, and so large that
# a sequence that needs it is recognised: its score is at or under half of it, whatever the rest.
FORBIDDEN = -1e30


class Chain(NamedTuple):
    """The potentials of a batch of sequences.

    emissions: (B, T, C) float32.
    transitions: (C, C), indexed [from, to].
    start: (C,).
    end: (C,).
    mask: (B, T) bool, True for the tokens, which come first; a row may be all False.
    """

    emissions: Tensor
    transitions: Tensor
    start: Tensor
    end: Tensor
    mask: Tensor


def constrain(chain: Chain, transitions: Tensor, start: Tensor, end: Tensor) -> Chain:
    """Forbid transitions, first tags and last tags.

    transitions, start, end: bool (C, C), (C,), (C,); False forbids.
    """
    return chain._replace(
        transitions=chain.transitions.masked_fill(~transitions, FORBIDDEN),
        start=chain.start.masked_fill(~start, FORBIDDEN),
        end=chain.end.masked_fill(~end, FORBIDDEN),
    )


def clamp(emissions: Tensor, allowed: Tensor) -> Tensor:
    """Forbid tags at tokens.

    emissions, allowed: (B, T, C) float and bool; False forbids.
    """
    return emissions.masked_fill(~allowed, FORBIDDEN)


def path_score(chain: Chain, tags: Tensor) -> Tensor:
    """Score one tag sequence of each doc.

    tags: (B, T) int64; what stands where the mask is False does not matter.

    Returns (B,); 0 for an empty doc.
    """
    return Path(chain, tags).score(chain).to(chain.emissions.dtype)


class Path:
    """One tag sequence of each doc, as the places of its scores in the chain.

    inside: (B, T, 1) int64, the tags, 0 in the padding.
    moves: (B, T + 1) int64, from * (C + 1) + to. One more tag, C, stands before the first and
        after the last token, and in the padding.
    """

    def __init__(self, chain: Chain, tags: Tensor) -> None:
        padding, C = ~chain.mask, len(chain.start)
        self.mask = chain.mask
        self.inside = tags.masked_fill(padding, 0).unsqueeze(2)
        path = pad(tags.masked_fill(padding, C), (1, 1), value=C)
        self.moves = path[:, :-1] * (C + 1) + path[:, 1:]

    def score(self, chain: Chain) -> Tensor:
        """Sum its scores: (B,) float64."""
        emitted = chain.emissions.gather(2, self.inside).squeeze(2)
        leave = torch.cat([chain.transitions, chain.end.unsqueeze(1)], dim=1)
        bounded = torch.cat([leave, pad(chain.start, (0, 1)).unsqueeze(0)])
        moved = bounded.flatten()[self.moves].sum(1, dtype=torch.float64)
        return moved + emitted.masked_fill(~self.mask, 0.0).sum(1, dtype=torch.float64)

    def add_gradients(self, gradients: Sequence[Tensor], weights: Tensor) -> None:
        """Add the gradients of sum(weights * score), in place.

        gradients: for emissions, transitions, start and end. weights: (B,).
        """
        d_emissions, d_transitions, d_start, d_end = gradients
        by_token = (weights.unsqueeze(1) * self.mask).unsqueeze(2)
        d_emissions.scatter_add_(2, self.inside, by_token.to(d_emissions))
        C = len(d_start)
        by_move = weights.unsqueeze(1).expand_as(self.moves).flatten()
        counts = torch.bincount(self.moves.flatten(), by_move, (C + 1) ** 2).view(C + 1, C + 1)
        d_transitions += counts[:C, :C]
        d_start += counts[C, :C]
        d_end += counts[:C, C]


def is_empty(mask: Tensor) -> Tensor:
    """Tell the docs without a token: (B,) bool. mask: (B, T) bool."""
    return ~mask.any(dim=1)
