"""Transformers that only predict: their last hidden state, in another precision."""

import warnings
from copy import copy, deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from .precision import DTYPES, has_onnx


def lower_transformer(transformer: nn.Module, precision: str) -> nn.Module:
    """Make a module that computes the last hidden state of a transformer, and nothing else.

    transformer: Of the library transformers.
    precision: One of PRECISIONS, not "auto".

    Returns a module that takes what the transformer does, and that may share its weights; what it
    puts out is float32 always.
    Raises ValueError for "int8" where a package for it is not installed.
    """
    bare = _without_pooler(transformer)
    if precision == "int8":
        return OnnxTransformer(bare)
    dtype = DTYPES[precision]
    if dtype is not torch.float32:
        bare = deepcopy(bare).to(dtype)
        if next(bare.parameters()).device.type == "cpu":
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


def _without_pooler(transformer: nn.Module) -> nn.Module:
    """The same module without the layer over the first subword, which only classifiers read."""
    bare = copy(transformer)
    bare._modules = dict(transformer._modules)
    if "pooler" in bare._modules:
        bare._modules["pooler"] = None
    return bare


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

    def forward(self, X: Tensor) -> Tensor:
        """(..., nI) -> (..., nO)."""
        packed: Tensor = torch.ops.mkldnn._linear_pointwise(
            X, self.weight, self.bias, self.activation, [], "none" if self.activation else ""
        )
        return packed


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

    Raises ValueError where a package is not installed.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        if not has_onnx():
            raise ValueError(
                "precision: int8 needs the packages onnx and onnxruntime. Install them: "
                'pip install "spacy-crf-ner[int8]".'
            )
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        with TemporaryDirectory() as folder:
            file = _quantize(transformer, Path(folder))
            self.session = InferenceSession(file, options, providers=["CPUExecutionProvider"])

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


def _quantize(transformer: nn.Module, folder: Path) -> str:
    """Write a transformer to a file that ONNX Runtime reads, in int8; its name."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    bare = deepcopy(transformer).eval()
    whole, quantized = str(folder / "whole.onnx"), str(folder / "int8.onnx")
    example = torch.ones((2, 8), dtype=torch.int64)
    axes = {0: "B", 1: "T"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        torch.onnx.export(
            _Exported(bare),
            (example, example),
            whole,
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys(["input_ids", "attention_mask", "last_hidden_state"], axes),
            opset_version=17,
            dynamo=False,
        )
    quantize_dynamic(whole, quantized, weight_type=QuantType.QInt8, per_channel=True)
    return quantized


class _Exported(nn.Module):
    """A transformer as a function of two tensors to one, as the exporter wants it."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        output = self.transformer(input_ids=input_ids, attention_mask=attention_mask)
        hidden: Tensor = output.last_hidden_state
        return hidden
