"""Settings of a component: read from its config, and changeable at run time."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ..input_error import InputError
from .spacy_internals import write_setting

T = TypeVar("T")


class Setting(Generic[T]):
    """A setting that is stored in the config of the pipeline, not with the weights.

    So a trained pipeline can be loaded with other settings. Setting the attribute at run time
    changes `nlp.config` too, so that the change is saved. A dict or list is read-only: assign a new
    one.

    is_valid: Whether a value may be set; other values raise InputError.
    expected: The expected values, for the message.
    """

    def __init__(self, is_valid: Callable[[T], bool], expected: str) -> None:
        self._is_valid, self._expected = is_valid, expected

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, pipe: Any, owner: Any = None) -> T:
        if pipe is None:
            return self  # type: ignore[return-value]
        value = pipe.settings[self._name]
        if isinstance(value, list):
            return tuple(value)  # type: ignore[return-value]
        return MappingProxyType(value) if isinstance(value, dict) else value  # type: ignore

    def __set__(self, pipe: Any, value: T) -> None:
        is_change = self._name in pipe.settings
        pipe.settings[self._name] = plain = self._plain(pipe, value)
        if is_change:
            write_setting(pipe, self._name, plain)

    def _plain(self, pipe: Any, value: Any) -> Any:
        """Validate a value, and return it as a config has it."""
        try:
            is_valid = self._is_valid(value)
        except (TypeError, AttributeError):  # of another type
            is_valid = False
        if not is_valid:
            raise InputError(
                f"[{pipe.name}] {self._name}: expected {self._expected}, got {value!r}."
            )
        if isinstance(value, list | tuple):
            return list(value)
        return dict(value) if isinstance(value, Mapping) else value


class FittedSetting(Setting[float | None]):
    """A number that is fitted to data, and stored with the weights, in `pipe.cfg`.

    A number in the config takes precedence over the stored one. Without either it is the default.
    """

    def __init__(self, default: float, is_valid: Callable[[Any], bool], expected: str) -> None:
        super().__init__(is_valid, expected)
        self._default = default

    def __get__(self, pipe: Any, owner: Any = None) -> float:
        if pipe is None:
            return self  # type: ignore[return-value]
        # Pipelines that were saved before there was this setting have stored none.
        configured, stored = pipe.settings[self._name], pipe.cfg.get(self._name)
        value = stored if configured is None else configured
        return self._default if value is None else float(self._plain(pipe, value))

    def __set__(self, pipe: Any, value: float | None) -> None:
        if self._name in pipe.settings:
            # Store it with the weights: the config may be used to train other weights.
            pipe.cfg[self._name], value = self._plain(pipe, value), None
            if pipe.settings[self._name] is None:
                return  # the config has no number to remove, and to write to it is slow
        super().__set__(pipe, value)


class CalibrationSetting(FittedSetting):
    """A number of the calibration. Once it is set, nobody knows to how many entities it is fitted.

    Who fits it sets `pipe.cfg["calibrated_on"]` after it.
    """

    def __set__(self, pipe: Any, value: float | None) -> None:
        is_change = self._name in pipe.settings
        super().__set__(pipe, value)
        if is_change:
            pipe.cfg["calibrated_on"] = None


def stored_settings(pipe: Any, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the config has for settings, and what is stored with the weights."""
    names = [*names]
    configured, fitted = (
        {name: of[name] for name in names if name in of} for of in (pipe.settings, pipe.cfg)
    )
    return configured, fitted


def restore_settings(pipe: Any, stored: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Give a component back what `stored_settings` returned."""
    configured, fitted = stored
    for name, value in configured.items():
        if pipe.settings[name] != value:
            pipe.settings[name] = value
            write_setting(pipe, name, value)
    pipe.cfg.update(fitted)
