"""Weights of torch modules in the format safetensors: names, types, shapes and numbers, no code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..input_error import InputError

# Of tables that a module computes, such as masks, beside its weights.
MAX_BUFFER_BYTES = 2**28


def weights_to_bytes(module: nn.Module) -> bytes:
    """Write the weights of a module, on any device."""
    tensors: dict[str, Tensor] = {}
    for name, weights in module.state_dict().items():
        own = weights.detach().cpu().contiguous()
        is_shared = any(own.data_ptr() == other.data_ptr() for other in tensors.values())
        tensors[name] = own.clone() if is_shared else own
    return save(tensors)


def build_without_weights(build: Callable[[], nn.Module], stored: dict[str, Tensor]) -> nn.Module:
    """Build a module for stored weights, on torch's device "meta", without memory for weights.

    Raises InputError if it has other weights than the stored ones, before it takes time or memory
    that the stored ones do not.
    """
    with torch.device("meta"), _at_most(2 * len(stored) + 16):
        module = build()
    expected = {name: (each.shape, each.dtype) for name, each in module.state_dict().items()}
    found = {name: (each.shape, each.dtype) for name, each in stored.items()}
    different = [n for n in {**expected, **found} if expected.get(n) != found.get(n)]
    if different:
        raise _other_weights(
            f"{_shown(expected, different[0])} for {different[0]!r}, got "
            f"{_shown(found, different[0])}, one of {len(different)} differences"
        )
    computed = sum(each.numel() * each.element_size() for each in module.buffers())
    if computed > MAX_BUFFER_BYTES + sum(each.nbytes for each in stored.values()):
        raise _other_weights(f"tables of less than {MAX_BUFFER_BYTES:,} bytes, got {computed:,}")
    return module


@contextmanager
def _at_most(number: int) -> Iterator[None]:
    """Raise InputError as soon as more parameters are made."""
    made = 0

    def count(*_: Any) -> None:
        nonlocal made
        made += 1
        if made > number:
            raise _other_weights(f"at most {number} parameters, got more")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _shown(weights: dict[str, tuple[torch.Size, torch.dtype]], name: str) -> str:
    if name not in weights:
        return "none"
    shape, dtype = weights[name]
    return f"{[*shape]} of {str(dtype).removeprefix('torch.')}"


def _other_weights(what: str) -> InputError:
    return InputError(
        f"The stored weights cannot be read: they are of another architecture or other settings "
        f"than those of the config: expected {what}. Load the pipeline with the config that it was "
        "trained with."
    )
