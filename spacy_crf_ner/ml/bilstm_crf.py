"""The network: vectors of tokens in, potentials of a CRF out.

Axes: B docs, T tokens of the longest, N tokens of the batch, one doc after the other; C tags.
"""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torchcrf import CRF

RNNS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
DECODERS = ("crf", "softmax")

# Docs are read together, padded to the longest, while their tokens become no more times as many.
MOST_PADDED = 1.25
# By how much less a new tag scores: it has 1 / 148 of the odds of the one it is copied from.
GROWTH_MARGIN = 5.0


@dataclass(frozen=True)
class EncoderSwitches:
    """What a recurrent encoder is made of, beside the width of its input.

    rnn: "lstm", "gru", "rnn", or "none" for no recurrent encoder.
    hidden_width: Width of each direction.
    depth: Number of layers.
    bidirectional: Read in both directions, and not only from the left.
    dropout: Rate on what goes in and comes out, and between layers; None for the rate that
        `forward` is given.

    Raises ValueError for a value out of its range.
    """

    rnn: str
    hidden_width: int
    depth: int
    bidirectional: bool
    dropout: Optional[float]

    def __post_init__(self) -> None:
        require(self, "rnn", self.rnn in (*RNNS, "none"), f"one of {[*RNNS, 'none']}")
        require(self, "hidden_width", self.hidden_width >= 1, "1 or more")
        require(self, "depth", self.depth >= 1, "1 or more")
        fits = self.dropout is None or 0 <= self.dropout < 1
        require(self, "dropout", fits, "null, or from 0 to below 1")


@dataclass(frozen=True)
class Switches(EncoderSwitches):
    """What the network is made of, beside its input and output widths.

    dense_width: Width of a dense layer with ReLU before the projection; 0 for none.
    decoder: "crf", or "softmax": transitions are zero and not learned.

    The others are those of `EncoderSwitches`. Raises ValueError for a value out of its range.
    """

    dense_width: int
    decoder: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "dense_width", self.dense_width >= 0, "0 or more")
        require(self, "decoder", self.decoder in DECODERS, f"one of {[*DECODERS]}")


def require(switches: Any, name: str, fits: bool, expected: str) -> None:
    """Raise ValueError, which says what was expected, where a switch does not fit."""
    if not fits:
        raise ValueError(f"{name}: expected {expected}, got {getattr(switches, name)!r}.")


