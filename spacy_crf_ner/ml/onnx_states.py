"""The state of `OnnxNetwork.v1`, from the trained layers of torch.

Axes: T tokens, B docs, C tags; U words, L characters of the longest, K distinct characters.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import torch
import torch.nn.functional as F
from thinc.api import Model
from torch import Tensor, nn

from ..input_error import InputError
from .bilstm_crf import BiLSTMCRF, read_padded
from .char_embed import CharCNN, CharLSTM, WordEmbedding
from .dtype import sharing_copy
from .layer import shim_of
from .onnx_export import to_onnx
from .onnx_session import Session
from .transformer.model import TransformerEncoder, TransformerShim
from .transformer.quantize import Positional
from .transformer.slow_tokenizer import SlowTokenizer

MAX_DIFFERENCE = 1e-3  # of the outputs of a network in ONNX, to those of torch

State = dict[str, Any]


def head_state(head: Model[Any, Any]) -> State:
    """Return the network of a head, and the scores of its CRF."""
    network = cast(BiLSTMCRF, sharing_copy(shim_of(head).module).cpu())
    nI = network.dims["nI"]

    def inputs(B: int, T: int) -> dict[str, Tensor]:
        return {"X": torch.randn(T, B, nI), "lengths": torch.arange(T, T - B, -1)}

    axes = {"X": "TB", "lengths": "B", "Y": "TB"}
    with torch.no_grad():
        _, *scores = network(torch.zeros(0, nI), torch.zeros(1, dtype=torch.int64), 0.0)
    arrays = (each.detach().numpy().copy() for each in scores)
    onnx = checked(_PaddedHead(network), inputs, axes)
    return {"onnx": onnx, **dict(zip(("transitions", "start", "end"), arrays))}


class _PaddedHead(nn.Module):
    """The emissions of padded docs."""

    def __init__(self, network: BiLSTMCRF) -> None:
        super().__init__()
        self.network = network

    def forward(self, X: Tensor, lengths: Tensor) -> Tensor:
        """(T, B, nI), (B,) -> (T, B, C)."""
        flat, encoder = X.flatten(0, 1), self.network.encoder
        encoded = flat
        if encoder.rnn is not None:
            encoded = read_padded(encoder.rnn, flat, lengths)
            if encoder.config.skip:
                encoded = torch.cat([encoded, flat], dim=1)
        return self.network.project(encoded).view(X.shape[0], X.shape[1], -1)


def words_state(layer: Model[Any, Any]) -> State:
    """Return the settings of `onnx_network.Words`, from a trained `CharWordEmbed.v1`."""
    module = cast(WordEmbedding, sharing_copy(shim_of(layer).module).cpu())
    config = module.config

    def inputs(U: int, L: int) -> dict[str, Tensor]:
        chars = torch.randint(1, 10, (U, L)) * (
            torch.arange(L) < torch.arange(L, L - U, -1)[:, None]
        )
        sizes = {
            "alphabet": (9, 50),
            "norms": (U, config.word_rows),
            "shapes": (U, config.shape_rows),
        }
        rows = {name: torch.randint(0, high, (n, 4)) for name, (n, high) in sizes.items()}
        return {"chars": chars, **rows}

    axes = {"chars": "UL", "alphabet": "K", "norms": "U", "shapes": "U", "Y": "U"}
    onnx = checked(_PaddedWords(module), inputs, axes) if config.learned_width else b""
    return {"onnx": onnx, "nM": module.nM, "config": asdict(config)}


class _PaddedWords(nn.Module):
    """The vectors of distinct words of similar length, without the static ones."""

    def __init__(self, module: WordEmbedding) -> None:
        super().__init__()
        self.module = module

    def forward(self, chars: Tensor, alphabet: Tensor, norms: Tensor, shapes: Tensor) -> Tensor:
        """(U, L), (K, 4), (U, 4), (U, 4) -> (U, nO)."""
        module, parts = self.module, []
        if module.alphabet is not None:
            letters = F.pad(_sums(module.alphabet, alphabet), (0, 0, 1, 0))  # row 0 is zeros
            read = _read_cnn if isinstance(module.reader, CharCNN) else _read_lstm
            parts.append(read(cast(Any, module.reader), letters, chars))
        for table, rows in ((module.norms, norms), (module.shapes, shapes)):
            if table is not None:
                parts.append(_sums(table, rows))
        return torch.cat(parts, 1)


def _sums(table: nn.EmbeddingBag, rows: Tensor) -> Tensor:
    return F.embedding(rows, table.weight).sum(1)


def _read_cnn(reader: CharCNN, letters: Tensor, chars: Tensor) -> Tensor:
    """Encode words by the CNN, with operations that ONNX has: (U, nO)."""
    before, here, after = reader.multiplied(letters)
    padded = F.pad(chars, (1, 1))
    read = F.embedding(padded[:, :-2], before) + F.embedding(chars, here)  # (U, L, nO)
    read = read + F.embedding(padded[:, 2:], after)
    return torch.relu(read.masked_fill((chars == 0).unsqueeze(2), -1e30).amax(1))


def _read_lstm(reader: CharLSTM, letters: Tensor, chars: Tensor) -> Tensor:
    """Encode padded words by the LSTM, with operations that ONNX has: (U, nO)."""
    lengths, steps = (chars > 0).sum(1), chars.T  # (L, U)
    Y = read_padded(reader.lstm, F.embedding(steps, letters).flatten(0, 1), lengths)
    width, words = reader.lstm.hidden_size, torch.arange(lengths.shape[0])
    last = (lengths - 1) * lengths.shape[0] + words
    return torch.cat([Y[last, :width], Y[words, width:]], dim=1)


def transformer_state(layer: Model[Any, Any], pooling: str, int8: bool) -> State:
    """Return the settings of `onnx_network.Transformer`, from a trained `Transformer.v1`.

    Raises InputError for a tokenizer that only runs in Python, for several token types, for a mix
    of layers, and for a transformer that ONNX cannot express.
    """
    shim = cast(TransformerShim, shim_of(layer))
    tokenizer = shim.tokenizer
    if isinstance(tokenizer, SlowTokenizer):
        raise InputError(
            "expected a transformer with a tokenizer of the library tokenizers, got one that only "
            "runs in Python. Use this pipeline as it is."
        )
    encoder = cast(TransformerEncoder, sharing_copy(shim.module).cpu())
    if encoder.mix is not None:
        raise InputError(
            'layers: expected "last", got "mix", which cannot be exported. Train a pipeline with '
            '"last".'
        )
    if tokenizer.encode(["a b"])[0].types.any():
        raise InputError(
            "expected a transformer with one token type, got several. Use this pipeline as it is."
        )
    bare: Any = encoder.transformer
    vocabulary = min(bare.config.vocab_size, 1000)

    def inputs(B: int, T: int) -> dict[str, Tensor]:
        mask = (torch.arange(T) < torch.arange(T, T - B, -1)[:, None]).long()
        ids = torch.randint(0, vocabulary, (B, T))
        return {"input_ids": ids, "attention_mask": mask}

    axes = dict.fromkeys(["input_ids", "attention_mask", "Y"], "BT")
    onnx = checked(Positional(bare), inputs, axes, int8)
    return {"onnx": onnx, "tokenizer": tokenizer.state, "pooling": pooling, "nO": encoder.nO}


def checked(
    module: nn.Module,
    inputs: Callable[[int, int], dict[str, Tensor]],
    axes: dict[str, str],
    int8: bool = False,
) -> bytes:
    """Convert a module to ONNX, and compare the results for inputs of another size.

    Raises InputError if they differ, as for a transformer whose code depends on the size.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = inputs(2, 8), inputs(3, 13)
    try:
        onnx = to_onnx(module, first, axes)
        with torch.no_grad():
            expected = module(*second.values())
        found = Session(onnx).run(**{name: x.numpy() for name, x in second.items()})
        difference = float((torch.from_numpy(found) - expected).abs().max())
    except (InputError, OSError):  # an OSError is of the machine
        raise
    except Exception as error:
        raise InputError(
            "expected a network that ONNX can express, got one that fails with "
            f"{type(error).__name__}: {error}"
        ) from error
    if not difference < MAX_DIFFERENCE:
        raise InputError(
            "expected a network that computes the same in ONNX, got one whose results differ by "
            f"{difference:.2g}. Use this pipeline as it is."
        )
    return to_onnx(module, first, axes, int8) if int8 else onnx
