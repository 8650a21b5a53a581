"""A transformer that only predicts its last hidden state, in a lower precision."""

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ...input_error import InputError
from ..dtype import DTYPES, sharing_copy
from ..onnx_export import OnnxModule
from ..torch_internals import PackedLinear, has_packed_linear
from .hf_internals import drop_pooler, feed_forward_with_gelu


def quantize_transformer(transformer: nn.Module, dtype: str) -> nn.Module:
    """Make a module that computes only the last hidden state of a transformer.

    Args:
        transformer: A model of the library transformers; the result may share its weights.
        dtype: One of `DTYPE_NAMES`, but not "auto".
    """
    bare = sharing_copy(transformer)
    drop_pooler(bare)
    if dtype == "int8":
        return Int8Transformer(bare)
    torch_dtype = DTYPES[dtype]
    if torch_dtype is not torch.float32:
        bare = deepcopy(bare).to(torch_dtype)
        on_cpu = next(bare.parameters()).device.type == "cpu"
        if on_cpu and torch_dtype is torch.bfloat16 and has_packed_linear():
            _pack(bare)
    return LastHiddenState(bare)


class LastHiddenState(nn.Module):
    """A transformer without its other outputs, such as attentions."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, **inputs: Tensor) -> BaseModelOutput:
        """Compute the last hidden state, (B, T, H) float32, of the transformer's inputs."""
        output = self.transformer(**inputs, output_attentions=False, output_hidden_states=False)
        return BaseModelOutput(last_hidden_state=output.last_hidden_state.float())


def _pack(module: nn.Module) -> None:
    """Pack the linear layers of a module, in place."""
    for name, child in module.named_children():
        linear = feed_forward_with_gelu(child)
        if linear is not None:
            child.dense = PackedLinear(linear, "gelu")
            child.intermediate_act_fn = nn.Identity()
        elif type(child) is nn.Linear:
            setattr(module, name, PackedLinear(child))
        else:
            _pack(child)


class Int8Transformer(nn.Module):
    """A transformer in ONNX Runtime on the CPU, with int8 linear layers."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        example = torch.ones((2, 8), dtype=torch.int64)
        examples = {"input_ids": example, "attention_mask": example}
        self.onnx = OnnxModule(Positional(transformer), examples)

    def forward(self, **inputs: Tensor) -> BaseModelOutput:
        """Compute the last hidden state, (B, T, H) float32, of the transformer's inputs.

        Raises:
            InputError: For token types other than 0: the exported transformer takes none.
        """
        types = inputs.pop("token_type_ids", None)
        if types is not None and types.any():
            raise InputError(
                "dtype: int8 is for transformers with one token type, got several. Choose "
                "another dtype."
            )
        hidden = self.onnx(**{name: given.long() for name, given in inputs.items()})
        return BaseModelOutput(last_hidden_state=cast(Any, hidden))


class Positional(nn.Module):
    """A transformer with positional inputs and one output, for the exporter."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute the last hidden state: (B, T) and (B, T) -> (B, T, H)."""
        output = self.transformer(input_ids=input_ids, attention_mask=attention_mask)
        return cast(Tensor, output.last_hidden_state)
