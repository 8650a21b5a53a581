"""Read a config for `spacy train`."""

from pathlib import Path
from typing import Any

from spacy.util import SimpleFrozenDict, load_config
from thinc.api import Config

from ..input_error import InputError

NOTHING: dict[str, Any] = SimpleFrozenDict()


def read_config(path: Path, overrides: dict[str, Any] = NOTHING) -> Config:
    """Read a config, not interpolated, with other values for some settings.

    Raises InputError for a file that is not UTF-8, and ConfigValidationError for one that is no
    config, or lacks a section of the overrides.
    """
    try:
        return load_config(path, overrides, interpolate=False)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected a config of spaCy, got a file that is not UTF-8. Create one with "
            "spacy-crf-ner init-config."
        ) from error


def require_corpora(config: Config) -> None:
    """Raise InputError if a corpus of the training has no path."""
    settings = config.interpolate()
    for part in ("train", "dev"):
        name = settings["training"][f"{part}_corpus"]
        block = settings
        for key in name.split("."):
            block = block.get(key, {})
        if "path" in block and not block["path"]:
            raise InputError(
                f"[{name}] path: expected a .spacy file, or a folder of them, got none. Name it: "
                f"--paths.{part} corpus/{part}.spacy."
            )
