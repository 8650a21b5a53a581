"""The network: from token vectors to the potentials of a CRF.

Axes: B docs, T tokens of the longest doc, N tokens of the batch, one doc after the other, C tags.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torchcrf import CRF

from .buckets import padded_buckets
from .device import to_device
from .dropout import fast_dropout
from .require import check_dropout, require

RNNS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
DECODERS = ("crf", "softmax")

# A new tag scores this much lower than the tag it is copied from: e^-5 = 1 / 148 of its odds.
NEW_TAG_MARGIN = 5.0


@dataclass(frozen=True)
class BiLSTMCRFConfig:
    """The settings of `spacy-crf-ner.BiLSTMCRF.v1`; raises InputError for one out of its range."""

    rnn: str
    hidden_width: int
    depth: int
    bidirectional: bool
    dropout: float | None
    dense_width: int = 0
    decoder: str = "crf"
    skip: bool = False

    def __post_init__(self) -> None:
        require(self, "rnn", self.rnn in (*RNNS, "none"), f"one of {[*RNNS, 'none']}")
        for name, least in (("hidden_width", 1), ("depth", 1), ("dense_width", 0)):
            require(self, name, getattr(self, name) >= least, f"{least} or more")
        check_dropout(self)
        require(self, "decoder", self.decoder in DECODERS, f"one of {[*DECODERS]}")


class Encoder(nn.Module):
    """A recurrent encoder over docs of any lengths; with rnn "none", only dropout."""

    def __init__(self, config: BiLSTMCRFConfig, nI: int) -> None:
        super().__init__()
        self.config = config
        self.dims = {"nI": nI}
        self.nO = nI  # width of the output
        self.rnn: nn.RNNBase | None = None
        if config.rnn != "none":
            self.rnn = RNNS[config.rnn](
                nI, config.hidden_width, config.depth, bidirectional=config.bidirectional
            )
            self.nO = config.hidden_width * (1 + config.bidirectional) + nI * config.skip

    def forward(self, features: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        """Encode the tokens of each doc: (N, nI) -> (N, nO).

        `lengths` are the tokens of each doc, (B,) int64 on the CPU; they sum to N, some may be 0. A
        dropout rate in the config takes precedence over this one.
        """
        rate = dropout if self.config.dropout is None else self.config.dropout
        X = fast_dropout(features, rate, self.training)
        if self.rnn is None:
            return X
        if not len(X):  # only empty docs: keep the graph to X for its gradient
            return X[:, :1].expand(0, self.nO)
        # The rate between layers; torch warns if there is only one layer.
        self.rnn.dropout = rate if self.rnn.num_layers > 1 else 0.0
        padded = X.device.type == "cpu" and (self.training or self.rnn.mode == "LSTM")
        encode = _encode_padded if padded else _encode_packed
        flatten_weights(self.rnn)
        # cuDNN has no bfloat16: autocast would take float16, whose gradients need a scaler.
        in_bf16 = torch.get_autocast_dtype("cuda") is torch.bfloat16
        mixed = X.is_cuda and torch.is_autocast_enabled("cuda") and not in_bf16
        with torch.autocast(X.device.type, enabled=mixed):
            encoded = encode(self.rnn, X.to(next(self.rnn.parameters()).dtype), lengths)
        # In mixed precision the encoder returns 16 bits; the layers above may need 32.
        encoded = fast_dropout(encoded.to(X.dtype), rate, self.training)
        return torch.cat([encoded, X], dim=1) if self.config.skip else encoded


def flatten_weights(rnn: nn.RNNBase) -> None:
    """Put the weights of an encoder on a GPU into one buffer, if they are not in one already.

    cuDNN otherwise copies them at every call. Those of a copied module are not.
    """
    weights = [*rnn.parameters()]
    if weights[0].is_cuda and len({w.untyped_storage().data_ptr() for w in weights}) > 1:
        rnn.flatten_parameters()


def _encode_packed(rnn: nn.RNNBase, X: Tensor, lengths: Tensor) -> Tensor:
    """Encode the tokens of each doc: (N, nI) -> (N, nO).

    A packed batch has the first tokens of all docs, then all second tokens, and so on, with the
    longest doc first. It has no padding, which the backward direction would read before the doc.
    """
    order = torch.argsort(lengths, descending=True)
    starts = (lengths.cumsum(0) - lengths)[order]
    steps = torch.arange(int(lengths.max()))[:, None]
    mask = steps < lengths[order]  # (T, B)
    tokens = to_device((starts + steps)[mask], X.device)
    # index_select copies whole rows; indexing with brackets copies single numbers.
    packed = PackedSequence(X.index_select(0, tokens), mask.sum(1))
    return _unsort(rnn(packed)[0].data, tokens)


def _encode_padded(rnn: nn.RNNBase, X: Tensor, lengths: Tensor) -> Tensor:
    """Encode the tokens of each doc in padded batches, faster on a CPU: (N, nI) -> (N, nO).

    On a CPU, oneDNN has an LSTM for docs of equal length, and torch's backward pass over packed
    docs allocates a gradient for all tokens at every time step. So docs of similar length are
    padded.
    """
    pairs = []
    for docs, rows, mask in padded_buckets(lengths.numpy()):
        tokens = torch.from_numpy(rows).view(-1)
        kept = torch.from_numpy(mask).view(-1).nonzero()[:, 0]
        of_docs = lengths[torch.from_numpy(docs)]
        padded = read_padded(rnn, X.index_select(0, tokens), of_docs)
        pairs.append((padded.index_select(0, kept), tokens[kept]))
    encoded, tokens = (torch.cat(of_buckets) for of_buckets in zip(*pairs))
    return _unsort(encoded, tokens)


def read_padded(rnn: nn.RNNBase, X: Tensor, lengths: Tensor) -> Tensor:
    """Encode padded docs; the backward direction reads reversed docs, padding last.

    Rows, (T * B, nI) -> (T * B, nO), are the first tokens of all docs, then all second ones, and so
    on; `lengths`, (B,), are the tokens of each doc.
    """
    docs = torch.arange(lengths.shape[0])
    steps = torch.arange(X.shape[0] // lengths.shape[0])[:, None]
    within = steps < lengths  # (T, B)
    cells = steps * lengths.shape[0] + docs
    # The token at each step of the backward direction, (T * B,): its own inverse.
    mirrored = torch.where(within, (lengths - 1 - steps) * lengths.shape[0] + docs, cells).view(-1)
    zeros = X.new_zeros(1, lengths.shape[0], rnn.hidden_size)
    encode: Any = getattr(torch, rnn.mode.lower())  # torch.lstm, torch.gru or torch.rnn_tanh
    state = (zeros, zeros) if rnn.mode == "LSTM" else zeros
    weights = iter(rnn.all_weights)
    for layer in range(rnn.num_layers):
        if layer:
            X = torch.dropout(X, rnn.dropout, rnn.training)
        read = []
        for from_right in range(1 + rnn.bidirectional):
            padded = (X.index_select(0, mirrored) if from_right else X).view(*within.shape, -1)
            Y = encode(padded, state, next(weights), True, 1, 0.0, rnn.training, False, False)[0]
            Y = Y.flatten(0, 1)
            read.append(Y.index_select(0, mirrored) if from_right else Y)
        X = torch.cat(read, dim=1)
    return X


def _unsort(encoded: Tensor, tokens: Tensor) -> Tensor:
    """Put encoded tokens (N, nO) back in the order of the batch; tokens: their rows there, (N,)."""
    order = torch.empty_like(tokens)
    order[tokens] = torch.arange(len(tokens), device=tokens.device)
    return encoded.index_select(0, order)


class BiLSTMCRF(nn.Module):
    """A recurrent encoder of vectors (N, nI), an optional dense layer, and a projection to nO tags.

    A `torchcrf.CRF` holds the transition parameters; a softmax decoder has none.

    Source: Huang, Xu and Yu (2015), "Bidirectional LSTM-CRF models for sequence tagging".
    """

    def __init__(self, config: BiLSTMCRFConfig, nI: int, nO: int) -> None:
        super().__init__()
        self.config = config
        self.dims = {"nI": nI, "nO": nO}
        self.encoder = Encoder(config, nI)
        width, dense_width = self.encoder.nO, config.dense_width
        self.dense = nn.Linear(width, dense_width) if dense_width else None
        self.projection = nn.Linear(dense_width or width, nO)
        self.crf = CRF(nO, batch_first=True) if config.decoder == "crf" else None

    def with_more_tags(self, nO: int, like: int | None) -> "BiLSTMCRF":
        """Copy the network, on its device, and append new tags, up to nO.

        A new tag has the score of the tag `like` minus a margin, or of one that scores 0 if `like`
        is None. So a path scores higher with `like` in place of its new tags, and the best path
        stays the best. `like` must be legal wherever a new tag is.
        """
        result = BiLSTMCRF(self.config, self.dims["nI"], nO)
        before = self.dims["nO"]
        copied = torch.tensor([*range(before), *[like or 0] * (nO - before)])
        state = self.state_dict()
        for name in [name for name in state if name.startswith(("projection.", "crf."))]:
            for axis in (0, 1) if name == "crf.transitions" else (0,):  # the axes of tags
                state[name] = state[name].cpu().index_select(axis, copied)
                if like is None:
                    state[name].narrow(axis, before, nO - before).zero_()
        state["projection.bias"][before:] -= NEW_TAG_MARGIN
        result.load_state_dict(state)
        return result.to(self.projection.weight.device)

    def forward(
        self, features: Tensor, lengths: Tensor, dropout: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the potentials of a batch of docs, from the arguments of `Encoder.forward`.

        Emissions (N, C), transitions (C, C), start and end transitions (C,), in float32.
        """
        emissions = self.project(self.encoder(features, lengths, dropout)).float()
        if self.crf is None:
            zeros = emissions.new_zeros(emissions.shape[1], emissions.shape[1])
            return emissions, zeros, zeros[0], zeros[0]
        crf = self.crf
        return emissions, crf.transitions, crf.start_transitions, crf.end_transitions

    def project(self, X: Tensor) -> Tensor:
        """Score the tags of encoded tokens: (N, width) -> (N, C)."""
        if self.dense is not None:
            X = torch.relu(self.dense(X))
        return cast(Tensor, self.projection(X))
