"""Files of docs with the scores of their teachers.

Axes: B docs, N tokens of the file, one doc after the other, C tags of a teacher.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus, Example
from spacy.vocab import Vocab

from ..input_error import InputError
from ..pipeline.distill_targets import Teacher

SUFFIX = ".npz"
TAG_SPEC = ("scheme", "labels", "overlap", "max_nesting")
SCORES = ("transitions", "start", "end")


class TeacherShard(NamedTuple):
    """B docs with a token, and the scores of their teachers."""

    docs: list[Doc]  # gold docs; their entities may be missing
    checksums: list[int]  # of the tokens that the teachers read
    teachers: list[Teacher]  # what their scores have in common
    emissions: list[list[NDArray[np.float32]]]  # (T, C) for each teacher of each doc


def as_example(nlp: Language, gold: Doc) -> Example:
    """Make the example of a doc with a token, as `spacy train` does."""
    (example,) = Corpus("").make_examples(nlp, [gold])
    return example


def checksum(doc: Doc) -> int:
    """Compute a checksum of the tokens of a doc."""
    return zlib.crc32("\n".join(token.text for token in doc).encode("utf-8", "surrogatepass"))


def to_bytes(shard: TeacherShard) -> bytes:
    """Pack a shard; equal shards have equal bytes."""
    packed = DocBin(docs=shard.docs).to_bytes()
    arrays: dict[str, Any] = {
        "docs": np.frombuffer(packed, dtype=np.uint8),
        "checksums": np.array(shard.checksums, dtype=np.uint32),
    }
    kinds = [{name: getattr(teacher, name) for name in TAG_SPEC} for teacher in shard.teachers]
    arrays["teachers"] = np.frombuffer(json.dumps(kinds).encode(), dtype=np.uint8)
    for k, teacher in enumerate(shard.teachers):
        arrays |= {f"{name}_{k}": getattr(teacher, name) for name in SCORES}
        of_docs = [emissions[k] for emissions in shard.emissions]
        arrays[f"emissions_{k}"] = np.concatenate(of_docs)
        arrays["lengths"] = np.array([*map(len, of_docs)])
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def find_shards(folder: Path) -> list[Path]:
    """Return the shards of a folder, in the order of the corpus; InputError if there is none."""
    files = sorted(folder.glob(f"part-*{SUFFIX}"))
    if not files:
        raise InputError(
            f"{folder}: expected files part-*{SUFFIX} with the scores of teachers, got none. Make "
            "them with spacy-crf-ner distill."
        )
    return files


def count_docs(file: Path) -> int:
    """Count the docs of a shard. Raises InputError for a damaged one, OSError for a missing one."""
    with _opened(file) as arrays:
        return len(arrays["checksums"])


def read_shard(file: Path, vocab: Vocab) -> TeacherShard:
    """Read a shard. Raises InputError for a damaged one, and OSError for a missing one."""
    with _opened(file) as arrays:
        docs = list(DocBin().from_bytes(arrays["docs"].tobytes()).get_docs(vocab))
        kinds = json.loads(arrays["teachers"].tobytes())
        teachers = [
            Teacher(
                **{**kind, "labels": tuple(kind["labels"])},
                **{name: arrays[f"{name}_{k}"] for name in SCORES},
            )
            for k, kind in enumerate(kinds)
        ]
        ends = arrays["lengths"].cumsum()
        parts = [np.split(arrays[f"emissions_{k}"], ends)[:-1] for k in range(len(kinds))]
        checksums = arrays["checksums"].tolist()
        emissions = [list(of_doc) for of_doc in zip(*parts, strict=True)]
        if not len(docs) == len(checksums) == len(emissions):
            raise ValueError(f"{len(docs)} docs, and scores of {len(emissions)}")
        return TeacherShard(docs, checksums, teachers, emissions)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open the arrays of a file, and convert the errors of a damaged one."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            yield arrays
    except (OSError, MemoryError):
        raise
    except Exception as error:  # zip, zlib, msgpack and numpy raise their own errors
        raise InputError(
            f"{file}: expected docs and the scores of their teachers, got a damaged file "
            f"({type(error).__name__}: {error}). Remove it and its report in _progress, and "
            "compute it again with spacy-crf-ner distill --resume."
        ) from error
