"""Bytes with a digest in front, which shows damage when they are read."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ..input_error import InputError

MARK = b"crf-ner\x01"
DIGEST_BYTES = 16
_blake2b = partial(hashlib.blake2b, digest_size=DIGEST_BYTES)


def seal(data: bytes) -> bytes:
    """Put a mark and a digest in front of bytes."""
    return b"".join((MARK, _blake2b(data).digest(), data))


def unseal(sealed: bytes) -> memoryview:
    """Return the bytes behind a mark and a digest; raise InputError if one of these is wrong."""
    start = len(MARK) + DIGEST_BYTES
    if sealed[: len(MARK)] != MARK:
        raise InputError(
            "The stored weights cannot be read: they were not written by this version of "
            "spacy-crf-ner. Pickled weights are not loaded. Train the pipeline again, or save it "
            "again with the version that wrote it."
        )
    data = memoryview(sealed)[start:]
    if _blake2b(data).digest() != sealed[len(MARK) : start]:
        raise InputError(
            "The stored weights cannot be read: they have changed since they were saved. Copy the "
            "pipeline again."
        )
    return data


def file_digest(path: Path) -> str:
    """Compute the digest of a file: 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _blake2b).hexdigest()


def is_of_machine(error: Exception) -> bool:
    """Return whether an error is about memory or a file system, and not about what was read."""
    # The library transformers raises OSErrors without a number for bad content.
    is_systems = isinstance(error, OSError) and error.errno is not None
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_systems or is_memory


@contextmanager
def readable(expected: str) -> Iterator[None]:
    """Raise InputError where stored bytes cannot be read; errors of the machine pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or is_of_machine(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"The stored weights cannot be read: expected {expected}, got bytes that fail with "
            f"{reason[:300]}. Load the pipeline with the config that it was trained with, or copy "
            "it again."
        ) from error


@contextmanager
def errors_of(file: object) -> Iterator[None]:
    """Raise InputError, with the name of a file, where it cannot be read."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (MemoryError, OSError):
        raise  # of the machine
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{file} cannot be read: {reason}. The file is damaged, or the config is of another "
            "pipeline: copy the pipeline again."
        ) from error
