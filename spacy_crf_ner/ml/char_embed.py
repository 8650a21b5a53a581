"""Token vectors without a transformer: how each distinct word of a batch is written and known.

Axes: N tokens of the batch, one doc after the other; U distinct words, L characters of the longest,
K distinct characters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from spacy.attrs import LOWER, NORM, ORTH, SHAPE
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import ArgsKwargs, Model, NumpyOps
from thinc.types import Floats2d
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from ..input_error import InputError
from .bilstm_crf import require, require_dropout
from .torch_layer import shim_of, to_tensor, torch_layer, write_vectors

CHARS = ("cnn", "lstm", "none")
# A longer word is read by its first and last characters: there its affixes are.
MAX_CHARS = 50
# Code points modulo 1024 would not do, as a text mixes scripts: Cyrillic would share rows with the
# digits. Hashed to four rows each, less than one pair of characters in 10^10 has the same sum.
CHAR_ROWS = 1024
# So that the rows of a character, of a norm and of a shape are drawn apart.
CHAR_SEED, NORM_SEED, SHAPE_SEED = 7, 8, 9
N_HASHES = 4

IDs = NDArray[np.uint64]


@dataclass(frozen=True)
class WordEmbeddingConfig:
    """The settings of `spacy-crf-ner.CharWordEmbed.v1`.

    Raises InputError for a value out of its range, and where nothing is switched on.
    """

    chars: str
    char_width: int
    char_embed: int
    word_width: int
    word_rows: int
    shape_width: int
    shape_rows: int
    static_vectors: bool
    dropout: float | None

    def __post_init__(self) -> None:
        require(self, "chars", self.chars in CHARS, f"one of {[*CHARS]}")
        for name in ("char_width", "char_embed", "word_rows", "shape_rows"):
            require(self, name, getattr(self, name) >= 1, "1 or more")
        for name in ("word_width", "shape_width"):
            require(self, name, getattr(self, name) >= 0, "0 or more")
        halves = self.chars != "lstm" or self.char_width % 2 == 0
        require(self, "char_width", halves, "an even number, half for each direction of the LSTM")
        require_dropout(self)
        if not self.learned_width and not self.static_vectors:
            raise InputError(
                "Expected something that a word's vector is made of, got chars = 'none', "
                "word_width = 0, shape_width = 0 and static_vectors = false. Switch one on."
            )

    @property
    def learned_width(self) -> int:
        """Width of a word's vector without its static one."""
        chars = 0 if self.chars == "none" else self.char_width
        return chars + self.word_width + self.shape_width


class Words(NamedTuple):
    """The distinct words of a batch, as numbers; those of what is switched off are not read."""

    chars: Tensor  # (U, L) int64, numbers of characters from 1; 0 where a word has ended
    alphabet: Tensor  # (K, 4) int64, the rows of the character with the number 1, 2 and so on
    norms: Tensor  # (U, 4) int64, the rows of their norms
    shapes: Tensor  # (U, 4) int64, the rows of their shapes
    vectors: Tensor  # (U, nM) float32, their static vectors


