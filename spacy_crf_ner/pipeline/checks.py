"""Checks of the labels, keys and stored results of training of a component."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spacy.language import Language

from ..input_error import InputError
from .gold import where_gold_is

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer


def check_encoding(name: str, overlap: bool, max_nesting: int) -> None:
    """Raise InputError for a max_nesting below 1, and for more than 1 without overlap."""
    if max_nesting < 1 or (max_nesting > 1 and not overlap):
        raise InputError(
            f"[{name}] max_nesting: expected 1 or more, and 1 without overlap, got "
            f"{max_nesting}. Set overlap to true for more."
        )


def check_label(name: str, label: Any) -> None:
    """Raise InputError for what cannot be a label."""
    if not isinstance(label, str) or not label:
        raise InputError(f"[{name}] label: expected a non-empty string, got {label!r}.")
    if label.startswith("!"):  # spaCy's mark of negative spans
        raise InputError(
            f'[{name}] label: expected one that does not begin with "!", got {label!r}. Rename it.'
        )


def check_labels(pipe: CRFEntityRecognizer, labels: Sequence[str]) -> None:
    """Raise InputError for no labels to train on, and for settings that name others."""
    if not labels:
        raise InputError(
            f"[{pipe.name}] expected examples with entities, got none: there is no label to "
            f"learn. {where_gold_is(pipe.encoding.key)}, or give the labels."
        )
    check_known_labels(pipe, labels)


def check_known_labels(pipe: CRFEntityRecognizer, labels: Sequence[str]) -> None:
    """Raise InputError for a threshold or a disabled label that is not among these labels."""
    check_known(pipe.name, "thresholds", [*pipe.thresholds, *pipe.candidate_thresholds], labels)
    check_known(pipe.name, "disabled_labels", pipe.disabled_labels, labels)


def check_known(name: str, setting: str, given: Iterable[str], labels: Iterable[str]) -> None:
    """Raise InputError for a label in a setting that is not among these."""
    unknown = [label for label in given if label not in labels]
    if unknown:
        raise InputError(
            f"[{name}] {setting}: expected labels among {[*dict.fromkeys(labels)]}, got "
            f"{unknown}. Correct them, or add the label."
        )


def check_own_key(nlp: Language, pipe: Any, key: str | None, kind: type = object) -> None:
    """Raise InputError if another component, of a type, writes to `doc.spans[key]` too."""
    for name, other in nlp.pipeline if key is not None else ():
        written = [getattr(other, each, None) for each in ("entities_key", "spans_key", "key")]
        written += [getattr(other, "cfg", {}).get("spans_key")]  # of a span_finder
        if isinstance(other, kind) and other is not pipe and key in written:
            raise InputError(
                f"[{pipe.name}] spans_key: expected a key of its own, got {key!r}, which {name!r} "
                "writes too. Set another spans_key."
            )


def check_valid_cfg(cfg: dict[str, Any]) -> None:
    """Raise InputError for stored results of training that no training writes."""
    labels = cfg["labels"]
    are_labels = isinstance(labels, list) and all(
        isinstance(label, str) and label and not label.startswith("!") for label in labels
    )
    if not are_labels or len({*labels}) < len(labels):
        raise InputError(f"labels: expected a list of different labels, got {labels!r}.")
    untrained = cfg["untrained"]
    if not isinstance(untrained, list) or any(label not in labels for label in untrained):
        raise InputError(f"untrained: expected a list of labels, got {untrained!r}.")
    if not isinstance(cfg["guarantees"], dict):
        raise InputError(f"guarantees: expected a dict, got {cfg['guarantees']!r}.")
    encoding = cfg.get("encoding", [False, 1])
    if not isinstance(encoding, list) or [*map(type, encoding)] != [bool, int]:
        raise InputError(f"encoding: expected overlap and max_nesting, got {encoding!r}.")
