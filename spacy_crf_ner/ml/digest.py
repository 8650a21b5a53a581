"""A digest of weights, to tell whether they have changed."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import torch
from thinc.api import Model

from .mixed_precision import module_of
from .torch_layer import to_tensor


def weights_digest(models: Iterable[Model[Any, Any]]) -> str:
    """Compute a digest of the weights of models, on any device: 32 hexadecimal digits."""
    digest = blake2b(digest_size=16)
    for model in models:
        for node in model.walk():
            for name in sorted(filter(node.has_param, node.param_names)):
                digest.update(_bytes(to_tensor(node.get_param(name))))
            for shim in node.shims:
                module = module_of(shim)
                for _, tensor in sorted(module.state_dict().items() if module else ()):
                    digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
