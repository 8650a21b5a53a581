"""Files to read and a folder to write, at a path or at a URI that pyarrow knows."""

import os
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, cast

import srsly

from .inputs import ENDINGS, HIDDEN, Source, Sources, find_sources
from .output_folder import ERRORS, SUMMARY

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

# Written first, removed never: the folder is ours. What begins with "_" is no data.
MARK = "_ray.json"
BUFFER = 2**20  # bytes


class RemoteFile(os.PathLike[str]):
    """A file of a file system, with what reading needs of a Path.

    It is read over the network, but where a path of this machine is needed: then it is copied.

    name: Its URI, without credentials.
    """

    def __init__(self, system: "FileSystem", path: str, name: str) -> None:
        self.system, self.path, self.name = system, path, name
        self._copy: Optional[TemporaryDirectory[str]] = None

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> Tuple[Any, ...]:
        # A copy stays on the machine that has made it.
        return type(self), (self.system, self.path, self.name)

    def __fspath__(self) -> str:
        from pyarrow.fs import LocalFileSystem, copy_files

        if self._copy is None:
            self._copy = TemporaryDirectory()
            copy_files(self.path, self._local, self.system, LocalFileSystem())
        return self._local

    def open(self, mode: str = "rb") -> BufferedReader:
        """Open the file; `mode` is that of reading bytes."""
        assert mode == "rb"
        return BufferedReader(self.system.open_input_file(self.path), BUFFER)

    def read_bytes(self) -> bytes:
        """Read all of the file."""
        with self.open() as file:
            return file.read()

    @property
    def _local(self) -> str:
        assert self._copy is not None
        return str(Path(self._copy.name, "copy"))


class OutputFolder:
    """A folder of annotated shards.

    name: Its path, or a URI such as s3://bucket/folder.

    Raises ValueError for a URI that pyarrow does not know.
    """

    def __init__(self, name: str) -> None:
        self.system, self.path, self.name = _locate(name)

    def begin(self, plan: Dict[str, Any], restart: bool) -> None:
        """Make the folder, and note in it what its files will follow from.

        plan: Of the run: see `make_plan`.
        restart: Remove the shards, errors and summary that an earlier run has left.

        Raises ValueError for a folder that holds something else, or an earlier run where a restart
        was not said.
        """
        names = self._names()
        if names and MARK not in names:
            raise ValueError(
                f"{self.name}: expected a new or an empty folder, or one that annotate has begun "
                "on Ray, got one that holds something else. Name another."
            )
        if names and not restart:
            raise ValueError(
                f"{self.name}: expected a new or an empty folder, got one that an earlier run has "
                "begun. Begin anew by --restart, or name another."
            )
        for name in names:
            if name.startswith("part-") or name in (ERRORS, SUMMARY):
                self.system.delete_file(f"{self.path}/{name}")
        self.system.create_dir(self.path, recursive=True)
        self.write(MARK, srsly.json_dumps(plan).encode())

    def open(self, name: str) -> "NativeFile":
        """Open a file of the folder, to be written anew."""
        return self.system.open_output_stream(f"{self.path}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file of the folder anew."""
        with self.open(name) as file:
            file.write(content)

    def _names(self) -> List[str]:
        from pyarrow.fs import FileSelector, FileType

        if self.system.get_file_info(self.path).type == FileType.File:
            raise ValueError(f"{self.name}: expected a folder, got a file. Name another.")
        listed = self.system.get_file_info(FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in listed]


def find_files(inputs: Sequence[str], output: OutputFolder) -> Sources:
    """Find the files of a corpus.

    inputs: Files, globs or folders, as of `find_sources`; or URIs of files and folders, whose
        names tell the same of what they have.
    output: Folder in which the annotated corpus will be.

    Returns them in the order of the inputs, those of a folder sorted by path.
    Raises ValueError for paths and URIs together, and what `find_sources` raises.
    """
    remote = [name for name in inputs if "://" in name]
    if not remote:
        local = output.system.type_name == "local"
        return find_sources(inputs, Path(output.path if local else os.devnull))
    if len(remote) < len(inputs):
        raise ValueError(
            f"expected inputs that are all paths or all URIs, got {remote[0]} among paths. "
            "Write the paths as file:// URIs."
        )
    found = Sources([], [])
    for name in remote:
        system, path, _ = _locate(name)
        files = sorted(_files(system, path, name), key=lambda info: info.path)
        for info in files:
            source = _source(system, info, name)
            alone = info.path == path
            hidden = not alone and _hidden(info.path.removeprefix(path))
            if source is None or hidden:
                found.ignored.append(Path(info.path))
            else:
                found.sources.append(source)
        _require_usable(found, name, output)
    return found


def _locate(name: str) -> Tuple["FileSystem", str, str]:
    """Find the file system of a path or URI, the path in it, and its name without credentials."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem, LocalFileSystem

    if "://" not in name:
        return LocalFileSystem(), str(Path(name).resolve()), name
    try:
        system, path = FileSystem.from_uri(name)
    except (ArrowException, ValueError) as error:
        raise ValueError(
            f"expected a path, or a URI such as s3://bucket/folder, got one that pyarrow does not "
            f"take: {error}. Correct it."
        ) from error
    path = path.rstrip("/")
    return system, path, _name(name, path)


def _name(uri: str, path: str) -> str:
    """Name what is at a path of the file system of a URI, which may have credentials."""
    scheme, _, _ = uri.partition("://")
    return f"{scheme}://{path}"


def _files(system: "FileSystem", path: str, name: str) -> Iterator["FileInfo"]:
    from pyarrow.fs import FileSelector, FileType

    info = system.get_file_info(path)
    if info.type == FileType.NotFound:
        raise ValueError(
            f"{_name(name, path)}: expected a file or a folder, got nothing of that name. "
            "Correct the URI; globs are for paths."
        )
    if info.type == FileType.File:
        yield info
        return
    for each in system.get_file_info(FileSelector(path, recursive=True)):
        if each.type == FileType.File:
            yield each


def _source(system: "FileSystem", info: "FileInfo", uri: str) -> Optional[Source]:
    for ending, (kind, compression) in ENDINGS.items():
        if info.path.lower().endswith(ending):
            file = RemoteFile(system, info.path, _name(uri, info.path))
            return Source(cast(Path, file), kind, compression, info.size)
    return None


def _hidden(path: str) -> bool:
    return any(part.startswith(HIDDEN) for part in path.split("/"))


def _require_usable(found: Sources, uri: str, output: OutputFolder) -> None:
    files = [cast(RemoteFile, source.path) for source in found.sources]
    if not files:
        raise ValueError(
            f"{_name(uri, '...')}: expected files whose names end with {', '.join(ENDINGS)}, got "
            f"{len(found.ignored)} others. Correct the URI."
        )
    if len({file.name for file in files}) < len(files):
        raise ValueError("expected every file once, got one of them twice. Leave one out.")
    for file in files:
        if file.system == output.system and file.path.startswith(f"{output.path}/"):
            raise ValueError(
                f"{file}: expected an input outside of the output, got one within {output.name}. "
                "Name another folder for the output."
            )
