"""The registered architectures: from docs to the potentials of a CRF, or to encoded tokens.

Axes: B docs, N tokens of the batch, one doc after the other, C tags.
"""

from dataclasses import asdict
from functools import partial
from typing import Any, Callable, List, Optional, Tuple, cast

import numpy as np
from spacy.tokens import Doc
from thinc.api import ArgsKwargs, Model, chain
from thinc.types import Floats2d
from thinc.util import get_width
from torch import Tensor

from .bilstm_crf import Encoder, EncoderSwitches, Network, Switches
from .potentials import Potentials
from .torch_layer import read_vectors, shim_of, to_array, torch_layer, write_vectors


def bilstm_crf(
    tok2vec: Model[List[Doc], List[Floats2d]],
    rnn: str = "lstm",
    hidden_width: int = 200,
    depth: int = 1,
    bidirectional: bool = True,
    dense_width: int = 0,
    dropout: Optional[float] = None,
    decoder: str = "crf",
    learn_rate_multiplier: float = 1.0,
    mixed_precision: bool = False,
    precision: Optional[str] = None,
    nO: Optional[int] = None,
) -> Model[List[Doc], Potentials]:
    """Build `spacy-crf-ner.BiLSTMCRF.v1`: a recurrent encoder and a CRF over token vectors.

    tok2vec: Any layer from docs to one vector a token, a listener to a transformer among them.
    rnn: Recurrent encoder: "lstm", "gru", "rnn" or "none".
    hidden_width: Its width per direction.
    depth: Its number of layers.
    bidirectional: It reads in both directions, and not only from the left.
    dense_width: Width of a dense layer with ReLU between encoder and projection; 0 for none.
    dropout: Rate on what goes into and comes out of the recurrent encoder; None takes the
        rate of the update, which is `training.dropout`.
    decoder: "crf" learns transitions, and gives illegal tag sequences no probability. "softmax"
        scores each token for itself. What is predicted is a legal sequence with both.
    learn_rate_multiplier: The head learns at this times the optimizer's rate; 10 or more where
        a pretrained transformer below needs a small one.
    mixed_precision: Run the recurrent encoder in float16 on a GPU, with scaled gradients; on a
        CPU it has no effect. The CRF runs in float32 always.
    precision: What the recurrent encoder predicts in: "fp32", "bf16", "fp16" on a GPU, or "auto"
        for what the hardware does well; None for that of its weights. `spacy_crf_ner.accelerate`
        sets it. It changes no training.
    nO: Number of tags, C; usually None, to be set when the labels are known.

    Source: Huang, Xu and Yu (2015), "Bidirectional LSTM-CRF models for sequence tagging".
    Raises ValueError for a setting out of its range.
    """
    switches = Switches(
        rnn=rnn,
        hidden_width=hidden_width,
        depth=depth,
        bidirectional=bidirectional,
        dropout=dropout,
        dense_width=dense_width,
        decoder=decoder,
    )
    head: Model[List[Floats2d], Potentials] = torch_layer(
        "bilstm_crf",
        Network.build,
        partial(_init_head, switches=switches),
        read_vectors,
        _write_potentials,
        nO=nO,
        learn_rate_multiplier=learn_rate_multiplier,
        mixed_precision=mixed_precision,
        precision=precision,
    )
    model: Model[List[Doc], Potentials] = chain(tok2vec, head)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("output_layer", head)
    return model


def rnn_encoder(
    tok2vec: Model[List[Doc], List[Floats2d]],
    rnn: str = "lstm",
    hidden_width: int = 200,
    depth: int = 1,
    bidirectional: bool = True,
    dropout: Optional[float] = None,
    learn_rate_multiplier: float = 1.0,
    mixed_precision: bool = False,
    precision: Optional[str] = None,
) -> Model[List[Doc], List[Floats2d]]:
    """Build `spacy-crf-ner.RNNEncoder.v1`: a recurrent encoder over token vectors, as a tok2vec.

    Any component of spaCy takes it: a text classifier, a tagger. The settings are those of
    `spacy-crf-ner.BiLSTMCRF.v1`.

    Raises ValueError for a setting out of its range.
    """
    switches = EncoderSwitches(
        rnn=rnn,
        hidden_width=hidden_width,
        depth=depth,
        bidirectional=bidirectional,
        dropout=dropout,
    )
    if rnn == "none":
        raise ValueError("rnn: expected an encoder, got 'none'. Take the tok2vec below it instead.")
    encoder: Model[List[Floats2d], List[Floats2d]] = torch_layer(
        "rnn_encoder",
        Encoder.build,
        partial(_init_encoder, switches=switches),
        read_vectors,
        write_vectors,
        nO=hidden_width * (1 + bidirectional),
        learn_rate_multiplier=learn_rate_multiplier,
        mixed_precision=mixed_precision,
        precision=precision,
    )
    model: Model[List[Doc], List[Floats2d]] = chain(tok2vec, encoder)
    model.set_dim("nO", encoder.get_dim("nO"))
    return model


def grow(model: Model[List[Doc], Potentials], nO: int, like: int) -> None:
    """Give a model that is initialized more tags, after its own; see `Network.grown`."""
    head = model.get_ref("output_layer")
    shim = shim_of(head)
    shim.exchange(cast(Network, shim.module).grown(nO, like))
    for node in (model, head):
        node.set_dim("nO", nO, force=True)


def _init_head(
    model: Model[List[Floats2d], Potentials],
    X: Optional[List[Floats2d]] = None,
    Y: Any = None,
    *,
    switches: Switches,
) -> None:
    """Build the network, with new weights, for the width of X and the number of tags nO."""
    if X is not None:
        model.set_dim("nI", get_width(X), force=True)
    sizes = {"switches": asdict(switches), "nI": model.get_dim("nI"), "nO": model.get_dim("nO")}
    shim_of(model).attach(sizes)


def _init_encoder(
    model: Model[List[Floats2d], List[Floats2d]],
    X: Optional[List[Floats2d]] = None,
    Y: Any = None,
    *,
    switches: EncoderSwitches,
) -> None:
    """Build the encoder, with new weights, for the width of X."""
    if X is not None:
        model.set_dim("nI", get_width(X), force=True)
    shim_of(model).attach({"switches": asdict(switches), "nI": model.get_dim("nI")})


def _write_potentials(
    model: Model[List[Floats2d], Potentials],
    inputs_outputs: Tuple[List[Floats2d], Tuple[Tensor, ...]],
    is_train: bool,
) -> Tuple[Potentials, Callable[[Potentials], ArgsKwargs]]:
    X, outputs = inputs_outputs
    # Copies: an optimizer changes the transitions in place, and what was predicted must stay.
    emissions, transitions, start, end = (to_array(output.clone()) for output in outputs)
    lengths = np.array([len(x) for x in X], dtype=np.int64)
    constrained = cast(Network, shim_of(model).module).constrained
    Y = Potentials(emissions, lengths, transitions, start, end, constrained)

    def backprop(dY: Potentials) -> ArgsKwargs:
        # The transitions of a softmax decoder are constants.
        learned = [(y, dy) for y, dy in zip(outputs, dY.tensors()) if y.requires_grad]
        return ArgsKwargs(
            args=([y for y, _ in learned],),
            kwargs={"grad_tensors": [dy for _, dy in learned]},
        )

    return Y, backprop
