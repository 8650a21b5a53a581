"""Checks of the settings of networks."""

from typing import Any

from ..input_error import InputError


def require(config: Any, name: str, fits: bool, expected: str) -> None:
    """Raise InputError, with the expected values, unless a setting is valid."""
    if not fits:
        raise InputError(f"{name}: expected {expected}, got {getattr(config, name)!r}.")


def check_dropout(config: Any) -> None:
    """Raise InputError unless the dropout rate of a config is None or in [0, 1)."""
    fits = config.dropout is None or 0 <= config.dropout < 1
    require(config, "dropout", fits, "null, or from 0 to below 1")
