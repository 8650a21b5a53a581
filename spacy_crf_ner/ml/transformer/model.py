"""`spacy-crf-ner.Transformer.v1`: token vectors of a transformer of Hugging Face.

Axes: N tokens of all docs, A pairs of a token and one of its subwords, B windows of a batch, T
subwords of the longest one, H width of the vectors.
"""

import warnings
from functools import partial
from typing import Any, Self, cast

from spacy.tokens import Doc
from spacy.util import SimpleFrozenDict
from thinc.api import Optimizer

from ...extras import required
from ...input_error import InputError
from .spans import WINDOW, SpanGetter, sentence_windows
from .subwords import CPU, CPU_BF16, GPU, POOLINGS, Batch, Subwords, divide
from .tokenizer import Tokenizer

with required("train"):
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from ..arrays import to_tensor
    from ..device import to_device
    from ..dropout import use_fast_dropout
    from ..layer import Graph, Vectors, shim_of, torch_layer
    from ..memory import limit_kernel_cache
    from ..shim import MixedPrecision, TorchShim
    from .quantize import quantize
    from .stored import check_no_code, load, read, write

EMPTY: dict[str, Any] = SimpleFrozenDict()
LAYERS = ("last", "mix")
# Pretrained transformers are trained with 1e-5 to 3e-4.
HIGHEST_RATE = 5e-4


class TransformerEncoder(nn.Module):
    """A transformer, and the mean of its states over the subwords of each token.

    With layers "mix", states are a learned mean of those of all layers; otherwise those of the
    last.

    Source of the mix: Peters et al. (2018), "Deep contextualized word representations".
    """

    transformer: Any

    def __init__(self, transformer: Any, layers: str, is_frozen: bool) -> None:
        super().__init__()
        self.transformer, self.is_frozen = transformer, is_frozen
        if getattr(transformer, "pooler", None) is not None:
            transformer.pooler = nn.Identity()  # only classifiers read its output
        self.mix: nn.Parameter | None = None
        if layers == "mix":
            self.mix = nn.Parameter(torch.zeros(transformer.config.num_hidden_layers + 1))
        if is_frozen:
            transformer.requires_grad_(False)
        use_fast_dropout(transformer)
        tables = (each for each in transformer.modules() if isinstance(each, nn.Embedding))
        self._tables = [each for each in tables if not each.scale_grad_by_freq]

    @property
    def nO(self) -> int:
        """The width of the vectors, H."""
        return int(self.transformer.config.hidden_size)

    def train(self, mode: bool = True) -> Self:
        """Switch to training; a frozen transformer stays in evaluation."""
        super().train(mode)
        if self.is_frozen:
            self.transformer.eval()
        return self

    def forward(self, subwords: Subwords) -> Tensor:
        """Compute the vectors of tokens, (N, H) float32; zeros for a token without subwords."""
        if not subwords.batches:
            return torch.zeros((len(subwords.firsts), self.nO), device=subwords.firsts.device)
        # A dense gradient of the table of subwords has its size, for each batch.
        is_sparse = subwords.firsts.device.type == "cpu"
        for table in self._tables:
            table.sparse = is_sparse
        states = [self._encode(batch).flatten(0, 1) for batch in subwords.batches]
        rows = torch.cat(states) if len(states) > 1 else states[0]
        return F.embedding_bag(subwords.rows, rows.float(), subwords.firsts, mode="mean")

    def _encode(self, batch: Batch) -> Tensor:
        """Compute the states of the subwords of a batch: (B, T, H)."""
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if batch.types is not None:
            inputs["token_type_ids"] = batch.types
        if self.mix is None:
            return cast(Tensor, self.transformer(**inputs).last_hidden_state)
        states = self.transformer(**inputs, output_hidden_states=True).hidden_states
        weights = self.mix.softmax(0)
        mixed = (weight * state for weight, state in zip(weights, states, strict=True))
        return cast(Tensor, sum(mixed))


