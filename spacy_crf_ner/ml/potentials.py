"""The potentials that the network computes for a batch, and the likelihood of gold tags.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of the longest doc, C tags,
R disjoint sets of tag sequences, W tokens of a window.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import crf
from ..crf.packed import Packed
from ..tags import TAG_OUTSIDE, Constraints, TagMask

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.floating]

SCORES = ("emissions", "transitions", "start", "end")


class Potentials(NamedTuple):
    """The output of the model: the potentials of a linear-chain CRF for each doc of a batch.

    They are on the CPU. A GPU would need dozens of kernels for each token of the longest doc, and
    wait for each one to be launched. A CPU needs less time for a whole batch of usual size.

    constrained: Whether the loss gives illegal tag sequences zero probability: true for a CRF,
        false for a softmax, which scores each token independently.
    """

    emissions: Floats  # (N, C)
    lengths: NDArray[np.int64]  # (B,), tokens of each doc; they sum to N, some may be 0
    transitions: Floats  # (C, C), indexed [from, to]; or (B, C, C), of each doc
    start: Floats  # (C,), or (B, C)
    end: Floats  # (C,), or (B, C)
    constrained: bool

    def arrays(self) -> list[NDArray[Any]]:
        """Emissions, transitions, start and end."""
        return [getattr(self, name) for name in SCORES]

    def tensors(self) -> "list[Tensor]":
        """Emissions, transitions, start and end, as tensors over the same memory."""
        from .torch_layer import to_tensor

        return [to_tensor(array) for array in self.arrays()]

    def leaves(self) -> "list[Tensor]":
        """The tensors, with gradients."""
        return [tensor.requires_grad_() for tensor in self.tensors()]

    def chain(
        self,
        constraints: Constraints,
        allowed: NDArray[np.bool_] | None = None,
        temperature: float | None = None,
    ) -> crf.Chain:
        """Build the chain for decoding and for probabilities.

        constraints: The legal tag sequences; all others are forbidden, with either decoder.
        allowed: (N, C), the tags that are allowed at the tokens; None for all.
        temperature: Divides all scores, in float64. None leaves them as they are, in float32.
        """
        arrays = self.arrays()
        if temperature is not None:
            arrays = [array.astype(np.float64) / temperature for array in arrays]
        flat, transitions, start, end = arrays
        emissions, mask = pad(flat if allowed is None else crf.clamp(flat, allowed), self.lengths)
        return crf.constrain(crf.Chain(emissions, transitions, start, end, mask), *constraints)

    def of_first(self, C: int) -> "Potentials":
        """Return the potentials of the first C tags."""
        E, A, start, end = self.arrays()
        E, A = E[:, :C], A[..., :C, :C]
        return self._replace(emissions=E, transitions=A, start=start[..., :C], end=end[..., :C])

    def with_gradient(self, gradients: "Sequence[Tensor | None]") -> "Potentials":
        """Build the gradient for these potentials from those for `tensors`; None is zero."""
        from .torch_layer import to_array

        E, A, start, end = (
            np.zeros_like(array) if gradient is None else to_array(gradient)
            for array, gradient in zip(self.arrays(), gradients)
        )
        return self._replace(emissions=E, transitions=A, start=start, end=end)


class NegativeSpan(NamedTuple):
    """A span that is known not to be an entity, of its label or of any label."""

    doc: int  # 0 to B - 1
    exclusion: TagMask  # the tag sequences of the doc without this entity: (R, W, C)


def nll(
    potentials: Potentials,
    gold: NDArray[np.int64],
    hidden: NDArray[np.bool_] | None,
    constraints: Constraints,
    temperature: float = 1.0,
) -> NDArray[np.float64]:
    """Compute the negative log likelihood of the gold tags at a temperature: (B,), in float64.

    As in prediction, illegal tag sequences have zero probability, with either decoder.

    gold, hidden: As for `nll_with_gradient`.
    constraints: The legal tag sequences.
    temperature: Divides all scores.
    """
    if not (gold >= 0).any():
        return np.zeros(len(potentials.lengths))
    chain = potentials.chain(constraints, temperature=temperature)
    log_z = crf.forward_backward(chain).log_z
    compatible = gold_mask(gold, hidden, chain.emissions.shape[2])
    tags, mask = pad(gold, potentials.lengths)
    if compatible is None:
        log_p = Packed(mask).score(chain, tags) - log_z
    else:
        emissions = crf.clamp(chain.emissions, pad(compatible, potentials.lengths)[0])
        log_p = crf.forward_backward(chain._replace(emissions=emissions)).log_z - log_z
    annotated = ((tags >= 0) & mask).any(1)
    return np.where(annotated, np.maximum(-log_p, 0.0), 0.0)  # below 0 by rounding


def gold_mask(
    gold: NDArray[np.int64], hidden: NDArray[np.bool_] | None, C: int
) -> NDArray[np.bool_] | None:
    """Find the tags that agree with the gold ones: (N, C); None if only the gold ones do.

    gold, hidden: As for `nll_with_gradient`.
    """
    missing = gold < 0
    if hidden is None and not missing.any():
        return None
    compatible: NDArray[np.bool_] = (gold[:, None] == np.arange(C)) | missing[:, None]
    if hidden is not None:
        compatible |= hidden & (gold == TAG_OUTSIDE)[:, None]
    return compatible


def pad(flat: NDArray[Any], lengths: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """(N, ...) -> (B, T, ...), zeros after the end of a doc, and the mask (B, T)."""
    mask: NDArray[np.bool_] = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.zeros((*mask.shape, *flat.shape[1:]), flat.dtype)
    padded[mask] = flat
    return padded, mask
