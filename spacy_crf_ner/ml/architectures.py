"""The registered architectures: from docs to the potentials of a CRF, or to encoded tokens.

Axes: B docs, N tokens of the batch, one doc after the other, C tags.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from spacy.tokens import Doc
from thinc.api import ArgsKwargs, Model, chain
from thinc.types import Floats2d
from torch import Tensor

from ..crf import Chain
from ..input_error import InputError
from .bilstm_crf import BiLSTMCRF, BiLSTMCRFConfig, Encoder
from .device import to_device
from .mixed_precision import MixedPrecision, module_of
from .torch_layer import (
    init_from_vectors,
    read_vectors,
    shim_of,
    to_tensor,
    torch_layer,
    write_vectors,
)
from .zero_width import chain_without_marks

# A layer is one field of msgpack, of less than 4 GiB, with the files of its tokenizer.
MAX_BYTES = 2**32 - 2**26


def bilstm_crf(
    tok2vec: Model[list[Doc], list[Floats2d]],
    rnn: str = "lstm",
    hidden_width: int = 200,
    depth: int = 1,
    bidirectional: bool = True,
    dense_width: int = 0,
    dropout: float | None = None,
    decoder: str = "crf",
    skip: bool = False,
    mixed_precision: MixedPrecision = False,
    dtype: str | None = None,
    nO: int | None = None,
) -> Model[list[Doc], Chain]:
    """Build `spacy-crf-ner.BiLSTMCRF.v1`: a recurrent encoder and a CRF over token vectors.

    Args:
        tok2vec: A layer from docs to one vector per token, such as a listener to a transformer.
        rnn: Recurrent encoder: "lstm", "gru", "rnn" or "none".
        hidden_width: Width of the recurrent encoder per direction.
        depth: Number of its layers.
        bidirectional: Whether it reads in both directions, or only from left to right.
        dense_width: Width of a dense layer with ReLU between encoder and projection; 0 for none.
        dropout: Dropout rate on the input and output of the recurrent encoder; None uses the rate
            of the update, `training.dropout`.
        decoder: "crf" learns transitions, and gives illegal tag sequences zero probability.
            "softmax" scores each token independently. Both predict a legal sequence.
        skip: The layers above the recurrent encoder also read the token vectors, beside its output.
        mixed_precision: True or "auto" trains in bfloat16 on a GPU of compute capability 8.0 or
            later, and in float16 on an older one, with scaled gradients; "bf16" is an error there.
            It has no effect on a CPU, on the CRF, and in bfloat16 on the recurrent encoder.
        dtype: The dtype of the recurrent encoder in prediction: "fp32", "bf16", "fp16" on a
            GPU, or "auto" for a fast one on this hardware; None for the dtype of its weights.
            `spacy_crf_ner.accelerate` sets it. It does not affect training.
        nO: Number of tags, C; None to set it when the labels are known.

    Raises:
        InputError: For a setting out of its range.

    Source: Huang, Xu and Yu (2015), "Bidirectional LSTM-CRF models for sequence tagging".
    """
    config = BiLSTMCRFConfig(
        rnn, hidden_width, depth, bidirectional, dropout, dense_width, decoder, skip
    )
    head: Model[list[Floats2d], Chain] = torch_layer(
        "bilstm_crf",
        partial(BiLSTMCRF, config),
        read_vectors,
        _write_potentials,
        init=partial(init_from_vectors, dims=("nI", "nO")),
        nO=nO,
        mixed_precision=mixed_precision,
        dtype=dtype,
    )
    head.attrs["constrained"] = decoder == "crf"  # illegal tag sequences have no probability
    _pool_at_once(tok2vec)
    return chain_without_marks(tok2vec, head)


def rnn_encoder(
    tok2vec: Model[list[Doc], list[Floats2d]],
    rnn: str = "lstm",
    hidden_width: int = 200,
    depth: int = 1,
    bidirectional: bool = True,
    dropout: float | None = None,
    mixed_precision: MixedPrecision = False,
    dtype: str | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Build `spacy-crf-ner.RNNEncoder.v1`: a recurrent encoder over token vectors, as a tok2vec.

    Any spaCy component can use it, such as a text classifier or a tagger.

    Args:
        tok2vec: A layer from docs to one vector per token, such as a listener to a transformer.
        rnn: Recurrent encoder: "lstm", "gru" or "rnn".
        hidden_width: Its width per direction.
        depth: Its number of layers.
        bidirectional: Whether it reads in both directions, or only from left to right.
        dropout: Dropout rate on its input and output; None uses the rate of the update.
        mixed_precision: Train in 16 bits on a GPU: True, "auto" or "bf16"; no effect on a CPU.
        dtype: Dtype in prediction: "fp32", "bf16", "fp16" on a GPU, or "auto"; None for the
            dtype of its weights.

    Raises:
        InputError: For a setting out of its range.
    """
    config = BiLSTMCRFConfig(rnn, hidden_width, depth, bidirectional, dropout)
    if rnn == "none":
        raise InputError("rnn: expected an encoder, got 'none'. Use the tok2vec below it instead.")
    encoder: Model[list[Floats2d], list[Floats2d]] = torch_layer(
        "rnn_encoder",
        partial(Encoder, config),
        read_vectors,
        write_vectors,
        init=partial(init_from_vectors, dims=("nI",)),
        nO=hidden_width * (1 + bidirectional),
        mixed_precision=mixed_precision,
        dtype=dtype,
    )
    _pool_at_once(tok2vec)
    model: Model[list[Doc], list[Floats2d]] = chain(tok2vec, encoder)
    model.set_dim("nO", encoder.get_dim("nO"))
    return model


