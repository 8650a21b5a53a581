"""The stable import path of `freeze_layers`."""

from .training.freezing import freeze_layers

__all__ = ["freeze_layers"]
