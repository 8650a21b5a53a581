"""The shim of a transformer: dtypes, and tokenizers that can be saved again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from thinc.api import ArgsKwargs
from torch import Tensor, nn

from ..dropout import FastDropout
from ..dtype import PredictionShim
from ..mixed_precision import MixedPrecisionShim
from .hf_internals import restore_merges
from .quantize import quantize_transformer
from .spacy_transformers_internals import HFShim
from .stored import transformer_from_bytes, transformer_to_bytes
from .windows import CPU, batches


class TransformerShim(MixedPrecisionShim, PredictionShim, HFShim):
    """spacy-transformers' shim, with a dtype for training and one for prediction.

    It can also save a slow tokenizer that was loaded: it writes a file that is gone again.
    """

    make_inference_module = staticmethod(quantize_transformer)
    int8 = True

    def begin_update(self, inputs: ArgsKwargs) -> tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Run the transformer; returns its output, in float32, and the backward callback.

        On a CPU it runs batches of windows of similar length, as in prediction.
        """
        rows = self._batches(inputs.kwargs["attention_mask"])
        with _training_faster(self._model) if self.device.type == "cpu" else nullcontext():
            if len(rows) > 1:
                output, backprop = self._begin_in_batches(inputs, rows)
            else:
                output, backprop = super().begin_update(inputs)
        if self.trains_in_bf16:
            output = type(output)(**{name: _to_float32(value) for name, value in output.items()})

        def backprop_dense(d_output: ArgsKwargs) -> ArgsKwargs:
            d_inputs = backprop(d_output)
            for weights in self._model.parameters():
                if weights.grad is not None and weights.grad.is_sparse:
                    weights.grad = weights.grad.to_dense()
            return d_inputs

        return output, backprop_dense

    def _batches(self, mask: Tensor) -> list[Tensor]:
        """Divide windows with a mask (W, T) into batches; one, or none, if all run at once."""
        config = self._model.config
        # On a GPU, several small batches may take longer than one. Other outputs are not joined.
        if mask.device.type != "cpu" or config.output_hidden_states or config.output_attentions:
            return []
        if len(mask) < 2 or not mask[:, 0].all():  # padding on the left
            return []
        lengths = mask.sum(1).long().numpy()
        return [torch.from_numpy(batch) for batch in batches(lengths, CPU)]

    def _begin_in_batches(
        self, inputs: ArgsKwargs, rows: list[Tensor]
    ) -> tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Run windows (W, T) in batches of these rows, the longest first in each."""
        mask = inputs.kwargs["attention_mask"]
        outputs, cells = [], []
        # In one autocast, which casts the weights once.
        with self._autocast() if self.trains_in_bf16 else nullcontext():
            for batch in rows:
                steps = torch.arange(int(mask[batch[0]].sum()))
                own = {name: given[batch, : len(steps)] for name, given in inputs.kwargs.items()}
                output, backprop = super().begin_update(ArgsKwargs(args=(), kwargs=own))
                outputs.append(output)
                cells.append((batch[:, None] * mask.shape[1] + steps).view(-1))
        joined = {
            name: _join([output[name] for output in outputs], rows, cells, mask.shape)
            for name, first in outputs[0].items()
            if isinstance(first, Tensor)  # no cache of a decoder
        }
        # The callback of any batch reads the gradients of the weights, and nothing of its inputs.
        return type(outputs[0])(**joined), backprop

    def to_bytes(self) -> bytes:
        """Write tokenizer and weights."""
        with TemporaryDirectory() as folder:
            restore_merges(self._hfmodel.tokenizer, Path(folder))
            return transformer_to_bytes(self._hfmodel)

    def from_bytes(self, bytes_data: bytes) -> "TransformerShim":
        """Read tokenizer and weights. Raises InputError for bytes that cannot be used safely."""
        self._hfmodel = transformer_from_bytes(bytes_data, self)
        self.load_module(self._hfmodel.transformer)
        return self


@contextmanager
def _training_faster(transformer: nn.Module) -> Iterator[None]:
    """Make a forward pass and its gradient faster on a CPU; only random numbers change.

    Its dropout layers are replaced, and embeddings have sparse gradients: a dense one of the words
    has the size of the vocabulary, for each batch of windows.
    """
    dense = []
    for layer in transformer.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = FastDropout
        elif isinstance(layer, nn.Embedding) and not (layer.sparse or layer.scale_grad_by_freq):
            dense.append(layer)
    try:
        for layer in dense:
            layer.sparse = True
        yield
    finally:
        for layer in dense:
            layer.sparse = False


def _join(
    states: list[Tensor], rows: list[Tensor], cells: list[Tensor], shape: torch.Size
) -> Tensor:
    """Join the states that batches have of wordpieces, (B, T, H), or of windows, (B, H).

    Args:
        rows: The windows of each batch.
        cells: Their wordpieces, in windows (W, T) of this shape.

    Returns:
        (W, T, H) or (W, H).
    """
    if states[0].dim() == 3:
        states, at = [each.flatten(0, 1) for each in states], cells
    else:
        at, shape = rows, shape[:1]
    flat = torch.cat(states)
    padded = flat.new_zeros(shape.numel(), flat.shape[1]).index_copy(0, torch.cat(at), flat)
    return padded.view(*shape, -1)


def _to_float32(value: Any) -> Any:
    """Convert the tensors of a transformer's output, also those in tuples."""
    if isinstance(value, tuple):
        return tuple(map(_to_float32, value))
    return value.float() if isinstance(value, Tensor) else value
