"""An entity recognizer for spaCy: BiLSTM-CRF over a transformer, or any other tok2vec."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation.guarantees import guarantees
    from .pipeline.accelerate import accelerate
    from .pipeline.transformer_config import transformer_model
    from .training.freezing import freeze_layers
    from .training.run import train

__version__ = "0.1.0"
__all__ = ["accelerate", "freeze_layers", "guarantees", "train", "transformer_model"]

MODULES = {
    "accelerate": ".pipeline.accelerate",
    "freeze_layers": ".training.freezing",
    "guarantees": ".evaluation.guarantees",
    "train": ".training.run",
    "transformer_model": ".pipeline.transformer_config",
}


def __getattr__(name: str) -> Any:
    """Import attributes lazily: spaCy imports this package whenever it starts."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from .extras import check_versions, required

    if name == "train":
        check_versions("train")
    with required("train"):
        return getattr(import_module(MODULES[name], __name__), name)
