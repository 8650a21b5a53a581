"""The stable import path of `freeze_layers` and `load_frozen`."""

from .training.freezing import freeze_layers, load_frozen

__all__ = ["freeze_layers", "load_frozen"]
