"""Files and folders that are written completely or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .input_error import InputError

UNFINISHED = ".spacy-crf-ner.part"  # the end of the names of temporary files and folders


@contextmanager
def atomic_write(path: Path, folder_by_file: bool = False) -> Iterator[Path]:
    """Yield a temporary name to write to, which is renamed to `path` at the end.

    path: File or folder; an existing one is replaced, a missing parent folder is created. If
        writing fails, it is unchanged and the temporary file or folder is removed. An empty folder
        is filled, and a pipe or a device is written to as it is.
    folder_by_file: Whether a file may replace a folder; if not, that is an InputError.

    A folder cannot be replaced in one step: if the process is killed between two renames, the old
    one is in a folder beside it whose name begins with `path`.old.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device
        yield path
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # An empty folder may be a mount, or the current folder of a shell.
    stays = not folder_by_file and path.is_dir() and not any(path.iterdir())
    unfinished = (path if stays else path.parent) / f"{path.name}{UNFINISHED}"
    _remove(unfinished)
    try:
        yield unfinished
        if path.is_dir() and not unfinished.is_dir() and not folder_by_file:
            raise InputError(f"{path}: expected the name of a file, got a folder. Choose another.")
        if stays:
            for child in [*unfinished.iterdir()]:
                child.rename(path / child.name)
        elif path.exists() and (path.is_dir() or unfinished.is_dir()):
            _replace(path, unfinished)
        else:
            unfinished.replace(path)
    finally:
        _remove(unfinished)


def _replace(path: Path, finished: Path) -> None:
    """Replace what a rename cannot: a folder, or a file by a folder."""
    with TemporaryDirectory(prefix=f"{path.name}.old-", dir=path.parent) as aside:
        old = path.replace(Path(aside) / path.name)
        try:
            finished.replace(path)
        except OSError:
            old.replace(path)
            raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
