"""An entity recognizer for spaCy: BiLSTM-CRF over a transformer, or any other tok2vec."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation.guarantees import guarantees
    from .pipeline.accelerate import accelerate
    from .trainer.run import train

__version__ = "0.1.0"
__all__ = ["accelerate", "guarantees", "train"]


def __getattr__(name: str) -> Any:
    """Import attributes lazily: spaCy imports this package whenever it starts."""
    if name == "accelerate":
        from .extras import required

        with required("train"):
            from .pipeline.accelerate import accelerate

        return accelerate
    if name == "guarantees":
        from .evaluation.guarantees import guarantees

        return guarantees
    if name == "train":
        from .extras import check_versions, required

        check_versions("train")
        with required("train"):
            from .trainer.run import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
