"""Docs and spaCy's binary formats of them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import srsly
from spacy.tokens import Doc, DocBin, Token
from spacy.vocab import Vocab

from .input_error import CorpusError

SUFFIX = ".spacy"
META = "meta"  # key of doc.user_data for what a corpus says about a Doc beside its annotation
# Keys of that for the document that a Doc is from; `convert` writes the first one.
DOCUMENT = "document"
DOCUMENTS = (DOCUMENT, "document_id", "doc", "doc_id", "docid", "article", "article_id")


def find_docbins(path: Path) -> list[Path]:
    """Return the .spacy files of a folder, ordered by name; for a file, return only this file.

    As in `spacy train`, links are followed, and names that begin with a dot are skipped; but a link
    to a folder that it is in is not followed. CorpusError for a folder without .spacy files.
    """
    if not path.is_dir():
        return [path]
    # A large part may itself be a folder named train.spacy.
    found: list[Path] = []
    for folder, subfolders, names in os.walk(path, followlinks=True):
        here = Path(folder)
        outer = {here.resolve(), *here.resolve().parents}
        subfolders[:] = [name for name in subfolders if (here / name).resolve() not in outer]
        found += [here / name for name in names if name.endswith(SUFFIX)]
    hidden = {each for each in found for part in each.relative_to(path).parts if part[0] == "."}
    if files := sorted({*found} - hidden):
        return files
    raise CorpusError(
        f"{path}: expected {SUFFIX} files in the folder, got none. Convert the corpus with "
        "spacy-crf-ner convert."
    )


def read_docbin(path: Path, vocab: Vocab) -> tuple[int, Iterator[Doc]]:
    """Open a .spacy file, or all of a folder by name; return the number of docs, and the docs.

    spaCy's `Corpus` skips docs without tokens; this function does not. Packed docs stay in memory;
    each Doc is made when the iterator reaches it. Raises CorpusError for a folder without .spacy
    files and, also from the iterator, for a file in another format or a truncated one.
    """
    files, bins = find_docbins(path), list[DocBin]()
    for file in files:
        with _naming(str(file)):
            bins.append(DocBin(store_user_data=True).from_bytes(file.read_bytes()))
    return sum(map(len, bins)), _docs(files, bins, vocab)


def copy_norms(tokens: Iterable[Token], doc: Doc) -> Doc:
    """Give the tokens of a Doc the norms of others with the same texts, and return it.

    Tokenizer exceptions have norms of their own: "n't" is normalized to "not".
    """
    for token, own in zip(tokens, doc):
        own.norm_ = token.norm_
    return doc


def document_name(path: Path) -> str:
    """Name the document in a file by the name and two folders: both parts may have ann/doc1.txt."""
    name = "/".join([*path.parent.resolve().parts[1:][-2:], path.name])
    return name.encode("utf-8", "replace").decode()


def document_of(doc: Doc) -> str | None:
    """Return the document that a sentence is from, or None if its corpus does not say it."""
    return document_in(doc.user_data.get(META))


def document_in(meta: object) -> str | None:
    """Return the document that metadata name, also in "data" or "meta" inside of them, or None."""
    if not isinstance(meta, dict):
        return None
    named = (meta[key] for key in DOCUMENTS if type(meta.get(key)) in (str, int))
    inside = (document_in(meta.get(key)) for key in ("data", META))
    return next((str(each) for each in (*named, *inside) if each is not None), None)


def without_annotation(doc: Doc, vocab: Vocab) -> Doc:
    """Make a Doc of the same tokens, with their norms."""
    spaces = None if doc.has_unknown_spaces else [bool(token.whitespace_) for token in doc]
    return copy_norms(doc, Doc(vocab, [token.text for token in doc], spaces))


def _docs(files: list[Path], bins: list[DocBin], vocab: Vocab) -> Iterator[Doc]:
    for file, packed in zip(files, bins):
        docs = packed.get_docs(vocab)
        for number in range(1, len(packed) + 1):
            with _naming(f"{file}, doc {number}"):
                doc = next(docs)
                _ = doc.text, doc.ents  # fail if the file lacks the strings of words or labels
            yield doc


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as error:  # zlib, msgpack and numpy raise their own errors
        raise CorpusError(
            f"{where}: expected spaCy's binary format, got another or an incomplete file "
            f"({type(error).__name__}: {error}). Convert the corpus with spacy-crf-ner convert."
        ) from error


def find_encoders_once() -> None:
    """Let srsly find the encoders for msgpack once a process, at the first Doc.

    Its search among the entry points of all packages, for each Doc that is read or written as
    bytes, takes longer than the rest of the work.
    """
    for registry in (srsly.msgpack_encoders, srsly.msgpack_decoders):
        found = cache(registry.get_all)
        registry.get_all = found
        registry.register = partial(_register, found, registry.register)


def _register(found: Any, register: Any, name: str, *, func: Any = None) -> Any:
    """Register an encoder; those that were found are searched again."""
    found.cache_clear()
    return register(name, func=func)
