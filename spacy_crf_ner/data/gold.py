"""Gold docs of a corpus in any format, in the tokens of a pipeline."""

from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import SUFFIX, read_docbin
from .conversion import read_corpus
from .repair_log import ConversionLog


def read_gold(path: Path, nlp: Language, log: ConversionLog) -> tuple[int | None, Iterator[Doc]]:
    """Open a corpus of gold docs in any format.

    Args:
        path: A .spacy file, a folder with such files, or a corpus in any format of `convert`; the
            parts of a folder are one.
        log: Counts what is skipped, when the docs are read.

    Returns:
        The number of docs, if known, and an iterator over them.

    Raises:
        CorpusError: For a corpus that cannot be read.
        OSError: For a missing file.
    """
    is_binary = path.suffix == SUFFIX or any(path.rglob(f"*{SUFFIX}"))
    if is_binary or not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return read_docbin(path, nlp.vocab)
    log.start_part(str(path))
    return None, read_corpus([path], nlp, log)