class Encoder(nn.Module):
    """A recurrent encoder over docs of any lengths; without one, its input with dropout.

    switches: What it is made of.
    nI: Width of the token vectors.
    """

    def __init__(self, switches: EncoderSwitches, nI: int) -> None:
        super().__init__()
        self.switches = switches
        self.nI = nI
        self.nO = nI  # width of the output
        self.rnn: Optional[nn.RNNBase] = None
        if switches.rnn != "none":
            self.rnn = RNNS[switches.rnn](
                nI, switches.hidden_width, switches.depth, bidirectional=switches.bidirectional
            )
            self.nO = switches.hidden_width * (1 + switches.bidirectional)

    @property
    def sizes(self) -> Dict[str, Any]:
        """What `build` makes an encoder like this of; plain values."""
        return {"switches": asdict(self.switches), "nI": self.nI}

    @classmethod
    def build(cls, switches: Dict[str, Any], nI: int) -> "Encoder":
        """Make an encoder of its stored sizes, with new weights."""
        return cls(EncoderSwitches(**switches), nI)

    def forward(self, features: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        """Encode the tokens of each doc: (N, nI) -> (N, nO).

        features: (N, nI).
        lengths: (B,) int64 on the CPU, tokens of each doc; they sum to N, some may be 0.
        dropout: Rate, where there is none of its own; nothing is dropped in evaluation.
        """
        rate = dropout if self.switches.dropout is None else self.switches.dropout
        X = F.dropout(features, rate, self.training)
        if self.rnn is None:
            return X
        if not len(X):  # nothing but empty docs; still a function of X, for its gradient
            return X[:, :1].expand(0, self.nO)
        # Between layers; torch warns when there is nothing between.
        self.rnn.dropout = rate if self.rnn.num_layers > 1 else 0.0
        padded = X.device.type == "cpu" and (self.training or self.rnn.mode == "LSTM")
        read = _read_padded if padded else _read_packed
        encoded = read(self.rnn, X.to(next(self.rnn.parameters()).dtype), lengths)
        # In mixed precision an encoder works in float16, and what is above it may not.
        return F.dropout(encoded.to(X.dtype), rate, self.training)


def _read_packed(rnn: nn.RNNBase, X: Tensor, lengths: Tensor) -> Tensor:
    """Encode the tokens of each doc: (N, nI) -> (N, nO).

    Packed, tokens are ordered by their place: the first of each doc, the longest one first, and so
    on. No padding is among them, which the direction from the right would read before its doc.
    """
    order = torch.argsort(lengths, descending=True)
    starts = (lengths.cumsum(0) - lengths)[order]
    steps = torch.arange(int(lengths.max()))[:, None]
    mask = steps < lengths[order]  # (T, B)
    tokens = (starts + steps)[mask].to(X.device)
    # index_select copies whole rows, an index in brackets number by number.
    packed = PackedSequence(X.index_select(0, tokens), mask.sum(1))
    return _restored(rnn(packed)[0].data, tokens)


def _read_padded(rnn: nn.RNNBase, X: Tensor, lengths: Tensor) -> Tensor:
    """Encode the tokens of each doc as `_read_packed` does, faster on a CPU: (N, nI) -> (N, nO).

    There oneDNN has an LSTM for docs of one length. And torch's way back over packed docs makes a
    gradient of all tokens at every time step. So docs of like length are padded.
    """
    starts = lengths.cumsum(0) - lengths
    groups = [torch.tensor(group) for group in _alike(lengths)]
    read = [_read_group(rnn, X, starts[docs], lengths[docs]) for docs in groups]
    encoded, tokens = (torch.cat(of_groups) for of_groups in zip(*read))
    return _restored(encoded, tokens)


def _alike(lengths: Tensor) -> List[List[int]]:
    """Group docs by length, the longest first, so that padding is within MOST_PADDED."""
    of_docs = lengths.tolist()
    groups: List[List[int]] = []
    room = 0.0
    for doc in sorted(range(len(of_docs)), key=of_docs.__getitem__, reverse=True):
        if not of_docs[doc]:
            break
        if groups:
            # So many tokens more may be padding; a longer doc makes room, a shorter one takes it.
            room += MOST_PADDED * of_docs[doc] - of_docs[groups[-1][0]]
        if not groups or room < 0:
            groups.append([])
            room = (MOST_PADDED - 1) * of_docs[doc]
        groups[-1].append(doc)
    return groups


def _read_group(
    rnn: nn.RNNBase, X: Tensor, starts: Tensor, lengths: Tensor
) -> Tuple[Tensor, Tensor]:
    """Encode the tokens of some docs, each direction so that padding comes last.

    starts: (B,), row of the first token of each doc.
    lengths: (B,), tokens of each, the longest first.

    Returns the encoded tokens (M, nO) of these docs, and their rows in the batch (M,).
    """
    docs = torch.arange(len(lengths))
    steps = torch.arange(int(lengths[0]))[:, None]
    within = steps < lengths  # (T, B)
    cells = steps * len(docs) + docs
    # Where a doc is read from the right, the token at each step: (T * B,); it is its own inverse.
    mirrored = torch.where(within, (lengths - 1 - steps) * len(docs) + docs, cells).view(-1)
    rows = (starts + steps.minimum(lengths - 1)).view(-1)
    X = X.index_select(0, rows)  # (T * B, nI)
    zeros = X.new_zeros(1, len(docs), rnn.hidden_size)
    weights = iter(rnn.all_weights)
    for layer in range(rnn.num_layers):
        if layer:
            X = torch.dropout(X, rnn.dropout, rnn.training)
        read = []
        for from_right in range(1 + rnn.bidirectional):
            padded = (X.index_select(0, mirrored) if from_right else X).view(*within.shape, -1)
            settings: Any = (next(weights), True, 1, 0.0, rnn.training, False, False)
            if rnn.mode == "LSTM":
                Y = torch.lstm(padded, (zeros, zeros), *settings)[0]
            else:
                Y = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh}[rnn.mode](
                    padded, zeros, *settings
                )[0]
            Y = Y.flatten(0, 1)
            read.append(Y.index_select(0, mirrored) if from_right else Y)
        X = torch.cat(read, dim=1)
    kept = within.view(-1).nonzero()[:, 0]
    return X.index_select(0, kept), rows[kept]


