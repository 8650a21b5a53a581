"""Files and folders that are written completely or not at all."""

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to, which is renamed to `path` at the end.

    path: File or folder; an existing one is replaced, a missing parent folder is created. If
        writing fails, it is unchanged and the temporary file or folder is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    _remove(unfinished)
    try:
        yield unfinished
        if path.is_dir() or unfinished.is_dir():
            _remove(path)  # a rename replaces files only
        unfinished.replace(path)
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
