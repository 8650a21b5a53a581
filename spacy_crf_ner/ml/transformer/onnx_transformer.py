"""An exported transformer: token vectors from ONNX Runtime and the library tokenizers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from ...input_error import InputError
from ..onnx_layers import onnx_shim, split
from ..onnx_shim import OnnxShim, no_backprop
from .spans import WINDOW, SpanGetter, sentence_windows
from .subwords import CPU, POOLINGS, Subwords, divide
from .tokenizer import Tokenizer


def onnx_transformer(
    get_spans: SpanGetter | None = None, pooling: str = "mean"
) -> Model[list[Doc], list[Floats2d]]:
    """Build `spacy-crf-ner.OnnxTransformer.v1`, an exported transformer with its tokenizer.

    Args:
        get_spans: The windows of docs that it reads; None for those of `Transformer.v1`.
        pooling: Which subwords of a token count: "mean" for all, "first" or "last".

    Returns:
        A layer from docs to one vector per token, (T, H) for each doc.

    Raises:
        InputError: For another pooling.
    """
    if pooling not in POOLINGS:
        raise InputError(f"pooling: expected one of {[*POOLINGS]}, got {pooling!r}.")
    return Model(
        "onnx_transformer",
        partial(_forward, get_spans=get_spans or sentence_windows(WINDOW), pooling=pooling),
        dims={"nO": None},
        shims=[OnnxTransformerShim(content=(str, 0), longest=(int, 0), pad_id=(int, 0))],
    )


class OnnxTransformerShim(OnnxShim):
    """A transformer in ONNX Runtime.

    Args:
        state: The network as bytes, "onnx", and the arguments of its `Tokenizer`.
        types: What the layer stores beside the network.
    """

    _tokenizer: tuple[str, Any] = ("", None)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises InputError if the library is not installed."""
        content = self["content"]
        if self._tokenizer[0] is not content:
            self._tokenizer = content, Tokenizer(content, self["pad_id"], self["longest"])
        return self._tokenizer[1]  # type: ignore[no-any-return]

    def pool(self, subwords: Subwords) -> NDArray[np.float32]:
        """Compute the vectors of tokens, (N, H); zeros for a token without subwords."""
        states = []
        for ids, mask, _ in subwords.batches:
            mask = np.ones_like(ids) if mask is None else mask
            states.append(self.run(input_ids=ids, attention_mask=mask))
        rows = np.concatenate([each.reshape(-1, each.shape[-1]) for each in states])
        pooled = np.zeros((len(subwords.firsts), rows.shape[1]), dtype=np.float32)
        counts = np.diff(subwords.firsts, append=len(subwords.rows))
        found = counts > 0
        if found.any():
            sums = np.add.reduceat(rows[subwords.rows], subwords.firsts[found])
            pooled[found] = sums / counts[found, None].astype(np.float32)
        return pooled


def _forward(
    model: Model[list[Doc], list[Floats2d]],
    docs: list[Doc],
    is_train: bool,
    *,
    get_spans: SpanGetter,
    pooling: str,
) -> tuple[list[Floats2d], Callable[[Any], Any]]:
    backprop = no_backprop(model, is_train)
    shim: Any = onnx_shim(model)
    tokenizer = shim.tokenizer
    given = tokenizer.encode, tokenizer.longest, tokenizer.pad_id, CPU, pooling
    subwords = divide(docs, get_spans, *given)
    if not subwords.batches:
        vectors = model.ops.alloc2f(sum(map(len, docs)), model.get_dim("nO"))
        return split(model, vectors, docs), backprop
    return split(model, shim.pool(subwords), docs), backprop
