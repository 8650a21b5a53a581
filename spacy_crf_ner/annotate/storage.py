"""Files at paths, or at URIs that pyarrow supports, such as s3://bucket/folder/file."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..input_error import InputError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

BUFFER = 2**20  # bytes
UNFINISHED = ".tmp"


class StorageError(OSError):
    """The machine or the network failed to return the bytes of a file."""


class Location(NamedTuple):
    """A file or a folder."""

    filesystem: "FileSystem"  # of pyarrow
    path: str  # in it; a local one is absolute, with links resolved
    name: str  # the path as given, or the URI without credentials

    @property
    def is_local(self) -> bool:
        """Whether it is a local path."""
        return bool(self.filesystem.type_name == "local")

    def __truediv__(self, name: str) -> "Location":
        return Location(self.filesystem, f"{self.path}/{name}", f"{self.name}/{name}")

    def open(self) -> BufferedReader:
        """Open the file for reading. Opening and reading raise StorageError."""
        with _storage_errors(self.name):
            stored = self.filesystem.open_input_file(self.path)
        return BufferedReader(_StoredFile(stored, self.name), BUFFER)

    def read(self) -> bytes:
        """Read the whole file, by one request. Raises StorageError."""
        with _storage_errors(self.name), self.filesystem.open_input_file(self.path) as file:
            return bytes(file.read())

    def write(self, content: Iterable[bytes]) -> None:
        """Write the file completely or not at all; it survives a crash of the machine."""
        if not self.is_local:  # an object store shows only complete objects
            with self.filesystem.open_output_stream(self.path) as stream:
                for part in content:
                    stream.write(part)
            return
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A hidden name, different in each worker.
        unfinished = path.with_name(f"_{path.name}.{os.getpid()}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        if os.name != "nt":  # Windows cannot open folders
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def remove(self, name: str) -> None:
        """Remove a file of a folder."""
        self.filesystem.delete_file((self / name).path)

    def names(self) -> list[str]:
        """List the names of the files of a folder; none if it does not exist."""
        return [info.base_name for info in self.files()]

    def files(self, recursive: bool = False) -> list["FileInfo"]:
        """List the files of a folder; none if it does not exist."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self.path, allow_not_found=True, recursive=recursive)
        infos = self.filesystem.get_file_info(selector)
        return [info for info in infos if info.type != FileType.Directory]


def locate(name: str) -> Location:
    """Find the file system of a path or URI: of pyarrow, or else of fsspec."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    if "://" not in name:
        return Location(LocalFileSystem(), Path(os.path.realpath(name)).as_posix(), name)
    try:
        filesystem, path = FileSystem.from_uri(name)
    except (ArrowException, ValueError) as error:
        try:
            from fsspec.core import url_to_fs

            found, path = url_to_fs(name)
        except (ImportError, ValueError):
            raise InputError(
                f"expected a path, or a URI such as s3://bucket/folder, got one that pyarrow "
                f"rejects: {error}. Correct it."
            ) from error
        filesystem = PyFileSystem(FSSpecHandler(found))
    path = path.rstrip("/")
    return Location(filesystem, path, f"{name.partition('://')[0]}://{path}")


@contextmanager
def _storage_errors(name: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise StorageError(f"{name}: {type(error).__name__}: {error}") from error


class _StoredFile:
    """The bytes of a file; errors in reading them differ from those of decoders."""

    def __init__(self, file: Any, name: str) -> None:
        self.file, self.name = file, name

    def readinto(self, buffer: Any) -> int:
        with _storage_errors(self.name):
            return int(self.file.readinto(buffer))

    def readall(self) -> bytes:
        with _storage_errors(self.name):
            return bytes(self.file.read())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)
