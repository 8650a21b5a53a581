"""The distinct words of docs, as numbers: characters, norm, shape and static vector of each.

Axes: N tokens of the batch, one doc after the other; U distinct words, L characters of the longest,
K distinct characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import LOWER, NORM, ORTH, SHAPE
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import NumpyOps
from thinc.util import get_array_module

from ..input_error import InputError
from .require import check_dropout, require

CHARS = ("cnn", "lstm", "none")
# Of a longer word, the first and last characters are read: they hold its affixes.
MAX_CHARS = 50
# Each character is hashed to four rows: less than one pair in 10^10 has the same sum. With code
# points modulo 1024, Cyrillic letters would share rows with digits.
CHAR_ROWS = 1024
# Characters, norms and shapes are hashed with different seeds.
CHAR_SEED, NORM_SEED, SHAPE_SEED = 7, 8, 9

IDs = NDArray[np.uint64]


@dataclass(frozen=True)
class WordEmbeddingConfig:
    """The settings of `spacy-crf-ner.CharWordEmbed.v1`; raises InputError if out of range."""

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
        check_dropout(self)
        if not self.learned_width and not self.static_vectors:
            raise InputError(
                "Expected at least one feature of a word, got chars = 'none', "
                "word_width = 0, shape_width = 0 and static_vectors = false. Switch one on."
            )

    @property
    def learned_width(self) -> int:
        """Width of a word's vector, without the static vector."""
        chars = 0 if self.chars == "none" else self.char_width
        return chars + self.word_width + self.shape_width


class Words(NamedTuple):
    """The distinct words of a batch, as arrays, or as tensors for a torch module.

    Features that are switched off are not read.
    """

    chars: Any  # (U, L) int64, numbers of characters, from 1; 0 after the end
    alphabet: Any  # (K, 4) int64, the table rows of character 1, 2 and so on
    norms: Any  # (U, 4) int64, the table rows of their norms
    shapes: Any  # (U, 4) int64, the table rows of their shapes
    vectors: Any  # (U, nM) float32, their static vectors, on the device of the vocab's vectors


def distinct_words(
    docs: Sequence[Doc], config: WordEmbeddingConfig, nM: int
) -> tuple[Words, NDArray[np.int64]]:
    """Number the distinct words of docs; return their features, and the word of each token: (N,).

    Two tokens are the same word if they agree in ORTH, in NORM, which a token can override, and in
    the attribute that is the key of the static vectors. Raises InputError if these do not have the
    width nM.
    """
    if not any(len(doc) for doc in docs):
        nothing = np.zeros((0, 0), dtype=np.int64)
        vectors = nothing.astype(np.float32)
        return Words(nothing, nothing, nothing, nothing, vectors), np.zeros(0, dtype=np.int64)
    vocab = docs[0].vocab
    attributes = [ORTH, NORM, getattr(vocab.vectors, "attr", ORTH), SHAPE, LOWER]
    columns = cast(IDs, np.concatenate([doc.to_array(attributes) for doc in docs]))
    first, tokens = _distinct(columns[:, :3])
    orths, norms, keys, shapes, lowers = columns[first].T
    of_token = np.repeat(np.arange(len(docs)), [len(doc) for doc in docs])  # vocabs may differ
    pairs = zip(of_token[first].tolist(), orths.tolist())
    chars, points = number_characters([docs[i].vocab.strings[orth] for i, orth in pairs])
    vectors = np.zeros((len(first), 0), dtype=np.float32)
    if config.static_vectors:
        vectors = _look_up(vocab, nM, keys, lowers)
    words = Words(
        chars,
        alphabet=_hash(points, CHAR_ROWS, CHAR_SEED),
        norms=_hash(norms, config.word_rows, NORM_SEED),
        shapes=_hash(shapes, config.shape_rows, SHAPE_SEED),
        vectors=vectors,
    )
    return words, tokens


def _distinct(columns: IDs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the distinct rows of (N, 3): the first of each (U,), and the number of each row (N,).

    Faster than `np.unique` of rows: it adds one column after the other. Both counts are at most N,
    so their product fits in 64 bits.
    """
    rows = np.zeros(len(columns), dtype=np.int64)
    first = rows[:1]
    for column in columns.T:
        values, numbers = np.unique(column, return_inverse=True)
        numbers += rows * len(values)
        _, first, rows = np.unique(numbers, return_index=True, return_inverse=True)
    return first, rows


def number_characters(texts: Sequence[str]) -> tuple[NDArray[np.int64], IDs]:
    """Number the distinct characters of words from 1; no word is empty.

    The words are (U, L), 0 after their ends, and the code points of the characters (K,).
    """
    half = MAX_CHARS // 2
    read = [text if len(text) <= MAX_CHARS else text[:half] + text[-half:] for text in texts]
    code = "".join(read).encode("utf-32-le", "surrogatepass")
    points, numbers = np.unique(np.frombuffer(code, dtype="<u4"), return_inverse=True)
    lengths = np.array([len(text) for text in read])
    numbered = np.zeros((len(read), lengths.max()), dtype=np.int64)
    numbered[np.arange(lengths.max()) < lengths[:, None]] = numbers + 1
    return numbered, points.astype(np.uint64)


def _hash(ids: IDs, rows: int, seed: int) -> NDArray[np.int64]:
    """Hash ids to four rows of a table each, as thinc's HashEmbed does: (U,) -> (U, 4)."""
    keys = NumpyOps().hash(cast(Any, np.ascontiguousarray(ids)), seed)
    return cast(NDArray[np.int64], (keys % rows).astype(np.int64))


def _look_up(vocab: Vocab, nM: int, keys: IDs, lowers: IDs) -> Any:
    """Look up the static vectors of words: (U, nM), on the device of the vocab's vectors.

    A word has the vector of its key, else of its lower case, else zeros. Floret has a vector for
    every key.
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
    found = vectors.get_batch(asked).astype(np.float32)
    xp: Any = get_array_module(found)  # type: ignore[no-untyped-call]
    return xp.where(xp.array([[key in vectors] for key in asked]), found, xp.float32(0.0))
