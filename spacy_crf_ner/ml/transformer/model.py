"""Transformer layers of spacy-transformers, with exact alignment and faster prediction."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from spacy.tokens import Doc, Span
from spacy.util import SimpleFrozenDict
from thinc.api import ArgsKwargs, Model, chain
from thinc.types import Floats2d, Ragged
from torch import Tensor

from ...input_error import InputError
from ..checksummed import errors_of
from ..device import to_device
from ..dtype import check_dtype
from ..memory import limit_kernel_cache
from ..mixed_precision import FIRST_SCALE, MixedPrecision, in_bfloat16, in_float16
from ..random_state import kept_random_state
from ..torch_layer import to_tensor
from . import spacy_transformers_internals as spacy_trf
from .batching import encode_windows
from .pooling import TransformerBatch, pool_at_once
from .positions import limit_length
from .shim import TransformerShim
from .slow_tokenizer import offsets
from .spacy_transformers_internals import FullTransformerBatch
from .spans import SpanGetter
from .stored import check_no_code
from .windows import CPU, CPU_BF16, GPU, Padding, Wordpieces

EMPTY: dict[str, Any] = SimpleFrozenDict()


class Transformer(spacy_trf.TransformerModel):
    """spacy-transformers' layer, with our forward pass and shim; `convert_layer` makes one."""

    @property
    def shim(self) -> TransformerShim:
        """The shim that holds the weights."""
        return cast(TransformerShim, spacy_trf.hf_shim(self))

    def from_bytes(self, bytes_data: bytes) -> "Transformer":
        """Read the layer. Raises InputError for other bytes."""
        with errors_of("The file `model` of the component with the transformer"):
            super().from_bytes(bytes_data)
        return self

    def copy(self) -> "Transformer":
        """Copy the layer and its weights; the copy is a `Transformer` too."""
        copied = super().copy()  # type: ignore[no-untyped-call]  # of spacy-transformers' class
        convert_layer(copied)
        copied.attrs.update(self.attrs)
        copied.shim.take_new_id()
        return cast(Transformer, copied)


def convert_layer(layer: spacy_trf.TransformerModel) -> Transformer:
    """Convert a layer of spacy-transformers to ours, in place; it keeps its weights."""
    spacy_trf.change_class(layer, Transformer, TransformerShim, _init, _forward, _convert_inputs)
    layer.attrs["replace_listener_cfg"], layer.attrs["replace_listener"] = _replacement()
    return cast(Transformer, layer)


def transformer_model(
    name: str,
    get_spans: SpanGetter,
    tokenizer_config: dict[str, Any] = EMPTY,
    transformer_config: dict[str, Any] = EMPTY,
    mixed_precision: MixedPrecision = False,
    grad_scaler_config: dict[str, Any] = EMPTY,
    dtype: str | None = None,
) -> Model[list[Doc], FullTransformerBatch]:
    """Build `spacy-crf-ner.TransformerModel.v1`: a transformer with exact alignment.

    The alignment is also exact for a slow tokenizer with PhoBERT's continuation marks. In training
    on a CPU, windows of similar length share a batch, so that dropout draws other random numbers.

    Args:
        name: Local folder or hub name of the transformer.
        get_spans: The windows of docs that it reads.
        tokenizer_config: Keyword arguments of its tokenizer.
        transformer_config: Keyword arguments of its config.
        mixed_precision: True trains in bfloat16 on a GPU of compute capability 8.0 or later, and in
            float16 on an older one, with scaled gradients; it has no effect on a CPU. "bf16" trains
            in bfloat16, also on a CPU. "auto" is True on a GPU, and "bf16" on a CPU where it is
            faster, which is measured before the first update.
        grad_scaler_config: Settings of the scaling of gradients in float16.
        dtype: The dtype of prediction: "fp32", "bf16", "fp16", "int8", or "auto" for a fast
            one on this hardware. Windows of similar length then share a batch, and only the last
            hidden state is computed. None predicts as spacy-transformers does. It does not affect
            training. `spacy_crf_ner.accelerate` sets it.

    Returns:
        A layer from docs to the output of the transformer.

    Raises:
        InputError: For an unknown dtype, and for settings that run code of the transformer's
            own, such as `trust_remote_code`, in a process that does not allow it.
    """
    check_dtype(dtype)
    for settings in (tokenizer_config, transformer_config):
        check_no_code(settings, f"The config of the transformer {name!r}")
    theirs_alone = spacy_trf.TransformerModel(
        name,
        partial(_spans_with_tokens, get_spans),
        dict(tokenizer_config),
        dict(transformer_config),
        in_float16(mixed_precision),
        {"init_scale": FIRST_SCALE, **grad_scaler_config},
    )
    layer = convert_layer(theirs_alone)
    layer.shim.bf16 = in_bfloat16(mixed_precision)
    layer.shim.dtype = dtype
    return layer


