"""A transformer that predicts in another dtype."""

from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ...input_error import InputError
from ..dtype import DTYPES, sharing_copy
from ..onnx_export import int8_session
from ..torch_internals import PackedLinear, has_packed_linear
from .hf_internals import feed_forward_with_gelu


def quantize(encoder: Any, dtype: str) -> Any:
    """Copy a `TransformerEncoder`, to predict in another dtype; the copy may share its weights.

    Raises InputError for int8 and a mix of layers.
    """
    copied = sharing_copy(encoder)
    if dtype == "int8":
        if encoder.mix is not None:
            raise InputError("dtype: int8 is for the last layer, got a mix. Choose another dtype.")
        copied.transformer = Int8Transformer(cast(nn.Module, copied.transformer))
    elif dtype != "fp32":
        copied = deepcopy(copied).to(DTYPES[dtype])
        on_cpu = next(copied.parameters()).device.type == "cpu"
        if on_cpu and dtype == "bf16" and has_packed_linear():
            _pack(copied)
    return copied


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
        self.session = int8_session(Positional(transformer), examples)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> BaseModelOutput:
        """Compute the states of the last layer: (B, T, H) float32; for one token type alone."""
        if token_type_ids is not None:
            raise InputError(
                "dtype: int8 is for transformers with one token type, got several. Choose "
                "another dtype."
            )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = self.session.run(input_ids=input_ids.numpy(), attention_mask=mask.numpy())
        return BaseModelOutput(last_hidden_state=cast(Any, torch.from_numpy(hidden)))


class Positional(nn.Module):
    """A transformer with positional inputs and one output, for the exporter."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute the last hidden state: (B, T) and (B, T) -> (B, T, H)."""
        output = self.transformer(input_ids=input_ids, attention_mask=attention_mask)
        return cast(Tensor, output.last_hidden_state)
