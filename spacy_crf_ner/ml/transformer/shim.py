"""The shim of a transformer: precisions, and tokenizers that can be saved again."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from thinc.api import ArgsKwargs
from torch import Tensor

from ..mixed_precision import MixedPrecisionShim
from ..precision import PredictionShim
from .hf_internals import restore_merges
from .quantize import quantize_transformer
from .spacy_transformers_internals import HFShim


class TransformerShim(MixedPrecisionShim, PredictionShim, HFShim):
    """spacy-transformers' shim, with a precision for training and one for prediction.

    It can also save a slow tokenizer that was loaded: it writes a file that is gone again.
    """

    make_inference_module = staticmethod(quantize_transformer)
    int8 = True

    def begin_update(self, inputs: ArgsKwargs) -> tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Run the transformer; returns its output, in float32, and the backward callback."""
        output, backprop = super().begin_update(inputs)
        if self.bf16:
            output = type(output)(**{name: _to_float32(value) for name, value in output.items()})
        return output, backprop

    def to_bytes(self) -> bytes:
        """Write tokenizer and weights."""
        with TemporaryDirectory() as folder:
            restore_merges(self._hfmodel.tokenizer, Path(folder))
            state: bytes = super().to_bytes()  # type: ignore[no-untyped-call]
        return state


def _to_float32(value: Any) -> Any:
    """Convert the tensors of a transformer's output, also those in tuples."""
    if isinstance(value, tuple):
        return tuple(map(_to_float32, value))
    return value.float() if isinstance(value, Tensor) else value
