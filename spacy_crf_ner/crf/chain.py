"""The potentials of a batch, constraints on them, and the score of one path."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

Indices = Tensor | NDArray[np.int64]

# The score of forbidden tags and transitions. It is finite, because inf - inf is NaN, and so low
# that any sequence with one of them scores at most half of it.
FORBIDDEN = -1e30


class Chain(NamedTuple):
    """The potentials of a batch of sequences.

    The sequences share transitions, start and end; or each has its own, in a first axis B.
    """

    emissions: Tensor  # (B, T, C), float32 or float64
    transitions: Tensor  # (C, C), indexed [from, to]; or (B, C, C)
    start: Tensor  # (C,) or (B, C)
    end: Tensor  # (C,) or (B, C)
    mask: Tensor  # (B, T) bool, True for the tokens, which come first; a row may be all False

    def select(self, docs: Tensor) -> "Chain":
        """Select docs by their indices."""
        chosen = self._replace(emissions=self.emissions[docs], mask=self.mask[docs])
        if self.transitions.dim() == 2:
            return chosen
        A, start, end = (scores[docs] for scores in self[1:4])
        return chosen._replace(transitions=A, start=start, end=end)


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

    tags: (B, T) int64; values where the mask is False are ignored.

    Returns (B,); 0 for an empty doc.
    """
    inside = tags.masked_fill(~chain.mask, 0).unsqueeze(2)
    emitted = chain.emissions.gather(2, inside).squeeze(2).masked_fill(~chain.mask, 0.0)
    # An additional tag, C, is before the first and after the last token, and in the padding.
    B, _, C = chain.emissions.shape
    path = pad(tags.masked_fill(~chain.mask, C), (1, 1), value=C)
    leave = torch.cat([chain.transitions, chain.end.unsqueeze(-1)], dim=-1)
    bounded = torch.cat([leave, pad(chain.start, (0, 1)).unsqueeze(-2)], dim=-2)
    docs = torch.arange(B, device=tags.device).unsqueeze(1)
    moved = bounded.expand(B, C + 1, C + 1)[docs, path[:, :-1], path[:, 1:]]
    score = emitted.sum(1, dtype=torch.float64) + moved.sum(1, dtype=torch.float64)
    return score.to(chain.emissions.dtype)


def is_empty(mask: Tensor) -> Tensor:
    """Whether a doc has no token: (B,) bool. mask: (B, T) bool."""
    return ~mask.any(dim=1)