def _restored(encoded: Tensor, tokens: Tensor) -> Tensor:
    """Put encoded tokens, (N, nO), back in the order of the batch; their rows are (N,)."""
    order = torch.empty_like(tokens)
    order[tokens] = torch.arange(len(tokens), device=tokens.device)
    return encoded.index_select(0, order)


class Network(nn.Module):
    """A recurrent encoder, an optional dense layer, and a projection to tags.

    The transition parameters are those of a `torchcrf.CRF`. Source: Huang, Xu and Yu (2015),
    "Bidirectional LSTM-CRF models for sequence tagging".

    switches: What it is made of.
    nI: Width of the token vectors.
    nO: Number of tags, C.
    """

    def __init__(self, switches: Switches, nI: int, nO: int) -> None:
        super().__init__()
        self.switches = switches
        self.nI = nI
        self.nO = nO
        self.encoder = Encoder(switches, nI)
        width = self.encoder.nO
        self.dense: Optional[nn.Linear] = None
        if switches.dense_width:
            self.dense = nn.Linear(width, switches.dense_width)
            width = switches.dense_width
        self.projection = nn.Linear(width, nO)
        self.crf = CRF(nO, batch_first=True)
        if not self.constrained:
            for parameter in self.crf.parameters():
                nn.init.zeros_(parameter)
                parameter.requires_grad_(False)

    @property
    def sizes(self) -> Dict[str, Any]:
        """What `build` makes a network like this of; plain values."""
        return {"switches": asdict(self.switches), "nI": self.nI, "nO": self.nO}

    @classmethod
    def build(cls, switches: Dict[str, Any], nI: int, nO: int) -> "Network":
        """Make a network of its stored sizes, with new weights."""
        return cls(Switches(**switches), nI, nO)

    @property
    def constrained(self) -> bool:
        """Whether the loss knows the illegal tag sequences: a softmax does not."""
        return self.switches.decoder == "crf"

    def grown(self, nO: int, like: int) -> "Network":
        """Copy the network, with more tags after its own; it stays on its device.

        A new tag scores as the tag `like` does, less a margin. So a path through new tags scores
        as it does with `like` in their place, less the margin a token: what was best stays best.

        nO: Number of tags, at least as many as there are.
        like: A tag that may stand wherever a new one may.
        """
        result = Network(self.switches, self.nI, nO)
        copied = torch.tensor([*range(self.nO), *[like] * (nO - self.nO)])
        state = self.state_dict()
        for name, value in state.items():
            if name.startswith(("projection.", "crf.")):
                state[name] = value[copied]
        state["crf.transitions"] = state["crf.transitions"][:, copied]
        state["projection.bias"][self.nO :] -= GROWTH_MARGIN
        result.load_state_dict(state)
        return result.to(self.projection.weight.device)

    def forward(
        self, features: Tensor, lengths: Tensor, dropout: float
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the potentials of a batch of docs.

        features: (N, nI).
        lengths: (B,) int64 on the CPU, tokens of each doc; they sum to N, some may be 0.
        dropout: Rate, where the network has none of its own; nothing is dropped in evaluation.

        Returns emissions (N, C), transitions (C, C), start and end transitions (C,), in float32.
        """
        X = self.encoder(features, lengths, dropout)
        if self.dense is not None:
            X = torch.relu(self.dense(X))
        crf = self.crf
        return (
            self.projection(X).float(),
            crf.transitions,
            crf.start_transitions,
            crf.end_transitions,
        )
