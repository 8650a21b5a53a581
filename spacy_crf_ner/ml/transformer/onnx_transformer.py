"""An exported transformer: token vectors from ONNX Runtime and the library tokenizers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d, Ragged

from ...extras import required
from ..checksummed import readable
from ..onnx_layers import onnx_shim, split
from ..onnx_shim import OnnxShim, no_backprop
from .spans import SpanGetter
from .windows import CPU, Wordpieces, align, batches, edges, pad


def onnx_transformer(
    get_spans: SpanGetter, pooling: Model[Ragged, Floats2d]
) -> Model[list[Doc], list[Floats2d]]:
    """Build `spacy-crf-ner.OnnxTransformer.v1`, an exported transformer with its tokenizer.

    Args:
        get_spans: The windows of docs that it reads.
        pooling: From the hidden states of the wordpieces of a token to its vector.

    Returns:
        A layer from docs to one vector per token, (T, H) for each doc.
    """
    return Model(
        "onnx_transformer",
        partial(_forward, get_spans=get_spans),
        layers=[pooling],
        dims={"nO": None},
        shims=[OnnxTransformerShim(tokenizer=(str, 0), max_length=(int, 0), pad_id=(int, 0))],
    )


class OnnxTransformerShim(OnnxShim):
    """A transformer in ONNX Runtime.

    Args:
        state: The network as bytes, "onnx"; the "tokenizer", as the library tokenizers stores it;
            "max_length", the number of wordpieces of a window that are read; and "pad_id", the id
            of a wordpiece for padding.
        types: What the layer stores beside the network.
    """

    _tokenizer: tuple[str, Any] = ("", None)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer. Raises InputError if the library is not installed."""
        stored = self["tokenizer"]
        if self._tokenizer[0] is not stored:
            with required("runtime"):
                from tokenizers import Tokenizer
            with readable("a tokenizer"):
                self._tokenizer = stored, Tokenizer.from_str(stored)
        return self._tokenizer[1]

    def tokenize(self, texts: list[str]) -> Wordpieces:
        """Divide the texts of windows into wordpieces."""
        longest = self["max_length"]
        encoded = self.tokenizer.encode_batch(texts)
        ids = [of_text.ids[:longest] for of_text in encoded]
        characters = [pair for of_text in encoded for pair in of_text.offsets[:longest]]
        starts, ends = np.array(characters, dtype=np.int64).reshape(-1, 2).T
        flat = np.array([i for row in ids for i in row], dtype=np.int64)
        return Wordpieces(
            np.array([len(row) for row in ids]), flat, np.zeros_like(flat), starts, ends
        )

    def encode(self, wordpieces: Wordpieces) -> NDArray[np.float32]:
        """Compute the hidden states of all wordpieces: (P, H)."""
        lengths, firsts = wordpieces.lengths, edges(wordpieces.lengths)
        states = []
        order = []
        for windows in batches(lengths, CPU):
            steps = np.arange(lengths[windows[0]])
            mask = steps < lengths[windows, None]  # (B, T)
            places = (firsts[windows, None] + steps)[mask]
            ids = pad(wordpieces.ids[places], mask, self["pad_id"])
            states.append(self.run(input_ids=ids, attention_mask=mask.astype(np.int64))[mask])
            order.append(places)
        hidden = np.empty((len(wordpieces.ids), states[0].shape[1]), dtype=np.float32)
        hidden[np.concatenate(order)] = np.concatenate(states)
        return hidden


def _forward(
    model: Model[list[Doc], list[Floats2d]],
    docs: list[Doc],
    is_train: bool,
    *,
    get_spans: SpanGetter,
) -> tuple[list[Floats2d], Callable[[Any], Any]]:
    backprop = no_backprop(model, is_train)
    shim: Any = onnx_shim(model)
    windows = get_spans(docs)
    texts = [span.text for of_doc in windows for span in of_doc]
    vectors = model.ops.alloc2f(sum(map(len, docs)), model.get_dim("nO"))
    if not texts:
        return split(model, vectors, docs), backprop

    wordpieces = shim.tokenize(texts)
    hidden = shim.encode(wordpieces)
    tokens, aligned = align(docs, windows, wordpieces)
    # Whitespace has no wordpiece: its vector stays zero.
    found: Any = np.unique(tokens, return_counts=True)
    present, lengths = map(model.ops.asarray1i, found)
    if len(present):
        of_tokens = Ragged(model.ops.asarray2f(hidden[aligned]), lengths)
        vectors[present] = model.layers[0].predict(of_tokens)
    return split(model, vectors, docs), backprop
