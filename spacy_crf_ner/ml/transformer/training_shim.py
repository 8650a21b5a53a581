"""How a transformer trains on a CPU: in bfloat16, and with a gradient of the words that it read."""

from typing import Any, Callable, Literal, Optional, Tuple, Union

import torch
from spacy_transformers.layers.hf_shim import HFShim
from thinc.api import ArgsKwargs, Optimizer
from torch import Tensor, nn

from ..torch_layer import on_gpu

MixedPrecision = Union[bool, Literal["bf16"]]


class TrainingShim(HFShim):
    """spacy-transformers' shim, made to train faster on a CPU.

    A vocabulary has tens of thousands of words, and a batch a thousand. What a batch contributes
    to the gradient of the word embeddings is kept as the rows of its words; it is added up in one
    array of all words, made once, when the weights are updated.
    """

    # Whether to multiply in bfloat16 on a CPU. Weights and their gradients are in float32.
    bf16 = False
    # The gradient of all words; zeros between two updates.
    _d_words: Optional[Tensor] = None

    def mix(self, precision: MixedPrecision) -> None:
        """Choose the precision of training on a CPU."""
        self.bf16 = precision == "bf16" and not on_gpu()

    def begin_update(self, inputs: ArgsKwargs) -> Tuple[Any, Callable[[ArgsKwargs], ArgsKwargs]]:
        """Run the transformer; returns its output, in float32, and the way back."""
        words = self._words
        if words is not None:
            words.sparse = self.device.type == "cpu"
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            output, backprop = super().begin_update(inputs)
        if words is not None:
            words.sparse = False  # it says how the way back goes, and nobody else expects it
        if self.bf16:
            output = type(output)(**{name: _in_float32(value) for name, value in output.items()})
        return output, backprop

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients."""
        words = self._words
        if words is not None and words.weight.requires_grad:
            self._add_up(words.weight)
        super().finish_update(optimizer)
        if words is not None and words.weight.grad is self._d_words:
            words.weight.grad = None

    def _add_up(self, weight: Tensor) -> None:
        """Put the gradient of all words in the place of the rows of those that were read."""
        rows = weight.grad
        if rows is not None and not rows.is_sparse:
            return
        if rows is not None:
            if self._d_words is None or self._d_words.shape != rows.shape:
                self._d_words = torch.zeros(rows.shape)
            rows = rows.coalesce()
            self._d_words.index_add_(0, rows.indices()[0], rows.values())
        # Where no words were read since the last update, Adam goes on with its moments.
        weight.grad = self._d_words

    @property
    def _words(self) -> Optional[nn.Embedding]:
        """The largest embedding, which is that of the vocabulary."""
        modules = self._model.modules()
        embeddings = (module for module in modules if isinstance(module, nn.Embedding))
        return max(embeddings, key=lambda embedding: embedding.weight.numel(), default=None)


def scaled(precision: MixedPrecision) -> bool:
    """Whether to train in float16 on a GPU, which "bf16" does there too."""
    return precision is True or (precision == "bf16" and on_gpu())


def _in_float32(value: Any) -> Any:
    """The tensors of a transformer's output, also those in tuples, in float32."""
    if isinstance(value, tuple):
        return tuple(map(_in_float32, value))
    return value.float() if isinstance(value, Tensor) else value
