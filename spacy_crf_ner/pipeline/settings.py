"""The settings of a component, and what is fitted to held-out docs: checked and saved attributes.

A setting is set by the config. One that is changed later is saved in `cfg`, beside the value of the
config that it replaced. When the component is loaded, the change applies if the config still has
that value; any other value in the config overrides it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from spacy.pipeline.tok2vec import DEFAULT_TOK2VEC_MODEL

from ..input_error import InputError
from .annotated_labels import KEY as ANNOTATED

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer

DEFAULT_CONFIG = {
    "model": {
        "@architectures": "spacy-crf-ner.BiLSTMCRF.v1",
        "hidden_width": 100,
        "tok2vec": DEFAULT_TOK2VEC_MODEL,
    },
    "thresholds": {},
    "candidate_thresholds": {},
    "disabled_labels": [],
    "scorer": {"@scorers": "spacy-crf-ner.ner_scorer.v1"},
}

KEY = "settings"  # of the changes, in `cfg`
DECODINGS = ("viterbi", "max_expected_f")


class Setting(NamedTuple):
    """Which values a setting may have; None stands for `unset`, the default.

    `is_valid` may fail for values of another type; `expected` describes the valid ones in messages.
    """

    is_valid: Callable[[Any], bool]
    expected: str
    unset: Any = None


def _are(check: Callable[[float], bool]) -> Callable[[Mapping[str, float]], bool]:
    return lambda by_label: all(check(p) for p in by_label.values())


def _is_key(key: Any) -> bool:
    return key is None or isinstance(key, str)


_SWITCH = Setting(lambda value: isinstance(value, bool), "true or false")

SETTINGS = {
    "confidence": _SWITCH,
    "threshold": Setting(lambda p: 0.0 <= p <= 1.0, "0.0 to 1.0"),
    "thresholds": Setting(_are(lambda p: 0.0 <= p <= 1.0), "numbers from 0.0 to 1.0"),
    "decode": Setting(lambda name: name in DECODINGS, " or ".join(DECODINGS)),
    "f_score_threshold": Setting(lambda p: 0.0 < p < 1.0, "a number between 0.0 and 1.0", 0.4),
    "spans_key": Setting(
        lambda key: _is_key(key) and key != ANNOTATED, f"a string or None, not {ANNOTATED!r}"
    ),
    "candidate_threshold": Setting(lambda p: 0.0 < p <= 1.0, "a number over 0.0, up to 1.0"),
    "candidate_thresholds": Setting(_are(lambda p: 0.0 < p <= 1.0), "numbers over 0.0, up to 1.0"),
    "disabled_labels": Setting(
        lambda labels: isinstance(labels, list | tuple) and all(isinstance(x, str) for x in labels),
        "a list of labels",
    ),
    "incorrect_spans_key": Setting(_is_key, "a string or None"),
    "overwrite": _SWITCH,
}
# What is fitted to held-out docs, and no config has: it is saved with the weights, in ten decimals.
FITS = {
    "temperature": Setting(lambda t: 1e-6 <= t < inf, "a finite number from 1e-6", 1.0),
    "platt_slope": Setting(lambda a: 1e-6 <= a < inf, "a finite number from 1e-6", 1.0),
    "platt_intercept": Setting(isfinite, "a finite number", 0.0),
    "platt_ceiling": Setting(lambda c: 1e-6 <= c <= 1.0, "a number from 1e-6 to 1.0", 1.0),
    "calibrated_on": Setting(
        lambda n: n is None or (type(n) is int and n >= 0), "a number of entities"
    ),
}
CALIBRATION = "temperature", "platt_slope", "platt_intercept", "platt_ceiling"


class FrozenDict(dict[str, Any]):
    """A read-only dict, which can be copied and saved: assign a new one to change a setting."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("This dict is read-only. Assign a new one to the setting.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def checked(name: str, value: Any, component: str) -> Any:
    """Return a valid value of an attribute, as a component keeps and saves it; else InputError.

    Lists and dicts are read-only; numbers of numpy, which cannot be saved, become those of Python.
    An attribute that is no setting and no fit may have any value.
    """
    setting = SETTINGS.get(name) or FITS.get(name)
    if setting is None:
        return value
    value = setting.unset if value is None else _to_python(value)
    try:
        is_valid = setting.is_valid(value)
    except (TypeError, AttributeError):  # of another type
        is_valid = False
    if not is_valid:
        raise InputError(f"[{component}] {name}: expected {setting.expected}, got {value!r}.")
    if isinstance(value, list):
        return tuple(value)
    return FrozenDict(value) if isinstance(value, Mapping) else value


def _to_python(value: Any) -> Any:
    """Convert a number of numpy, or those in a dict."""
    if isinstance(value, Mapping):
        return {key: _to_python(each) for key, each in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def current_settings(pipe: CRFEntityRecognizer) -> dict[str, Any]:
    """Return the present values of all settings, by name."""
    return {name: getattr(pipe, name) for name in SETTINGS}


def copy_settings(source: CRFEntityRecognizer, target: CRFEntityRecognizer) -> None:
    """Give a component the settings of another one, except what is fitted to its weights."""
    for name, value in current_settings(source).items():
        if name != "f_score_threshold":
            setattr(target, name, value)


def save(pipe: CRFEntityRecognizer, config: Mapping[str, Any]) -> None:
    """Write fits and changed settings to the `cfg` of a component, given the values of its config.

    A change has the value of the config and the present one, as JSON texts: spaCy would save
    numbers with ten decimals only.
    """
    pipe.cfg |= {name: getattr(pipe, name) for name in FITS}
    now = current_settings(pipe)
    pipe.cfg[KEY] = {
        name: [_to_json(given), _to_json(now[name])]
        for name, given in config.items()
        if now[name] != given
    }


def with_changes(config: Mapping[str, Any], cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a saved component: the changed ones, and the others as in the config.

    Raises InputError for changes that no component saves.
    """
    saved = cfg.get(KEY, {})
    try:
        changed = {name: (given, json.loads(now)) for name, (given, now) in saved.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{KEY}: expected pairs of JSON values, got {saved!r}.") from error
    settings = dict(config)
    for name, (replaced, now) in changed.items():
        if name in config and _to_json(config[name]) == replaced:
            settings[name] = now
    return settings


def restore(pipe: CRFEntityRecognizer, config: Mapping[str, Any]) -> None:
    """Set fits and settings to what `save` wrote; InputError for what no component saves."""
    for name, value in with_changes(config, pipe.cfg).items():
        setattr(pipe, name, value)
    for name in (*CALIBRATION, "calibrated_on"):  # in this order: a number set alone forgets it
        setattr(pipe, name, pipe.cfg.get(name))


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