class TransformerShim(TorchShim):
    """A transformer, by its folder or its name on the hub, and its tokenizer.

    The settings are keyword arguments of its tokenizer, and of its config.
    """

    tokenizer: Tokenizer
    is_large = True

    def __init__(
        self,
        name: str,
        settings: tuple[dict[str, Any], dict[str, Any]],
        layers: str,
        is_frozen: bool,
        mixed_precision: MixedPrecision,
        dtype: str | None,
    ) -> None:
        build = partial(TransformerEncoder, layers=layers, is_frozen=is_frozen)
        super().__init__(build, mixed_precision, dtype)
        self.name, self._settings, self._has_warned = name, settings, False

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights; warn once about a learning rate that ruins a transformer."""
        module: Any = self._model
        has_groups = getattr(optimizer, "groups", None) or not isinstance(optimizer, Optimizer)
        learns = module is not None and not module.is_frozen and not has_groups
        if learns and optimizer.learn_rate > HIGHEST_RATE and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"[transformer] expected a learning rate of at most {HIGHEST_RATE} for a "
                f"transformer, got {optimizer.learn_rate:g}, which destroys what it has learned "
                "before. Use the optimizer that nlp.initialize() or nlp.resume_training() "
                "returns, or one with groups of parameters, as configs/transformer.cfg has it.",
                stacklevel=2,
            )
        super().finish_update(optimizer)

    @property
    def can_be_int8(self) -> bool:
        """Whether `quantize` can make it int8."""
        is_typed = self.tokenizer.encode(["a b"])[0].types.any()
        return cast(TransformerEncoder, self.module).mix is None and not is_typed

    def to_inference(self, dtype: str) -> nn.Module:
        """Make the transformer to predict with."""
        return cast(nn.Module, quantize(self.module, dtype))

    def build_module(self, **dims: int) -> None:
        """Load the pretrained transformer, on the device in use."""
        transformer, self.tokenizer = load(self.name, *self._settings)
        self.replace_module(self.build(transformer))

    def to_bytes(self) -> bytes:
        """Write weights, config and tokenizer; nothing if they are not loaded yet."""
        return b"" if self._model is None else write(self._model, self.tokenizer)

    def _read_module(self, data: bytes) -> nn.Module | None:
        """Read them. Raises InputError for bytes that cannot be used safely."""
        if not data:
            return None
        module, self.tokenizer = read(data, self.build)
        return module


def transformer(
    name: str,
    get_spans: SpanGetter | None = None,
    tokenizer_config: dict[str, Any] = EMPTY,
    transformer_config: dict[str, Any] = EMPTY,
    layers: str = "last",
    pooling: str = "mean",
    frozen: bool = False,
    mixed_precision: MixedPrecision = False,
    dtype: str | None = None,
) -> Vectors:
    """Build `spacy-crf-ner.Transformer.v1`: token vectors of a pretrained transformer.

    Windows of similar length share a batch. A token with several subwords has their mean; one
    without, such as a space, has zeros.

    Args:
        name: Local folder, or name on the hub, of a transformer with weights as safetensors. Only
            `nlp.initialize` reads it: a saved pipeline has its own copy.
        get_spans: The windows of docs that it reads; None for windows of 128 tokens at most that
            end with a sentence. One with too many subwords is divided.
        tokenizer_config: Keyword arguments of its tokenizer.
        transformer_config: Keyword arguments of its config.
        layers: "last" for the states of the last layer, or "mix" for a learned mean of all layers.
        pooling: Which subwords of a token count: "mean" for all, "first" or "last".
        frozen: Whether it keeps its weights.
        mixed_precision: True trains in bfloat16 on a GPU of compute capability 8.0 or later, and in
            float16 on an older one, with scaled gradients; it has no effect on a CPU. "bf16" trains
            in bfloat16, also on a CPU. "auto" is True on a GPU, and "bf16" on a CPU where it is
            faster, which is measured before the first update.
        dtype: The dtype of prediction: "fp32", "bf16", "fp16", "int8", or "auto" for a fast
            one on this hardware; None for that of the training. It does not affect training.
            `spacy_crf_ner.accelerate` sets it.

    Returns:
        A layer from docs to one vector per token, (T, H) for each doc.

    Raises:
        InputError: For a setting out of its range, and for settings that run code of the
            transformer's own, such as `trust_remote_code`, in a process that does not allow it.
    """
    for setting, value, choices in (("layers", layers, LAYERS), ("pooling", pooling, POOLINGS)):
        if value not in choices:
            raise InputError(f"{setting}: expected one of {[*choices]}, got {value!r}.")
    settings = dict(tokenizer_config), dict(transformer_config)
    for each in settings:
        check_no_code(each, f"The config of the transformer {name!r}")
    windows = get_spans or sentence_windows(WINDOW)
    layer = torch_layer(
        "transformer",
        partial(_vectors_in_graph, get_spans=windows, pooling=pooling),
        init=_init,
        shim=TransformerShim(name, settings, layers, frozen, mixed_precision, dtype),
    )
    layer.attrs["frozen"] = frozen
    return layer


def _init(layer: Vectors, X: list[Doc] | None = None, Y: Any = None) -> None:
    limit_kernel_cache()
    shim = shim_of(layer)
    shim.build_module()
    layer.set_dim("nO", cast(TransformerEncoder, shim.module).nO, force=True)


def _vectors_in_graph(
    graph: Graph, layer: Vectors, *, get_spans: SpanGetter, pooling: str
) -> Tensor:
    shim = cast(TransformerShim, shim_of(layer))
    limits = GPU
    device = shim.device
    if device.type == "cpu":
        limits = CPU_BF16 if not graph.is_train and shim.resolved_dtype == "bf16" else CPU
    tokenizer = shim.tokenizer
    encode = tokenizer.encode_again if graph.is_train else tokenizer.encode
    given = encode, tokenizer.longest, tokenizer.pad_id, limits, pooling
    subwords = divide(graph.docs_to_read, get_spans, *given)
    return cast(Tensor, graph.run(layer, _on_device(subwords, device)))


def _on_device(subwords: Subwords, device: torch.device) -> Subwords:
    def copied(array: Any) -> Tensor | None:
        return None if array is None else to_device(to_tensor(array), device)

    return Subwords(
        [Batch(*map(copied, batch)) for batch in subwords.batches],
        copied(subwords.rows),
        copied(subwords.firsts),
    )
