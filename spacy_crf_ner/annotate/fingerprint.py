"""Fingerprints of runs: everything that the output depends on."""

import hashlib
from pathlib import Path
from typing import Any

from spacy.util import get_package_path, is_package

from ..extras import versions
from ..input_error import InputError
from .inputs import Source
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


def make_fingerprint(model: str, sources: list[Source], settings: Settings) -> dict[str, Any]:
    """Describe a run by the content of the model, the files of the input, settings and versions.

    Size and modification time represent the content of an input file. The names of shards depend
    on the order of the files.
    """
    return {
        "model": _digest(model),
        "input": [[each.name, each.kind, each.size, each.modified] for each in sources],
        **settings._asdict(),
        "versions": versions(PACKAGES),
    }


def _digest(model: str) -> str:
    """Compute a digest of all files of a pipeline, except compiled Python files."""
    if not Path(model).is_dir() and not is_package(model):
        raise InputError(
            f"model: expected the folder of a pipeline, or the name of a package, got {model}. "
            "Train one with spacy train."
        )
    folder = Path(model) if Path(model).is_dir() else Path(get_package_path(model))
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
