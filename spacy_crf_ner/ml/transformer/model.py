"""Transformers as layers: those of spacy-transformers, aligned exactly, and faster."""

from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

import numpy as np
from spacy.tokens import Doc, Span
from spacy.util import SimpleFrozenDict
from spacy_transformers.align import get_alignment_via_offset_mapping
from spacy_transformers.data_classes import FullTransformerBatch
from spacy_transformers.layers._util import replace_listener_cfg
from spacy_transformers.layers.split_trf import split_trf_batch
from spacy_transformers.layers.transformer_model import TransformerModel, forward
from spacy_transformers.layers.trfs2arrays import trfs2arrays
from thinc.api import ArgsKwargs, Model, chain
from thinc.types import Floats2d, Ragged
from torch import Tensor

from ..mixed_precision import MixedPrecision
from ..precision import PredictionShim, require_precision
from .batching import CPU, CPU_BF16, GPU, Padding, Subwords, feed
from .quantize import lower_transformer
from .slow_tokenizer import SlowTokenizerShim, offsets
from .training_shim import TrainingShim

SpanGetter = Callable[[List[Doc]], List[List[Span]]]

NOTHING: Dict[str, Any] = SimpleFrozenDict()


class TransformerShim(TrainingShim, PredictionShim, SlowTokenizerShim):
    """spacy-transformers' shim, which trains faster, and predicts in a precision of its own."""

    lower = staticmethod(lower_transformer)


class Transformer(TransformerModel):
    """spacy-transformers' layer, in our way where ours is more exact or faster."""

    def __init__(
        self,
        name: str,
        get_spans: SpanGetter,
        tokenizer_config: Dict[str, Any],
        transformer_config: Dict[str, Any],
        mixed_precision: MixedPrecision,
        grad_scaler_config: Dict[str, Any],
    ):
        super().__init__(
            name,
            get_spans,
            tokenizer_config,
            transformer_config,
            mixed_precision is True,
            grad_scaler_config,
        )
        adopt(self)
        self.shim.bf16 = mixed_precision == "bf16"

    @property
    def shim(self) -> TransformerShim:
        """What holds the weights."""
        return cast(TransformerShim, self.layers[0].shims[0])

    def copy(self) -> "Transformer":
        """Copy the layer and its weights; a copy aligns as this does."""
        copied = super().copy()  # type: ignore[no-untyped-call]  # of spacy-transformers' class
        adopt(copied)
        copied.attrs.update(self.attrs)
        return cast(Transformer, copied)


def adopt(layer: TransformerModel) -> Transformer:
    """Make a layer of spacy-transformers one of ours, with its weights."""
    layer.__class__, layer._func = Transformer, _forward
    layer.layers[0].shims[0].__class__ = TransformerShim
    layer.attrs["replace_listener_cfg"] = _own_transformer
    return cast(Transformer, layer)


def transformer_model(
    name: str,
    get_spans: SpanGetter,
    tokenizer_config: Dict[str, Any] = NOTHING,
    transformer_config: Dict[str, Any] = NOTHING,
    mixed_precision: MixedPrecision = False,
    grad_scaler_config: Dict[str, Any] = NOTHING,
    precision: Optional[str] = None,
) -> Model[List[Doc], FullTransformerBatch]:
    """Make a transformer whose slow tokenizer aligns as exactly as a fast one.

    mixed_precision: True trains in float16 on a GPU, with scaled gradients; "bf16" trains in
        bfloat16, on a GPU that has it or on a CPU, where it is faster with AMX.
    precision: What it predicts in: "fp32", "bf16", "fp16", "int8", or "auto" for what the hardware
        does well. Windows of like length are then in one batch, and it computes nothing but its
        last hidden state. None predicts as spacy-transformers does. Training is in float32, or in
        `mixed_precision`, whatever is here. `spacy_crf_ner.accelerate` sets it.

    The other settings are those of `spacy-transformers.TransformerModel.v3`. With None, and a fast
    tokenizer or a slow one of other marks than PhoBERT's, so is all that it does.

    Returns a layer from docs to the output of the transformer.
    Raises ValueError for an unknown precision.
    """
    require_precision(precision)
    layer = Transformer(
        name,
        get_spans,
        dict(tokenizer_config),
        dict(transformer_config),
        mixed_precision,
        dict(grad_scaler_config),
    )
    layer.shim.precision = precision
    return layer


