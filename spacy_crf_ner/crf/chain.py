"""The potentials, what is forbidden in them, and the score of one path."""

from typing import NamedTuple

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
    # One more tag, C, stands before the first and after the last token, and in the padding.
    C, padding = len(chain.transitions), ~chain.mask
    path = pad(tags.masked_fill(padding, C), (1, 1), value=C)
    leave = torch.cat([chain.transitions, chain.end.unsqueeze(1)], dim=1)
    bounded = torch.cat([leave, pad(chain.start, (0, 1)).unsqueeze(0)])
    moved = bounded[path[:, :-1], path[:, 1:]]
    emitted = chain.emissions.gather(2, tags.masked_fill(padding, 0).unsqueeze(2)).squeeze(2)
    return emitted.masked_fill(padding, 0.0).sum(1) + moved.sum(1)


def is_empty(mask: Tensor) -> Tensor:
    """Tell the docs without a token: (B,) bool. mask: (B, T) bool."""
    return ~mask.any(dim=1)