def _pool_at_once(tok2vec: Model[list[Doc], list[Floats2d]]) -> None:
    """Let the listeners in a tok2vec pool a batch at once on a GPU."""
    if any(layer.name == "trfs2arrays" for layer in tok2vec.walk()):
        from .transformer.pooling import pool_at_once  # imports transformers

        pool_at_once(tok2vec)


def resize_output(model: Model[list[Doc], Chain], nO: int, like: int | None) -> None:
    """Add tags to an initialized model, nO in all; see `BiLSTMCRF.with_more_tags`."""
    head = model.get_ref("output_layer")
    shim = shim_of(head)
    shim.replace_module(cast(BiLSTMCRF, shim.module).with_more_tags(nO, like))
    for node in (model, head):
        node.set_dim("nO", nO, force=True)


def check_savable(name: str, model: Model[Any, Any]) -> None:
    """Raise InputError if the weights of a layer are too large for the format of a pipeline.

    Args:
        name: The component of the model, for the message.
    """
    for node in model.walk():
        for shim in node.shims:
            module = module_of(shim)
            weights = () if module is None else module.state_dict().values()
            size = sum(each.numel() * each.element_size() for each in weights)
            if size > MAX_BYTES:
                raise InputError(
                    f"[{name}] {node.name}: expected weights of at most 4 GiB, which is what a "
                    f"pipeline can store of a layer, got {size / 2**30:.1f} GiB. Use a smaller one."
                )


def _write_potentials(
    model: Model[list[Floats2d], Chain],
    inputs_outputs: tuple[list[Floats2d], tuple[Tensor, ...]],
    is_train: bool,
) -> tuple[Chain, Callable[[Chain], ArgsKwargs]]:
    X, outputs = inputs_outputs
    # A copy: an optimizer changes the transitions in place, but predictions must not change. One
    # for all: each copy from a GPU waits.
    flat = torch.cat([output.detach().reshape(-1) for output in outputs]).cpu()
    parts = torch.split(flat, [output.numel() for output in outputs])
    emissions, transitions, start, end = (
        part.view(output.shape).numpy() for part, output in zip(parts, outputs)
    )
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    Y = Chain(emissions, lengths, transitions, start, end)

    def backprop(dY: Chain) -> ArgsKwargs:
        # The transitions of a softmax decoder are constants.
        learned = [
            (y, to_device(to_tensor(dy), y.device))
            for y, dy in zip(outputs, dY.scores)
            if y.requires_grad
        ]
        return ArgsKwargs(
            args=([y for y, _ in learned],), kwargs={"grad_tensors": [dy for _, dy in learned]}
        )

    return Y, backprop
