"""spaCy's binary files of training data."""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ..atomic import atomic_write
from ..docbin import SUFFIX, find_docbins, read_docbin
from ..input_error import InputError, did_you_mean
from ..pipeline.gold import gold_entities
from .repair_log import ConversionLog, error

ZLIB = b"x"  # the first byte of zlib's output; the second one is not ASCII
MAX_TOKENS = 1_000_000  # per file; writing them takes about 400 MB of memory


def is_spacy(head: bytes) -> bool:
    """Return whether the first bytes of a file, at least two, are those of a .spacy file."""
    return head.startswith(ZLIB) and not head[:2].isascii()


def read_spacy(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read the Docs of a .spacy file, with tokens, annotation and user data unchanged.

    Args:
        path: File of `spacy convert` or `DocBin.to_disk`, or a folder of such files. A whole file
            is in memory, packed; Docs are made one at a time.
        log: Counts the Docs; one without `doc.spans[log.spans_key]` is an error, or left out.
    """
    log = log or ConversionLog()
    for file in find_docbins(path):
        _, docs = read_docbin(file, nlp.vocab)
        for number, doc in enumerate(docs, 1):
            n = len(gold_entities(doc, log.spans_key))
            log.read(entities=n)
            if log.spans_key is None or log.spans_key in doc.spans:
                yield doc
                continue
            where, fix = f"{file}, doc {number}", "Change --spans-key, or convert the corpus again"
            hint = did_you_mean(log.spans_key, doc.spans)
            got = f"keys {[*doc.spans]}"
            problem = error(where, f"doc.spans[{log.spans_key!r}]", got, fix, hint)
            log.rejected("record", problem, records=1, entities=n)


class CorpusWriter:
    """Write Docs to a .spacy file, or more than `MAX_TOKENS` tokens to a folder of several.

    spaCy's Corpus can read both. So `MAX_TOKENS` limits the memory.

    Args:
        scratch: A new folder for files that are complete before `write` is called.
        spans_key: Key of the entities in doc.spans; None counts doc.ents.

    Attributes:
        counts: Number of docs, sentences, tokens, entities, and entities by label
            ("entities.PERSON"). Docs with unknown sentence boundaries add no sentences.
    """

    def __init__(self, scratch: Path, spans_key: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._scratch, self._spans_key = scratch, spans_key
        self._docs = DocBin(store_user_data=True)
        self._tokens = 0

    def add(self, doc: Doc) -> None:
        """Append a Doc."""
        if self._tokens and self._tokens + len(doc) > MAX_TOKENS:
            self._flush()
        self._docs.add(doc)
        self._tokens += len(doc)
        ents = gold_entities(doc, self._spans_key)
        sentences = len(list(doc.sents)) if doc.has_annotation("SENT_START") else 0
        self.counts.update(docs=1, sentences=sentences, tokens=len(doc), entities=len(ents))
        self.counts.update(f"entities.{ent.label_}" for ent in ents)

    def write(self, path: Path) -> None:
        """Write the file or folder; no Docs can be added afterwards."""
        if self._scratch.is_dir():
            self._flush()
            shutil.move(self._scratch, path)
        else:
            self._docs.to_disk(path)

    def _flush(self) -> None:
        self._scratch.mkdir(exist_ok=True)
        number = len(list(self._scratch.iterdir()))
        self._docs.to_disk(self._scratch / f"{number:05}{SUFFIX}")
        self._docs, self._tokens = DocBin(store_user_data=True), 0


def write_docbin(docs: Iterable[Doc], target: Path) -> Counter[str]:
    """Write Docs to a new file, or folder; return the counts of `CorpusWriter` that are not 0."""
    with TemporaryDirectory() as scratch:
        writer = CorpusWriter(Path(scratch, "docs"))
        for doc in docs:
            writer.add(doc)
        with atomic_write(target) as unfinished:
            writer.write(unfinished)
    return +writer.counts


def check_new_docbin(target: Path, inputs: Iterable[Path]) -> None:
    """Raise InputError if an output is no new .spacy file, or would be read with an input."""
    if target.exists():
        raise InputError(f"{target} exists already. The output, the last argument, is a new file.")
    if target.suffix != SUFFIX:
        raise InputError(
            f"{target} is no {SUFFIX} file. Write a {SUFFIX} file; `convert` makes others of it."
        )
    for folder in inputs:
        if folder.resolve() in target.resolve().parents:
            raise InputError(f"{target} is in the input {folder}. Choose a place beside it.")
