"""A digest of weights, to tell whether they have changed."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from thinc.api import Model, Shim
from thinc.util import to_numpy

from .onnx_network import OnnxShim


def weights_digest(models: Iterable[Model[Any, Any]]) -> str:
    """Compute a digest of the weights of models, on any device: 32 hexadecimal digits."""
    digest = blake2b(digest_size=16)
    for model in models:
        for node in model.walk():
            for name in sorted(filter(node.has_param, node.param_names)):
                weights = to_numpy(node.get_param(name))  # type: ignore[no-untyped-call]
                digest.update(np.ascontiguousarray(weights).tobytes())
            for shim in node.shims:
                for weights in _weights(shim):
                    digest.update(weights)
    return digest.hexdigest()


def _weights(shim: Shim) -> Iterator[bytes]:
    """Yield the weights of a shim in the order of their names."""
    if isinstance(shim, OnnxShim):
        yield shim.to_bytes()
        return
    import torch

    from .shim import module_of

    module = module_of(shim)
    for _, tensor in sorted(module.state_dict().items() if module else ()):
        yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
