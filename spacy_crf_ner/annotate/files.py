"""Files at paths, or at URIs that pyarrow supports; and those of a corpus, in their order."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data.json_records import check_unicode
from ..input_error import InputError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

TEXTS = ("txt", "jsonl", "csv", "tsv")
# Kind of file and compression, by file extension.
ENDINGS = {
    **{f".{kind}": (kind, "") for kind in (*TEXTS, "parquet", "spacy")},
    **{f".{kind}.{packed}": (kind, packed) for kind in TEXTS for packed in ("gz", "zst")},
}
HIDDEN = ("_", ".")  # such files are not read: _SUCCESS, .ipynb_checkpoints
WILD = frozenset("*?[")
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

    def remove(self, unwanted: Callable[[str], bool]) -> None:
        """Remove files of a folder, by their names."""
        for name in filter(unwanted, self.names()):
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
        except (ImportError, ValueError) as reason:
            raise InputError(
                f"{name.partition('://')[0]}://: only local files are read, and URIs that pyarrow "
                f"or fsspec reads here, such as s3://bucket/folder. fsspec says: {reason}. "
                "Correct the URI, or download the files."
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


class Source(NamedTuple):
    """A file, and how to read it."""

    location: Location
    kind: str  # "txt", "jsonl", "csv", "tsv", "parquet" or "spacy"
    compression: str  # "", "gz" or "zst"
    size: int  # bytes, as stored
    modified: int  # time of the last change, in nanoseconds

    @property
    def name(self) -> str:
        """Path or URI, as messages and ids show it."""
        return self.location.name

    @property
    def place(self) -> tuple[str, str]:
        """What is the same for all names of the file."""
        return self.location.filesystem.type_name, self.location.path


class Sources(NamedTuple):
    """The files of a corpus.

    Ignored are, in folders and globs, files of another kind, hidden files (their name, or the name
    of a folder above, begins with "_" or "."), and links to folders.
    """

    sources: list[Source]
    ignored: list[str]


def find_sources(
    inputs: Sequence[str | Path], output: Location, earlier: Iterable[Source] = ()
) -> Sources:
    """Find the files of a corpus, each once, in the order of the inputs; those of a folder sorted.

    Args:
        inputs: Files; folders, including subfolders; globs, in which `**` is any number of folders;
            and URIs of files and folders. An existing name is not a glob.
        output: A folder that may not be in an input folder, and no input in it.
        earlier: Files that may not be found again.
    """
    if not inputs:
        raise InputError("inputs: expected a file, a folder or a glob, got none. Add one.")
    found = Sources([], [])
    first_names = {each.place: each.name for each in earlier}
    for given in map(str, inputs):
        root, infos = _list(given, output)
        before = len(found.sources)
        for info in sorted(infos, key=lambda info: info.path.split("/")):
            source = _source(root, info)
            if isinstance(source, str):
                found.ignored.append(source)
                continue
            if _within(source.location, output):
                raise InputError(
                    f"{source.name}: expected an input outside of the output, got one in "
                    f"{output.name}. Choose another folder for the output."
                )
            if source.place in first_names:
                raise InputError(
                    f"{source.name}: expected every file once, got it also as "
                    f"{first_names[source.place]}. Leave one of them out."
                )
            first_names[source.place] = source.name
            found.sources.append(source)
        if len(found.sources) == before:
            raise InputError(
                f"{given}: expected files whose names end with {', '.join(ENDINGS)} and do not "
                f"begin with _ or a dot, got {len(infos)} others. Correct the path."
            )
    return found


def _list(given: str, output: Location) -> tuple[Location, list["FileInfo"]]:
    """List the files at a path, glob or URI; also return the file or folder that contains them."""
    from pyarrow.fs import FileType

    check_unicode("name of an input", given)
    root = locate(given)
    (info,) = root.filesystem.get_file_info([root.path])
    if info.type == FileType.Directory and _within(output, root):
        raise InputError(
            f"{output.name}: expected an output outside of the input, got one in {root.name}. "
            "Choose another folder."
        )
    if info.type == FileType.File:
        return root, [info]
    if "://" in given and info.type == FileType.Directory:
        return root, root.files(recursive=True)
    matches = [Path(given)]
    if info.type == FileType.NotFound:
        base = Path(*takewhile(WILD.isdisjoint, Path(given).parts))
        if "://" in given or base == Path(given):
            raise InputError(
                f"{root.name} does not exist. Correct the name; globs are only for local paths."
            )
        matches = list(base.glob(str(Path(given).relative_to(base))))
        root = locate(str(base))
    folder = Path(root.name)
    paths = {path.relative_to(folder).as_posix() for each in matches for path in _walk(each)}
    for path in paths:
        check_unicode(f"name of a file in {folder}", path)
    return root, root.filesystem.get_file_info([f"{root.path}/{path}" for path in paths])


def _walk(path: Path) -> Iterator[Path]:
    """Yield the files of a folder and its links to folders; for anything else, the path."""

    def fail(error: OSError) -> None:
        raise error

    if not path.is_dir():
        yield path
        return
    for parent, folders, names in os.walk(path, onerror=fail):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in [*names, *links])


def _source(root: Location, info: "FileInfo") -> Source | str:
    """Describe a file in `root`; return only its name if it is not read."""
    from pyarrow.fs import FileType

    relative = info.path.removeprefix(root.path)  # "" if it is `root`
    name = root.name.rstrip("/") + relative
    name = Path(name).as_posix() if root.is_local and "://" not in name else name
    ending = next((each for each in ENDINGS if name.lower().endswith(each)), None)
    hidden = any(part.startswith(HIDDEN) for part in relative.split("/"))
    if info.type != FileType.File or ending is None or hidden:
        return name
    path = Path(os.path.realpath(info.path)).as_posix() if root.is_local else info.path
    location = Location(root.filesystem, path, name)
    return Source(location, *ENDINGS[ending], info.size, info.mtime_ns or 0)


def _within(inner: Location, outer: Location) -> bool:
    same = inner.filesystem == outer.filesystem
    return same and f"{inner.path}/".startswith(f"{outer.path}/")
