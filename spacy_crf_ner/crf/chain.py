"""The potentials of a batch, and constraints on them."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Arrays, or tensors, of float32 or float64.
Scores: TypeAlias = Any
Indices: TypeAlias = Any

# The score of forbidden tags and transitions. It is finite, because inf - inf is NaN, and so low
# that any sequence with one of them scores at most half of it.
FORBIDDEN = -1e30


class Chain(NamedTuple):
    """The potentials of a batch of sequences, as arrays or as tensors.

    The sequences share transitions, start and end; or each has its own, in a first axis B.
    """

    emissions: Scores  # (B, T, C), float32 or float64
    transitions: Scores  # (C, C), indexed [from, to]; or (B, C, C)
    start: Scores  # (C,) or (B, C)
    end: Scores  # (C,) or (B, C)
    mask: Scores  # (B, T) bool, True for the tokens, which come first; a row may be all False

    def select(self, docs: Indices) -> "Chain":
        """Select docs by their indices."""
        chosen = self._replace(emissions=self.emissions[docs], mask=self.mask[docs])
        if self.transitions.ndim == 2:
            return chosen
        A, start, end = (scores[docs] for scores in self[1:4])
        return chosen._replace(transitions=A, start=start, end=end)

    def arrays(self) -> "Chain":
        """Return the chain as arrays on the CPU, without gradients."""
        return Chain(*map(to_array, self))


def to_array(values: Any) -> NDArray[Any]:
    """Return an array, or a tensor on any device, as an array on the CPU."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def constrain(chain: Chain, transitions: Scores, start: Scores, end: Scores) -> Chain:
    """Forbid transitions, first tags and last tags.

    transitions, start, end: bool (C, C), (C,), (C,); False forbids. Tensors if the chain has them.
    """
    return chain._replace(
        transitions=clamp(chain.transitions, transitions),
        start=clamp(chain.start, start),
        end=clamp(chain.end, end),
    )


def clamp(scores: Scores, allowed: Scores) -> Scores:
    """Forbid tags, such as those at tokens.

    scores, allowed: Such as emissions (B, T, C), and bool (B, T, C); False forbids.
    """
    if isinstance(scores, np.ndarray):
        return np.where(allowed, scores, FORBIDDEN)
    return scores.masked_fill(~allowed, FORBIDDEN)
