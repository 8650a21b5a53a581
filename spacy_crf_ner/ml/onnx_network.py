"""`spacy-crf-ner.OnnxNetwork.v1`: the network of an exported pipeline, without torch.

The vectors of a token are those of the network's parts, side by side: of transformers, of words,
and of layers that thinc runs. A transformer reads windows, words are read once each, and the head
reads docs, each in padded batches of similar length. So they are networks of their own: one that
reads docs alone would compute more padding, and each word again.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of the longest doc, C tags, U
distinct words, H width of the vectors of a part.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.util import SimpleFrozenDict
from thinc.api import Model, Shim
from thinc.util import to_numpy

from ..crf import Chain
from ..input_error import InputError
from .buckets import padded_buckets
from .checksummed import readable, seal, unseal
from .onnx_session import Session
from .transformer.spans import WINDOW, SpanGetter, sentence_windows
from .transformer.subwords import CPU, divide
from .transformer.tokenizer import Tokenizer
from .words import WordEmbeddingConfig, distinct_words
from .zero_width import docs_to_read, without_marks

Floats = NDArray[np.float32]
EMPTY: dict[str, Any] = SimpleFrozenDict()


def onnx_network(
    decoder: str = "crf", layers: dict[str, Any] = EMPTY, get_spans: dict[str, Any] = EMPTY
) -> Model[list[Doc], Chain]:
    """Build `spacy-crf-ner.OnnxNetwork.v1`, an exported `spacy-crf-ner.BiLSTMCRF.v1`.

    Args:
        decoder: "crf" or "softmax", as in training.
        layers: The parts that thinc runs, by their number: layers from docs to token vectors.
        get_spans: The windows that transformers read, by the number of the part; those of
            `Transformer.v1` where there is none.
    """
    model: Model[list[Doc], Chain] = Model(
        "onnx_network",
        partial(_forward, numbers=[*layers], get_spans=get_spans),
        layers=[*layers.values()],
        dims={"nI": None, "nO": None},
        attrs={"constrained": decoder == "crf"},
        shims=[OnnxShim()],
    )
    for name in ("tok2vec", "output_layer"):  # which the component asks for
        model.set_ref(name, model)
    return model


class OnnxShim(Shim):
    """The networks of an exported pipeline, and what their parts read.

    In `state`, which is empty before it is loaded, "onnx" is the head's network, "parts" has kind
    and settings of each part, and "transitions" (C, C), "start" and "end" (C,) are the scores of
    the CRF. `parts` compute vectors; None stands for one that thinc runs.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.state: dict[str, Any] = {}

    def load(self, state: dict[str, Any]) -> None:
        """Take a state. Raises an error of any kind for other values."""
        C = len(state["start"])
        for name, shape in (("transitions", (C, C)), ("start", (C,)), ("end", (C,))):
            if state[name].shape != shape or state[name].dtype != np.float32:
                raise ValueError(f"{name} is {state[name].dtype} {state[name].shape}")
        self._head = Session(state["onnx"])
        self.parts = [KINDS[part["kind"]](part["settings"]) for part in state["parts"]]
        self.state = state

    def score_tags(self, X: Floats, lengths: NDArray[np.int64]) -> Floats:
        """Compute the emissions of docs from their token vectors: (N, width) -> (N, C)."""
        C = len(self.state["start"])
        emissions = np.empty((len(X), C), dtype=np.float32)
        for docs, tokens, mask in padded_buckets(lengths):
            scores = self._head.run(X=X[tokens], lengths=lengths[docs])
            if scores.shape != (*mask.shape, C):
                raise InputError(
                    f"expected a network with {C} tags, got the scores {scores.shape} of "
                    f"{mask.shape} tokens. Copy the pipeline again."
                )
            emissions[tokens[mask]] = scores[mask]
        return emissions

    def to_bytes(self) -> bytes:
        """Write the state."""
        return seal(srsly.msgpack_dumps(self.state))

    def from_bytes(self, data: bytes) -> Self:
        """Read the state. Raises InputError for other bytes."""
        with readable("an exported network"):
            state = srsly.msgpack_loads(unseal(data))
            if state:
                self.load(state)
        return self

    def to_device(self, device_type: str, device_id: int) -> None:
        """Stay on the CPU."""

    def finish_update(self, optimizer: Any) -> None:
        """Change nothing: there is no gradient."""