def tok2vec_transformer(
    name: str,
    get_spans: SpanGetter,
    tokenizer_config: Dict[str, Any],
    pooling: Model[Ragged, Floats2d],
    grad_factor: float = 1.0,
    transformer_config: Dict[str, Any] = NOTHING,
    mixed_precision: MixedPrecision = False,
    grad_scaler_config: Dict[str, Any] = NOTHING,
    precision: Optional[str] = None,
) -> Model[List[Doc], List[Floats2d]]:
    """Make such a transformer for one component alone, as `nlp.replace_listeners` does.

    The settings are those of `spacy-crf-ner.TransformerModel.v1` and of
    `spacy-transformers.Tok2VecTransformer.v3`.

    Returns a layer from docs to one vector a token.
    Raises ValueError for an unknown precision.
    """
    shared = transformer_model(
        name,
        get_spans,
        tokenizer_config,
        transformer_config,
        mixed_precision,
        grad_scaler_config,
        precision,
    )
    # A chain of a chain, as a listener that is replaced becomes one.
    return chain(chain(shared, split_trf_batch()), trfs2arrays(pooling, grad_factor))


def _own_transformer(ours: Dict[str, Any], listener: Dict[str, Any]) -> Dict[str, Any]:
    """The config of a component over this transformer that no longer listens, but has its own."""
    config: Dict[str, Any] = replace_listener_cfg(ours, listener)  # type: ignore[no-untyped-call]
    if config["@architectures"] != ours["@architectures"]:
        config["@architectures"] = "spacy-crf-ner.Tok2VecTransformer.v1"
    return config


def _forward(
    model: Transformer, docs: List[Doc], is_train: bool
) -> Tuple[FullTransformerBatch, Callable[..., Any]]:
    if not is_train and model.shim.precision is not None:
        fed = _feed(model, docs)
        if fed is not None:
            return fed, lambda d_output: docs
    output, backprop = forward(model, docs, is_train)
    spans = [span for of_doc in output.spans for span in of_doc]
    if spans and not model.tokenizer.is_fast:
        width = output.wordpieces.input_ids.shape[1]
        known = [offsets(model.tokenizer, span.text) for span in spans]
        found = [of_span for of_span in known if of_span is not None]
        if len(found) == len(spans):
            mapping = np.zeros((len(spans), width, 2), dtype="int64")
            for row, of_span in zip(mapping, found):
                row[: len(of_span)] = of_span[:width]
            align = get_alignment_via_offset_mapping(spans, mapping)  # type: ignore[arg-type]  # of spans
            output = replace(output, align=align)
    return output, backprop


def _feed(model: Transformer, docs: List[Doc]) -> Optional[FullTransformerBatch]:
    """Predict in batches of windows of like length.

    Returns None where there is no window, or nothing says where its subwords are in the text.
    """
    windows = model.attrs["get_spans"](docs)
    subwords = _subwords(model.tokenizer, [span.text for of_doc in windows for span in of_doc])
    if subwords is None:
        return None

    device = model.shim.device

    def run(ids: Tensor, mask: Tensor, types: Optional[Tensor]) -> Tensor:
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device, ids.dtype)}
        if types is not None:
            inputs["token_type_ids"] = types.to(device)
        output = model.shim.predict(ArgsKwargs(args=(), kwargs=inputs))
        return cast(Tensor, output.last_hidden_state)

    padding = Padding(model.tokenizer.pad_token or "", model.tokenizer.pad_token_id or 0)
    limits = GPU if device.type == "cuda" else CPU_BF16 if model.shim.chosen == "bf16" else CPU
    return feed(docs, windows, subwords, padding, run, limits)


def _subwords(tokenizer: Any, texts: List[str]) -> Optional[Subwords]:
    """Tokenize the texts of windows, each cut off where it is too long for the transformer.

    Returns None where there is no text, or not all subwords are found in theirs.
    """
    if not texts:
        return None
    encoded = tokenizer(
        texts,
        return_attention_mask=False,
        return_offsets_mapping=tokenizer.is_fast,
    )
    most = tokenizer.model_max_length
    ids = [row[:most] for row in encoded["input_ids"]]
    if tokenizer.is_fast:
        characters = [row[:most] for row in encoded["offset_mapping"]]
        strings = [encoded.tokens(i)[:most] for i in range(len(texts))]
    else:
        known = [offsets(tokenizer, text) for text in texts]
        characters = [row[:most] for row in known if row is not None]
        if len(characters) < len(texts):
            return None
        for row, of_window in zip(characters, ids):
            row += [(0, 0)] * (len(of_window) - len(row))
        strings = [tokenizer.convert_ids_to_tokens(row) for row in ids]
    types = encoded.get("token_type_ids") or [[0] * len(row) for row in ids]
    starts, ends = np.array([pair for row in characters for pair in row], dtype=np.int64).T
    return Subwords(
        strings=strings,
        lengths=np.array([len(row) for row in ids]),
        ids=np.array([i for row in ids for i in row]),
        types=np.array([kind for row in types for kind in row[:most]]),
        starts=starts,
        ends=ends,
    )