class CharCNN(nn.Module):
    """A convolution over three characters, and the maximum over those of a word.

    A batch has many triples of few characters: what a character adds to the one before it, to its
    own place and to the one after is computed once for each, and a triple is the sum of three rows.
    """

    def __init__(self, nI: int, nO: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(nI, nO, kernel_size=3, padding=1)

    def forward(self, letters: Tensor, chars: Tensor) -> Tensor:
        """Encode words: (U, nO).

        letters: (K + 1, nI), vectors of the characters; zeros first.
        chars: (U, L) int64, their numbers; 0 where a word has ended.
        """
        weight, bias = self.convolution.weight, cast(Tensor, self.convolution.bias)
        before, here, after = (letters @ part.T for part in weight.unbind(2))  # (K + 1, nO)
        rows = torch.cat([before, here + bias, after])
        padded, K = F.pad(chars, (1, 1)), len(letters)
        triples = torch.stack([padded[:, :-2], chars + K, padded[:, 2:] + 2 * K], 2)  # (U, L, 3)
        read = F.embedding_bag(triples[chars > 0], rows, mode="sum")
        lengths = (chars > 0).sum(1)
        return torch.relu(torch.segment_reduce(read, "max", lengths=lengths))


class CharLSTM(nn.Module):
    """An LSTM over the characters of a word in both directions, and the last state of each."""

    def __init__(self, nI: int, nO: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(nI, nO // 2, batch_first=True, bidirectional=True)

    def forward(self, letters: Tensor, chars: Tensor) -> Tensor:
        """Encode words, as `CharCNN` does: (U, nO)."""
        lengths = (chars > 0).sum(1).cpu()
        packed = pack_padded_sequence(
            F.embedding(chars, letters), lengths, batch_first=True, enforce_sorted=False
        )
        last = self.lstm(packed)[1][0]  # (2, U, nO / 2)
        return cast(Tensor, last.transpose(0, 1).flatten(1))


class WordEmbedding(nn.Module):
    """The vectors of words: of their characters, norms and shapes, and static ones, side by side.

    nM: Width of the static vectors; 0 without.
    """

    def __init__(self, config: WordEmbeddingConfig, nM: int) -> None:
        super().__init__()
        self.config = config
        self.nM = nM
        self.dims = {"nM": nM}
        self.nO = config.learned_width + nM
        self.alphabet = self.reader = None
        if config.chars != "none":
            self.alphabet = _hash_table(CHAR_ROWS, config.char_embed)
            reader = CharCNN if config.chars == "cnn" else CharLSTM
            self.reader = reader(config.char_embed, config.char_width)
        self.norms = _hash_table(config.word_rows, config.word_width)
        self.shapes = _hash_table(config.shape_rows, config.shape_width)

    def forward(self, words: Words, tokens: Tensor, dropout: float) -> Tensor:
        """Embed each word once, and give each token the vector of its word: (N, nO).

        words: The U distinct words.
        tokens: (N,) int64, the word of each token.
        dropout: Rate, where there is none of its own; nothing is dropped in evaluation.
        """
        if not len(tokens):  # no docs but empty ones: a gradient comes back, and ends here
            return torch.zeros((0, self.nO), device=tokens.device, requires_grad=True)
        parts = []
        if self.alphabet is not None and self.reader is not None:
            letters = F.pad(self.alphabet(words.alphabet), (0, 0, 1, 0))  # 0 after the end of words
            parts.append(self.reader(letters, words.chars))
        if self.norms is not None:
            parts.append(self.norms(words.norms))
        if self.shapes is not None:
            parts.append(self.shapes(words.shapes))
        parts.append(words.vectors)
        rate = dropout if self.config.dropout is None else self.config.dropout
        return F.dropout(F.embedding(tokens, torch.cat(parts, 1)), rate, self.training)


def char_word_embed(
    chars: str = "cnn",
    char_width: int = 50,
    char_embed: int = 30,
    word_width: int = 100,
    word_rows: int = 5000,
    shape_width: int = 25,
    shape_rows: int = 1000,
    static_vectors: bool = False,
    dropout: float | None = None,
    learn_rate_multiplier: float = 1.0,
) -> Model[list[Doc], list[Floats2d]]:
    """Build `spacy-crf-ner.CharWordEmbed.v1`: vectors of words from their spelling, as a tok2vec.

    It reads no context: that is for the layer above. What is switched on stands side by side, so
    that its width is the sum of theirs. The cost is that of the distinct words of a batch. Any
    character has a vector, seen in training or not; a word of more than 50 is read by its first
    and last 25.

    chars: What reads the characters of a word: "cnn", a convolution with a maximum over the word,
        "lstm", the last states of both directions, or "none".
    char_width: Width of what that puts out: filters, or both directions together.
    char_embed: Width of the vector of a character.
    word_width: Width of the learned vector of a word's norm; 0 for none.
    word_rows: Rows of the table that norms are hashed into, four for each.
    shape_width: Width of the learned vector of a word's shape ("Xxxx", "dd"); 0 for none.
    shape_rows: Rows of the table that shapes are hashed into, four for each.
    static_vectors: Take the vectors of the vocab as they are, neither learned nor stored with the
        model: that of the word, or else of its lower case, or else zeros. The width is that of
        the vocab when the model is initialized.
    dropout: Rate on the vectors of tokens; None takes the rate of the update, which is
        `training.dropout`.
    learn_rate_multiplier: Times the optimizer's rate.

    Sources: Ma and Hovy (2016), "End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF",
    for the CNN; Lample et al. (2016), "Neural architectures for named entity recognition", for the
    LSTM; hashing as in `thinc.api.HashEmbed`.
    Raises InputError for a setting out of its range, and where nothing is switched on.
    """
    tables = word_width, word_rows, shape_width, shape_rows
    config = WordEmbeddingConfig(chars, char_width, char_embed, *tables, static_vectors, dropout)
    return torch_layer(
        "char_word_embed",
        partial(WordEmbedding, config),
        _read_docs,
        write_vectors,
        init=partial(_init_embedding, config=config),
        nO=None if static_vectors else config.learned_width,
        learn_rate_multiplier=learn_rate_multiplier,
    )


def _init_embedding(
    model: Model[list[Doc], list[Floats2d]],
    X: list[Doc] | None = None,
    Y: Any = None,
    *,
    config: WordEmbeddingConfig,
) -> None:
    """Build the module, with new weights, for the static vectors in the vocab of X."""
    nM = 0
    if config.static_vectors:
        shape = X[0].vocab.vectors.shape if X else (0, 0)
        if 0 in shape:
            raise InputError(
                f"static_vectors: expected docs with vectors in their vocab, got {len(X or [])} "
                f"docs with {shape[0]} vectors. Make some with `spacy init vectors` and give "
                "their folder as [initialize] vectors, or set static_vectors = false."
            )
        nM = shape[1]
    shim_of(model).build_module(nM=nM)
    model.set_dim("nO", config.learned_width + nM, force=True)


def _read_docs(
    model: Model[list[Doc], list[Floats2d]], X: list[Doc], is_train: bool
) -> tuple[ArgsKwargs, Callable[[ArgsKwargs], list[Doc]]]:
    """Hand the distinct words of docs to the module, and the word of each token."""
    shim = shim_of(model)
    words, tokens = read_words(X, cast(WordEmbedding, shim.module))
    words = Words(*(numbers.to(shim.device) for numbers in words))
    # Where nothing else learns, torch yet wants the gradient to go somewhere.
    words.vectors.requires_grad_(is_train)
    # thinc's set_dropout_rate does not reach inside a torch module: the rate goes along.
    args = (words, tokens.to(shim.device), model.attrs["dropout_rate"])
    return ArgsKwargs(args=args, kwargs={}), lambda d_inputs: []


def read_words(docs: Sequence[Doc], module: WordEmbedding) -> tuple[Words, Tensor]:
    """Number the distinct words of docs, and what a module reads of them.

    Two tokens are of one word where they agree in ORTH and in NORM, which a token may have for
    itself, and in the attribute that the static vectors are looked up by.

    Returns the words, and the number of the word of each token (N,).
    Raises InputError where the static vectors are not of the width that the module has.
    """
    if not any(len(doc) for doc in docs):
        nothing = torch.zeros((0, 0))
        return Words(*[nothing] * len(Words._fields)), torch.zeros(0, dtype=torch.int64)
    vocab = docs[0].vocab
    attributes = [ORTH, NORM, getattr(vocab.vectors, "attr", ORTH), SHAPE, LOWER]
    columns = cast(IDs, np.concatenate([doc.to_array(attributes) for doc in docs]))
    first, tokens = _distinct(columns[:, :3])
    orths, norms, keys, shapes, lowers = columns[first].T
    config = module.config
    numbered, points = number_characters([vocab.strings[orth] for orth in orths.tolist()])
    vectors = torch.zeros((len(first), 0))
    if config.static_vectors:
        vectors = _look_up(vocab, module.nM, keys, lowers)
    words = Words(
        chars=torch.from_numpy(numbered),
        alphabet=_hash(points, CHAR_ROWS, CHAR_SEED),
        norms=_hash(norms, config.word_rows, NORM_SEED),
        shapes=_hash(shapes, config.shape_rows, SHAPE_SEED),
        vectors=vectors,
    )
    return words, torch.from_numpy(tokens)


def _distinct(columns: IDs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the distinct rows of (N, 3): where each comes first (U,), and which each row is (N,).

    Faster than `np.unique` of rows. A column after the other is counted in, exactly: both counts
    are N at most, so that their product has room in 64 bits.
    """
    rows = np.zeros(len(columns), dtype=np.int64)
    first = rows[:1]
    for column in columns.T:
        values, numbers = np.unique(column, return_inverse=True)
        numbers += rows * len(values)
        _, first, rows = np.unique(numbers, return_index=True, return_inverse=True)
    return first, rows


def number_characters(texts: Sequence[str]) -> tuple[NDArray[np.int64], IDs]:
    """Number the distinct characters of words from 1.

    texts: Words of one character or more, as those of spaCy are.

    Returns the words (U, L), 0 after their ends, and the code points of the characters (K,).
    """
    half = MAX_CHARS // 2
    read = [text if len(text) <= MAX_CHARS else text[:half] + text[-half:] for text in texts]
    code = "".join(read).encode("utf-32-le", "surrogatepass")
    points, numbers = np.unique(np.frombuffer(code, dtype="<u4"), return_inverse=True)
    lengths = np.array([len(text) for text in read])
    numbered = np.zeros((len(read), lengths.max()), dtype=np.int64)
    numbered[np.arange(lengths.max()) < lengths[:, None]] = numbers + 1
    return numbered, points.astype(np.uint64)


def _hash(ids: IDs, rows: int, seed: int) -> Tensor:
    """Hash ids to four rows of a table each, as thinc's HashEmbed does: (U,) -> (U, 4)."""
    keys = NumpyOps().hash(cast(Any, np.ascontiguousarray(ids)), seed)
    return torch.from_numpy((keys % rows).astype(np.int64))


def _hash_table(rows: int, width: int) -> nn.EmbeddingBag | None:
    """Make a table that the sum of four rows is taken of; None for a width of 0.

    A uniform number from -b to b has the variance b^2 / 3, and the sum of four 4 b^2 / 3. It is
    1 / width, as Ma and Hovy (2016) draw vectors of characters, where b^2 = 3 / (4 width).
    """
    if not width:
        return None
    table = nn.EmbeddingBag(rows, width, mode="sum")
    bound = sqrt(3 / (N_HASHES * width))
    nn.init.uniform_(table.weight, -bound, bound)
    return table


def _look_up(vocab: Vocab, nM: int, keys: IDs, lowers: IDs) -> Tensor:
    """Look the static vectors of words up, (U, nM) on the device where the vocab has them.

    A word has that of its key, or else of its lower case, or else zeros; of floret, a key always
    has one.
    """
    vectors = vocab.vectors
    if vectors.shape[1] != nM:
        raise InputError(
            f"Static vectors: expected a width of {nM}, as when the model was initialized, got "
            f"{vectors.shape[1]}. Give the vocab the vectors that the pipeline was trained with, "
            "or train it again."
        )
    pairs = zip(keys.tolist(), lowers.tolist())
    asked = [key if key in vectors else lower for key, lower in pairs]
    found = to_tensor(vectors.get_batch(asked)).float()
    known = torch.tensor([[key in vectors] for key in asked], device=found.device)
    return torch.where(known, found, 0.0)