class Words:
    """A part with the vectors of `spacy-crf-ner.CharWordEmbed.v1`.

    Its settings are "config", that of the layer, "nM", the width of the static vectors, and "onnx".
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.config, self.nM = WordEmbeddingConfig(**settings["config"]), settings["nM"]
        self._network = Session(settings["onnx"])

    def vectors(self, docs: list[Doc], get_spans: SpanGetter | None) -> Floats:
        """Compute the vectors of tokens: (N, H)."""
        words, tokens = distinct_words(docs, self.config, self.nM)
        learned = np.zeros((len(words.chars), self.config.learned_width), dtype=np.float32)
        if self.config.learned_width:
            for batch, _, mask in padded_buckets((words.chars > 0).sum(1)):
                learned[batch] = self._network.run(
                    chars=words.chars[batch, : len(mask)],
                    alphabet=words.alphabet,
                    norms=words.norms[batch],
                    shapes=words.shapes[batch],
                )
        static = to_numpy(words.vectors)  # type: ignore[no-untyped-call]
        return np.concatenate([learned, static], axis=1)[tokens]


class Transformer:
    """A part with the vectors of `spacy-crf-ner.Transformer.v1`.

    Its settings are "tokenizer", the arguments of its `Tokenizer`, "pooling", "nO", and "onnx".
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self._network = settings, Session(settings["onnx"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises InputError if the library is not installed."""
        return Tokenizer(**self.settings["tokenizer"])

    def vectors(self, docs: list[Doc], get_spans: SpanGetter | None) -> Floats:
        """Compute the vectors of tokens, (N, H); zeros for a token without subwords."""
        tokenizer, windows = self.tokenizer, get_spans or sentence_windows(WINDOW)
        given = tokenizer.encode, tokenizer.longest, tokenizer.pad_id, CPU
        subwords = divide(docs, windows, *given, self.settings["pooling"])
        pooled = np.zeros((len(subwords.firsts), self.settings["nO"]), dtype=np.float32)
        counts = np.diff(subwords.firsts, append=len(subwords.rows))
        found = counts > 0
        if found.any():
            states = []
            for ids, mask, _ in subwords.batches:
                mask = np.ones_like(ids) if mask is None else mask
                states.append(self._network.run(input_ids=ids, attention_mask=mask))
            rows = np.concatenate([each.reshape(-1, each.shape[-1]) for each in states])
            sums = np.add.reduceat(rows[subwords.rows], subwords.firsts[found])
            pooled[found] = sums / counts[found, None].astype(np.float32)
        return pooled


KINDS: dict[str, Callable[[Any], Any]] = {
    "layer": lambda settings: None,
    "transformer": Transformer,
    "words": Words,
}


def check_trainable(model: Model[Any, Any]) -> None:
    """Raise InputError if a layer, or one in it, only predicts."""
    if any(isinstance(shim, OnnxShim) for node in model.walk() for shim in node.shims):
        raise InputError(
            "expected a pipeline that can be trained, got an exported one, which only predicts. "
            "Train the pipeline that it was exported from, and export it again."
        )


def _forward(
    model: Model[list[Doc], Chain],
    docs: list[Doc],
    is_train: bool,
    *,
    numbers: list[str],
    get_spans: dict[str, SpanGetter],
) -> tuple[Chain, Callable[[Any], Any]]:
    if is_train:
        check_trainable(model)
    shim: Any = model.shims[0]
    if not shim.state:
        raise InputError(
            "The model has no weights yet: expected an exported pipeline. Load one with "
            "spacy.load(), or train with the config of the pipeline that it was exported from."
        )
    transitions, start, end = (shim.state[name].copy() for name in ("transitions", "start", "end"))
    lengths = np.array([len(doc) for doc in docs], dtype=np.int64)
    emissions = np.zeros((0, len(start)), dtype=np.float32)
    if lengths.any():  # without a token, the docs may be other sequences
        layers, own = dict(zip(numbers, model.layers)), [without_marks(doc) for doc in docs]
        found = []
        for number, part in zip(map(str, range(len(shim.parts))), shim.parts):
            if part is None:
                Y = layers[number].predict(docs_to_read(layers[number], docs))
                found.append(to_numpy(model.ops.flatten(Y)))  # type: ignore[no-untyped-call]
            else:
                found.append(part.vectors(own, get_spans.get(number)))
        X = np.concatenate(found, axis=1) if len(found) > 1 else found[0]
        emissions = shim.score_tags(X, lengths)
    return Chain(emissions, lengths, transitions, start, end), lambda d_scores: []
