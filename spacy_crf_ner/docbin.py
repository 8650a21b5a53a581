"""Read Docs from spaCy's binary format."""

from pathlib import Path
from typing import Iterator, List, Tuple

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

from .input_error import InputError

SUFFIX = ".spacy"


def read_docbin(path: Path, vocab: Vocab) -> Tuple[int, Iterator[Doc]]:
    """Open a .spacy file, or all .spacy files of a folder in the order of their names.

    spaCy's `Corpus` skips docs without tokens; this function does not. Packed docs stay in memory;
    each Doc is made when it is asked for.

    path: File or folder.
    vocab: Vocab that the docs share.

    Returns the number of docs, and an iterator over them. Raises InputError for a folder without
    .spacy files and, also from the iterator, for a file in another format or a truncated one;
    OSError for a missing file.
    """
    files = [path]
    if path.is_dir():  # in a folder, a large part may be a folder train.spacy itself
        files = sorted(file for file in path.rglob(f"*{SUFFIX}") if file.is_file())
    if not files:
        raise InputError(
            f"{path}: expected {SUFFIX} files in the folder, got none. Convert the corpus with "
            "spacy-crf-ner convert."
        )
    bins = [_open(file) for file in files]
    return sum(map(len, bins)), _docs(files, bins, vocab)


def _open(file: Path) -> DocBin:
    content = file.read_bytes()
    try:
        return DocBin(store_user_data=True).from_bytes(content)
    except MemoryError:
        raise
    except Exception as error:  # zlib, msgpack and numpy have errors of their own
        raise _not_readable(file) from error


def _docs(files: List[Path], bins: List[DocBin], vocab: Vocab) -> Iterator[Doc]:
    for file, packed in zip(files, bins):
        docs = packed.get_docs(vocab)
        while True:
            try:
                doc = next(docs, None)
            except (MemoryError, OSError):
                raise
            except Exception as error:
                raise _not_readable(file) from error
            if doc is None:
                break
            yield doc


def _not_readable(file: Path) -> InputError:
    return InputError(
        f"{file}: expected spaCy's binary format, got another, or a part of a file. Convert the "
        "corpus with spacy-crf-ner convert."
    )
