"""Docs in the binary files of spaCy."""

from typing import Iterator

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from ...data.json_records import META
from ..inputs import Source
from .item import Item, Place


def read_packed_docs(source: Source, text_column: str) -> Iterator[Item]:
    """Read Docs with their tokens and metadata, but without annotation, which may be gold.

    All of the file is in memory, packed. A row has what `convert` keeps of a record, and the Doc as
    bytes, which `Language.pipe` takes as it takes a text. Raises whatever zlib, msgpack, numpy and
    spaCy raise for a file that is not theirs.
    """
    vocab = Vocab()
    packed = DocBin().from_bytes(source.path.read_bytes())
    for number, doc in enumerate(packed.get_docs(vocab), 1):
        meta = doc.user_data.get(META)
        row = {**meta} if isinstance(meta, dict) else {}
        row[text_column] = _bare(doc).to_bytes()
        position = source.size * number // len(packed)
        yield Item(Place(str(source.path), number), row, "", position)


def _bare(doc: Doc) -> Doc:
    spaces = None if doc.has_unknown_spaces else [bool(token.whitespace_) for token in doc]
    return Doc(doc.vocab, [token.text for token in doc], spaces)
