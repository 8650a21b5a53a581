"""The bytes of a file as they were before it was compressed."""

import gzip
from contextlib import contextmanager
from io import BufferedReader
from typing import BinaryIO, Callable, Iterator, Tuple, cast

from ..inputs import Source


@contextmanager
def unpacked(source: Source) -> Iterator[Tuple[BinaryIO, Callable[[], int]]]:
    """Open a file, and unpack it while it is read.

    Yields the file, and a function that tells how many bytes of it, as it lies on the disk, are
    read. What is read raises, where the file is damaged, OSError, EOFError or zlib.error.
    """
    with source.path.open("rb") as packed, _unpacking(packed, source.compression) as file:
        yield file, lambda: min(packed.tell(), source.size)


def _unpacking(packed: BufferedReader, compression: str) -> BinaryIO:
    if compression == "gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=packed))
    if compression == "zst":
        from pyarrow import CompressedInputStream

        return BufferedReader(CompressedInputStream(packed, "zstd"))
    return packed
