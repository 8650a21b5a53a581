"""The layers of exported pipelines: as those of torch, but in ONNX Runtime, and without training.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of the longest doc, C tags, U
distinct words, L characters of the longest.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d, Ints1d
from thinc.util import to_numpy

from ..crf import Chain
from ..input_error import InputError
from .buckets import padded_buckets
from .onnx_shim import OnnxShim, no_backprop
from .words import WordEmbeddingConfig, distinct_words
from .zero_width import docs_to_read

Backprop = Callable[[Any], Any]
Vectors = Model[list[Doc], list[Floats2d]]


def onnx_bilstm_crf(tok2vec: Vectors, decoder: str = "crf") -> Model[list[Doc], Chain]:
    """Build `spacy-crf-ner.OnnxBiLSTMCRF.v1`, an exported `spacy-crf-ner.BiLSTMCRF.v1`.

    Args:
        tok2vec: A layer from docs to one vector per token.
        decoder: "crf" or "softmax", as in training.
    """
    head: Model[list[Floats2d], Chain] = Model(
        "onnx_bilstm_crf",
        _score_tags,
        dims={"nI": None, "nO": None},
        attrs={"constrained": decoder == "crf"},
        shims=[OnnxShim(transitions=(np.ndarray, 2), start=(np.ndarray, 1), end=(np.ndarray, 1))],
    )
    model: Model[list[Doc], Chain] = Model(
        "onnx_network", _forward, layers=[tok2vec, head], dims={"nO": None}
    )
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("output_layer", head)
    return model


def _forward(
    model: Model[list[Doc], Chain], docs: list[Doc], is_train: bool
) -> tuple[Chain, Backprop]:
    backprop = no_backprop(model, is_train)
    tok2vec, head = model.layers
    return head.predict(tok2vec.predict(docs_to_read(tok2vec, docs))), backprop


def _score_tags(
    model: Model[list[Floats2d], Chain], X: list[Floats2d], is_train: bool
) -> tuple[Chain, Backprop]:
    backprop = no_backprop(model, is_train)
    shim = onnx_shim(model)
    transitions, start, end = (shim[name].copy() for name in ("transitions", "start", "end"))
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    emissions = np.empty((lengths.sum(), len(start)), dtype=np.float32)
    if len(emissions):
        flat = to_numpy(model.ops.flatten(X))  # type: ignore[no-untyped-call]
        for docs, tokens, mask in padded_buckets(lengths):
            scores = shim.run(X=flat[tokens], lengths=lengths[docs])
            if scores.shape != (*mask.shape, len(start)):
                raise InputError(
                    f"expected a network with {len(start)} tags, got the scores {scores.shape} of "
                    f"{mask.shape} tokens. Copy the pipeline again."
                )
            emissions[tokens[mask]] = scores[mask]
    return Chain(emissions, lengths, transitions, start, end), backprop


def onnx_char_word_embed(
    chars: str = "cnn",
    char_width: int = 50,
    char_embed: int = 30,
    word_width: int = 100,
    word_rows: int = 5000,
    shape_width: int = 25,
    shape_rows: int = 1000,
    static_vectors: bool = False,
    dropout: float | None = None,
) -> Vectors:
    """Build `spacy-crf-ner.OnnxCharWordEmbed.v1`, an exported `spacy-crf-ner.CharWordEmbed.v1`.

    The settings are the same.
    """
    tables = word_width, word_rows, shape_width, shape_rows
    config = WordEmbeddingConfig(chars, char_width, char_embed, *tables, static_vectors, dropout)
    return Model(
        "onnx_char_word_embed",
        partial(_embed, config=config),
        dims={"nO": None},
        shims=[OnnxShim(nM=(int, 0))],
    )


def _embed(
    model: Vectors, docs: list[Doc], is_train: bool, *, config: WordEmbeddingConfig
) -> tuple[list[Floats2d], Backprop]:
    backprop = no_backprop(model, is_train)
    shim = onnx_shim(model)
    words, tokens = distinct_words(docs, config, shim["nM"])
    learned = np.zeros((len(words.chars), config.learned_width), dtype=np.float32)
    if config.learned_width:
        lengths = (words.chars > 0).sum(1)
        for batch, _, mask in padded_buckets(lengths):
            learned[batch] = shim.run(
                chars=words.chars[batch, : len(mask)],
                alphabet=words.alphabet,
                norms=words.norms[batch],
                shapes=words.shapes[batch],
            )
    static = to_numpy(words.vectors)  # type: ignore[no-untyped-call]
    vectors = np.concatenate([learned, static.reshape(len(learned), -1)], axis=1)
    return split(model, vectors[tokens], docs), backprop


def onnx_shim(model: Model[Any, Any]) -> OnnxShim:
    """Return the shim of a layer of an exported pipeline."""
    return cast(OnnxShim, model.shims[0])


def split(model: Model[Any, Any], vectors: Any, docs: list[Doc]) -> list[Floats2d]:
    """Split the vectors of all tokens, (N, nO), by doc, on the device of the model."""
    lengths = np.array([len(doc) for doc in docs])
    return model.ops.unflatten(model.ops.asarray2f(vectors), cast(Ints1d, lengths))
