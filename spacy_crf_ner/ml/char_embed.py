"""Token vectors without a transformer: characters, norm and shape of each distinct word.

Axes: N tokens of the batch, one doc after the other; U distinct words, L characters of the longest,
K distinct characters.
"""

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Any, cast

from spacy.tokens import Doc

from ..extras import required
from ..input_error import InputError
from .words import CHAR_ROWS, WordEmbeddingConfig, Words, distinct_words

with required("train"):
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn
    from torch.nn.utils.rnn import pack_padded_sequence

    from .arrays import to_tensor
    from .bilstm_crf import flatten_weights
    from .device import to_device
    from .dropout import fast_dropout
    from .layer import Graph, Vectors, shim_of, torch_layer
    from .shim import TorchShim


class CharCNN(nn.Module):
    """A convolution over three characters, and the maximum over a word.

    A batch has few distinct characters, but many triples of them. So each character is multiplied
    once with each third of the kernel, and a triple is the sum of three rows.
    """

    def __init__(self, nI: int, nO: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(nI, nO, kernel_size=3, padding=1)

    def forward(self, letters: Tensor, chars: Tensor) -> Tensor:
        """Encode words: (U, nO).

        `letters` are the vectors of characters, (K + 1, nI), row 0 zeros; `chars`, (U, L) int64,
        has their numbers, 0 after the end of a word.
        """
        rows = torch.cat(self.multiplied(letters))
        padded, K = F.pad(chars, (1, 1)), len(letters)
        triples = torch.stack([padded[:, :-2], chars + K, padded[:, 2:] + 2 * K], 2)  # (U, L, 3)
        if chars.is_cuda:  # with the padding: the host need not wait for the number of characters
            read = F.embedding_bag(triples.flatten(0, 1), rows, mode="sum")
            read = read.view(*chars.shape, read.shape[1])
            # ReLU of a maximum is the maximum with 0, so that padding of 0 does not count.
            return torch.relu(read.masked_fill((chars == 0).unsqueeze(2), 0.0).amax(1))
        inside = torch.nonzero(chars, as_tuple=True)
        read = F.embedding_bag(triples[inside], rows, mode="sum")
        word = inside[0].unsqueeze(1).expand_as(read)
        zeros = read.new_zeros(len(chars), read.shape[1])
        # Equal maxima share the gradient, as in `amax`.
        return torch.relu(zeros.scatter_reduce(0, word, read, "amax"))

    def multiplied(self, letters: Tensor) -> list[Tensor]:
        """Multiply the characters with each third of the kernel, the bias in the second one.

        From (K + 1, nI) to three of (K + 1, nO).
        """
        before, here, after = (letters @ part.T for part in self.convolution.weight.unbind(2))
        return [before, here + cast(Tensor, self.convolution.bias), after]


class CharLSTM(nn.Module):
    """A bidirectional LSTM over the characters of a word: the last state of each direction."""

    def __init__(self, nI: int, nO: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(nI, nO // 2, batch_first=True, bidirectional=True)

    def forward(self, letters: Tensor, chars: Tensor) -> Tensor:
        """Encode words as `CharCNN.forward`: (U, nO), also if the LSTM computes in 16 bits."""
        lengths = (chars > 0).sum(1).cpu()
        vectors = F.embedding(chars, letters).to(self.lstm.all_weights[0][0].dtype)
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        flatten_weights(self.lstm)
        last = self.lstm(packed)[1][0]  # (2, U, nO / 2)
        return cast(Tensor, last.transpose(0, 1).flatten(1).to(letters.dtype))


class WordEmbedding(nn.Module):
    """Word vectors: the vectors of characters, norm and shape and the static one, concatenated.

    The static ones have the width nM, 0 for none.
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
        """Embed each of U words once, and give each token the vector of its word: (N, nO).

        `tokens`, (N,) int64, has the word of each token. A dropout rate in the config takes
        precedence.
        """
        if not len(tokens):
            return torch.zeros((0, self.nO), device=tokens.device)
        parts = []
        if self.alphabet is not None and self.reader is not None:
            letters = F.pad(self.alphabet(words.alphabet), (0, 0, 1, 0))  # row 0 is zeros
            parts.append(self.reader(letters, words.chars))
        for table, rows in ((self.norms, words.norms), (self.shapes, words.shapes)):
            if table is not None:
                parts.append(table(rows))
        parts.append(words.vectors)
        rate = dropout if self.config.dropout is None else self.config.dropout
        return fast_dropout(F.embedding(tokens, torch.cat(parts, 1)), rate, self.training)


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
) -> Vectors:
    """Build `spacy-crf-ner.CharWordEmbed.v1`: word vectors from characters, norm and shape.

    A tok2vec whose vectors do not depend on context. It concatenates the vectors of all features
    that are switched on, and computes each distinct word of a batch once. Characters that are not
    in the training data have vectors too. Of a word with more than 50 characters, the first and
    last 25 are read.

    Args:
        chars: Encoder of the characters of a word: "cnn", a convolution with max pooling; "lstm",
            the last states of both directions; or "none".
        char_width: Width of its output: filters, or both directions together.
        char_embed: Width of the vector of a character.
        word_width: Width of the learned vector of a word's norm; 0 for none.
        word_rows: Rows of the table that norms are hashed into; each norm uses four.
        shape_width: Width of the learned vector of a word's shape ("Xxxx", "dd"); 0 for none.
        shape_rows: Rows of the table that shapes are hashed into; each shape uses four.
        static_vectors: Use the vectors of the vocab, neither trained nor stored with the model: the
            vector of the word, else of its lower case, else zeros. Initializing the model fixes
            their width.
        dropout: Dropout rate on token vectors; None uses the rate of the update,
            `training.dropout`.

    Raises:
        InputError: For a setting out of its range, and if no feature is switched on.

    Sources: Ma and Hovy (2016), "End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF",
    for the CNN; Lample et al. (2016), "Neural architectures for named entity recognition", for the
    LSTM; hashing as in `thinc.api.HashEmbed`.
    """
    tables = word_width, word_rows, shape_width, shape_rows
    config = WordEmbeddingConfig(chars, char_width, char_embed, *tables, static_vectors, dropout)
    return torch_layer(
        "char_word_embed",
        _vectors_in_graph,
        init=partial(_init, config=config),
        shim=TorchShim(partial(WordEmbedding, config)),
        nO=None if static_vectors else config.learned_width,
    )


def _init(
    model: Vectors, X: list[Doc] | None = None, Y: Any = None, *, config: WordEmbeddingConfig
) -> None:
    """Build the module, with new weights, for the width of the static vectors in X's vocab."""
    nM = 0
    if config.static_vectors:
        shape = X[0].vocab.vectors.shape if X else (0, 0)
        if 0 in shape:
            raise InputError(
                f"static_vectors: expected docs with vectors in their vocab, got {len(X or [])} "
                f"docs with {shape[0]} vectors. Create them with `spacy init vectors` and set "
                "[initialize] vectors to their folder, or set static_vectors = false."
            )
        nM = shape[1]
    shim_of(model).build_module(nM=nM)
    model.set_dim("nO", config.learned_width + nM, force=True)


def _vectors_in_graph(graph: Graph, layer: Vectors) -> Tensor:
    shim = shim_of(layer)
    words, tokens = read_words(graph.docs_to_read, cast(WordEmbedding, shim.module))
    words = Words(*(to_device(numbers, shim.device) for numbers in words))
    # thinc's set_dropout_rate does not reach inside a torch module: pass the rate along.
    rate = layer.attrs["dropout_rate"]
    return cast(Tensor, graph.run(layer, words, to_device(tokens, shim.device), rate))


def read_words(docs: Sequence[Doc], module: WordEmbedding) -> tuple[Words, Tensor]:
    """Return the `distinct_words` of docs as tensors for a module, and their numbers (N,)."""
    words, tokens = distinct_words(docs, module.config, module.nM)
    return Words(*map(to_tensor, words)), to_tensor(tokens)


def _hash_table(rows: int, width: int) -> nn.EmbeddingBag | None:
    """Make a table for sums of four rows; None for a width of 0.

    A uniform number from -b to b has variance b^2 / 3, and a sum of four has 4 b^2 / 3. With
    b^2 = 3 / (4 width) this is 1 / width, as for the character vectors of Ma and Hovy (2016).
    """
    if not width:
        return None
    table = nn.EmbeddingBag(rows, width, mode="sum")
    bound = sqrt(3 / (4 * width))
    nn.init.uniform_(table.weight, -bound, bound)
    return table
