"""What the output of a run follows from: it must be the same when the run is resumed."""

import hashlib
from pathlib import Path
from typing import Any, Dict

from spacy import about
from spacy.util import get_package_path, is_package

from .. import __version__
from .inputs import Sources
from .settings import Settings

Plan = Dict[str, Any]


def make_plan(model: str, sources: Sources, settings: Settings) -> Plan:
    """Describe a run by the content of the model, the files of the input, and the settings.

    Of a file, its size and the time of its last change stand for its content.
    Raises ValueError for a model that there is not.
    """
    files = {}
    for source in sources.sources:
        status = source.path.stat()
        files[str(source.path)] = [status.st_size, status.st_mtime_ns]
    return {
        "model": _digest(model),
        "input": files,
        **settings._asdict(),
        "version": f"spacy-crf-ner {__version__}, spaCy {about.__version__}",
    }


def _digest(model: str) -> str:
    """A digest of all files of a pipeline."""
    folder = Path(model)
    if not folder.is_dir():
        if not is_package(model):
            raise ValueError(
                f"model: expected the folder of a pipeline, or the name of a package, got {model}. "
                "Train one with spacy train."
            )
        folder = get_package_path(model)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        # What Python compiles beside a package is not of the model.
        if path.is_file() and "__pycache__" not in path.parts:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
