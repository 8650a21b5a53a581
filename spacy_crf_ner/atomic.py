"""Files and folders that are written completely or not at all."""

import errno
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

from .input_error import InputError

# The ends of names of files. Folders of .parquet or .spacy files may have such a name too.
FILES = {
    ".cfg", ".conll", ".csv", ".gz", ".html", ".json", ".jsonl", ".md", ".svg", ".tsv", ".txt",
    ".xlsx", ".xml", ".yaml", ".yml", ".zip", ".zst",
}  # fmt: skip
UNFINISHED = ".spacy-crf-ner.part"  # the end of the names of temporary files and folders
MACHINE = f"{crc32(platform.node().encode()):08x}"  # in these names, before the process
# What a rename raises if another process has put something there, or taken it away.
RACES = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT)
ATTEMPTS = 100
NAME_BYTES = 80  # of a name, in a temporary one; file systems allow 255, encrypted ones 143


@contextmanager
def atomic_write(path: Path, folder_by_file: bool = False) -> Iterator[Path]:
    """Yield a temporary name to write to, which is renamed to `path` at the end.

    If writing fails, what exists is unchanged. A missing parent folder is created, an empty folder
    is filled, and a pipe or a device is written to as it is. If several processes write to one
    path, all of it is from the last one to finish; only the first one can fill an empty folder.
    What killed processes of this machine have left is removed.

    A folder cannot be replaced in one step: if the process is killed between two renames, the old
    one is in a folder beside it, `path`.old-*, with the first `NAME_BYTES` of the name. A file may
    replace a folder only with `folder_by_file`; otherwise that is an InputError.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device
        yield path
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # An empty folder may be a mount, or the current folder of a shell.
    stays = not folder_by_file and path.is_dir() and not _finished_in(path)
    folder = path if stays else path.parent
    begin = f"{_short_name(path)}.{MACHINE}"
    _remove_abandoned(folder, begin)
    unfinished = folder / f"{begin}.{os.getpid()}.{secrets.token_hex(4)}{UNFINISHED}"
    try:
        yield unfinished
        if not unfinished.is_dir() and not folder_by_file:
            check_file_name(path)
        if stays:
            _fill(path, unfinished)
        else:
            _place(path, unfinished)
    finally:
        _remove(unfinished)


def _short_name(path: Path) -> str:
    """Return the name, cut between characters if it would be too long with what is added to it."""
    return os.fsencode(path.name)[:NAME_BYTES].decode("utf-8", "ignore")


def _finished_in(folder: Path) -> list[Path]:
    return [child for child in folder.iterdir() if not child.name.endswith(UNFINISHED)]


def _fill(folder: Path, unfinished: Path) -> None:
    """Move what is finished into the folder around it, which was empty."""
    if _finished_in(folder):
        raise InputError(f"{folder}: another process has written to it meanwhile. Choose another.")
    for child in [*unfinished.iterdir()]:
        child.rename(folder / child.name)


def _place(path: Path, finished: Path) -> None:
    """Rename what is finished, also if another process does the same."""
    for _ in range(ATTEMPTS):
        try:
            if path.exists() and (path.is_dir() or finished.is_dir()):
                _replace(path, finished)
            else:
                finished.replace(path)
            return
        except OSError as error:
            if error.errno not in RACES or not finished.exists():
                raise
    raise InputError(f"{path}: other processes write to it all the time. Choose another.")


def _remove_abandoned(folder: Path, begin: str) -> None:
    """Remove unfinished files and folders of processes of this machine that do not run any more."""
    for found in folder.iterdir():
        if found.name.startswith(f"{begin}.") and found.name.endswith(UNFINISHED):
            pid = found.name.removeprefix(f"{begin}.").partition(".")[0]
            with suppress(OSError):  # another process may remove it too
                if not (pid.isdigit() and _is_running(int(pid))):
                    _remove(found)


def _is_running(pid: int) -> bool:
    if os.name == "nt":  # signal 0 would be Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def _replace(path: Path, finished: Path) -> None:
    """Swap directories through a temporary sibling, because rename cannot."""
    with TemporaryDirectory(prefix=f"{_short_name(path)}.old-", dir=path.parent) as aside:
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


def check_new_folder(path: Path) -> None:
    """Raise InputError unless a path is free, or an empty folder, and does not look like a file."""
    check_folder_name(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"{path}: expected a new or an empty folder, got a file, or a folder that is not "
            "empty. Choose another folder."
        )


def check_file_name(path: Path) -> None:
    """Raise InputError for the path of a folder."""
    if path.is_dir():
        raise InputError(f"{path}: expected the name of a file, got a folder. Choose another.")


def check_folder_name(path: Path) -> None:
    """Raise InputError if the name of a folder ends as that of a file does."""
    if path.suffix.lower() in FILES and not path.is_dir():
        raise InputError(
            f"{path}: this is the name of a file, but the output is a folder of several files. "
            f"Choose a name such as {path.with_suffix('')}."
        )
