"""Files at paths, or at URIs that pyarrow supports, such as s3://bucket/folder/file."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..input_error import InputError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

BUFFER = 2**20  # bytes


class StorageError(OSError):
    """The machine or the network failed to return the bytes of a file."""


class Location(NamedTuple):
    """A file or a folder.

    Attributes:
        filesystem: The filesystem of pyarrow.
        path: The path in it; a local one is absolute, with links resolved.
        name: The path as given, or the URI without credentials.
    """

    filesystem: "FileSystem"
    path: str
    name: str

    @property
    def is_local(self) -> bool:
        """Whether it is a local path."""
        return bool(self.filesystem.type_name == "local")

    def __truediv__(self, name: str) -> "Location":
        return Location(self.filesystem, f"{self.path}/{name}", f"{self.name}/{name}")

    def open(self) -> BufferedReader:
        """Open the file for reading. Opening and reading raise StorageError."""
        return BufferedReader(_StoredFile(self), BUFFER)

    def read(self) -> bytes:
        """Read the whole file. Raises StorageError."""
        with _StoredFile(self) as file:
            return file.readall()

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
        unfinished = path.with_name(f"_{path.name}.{os.getpid()}.tmp")
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

    def files(self, recursive: bool = False) -> list["FileInfo"]:
        """List the files of a folder; none if it does not exist."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self.path, allow_not_found=True, recursive=recursive)
        infos = self.filesystem.get_file_info(selector)
        return [info for info in infos if info.type != FileType.Directory]


def locate(name: str) -> Location:
    """Find the file system of a path or URI. Raises InputError for a URI that pyarrow rejects."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem, LocalFileSystem

    if "://" not in name:
        return Location(LocalFileSystem(), Path(os.path.realpath(name)).as_posix(), name)
    try:
        filesystem, path = FileSystem.from_uri(name)
    except (ArrowException, ValueError) as error:
        raise InputError(
            f"expected a path, or a URI such as s3://bucket/folder, got one that pyarrow rejects: "
            f"{error}. Correct it."
        ) from error
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


class _StoredFile(RawIOBase):
    """The bytes of a file; its errors are StorageErrors.

    So they differ from the OSErrors that decoders raise for damaged bytes.
    """

    _file: Any = None  # also where it could not be opened: Python then calls `close` too

    def __init__(self, location: Location) -> None:
        self.name = location.name
        with _storage_errors(self.name):
            self._file = location.filesystem.open_input_file(location.path)

    def readable(self) -> bool:
        return True

    seekable = readable

    def readinto(self, buffer: Any) -> int:
        with _storage_errors(self.name):
            return int(self._file.readinto(buffer))

    def readall(self) -> bytes:  # else one request to an object store per 8 KB
        with _storage_errors(self.name):
            return bytes(self._file.read())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
