"""The network: from docs to the potentials of a CRF; and its recurrent encoder for any component.

Axes: B docs, N tokens of the batch, one doc after the other, C tags.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from ..crf import Chain
from ..crf.chain import Ints
from ..extras import required
from ..input_error import InputError

with required("train"):
    import torch
    from torch import Tensor

    from .bilstm_crf import BiLSTMCRF, BiLSTMCRFConfig, Encoder
    from .layer import Graph, Vectors, shim_of, torch_layer, width_of
    from .shim import MixedPrecision, TorchShim, module_of

# A layer is one field of msgpack, of less than 4 GiB, with the files of its tokenizer.
MAX_BYTES = 2**32 - 2**26

Network = Model[list[Doc], Chain]
Head = Model[list[Floats2d], Chain]


def bilstm_crf(
    tok2vec: Vectors,
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
) -> Network:
    """Build `spacy-crf-ner.BiLSTMCRF.v1`: a recurrent encoder and a CRF over token vectors.

    Args:
        tok2vec: A layer from docs to one vector per token, such as a transformer.
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
    head: Head = Model(
        "bilstm_crf",
        _forward_head,
        dims={"nI": None, "nO": nO},
        # Whether illegal tag sequences have no probability.
        attrs={"dropout_rate": 0.0, "constrained": decoder == "crf"},
        shims=[TorchShim(partial(BiLSTMCRF, config), mixed_precision, dtype)],
    )
    return Model(
        "crf_network",
        _forward,
        init=_init,
        layers=[tok2vec, head],
        refs={"tok2vec": tok2vec, "output_layer": head},
        dims={"nO": nO},
    )


def _forward(model: Network, docs: list[Doc], is_train: bool) -> tuple[Chain, Callable[..., Any]]:
    graph = Graph(model, docs, is_train)
    tok2vec, head = model.layers  # a copy by thinc has no references
    _ = shim_of(head).module  # before other layers: an error if there are no weights
    chain, backward = _score_tags(graph, head, graph.vectors(tok2vec))

    def backprop(d_scores: Chain) -> list[Doc]:
        backward(d_scores)
        return docs

    return chain, backprop


def _forward_head(
    model: Head, X: list[Floats2d], is_train: bool
) -> tuple[Chain, Callable[[Chain], list[Floats2d]]]:
    """Run the head alone, on vectors that do not learn from it."""
    d_X: list[list[Floats2d]] = []
    graph = Graph(model, X, is_train)
    chain, backward = _score_tags(graph, model, graph.add(model, X, d_X.append))

    def backprop(d_scores: Chain) -> list[Floats2d]:
        backward(d_scores)
        return d_X.pop()

    return chain, backprop


def _score_tags(graph: Graph, head: Head, X: Tensor) -> tuple[Chain, Callable[[Chain], None]]:
    """Compute the potentials from vectors (N, nI), and the callback for their gradient.

    Raises InputError for vectors of another width than those that the module was built for.
    """
    shim = shim_of(head)
    expected = cast(BiLSTMCRF, shim.module).dims["nI"]
    if len(X) and X.shape[1] != expected:
        raise InputError(
            f"{head.name}: expected token vectors of width {expected}, as in training, got "
            f"{X.shape[1]}. If it listens to another component, that is not the one of the "
            "training: call nlp.replace_listeners in that pipeline before you source from it."
        )
    # thinc's set_dropout_rate does not reach inside a torch module: pass the rate along.
    lengths, rate = torch.from_numpy(graph.lengths), head.attrs["dropout_rate"]
    scores: tuple[Tensor, ...] = graph.run(head, X.to(shim.device), lengths, rate)
    chain = _to_chain(scores, graph.lengths)
    return chain, lambda d_scores: graph.backward(scores, d_scores.scores)


def _to_chain(scores: tuple[Tensor, ...], lengths: Ints) -> Chain:
    # A copy: an optimizer changes the transitions in place, but predictions must not change. One
    # for all: each copy from a GPU waits.
    flat = torch.cat([each.detach().reshape(-1) for each in scores]).cpu()
    parts = torch.split(flat, [each.numel() for each in scores])
    emissions, transitions, start, end = (
        part.view(each.shape).numpy() for part, each in zip(parts, scores)
    )
    return Chain(emissions, lengths, transitions, start, end)


def _init(model: Network, X: list[Doc] | None = None, Y: Any = None) -> None:
    """Initialize the layers below, and build the module of the head, with new weights."""
    tok2vec, head = model.layers
    tok2vec.initialize(X=X)
    width = width_of(tok2vec, X)
    if width is not None:
        head.set_dim("nI", width, force=True)
    shim_of(head).build_module(nI=head.get_dim("nI"), nO=head.get_dim("nO"))
    model.set_dim("nO", head.get_dim("nO"), force=True)


def rnn_encoder(
    tok2vec: Vectors,
    rnn: str = "lstm",
    hidden_width: int = 200,
    depth: int = 1,
    bidirectional: bool = True,
    dropout: float | None = None,
    mixed_precision: MixedPrecision = False,
    dtype: str | None = None,
) -> Vectors:
    """Build `spacy-crf-ner.RNNEncoder.v1`: a recurrent encoder over token vectors, as a tok2vec.

    Any spaCy component can use it, such as a text classifier or a tagger.

    Args:
        tok2vec: A layer from docs to one vector per token, such as a transformer.
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
    return torch_layer(
        "rnn_encoder",
        _encode,
        init=_init_encoder,
        layers=[tok2vec],
        shim=TorchShim(partial(Encoder, config), mixed_precision, dtype),
        nO=hidden_width * (1 + bidirectional),
    )


def _encode(graph: Graph, layer: Vectors) -> Tensor:
    X = graph.vectors(layer.layers[0]).to(shim_of(layer).device)
    lengths, rate = torch.from_numpy(graph.lengths), layer.attrs["dropout_rate"]
    return cast(Tensor, graph.run(layer, X, lengths, rate))


def _init_encoder(model: Vectors, X: list[Doc] | None = None, Y: Any = None) -> None:
    tok2vec = model.layers[0]
    tok2vec.initialize(X=X)
    shim_of(model).build_module(nI=width_of(tok2vec, X) or 0)


def resize_output(model: Network, nO: int, like: int | None) -> None:
    """Add tags to an initialized model, nO in all; see `BiLSTMCRF.with_more_tags`."""
    head = model.get_ref("output_layer")
    shim = shim_of(head)
    shim.replace_module(cast(BiLSTMCRF, shim.module).with_more_tags(nO, like))
    for node in (model, head):
        node.set_dim("nO", nO, force=True)


def check_savable(name: str, model: Model[Any, Any]) -> None:
    """Raise InputError if a layer of a component is too large for the format of a pipeline."""
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