def _spans_with_tokens(get_spans: SpanGetter, docs: list[Doc]) -> list[list[Span]]:
    """Get spans without the empty ones, which `doc_spans.v1` makes and no transformer can read."""
    return [[span for span in of_doc if len(span)] for of_doc in get_spans(docs)]


def tok2vec_transformer(
    name: str,
    get_spans: SpanGetter,
    tokenizer_config: dict[str, Any],
    pooling: Model[Ragged, Floats2d],
    grad_factor: float = 1.0,
    transformer_config: dict[str, Any] = EMPTY,
    mixed_precision: MixedPrecision = False,
    grad_scaler_config: dict[str, Any] = EMPTY,
    dtype: str | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Build `spacy-crf-ner.Tok2VecTransformer.v1`: a transformer for one component alone.

    `nlp.replace_listeners` builds one in place of a listener.

    Args:
        name: Local folder or hub name of the transformer.
        get_spans: The windows of docs that it reads.
        tokenizer_config: Keyword arguments of its tokenizer.
        pooling: From the hidden states of the wordpieces of a token to its vector.
        grad_factor: Multiplies the gradients of the transformer; 0 freezes it.
        transformer_config: Keyword arguments of its config.
        mixed_precision: Train in 16 bits: True or "auto" on a GPU, "bf16" also on a CPU.
        grad_scaler_config: Settings of the scaling of gradients in float16.
        dtype: Dtype in prediction: "fp32", "bf16", "fp16", "int8" or "auto"; None predicts
            like spacy-transformers.

    Returns:
        A layer from docs to one vector per token, (T, H) for each doc.

    Raises:
        InputError: For an unknown dtype.
    """
    shared = transformer_model(
        name,
        get_spans,
        tokenizer_config,
        transformer_config,
        mixed_precision,
        grad_scaler_config,
        dtype,
    )
    # Nested as `nlp.replace_listeners` nests them.
    model: Model[list[Doc], list[Floats2d]] = chain(
        chain(shared, spacy_trf.split_trf_batch()), spacy_trf.trfs2arrays(pooling, grad_factor)
    )
    pool_at_once(model)
    return model


def _replacement() -> tuple[Callable[..., dict[str, Any]], Callable[..., Model[Any, Any]]]:
    """Return what `nlp.replace_listeners` calls for the config of a component, then for its layer.

    The listener may be below other layers, as in `configs/transformer.cfg`, and spaCy writes its
    new config wherever the user says: usually over all of these layers. It does not tell the first
    function where. So the second one corrects the config.
    """
    written: list[dict[str, Any]] = []  # the config before, the one of the layer, and a right one

    def own_config(shared: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        config = _own_transformer(shared, before)
        (listener,) = [*_listeners(before)] or [before]
        written[:] = before, config, _replaced(before, listener, config)
        return config

    def own_layer(shared: Transformer, listener: Any, component: Any) -> Model[Any, Any]:
        before, config, right = written
        place = before if any(block is config for block in model_blocks(before)) else config
        place.clear()
        place.update(right)
        return chain(shared, spacy_trf.split_trf_batch())

    return own_config, own_layer


def _replaced(block: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Copy a block of a config, with one of the blocks in it, or itself, replaced."""
    if block is old:
        return new.copy()
    return {
        name: _replaced(inner, old, new) if isinstance(inner, dict) else inner
        for name, inner in block.items()
    }


def model_blocks(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks that name an architecture: a block of a config itself, and those in it."""
    if "@architectures" in block:
        yield block
    for inner in block.values():
        if isinstance(inner, dict):
            yield from model_blocks(inner)


def _own_transformer(shared: dict[str, Any], listener: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the transformer that replaces a listener.

    Args:
        listener: What spaCy passes: the config of the component's `model.tok2vec`, which may
            contain the listener below other layers.

    Raises:
        InputError: If it contains several listeners: spaCy would replace some of them only, and the
            pipeline could not be loaded again.
    """
    found = [*_listeners(listener)] or [listener]  # an architecture that makes it
    if len(found) > 1:
        raise InputError(
            f"replace_listeners: expected one listener in the component, got {len(found)}, of "
            "which spaCy replaces some only. Keep the shared transformer."
        )
    config: dict[str, Any] = spacy_trf.replace_listener_cfg(shared, found[0])  # type: ignore
    if config["@architectures"] != shared["@architectures"]:
        config["@architectures"] = "spacy-crf-ner.Tok2VecTransformer.v1"
    return config


def _listeners(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of listeners in a block of a config."""
    return (each for each in model_blocks(block) if "TransformerListener" in each["@architectures"])


def _init(model: Transformer, X: list[Doc] | None = None, Y: Any = None) -> None:
    limit_kernel_cache()  # before the first prediction, below
    spacy_trf.init(model)  # with docs, it does the same, and fails if some have no tokens


def _forward(
    model: Transformer, docs: list[Doc], is_train: bool
) -> tuple[FullTransformerBatch, Callable[..., Any]]:
    limit_length(model.tokenizer, model.transformer.config)
    if not is_train and model.shim.dtype is not None:
        encoded = _predict(model, docs)
        if encoded is not None:
            return encoded, lambda d_output: docs
    # theirs draws a number to decide whether to free memory: for a chance of 0, it has no effect.
    with nullcontext() if model.attrs.get("flush_cache_chance") else kept_random_state():
        output, backprop = spacy_trf.forward(model, docs, is_train)
    spans = [span for of_doc in output.spans for span in of_doc]
    characters = None if model.tokenizer.is_fast else _slow_offsets(model.tokenizer, spans)
    if spans and characters is not None:
        width = output.wordpieces.input_ids.shape[1]
        mapping = np.zeros((len(spans), width, 2), dtype="int64")
        for row, of_span in zip(mapping, characters):
            row[: len(of_span)] = of_span[:width]
        align = spacy_trf.get_alignment_via_offset_mapping(spans, cast(Any, mapping))
        output = replace(output, align=align)
    if is_train:
        output.__class__ = TransformerBatch
    return output, backprop


def _convert_inputs(
    model: Model[Any, Any], wordpieces: spacy_trf.WordpieceBatch, is_train: bool
) -> tuple[ArgsKwargs, Callable[[Any], Any]]:
    """Convert wordpieces to arguments. As theirs, but the copies to a GPU do not wait."""
    inputs = {
        "input_ids": wordpieces.input_ids,
        "attention_mask": wordpieces.attention_mask,
        "token_type_ids": wordpieces.token_type_ids,
    }
    shim = cast(TransformerShim, model.shims[0])
    kwargs = {
        name: to_device(to_tensor(given), shim.device)
        for name, given in inputs.items()
        if given is not None
    }
    return ArgsKwargs(args=(), kwargs=kwargs), lambda d_inputs: []


def _predict(model: Transformer, docs: list[Doc]) -> FullTransformerBatch | None:
    """Predict in batches of windows of similar length; None where `_tokenize` returns None."""
    windows = model.attrs["get_spans"](docs)
    wordpieces = _tokenize(model.tokenizer, [span for of_doc in windows for span in of_doc])
    if wordpieces is None:
        return None

    device = model.shim.device

    def forward(ids: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask.to(ids.dtype)}
        if types is not None:
            inputs["token_type_ids"] = types
        inputs = {name: to_device(given, device) for name, given in inputs.items()}
        output = model.shim.predict(ArgsKwargs(args=(), kwargs=inputs))
        return cast(Tensor, output.last_hidden_state)

    padding = Padding(model.tokenizer.pad_token or "", model.tokenizer.pad_token_id or 0)
    on_cpu = CPU_BF16 if model.shim.resolved_dtype == "bf16" else CPU
    limits = GPU if device.type == "cuda" else on_cpu
    return encode_windows(docs, windows, wordpieces, padding, forward, limits)


def _tokenize(tokenizer: Any, windows: list[Span]) -> Wordpieces | None:
    """Tokenize windows, each truncated to the maximum length of the tokenizer.

    Returns:
        The wordpieces; None if there is no window, or if a wordpiece is not found in its text.
    """
    if not windows:
        return None
    texts = [window.text for window in windows]
    encoded = tokenizer(
        texts, return_attention_mask=False, return_offsets_mapping=tokenizer.is_fast
    )
    longest = tokenizer.model_max_length
    ids = [row[:longest] for row in encoded["input_ids"]]
    if tokenizer.is_fast:
        characters = [row[:longest] for row in encoded["offset_mapping"]]
        strings = [encoded.tokens(i)[:longest] for i in range(len(texts))]
    else:
        slow = _slow_offsets(tokenizer, windows)
        if slow is None:
            return None
        characters = [
            row[:longest] + [(0, 0)] * (len(of_window) - len(row[:longest]))
            for row, of_window in zip(slow, ids)
        ]
        strings = [tokenizer.convert_ids_to_tokens(row) for row in ids]
    types = encoded.get("token_type_ids") or [[0] * len(row) for row in ids]
    starts, ends = np.array([pair for row in characters for pair in row], dtype=np.int64).T
    return Wordpieces(
        strings=strings,
        lengths=np.array([len(row) for row in ids]),
        ids=np.array([i for row in ids for i in row]),
        types=np.array([kind for row in types for kind in row[:longest]]),
        starts=starts,
        ends=ends,
    )


def _slow_offsets(tokenizer: Any, spans: list[Span]) -> list[list[tuple[int, int]]] | None:
    """Return the characters of the wordpieces of each span; None if a span lacks some."""
    found = [offsets(tokenizer, span.text) for span in spans]
    known = [of_span for of_span in found if of_span is not None]
    return known if len(known) == len(found) else None
