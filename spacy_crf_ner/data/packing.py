"""Docs packed as in spaCy's binary files, in the memory of one Doc."""

import zlib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Dict, Iterator

import numpy
from spacy.tokens import Doc, DocBin
from srsly.msgpack import Packer

CHUNK = 2**20  # bytes
# First bytes in msgpack, in front of a length of four bytes.
BYTES, ARRAY = b"\xc6", b"\xdd"
BLOBS = ("tokens", "spaces", "lengths")
ARRAYS = ("cats", "flags", "span_groups", "user_data")


class Part:
    """A part of a corpus, on its way into a file.

    `DocBin.to_bytes` takes several times the memory of all its docs. Here a DocBin packs each doc,
    and temporary files have the rest; what is written is the same.

    counts: Number of docs, sentences, tokens and entities, and of those of each label, as
        "entities.PERSON". Where a doc does not know its sentences, none are counted.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._packed = DocBin()
        # They go with the part, which is no context: many are open at once.
        self._files: Dict[str, IO[bytes]] = {key: TemporaryFile() for key in BLOBS + ARRAYS}  # noqa: SIM115
        # One for all: each new one asks all installed packages for encoders.
        self._pack: Any = Packer(use_bin_type=True).pack

    def add(self, doc: Doc) -> None:
        """Pack a doc, at the end."""
        count(doc, self.counts)
        packed, pack = self._packed, self._pack
        packed.add(doc)
        row = {
            "tokens": packed.tokens.pop().tobytes("C"),
            "spaces": packed.spaces.pop().tobytes("C"),
            "lengths": numpy.int32(len(doc)).tobytes(),
            "cats": pack(packed.cats.pop()),
            "flags": pack(packed.flags.pop()),
            "span_groups": pack(packed.span_groups.pop()),
            "user_data": pack(pack(doc.user_data)),
        }
        for key, content in row.items():
            self._files[key].write(content)

    def to_disk(self, path: Path) -> None:
        """Write all docs, as `DocBin.to_disk` with `store_user_data`; once, and add none after."""
        compress = zlib.compressobj()
        with path.open("wb") as file:
            for chunk in self._chunks():
                file.write(compress.compress(chunk))
            file.write(compress.flush())

    def _chunks(self) -> Iterator[bytes]:
        """Yield what a DocBin compresses: a map in msgpack."""
        whole = {
            "version": self._packed.version,
            "attrs": self._packed.attrs,
            "strings": sorted(self._packed.strings),
        }
        yield bytes([0x80 + len(whole) + len(self._files)])  # a map of so many keys
        for key, value in whole.items():
            yield self._pack(key) + self._pack(value)
        for key, column in self._files.items():
            length = self.counts["docs"] if key in ARRAYS else column.tell()
            kind = ARRAY if key in ARRAYS else BYTES
            yield self._pack(key) + kind + length.to_bytes(4, "big")
            column.seek(0)
            while chunk := column.read(CHUNK):
                yield chunk
            column.close()


def count(doc: Doc, counts: Dict[str, int]) -> None:
    """Add what a doc has to the counts of a `Part`."""
    sentences = len(list(doc.sents)) if doc.has_annotation("SENT_START") else 0
    found = Counter(docs=1, sentences=sentences, tokens=len(doc), entities=len(doc.ents))
    found.update(f"entities.{ent.label_}" for ent in doc.ents)
    for name, number in found.items():
        counts[name] = counts.get(name, 0) + number
