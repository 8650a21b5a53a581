"""Read a config for `spacy train`."""

from pathlib import Path
from typing import Any

from spacy.util import SimpleFrozenDict, dot_to_object, load_config
from thinc.api import Config

from ..input_error import InputError

EMPTY: dict[str, Any] = SimpleFrozenDict()


def read_config(path: Path, overrides: dict[str, Any] = EMPTY) -> Config:
    """Read a config, not interpolated, with other values for some settings.

    Raises InputError for a file that is not UTF-8, and spaCy's ConfigValidationError for a file
    that is no config, or lacks a section of the overrides.
    """
    try:
        return load_config(path, overrides, interpolate=False)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected a config of spaCy, got a file that is not UTF-8. Create one with "
            "spacy-crf-ner init."
        ) from error


def reader_block(config: Config, part: str) -> tuple[str, dict[str, Any]]:
    """Find the reader of "train" or "dev": the name of its block, and the block, {} for none."""
    name = get_dotted(config, f"training.{part}_corpus") or f"corpora.{part}"
    block = get_dotted(config, name)
    return name, block if isinstance(block, dict) else {}


def get_dotted(config: Config, name: str) -> Any:
    """Return the value that a setting has in a config; None for none."""
    try:
        return dot_to_object(config, name)
    except KeyError:
        return None


def check_corpora(config: Config) -> None:
    """Raise InputError if spaCy's reader of a corpus of the training has no path."""
    settings = config.interpolate()
    for part in ("train", "dev"):
        name, block = reader_block(settings, part)
        if block.get("@readers") == "spacy.Corpus.v1" and not block.get("path"):
            raise InputError(
                f"[{name}] path: expected a .spacy file, or a folder of them, got none. Name it: "
                f"--paths.{part} corpus/{part}.spacy."
            )
