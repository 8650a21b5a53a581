"""Transformers that only predict: their last hidden state, in another precision."""

import os
import warnings
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Tuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ..precision import DTYPES, does_bf16, sharing_copy


def lower_transformer(transformer: nn.Module, precision: str) -> nn.Module:
    """Make a module that computes the last hidden state of a transformer, and nothing else.

    transformer: Of the library transformers.
    precision: What `choose` has chosen.

    Returns a module that takes what the transformer does, and that may share its weights; what it
    puts out is float32 always.
    """
    bare = sharing_copy(transformer)
    if "pooler" in bare._modules:  # a layer over the first subword, which only classifiers read
        bare._modules["pooler"] = None
    if precision == "int8":
        return OnnxTransformer(bare)
    dtype = DTYPES[precision]
    if dtype is not torch.float32:
        bare = deepcopy(bare).to(dtype)
        if does_bf16() and next(bare.parameters()).device.type == "cpu":
            _pack(bare)
    return LastHiddenState(bare)


class LastHiddenState(nn.Module):
    """A transformer without its other outputs, such as attentions.

    transformer: Of the library transformers.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, **inputs: Tensor) -> BaseModelOutput:
        """Compute the last hidden state, (B, T, H) float32, of what the transformer takes."""
        output = self.transformer(**inputs, output_attentions=False, output_hidden_states=False)
        return BaseModelOutput(last_hidden_state=output.last_hidden_state.float())


class PackedLinear(nn.Module):
    """A linear layer whose weights lie as oneDNN reads them, with the activation in the same pass.

    torch.compile makes the same of a layer; it wants a C++ compiler where the pipeline runs, and
    compiles anew for new shapes. On a CPU with AMX this makes MiniLM faster by an eighth.

    linear: Its weights, in bfloat16.
    activation: "none" or "gelu".
    """

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.activation = activation
        self.approximation = "none" if activation == "gelu" else ""

    def forward(self, X: Tensor) -> Tensor:
        """(..., nI) -> (..., nO)."""
        Y: Tensor = torch.ops.mkldnn._linear_pointwise(
            X, self.weight, self.bias, self.activation, [], self.approximation
        )
        return Y


def _pack(module: nn.Module) -> None:
    """Pack the linear layers of a module, in place."""
    for name, child in module.named_children():
        # The first half of the feed-forward layer, as BERT and those after it name it.
        if getattr(getattr(child, "intermediate_act_fn", None), "act", None) is F.gelu:
            child.dense = PackedLinear(cast(nn.Linear, child.dense), "gelu")
            child.intermediate_act_fn = nn.Identity()
        elif type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            _pack(child)


class OnnxTransformer(nn.Module):
    """A transformer in ONNX Runtime, its linear layers in int8; it computes the last hidden state.

    Weights are rounded once, each row on its own scale, and what goes into a layer as it comes.

    transformer: Of the library transformers, on the CPU.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        with TemporaryDirectory() as folder:
            self.quantized = _quantize(transformer, Path(folder))
        self._session: Tuple[int, Any] = (0, None)

    @property
    def session(self) -> Any:
        """What runs it: of this process, as its threads are in no child of a fork."""
        from onnxruntime import InferenceSession, SessionOptions

        if self._session[0] != os.getpid():
            options = SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            running = InferenceSession(self.quantized, options, providers=["CPUExecutionProvider"])
            self._session = os.getpid(), running
        return self._session[1]

    def forward(self, **inputs: Tensor) -> BaseModelOutput:
        """Compute the last hidden state, (B, T, H) float32, of what the transformer takes.

        Raises ValueError for token types other than 0, which the exported transformer has not.
        """
        types = inputs.pop("token_type_ids", None)
        if types is not None and types.any():
            raise ValueError(
                "precision: int8 is for transformers with one token type, got several. Choose "
                "another precision."
            )
        arrays = {name: given.long().numpy() for name, given in inputs.items()}
        (hidden,) = self.session.run(None, arrays)
        return BaseModelOutput(last_hidden_state=cast(Any, torch.from_numpy(hidden)))


def _quantize(transformer: nn.Module, folder: Path) -> bytes:
    """Write a transformer as ONNX Runtime reads it, in int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    whole, prepared, quantized = (
        str(folder / f"{name}.onnx") for name in ("whole", "prepared", "int8")
    )
    example = torch.ones((2, 8), dtype=torch.int64)
    axes = {0: "B", 1: "T"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        torch.onnx.export(
            _Exported(transformer).eval(),
            (example, example),
            whole,
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys(["input_ids", "attention_mask", "last_hidden_state"], axes),
            opset_version=17,
            dynamo=False,
        )
    quant_pre_process(whole, prepared, skip_symbolic_shape=True)
    quantize_dynamic(prepared, quantized, weight_type=QuantType.QInt8, per_channel=True)
    return Path(quantized).read_bytes()


class _Exported(nn.Module):
    """A transformer as a function of two tensors to one, as the exporter wants it."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        output = self.transformer(input_ids=input_ids, attention_mask=attention_mask)
        hidden: Tensor = output.last_hidden_state
        return hidden
