"""The files of a saved component: each has a digest, and errors name the file."""

from collections.abc import Iterable
from pathlib import Path

import srsly

from ..input_error import InputError
from ..ml.checksummed import errors_of, file_digest

DIGESTS = "digests.json"
CFG, MODEL = "cfg", "model"


def write_digests(folder: Path) -> None:
    """Write the digests of the files of a component beside them."""
    files = [folder / name for name in (CFG, MODEL)]
    srsly.write_json(folder / DIGESTS, {f.name: file_digest(f) for f in files if f.exists()})


def check_digests(folder: Path, exclude: Iterable[str]) -> None:
    """Raise InputError for a file of a component that has changed since it was saved."""
    stored = folder / DIGESTS
    if not stored.exists():
        return
    with errors_of(stored):
        digests = {str(name): str(digest) for name, digest in srsly.read_json(stored).items()}
    for name in (CFG, MODEL):
        file = folder / name
        if name not in exclude and name in digests:
            if not file.exists():
                raise InputError(f"{file} is missing. Copy the pipeline again.")
            if file_digest(file) != digests[name]:
                raise InputError(
                    f"{file} is damaged: it has changed since it was saved. Copy the pipeline "
                    f"again. If you have changed the file yourself, remove {stored}."
                )
