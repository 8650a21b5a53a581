"""Private names of torch that this package uses, each one probed, with a public fallback.

- `torch.ops.mkldnn._reorder_linear_weight` and `_linear_pointwise`: oneDNN's linear layer with
  packed weights. Without them, linear layers stay `nn.Linear`: bfloat16 is slower by an eighth.
- `torch._foreach_norm`, `_foreach_lerp_` and `_foreach_mul_`: many tensors in few kernels. Without
  them, in one for each.
- `torch.cpu.get_capabilities`: the instruction sets of the CPU. Without it, "auto" is float32.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn


def cpu_has(*instructions: str) -> bool:
    """Whether the CPU has one of these instruction sets; False if torch does not report them."""
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name) for name in instructions)


def has_bf16() -> bool:
    """Whether the CPU has bfloat16 instructions."""
    return cpu_has("avx512_bf16", "amx_bf16")


def has_fast_bf16() -> bool:
    """Whether the GPU computes in bfloat16; older ones emulate it."""
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def has_int8() -> bool:
    """Whether the CPU has int8 instructions."""
    return cpu_has("avx512_vnni", "avx_vnni", "amx_int8")


def norms(tensors: list[Tensor]) -> Tensor:
    """Return the Euclidean norm of each of n tensors on one device: (n,)."""
    if hasattr(torch, "_foreach_norm"):
        return torch.stack(torch._foreach_norm(tensors))
    return torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])


def lerp(tensors: list[Tensor], ends: list[Tensor], weight: float) -> None:
    """Move each tensor by a share of its distance to another one."""
    if hasattr(torch, "_foreach_lerp_"):
        torch._foreach_lerp_(tensors, ends, weight)
    else:
        for tensor, end in zip(tensors, ends):
            tensor.lerp_(end, weight)


def multiply(tensors: list[Tensor], factors: Sequence[float | Tensor]) -> None:
    """Multiply all elements of each tensor by a number, its own one."""
    if hasattr(torch, "_foreach_mul_"):
        torch._foreach_mul_(tensors, cast(Any, [*factors]))
    else:
        for tensor, factor in zip(tensors, factors):
            tensor.mul_(factor)


class PackedLinear(nn.Module):
    """A linear layer with bfloat16 weights in oneDNN's layout; "gelu" is applied in the same pass.

    torch.compile does the same, but it needs a C++ compiler where the pipeline runs, and recompiles
    for new shapes. On a CPU with AMX this makes MiniLM faster by an eighth.
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


@cache
def has_packed_linear() -> bool:
    """Whether `PackedLinear` works on this machine and returns the right result."""
    if not has_bf16():
        return False
    X = torch.ones(2, 32, dtype=torch.bfloat16)
    linear = nn.Linear(32, 32, device="meta").to_empty(device="cpu").bfloat16()
    nn.init.ones_(linear.weight)
    nn.init.ones_(linear.bias)
    try:
        with torch.no_grad():
            return all(
                torch.equal(PackedLinear(linear, activation)(X), torch.full_like(X, 33.0))
                for activation in ("none", "gelu")  # GELU(33) is 33
            )
    except (AttributeError, RuntimeError, TypeError):
        return False
