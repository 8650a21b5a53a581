"""The network: vectors of tokens in, potentials of a CRF out.

Axes: N tokens of a batch, one doc after the other; C tags.
"""

from dataclasses import dataclass
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torchcrf import CRF

RNNS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
DECODERS = ("crf", "softmax")


# By how much less a new tag scores: it has 1 / 148 of the odds of the one it is copied from.
GROWTH_MARGIN = 5.0


@dataclass(frozen=True)
class Switches:
    """What the network is made of, beside its input and output widths.

    rnn: "lstm", "gru", "rnn", or "none" for no recurrent encoder.
    hidden_width: Width of each direction of the recurrent encoder.
    depth: Number of its layers.
    dense_width: Width of a dense layer with ReLU before the projection; 0 for none.
    dropout: Rate on what goes into and comes out of the recurrent encoder; None for the rate
        that `Network.forward` is given.
    decoder: "crf", or "softmax": transitions are zero and not learned.

    Raises ValueError for a value out of its range.
    """

    rnn: str
    hidden_width: int
    depth: int
    dense_width: int
    dropout: Optional[float]
    decoder: str

    def __post_init__(self) -> None:
        ranges = {
            "rnn": (self.rnn in (*RNNS, "none"), f"one of {[*RNNS, 'none']}"),
            "hidden_width": (self.hidden_width >= 1, "1 or more"),
            "depth": (self.depth >= 1, "1 or more"),
            "dense_width": (self.dense_width >= 0, "0 or more"),
            "dropout": (
                self.dropout is None or 0 <= self.dropout < 1,
                "null, or from 0 to below 1",
            ),
            "decoder": (self.decoder in DECODERS, f"one of {[*DECODERS]}"),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)!r}.")


class Network(nn.Module):
    """A bidirectional recurrent encoder, an optional dense layer, and a projection to tags.

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
        width = nI
        self.rnn: Optional[nn.RNNBase] = None
        if switches.rnn != "none":
            self.rnn = RNNS[switches.rnn](
                width,
                switches.hidden_width,
                switches.depth,
                batch_first=True,
                bidirectional=True,
            )
            width = 2 * switches.hidden_width
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
        rate = dropout if self.switches.dropout is None else self.switches.dropout
        X = F.dropout(features, rate, self.training)
        if self.rnn is not None:
            X = F.dropout(self._encode(self.rnn, X, lengths, rate), rate, self.training)
        if self.dense is not None:
            X = torch.relu(self.dense(X))
        crf = self.crf
        return (
            self.projection(X).float(),
            crf.transitions,
            crf.start_transitions,
            crf.end_transitions,
        )

    def _encode(self, rnn: nn.RNNBase, X: Tensor, lengths: Tensor, rate: float) -> Tensor:
        """Run the recurrent encoder: (N, nI) -> (N, 2 * hidden_width).

        Packing keeps padding away from the backward direction: no doc sees its batch mates.
        """
        if not len(X):  # nothing but empty docs; still a function of X, for its gradient
            return X[:, :1].expand(0, 2 * rnn.hidden_size)
        lengths = lengths[lengths > 0]  # an empty doc owns no row of X, and cannot be packed
        padded = pad_sequence(list(torch.split(X, lengths.tolist())), batch_first=True)
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        # Between layers; torch warns when there is nothing between.
        rnn.dropout = rate if rnn.num_layers > 1 else 0.0
        encoded, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
        steps = torch.arange(encoded.shape[1], device=lengths.device)
        mask = steps[None, :] < lengths[:, None]
        return encoded[mask.to(encoded.device)]
