"""Training of a transformer in bfloat16."""

from typing import Any, Callable, Tuple

from spacy_transformers.layers.hf_shim import HFShim
from thinc.api import ArgsKwargs
from torch import Tensor

from ..mixed_precision import MixedPrecisionShim


class TrainingShim(MixedPrecisionShim, HFShim):
    """spacy-transformers' shim, which can also train in bfloat16, on a CPU or a GPU."""

    def begin_update(self, inputs: ArgsKwargs) -> Tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Run the transformer; returns its output, in float32, and the backward callback."""
        output, backprop = super().begin_update(inputs)
        if self.bf16:
            output = type(output)(**{name: _to_float32(value) for name, value in output.items()})
        return output, backprop


def _to_float32(value: Any) -> Any:
    """Convert the tensors of a transformer's output, also those in tuples."""
    if isinstance(value, tuple):
        return tuple(map(_to_float32, value))
    return value.float() if isinstance(value, Tensor) else value
