"""Fingerprints of runs: everything that the output depends on."""

import hashlib
from pathlib import Path
from typing import Any

from spacy.util import get_package_path, is_package

from ..extras import versions
from ..input_error import InputError
from .inputs import Sources
from .settings import Settings

# Packages whose versions may change predictions. An exported pipeline runs without torch.
PACKAGES = (
    "spacy-crf-ner",
    "spacy",
    "thinc",
    "torch",
    "transformers",
    "onnxruntime",
    "tokenizers",
)


def make_fingerprint(model: str, sources: Sources, settings: Settings) -> dict[str, Any]:
    """Describe a run by the content of the model, the files of the input, settings and versions.

    Size and modification time represent the content of an input file. The names of shards depend
    on the order of the files.

    Args:
        settings: Settings with a dtype other than "auto".
    """
    assert settings.dtype != "auto"
    return {
        "model": _digest(_find_model(model)),
        "input": [[each.name, each.kind, each.size, each.modified] for each in sources.sources],
        **settings._asdict(),
        "versions": versions(PACKAGES),
    }


def has_auto_precision(model: str) -> bool:
    """Whether a pipeline was saved with the dtype "auto"."""
    configs = _find_model(model).rglob("config.cfg")
    return any('dtype = "auto"' in path.read_text(encoding="utf-8") for path in configs)


def _find_model(model: str) -> Path:
    """Find the folder of a pipeline. Raises InputError if there is none."""
    if Path(model).is_dir():
        return Path(model)
    if not is_package(model):
        raise InputError(
            f"model: expected the folder of a pipeline, or the name of a package, got {model}. "
            "Train one with spacy train."
        )
    return Path(get_package_path(model))


def _digest(folder: Path) -> str:
    """Compute a digest of all files of a pipeline, except compiled Python files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
