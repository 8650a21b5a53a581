"""Corpora of any format to the binary files that spaCy trains on."""

from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Union

from spacy.language import Language
from spacy.tokens import Doc

from .atomic import whole
from .brat import read_brat
from .conll import read_conll
from .docbin import read_spacy
from .doccano import read_doccano
from .files import SPLITS, find_files
from .format_detection import detect_format
from .gmb import read_gmb
from .grouping import group_sentences
from .inline import read_inline
from .jsonl import read_jsonl, write_jsonl
from .label_studio import read_label_studio
from .packing import Part, count
from .repair_log import Journal, error
from .splits import divide, require_shares
from .vietnamese import SYLLABLES

# Of a file (of brat: or folder), a pipeline, and a Journal or none.
Converter = Callable[..., Iterator[Doc]]
# Is told the part, the number of its docs so far, and of how many, if that is known.
Watcher = Callable[[str, int, Optional[int]], None]

CONVERTERS: Dict[str, Converter] = {
    "inline": read_inline,
    "conll": read_conll,
    "gmb": read_gmb,
    "jsonl": read_jsonl,
    "doccano": read_doccano,
    "label_studio": read_label_studio,
    "brat": read_brat,
    "spacy": read_spacy,
}
FILES = (".spacy", ".jsonl")


def convert(
    source: Union[Path, Sequence[Path]],
    target: Path,
    *,
    nlp: Language,
    format: str = "auto",
    group: int = 1,
    syllables: str = "keep",
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    token_column: int = 1,
    tag_column: int = -1,
    journal: Optional[Journal] = None,
    watch: Optional[Watcher] = None,
) -> Dict[str, Dict[str, int]]:
    """Write a corpus as train.spacy, dev.spacy and test.spacy, or as one file.

    source: A file, which is split by `shares`; or a folder, with a file for train, for dev and, if
        there is one, for test (train.txt, eng.testa), or else with one file, which is split; or
        several of these, which are the parts that their names say, or one corpus, in this order.
    target: Folder for the three files; or a new file, .spacy or .jsonl, for all of the corpus.
        Nothing is written unless all of the corpus can be read.
    nlp: Pipeline whose tokenizer is used, if the format has no tokens, and whose vocabulary.
    format: A key of `CONVERTERS`, or "auto" to tell it by the content.
    group: Sentences a Doc, as for `group_sentences`; no Doc is of two files.
    syllables: A key of `SYLLABLES`: keep tokens, split words into syllables, or join them to words.
    shares, seed: As for `split`; a part whose share is 0, or left out, is not written.
    token_column, tag_column: As for `read_conll`; other numbers are for that format only.
    journal: Decides what becomes of mistakes, and counts them, and what was read of each part
        (of "corpus" where that is split); without one, the first mistake is raised.
    watch: Called before the first doc of a part, and at each.

    Returns the number of docs, sentences, tokens and entities of each part written, and that of
    the entities of each label, as "entities.PERSON".
    Raises CorpusError for a corpus that cannot be read, and where a part would have no docs, and
    ValueError for a choice that there is not, or that needs a package which is not installed.
    """
    sources = [source] if isinstance(source, Path) else list(source)
    converter = _converter(sources, format, token_column, tag_column)
    if syllables not in SYLLABLES:
        raise ValueError(f"syllables: expected {', '.join(SYLLABLES)}, got {syllables!r}.")
    if len(shares) > len(SPLITS):
        raise ValueError(f"shares: expected at most 3 ({', '.join(SPLITS)}), got {len(shares)}.")
    _require_target(target)
    files, ignored = find_files(sources, whole=target.suffix in FILES)
    journal = journal or Journal()
    for _ in ignored:
        journal.left_out("file")

    def read(name: str, journal: Journal, total: Optional[int] = None) -> Iterator[Doc]:
        """Read a part; where the number of its docs is known, that is said to who watches."""
        journal.begin(name)
        if watch:
            watch(name, 0, total)
        docs = (SYLLABLES[syllables](converter(file, nlp, journal)) for file in files[name])
        grouped = (doc for sentences in docs for doc in group_sentences(sentences, group))
        for number, doc in enumerate(grouped, 1):
            if watch:
                watch(name, number, total)
            yield doc

    if target.suffix == ".jsonl":
        return {"corpus": _write_lines(read("corpus", journal), target)}
    if target.suffix == ".spacy" or "corpus" not in files:
        parts = {name: _pack(read(name, journal)) for name in files}
    else:
        parts = _divide(sources, read, journal, shares, seed)
    where = ", ".join(map(str, sources))
    for name, part in parts.items():
        if not part.counts["docs"]:
            fix = "Change the shares, or add sentences"
            raise error(f"{where}, {name}", "at least one doc", "none", fix)
    counts = {name: dict(part.counts) for name, part in parts.items()}
    for name, part in parts.items():
        path = target if target.suffix == ".spacy" else target / f"{name}.spacy"
        with whole(path) as unfinished:
            part.to_disk(unfinished)
    return counts


def _divide(
    sources: Sequence[Path],
    read: Callable[..., Iterator[Doc]],
    journal: Journal,
    shares: Sequence[float],
    seed: int,
) -> Dict[str, Part]:
    """Divide a corpus as `split` does, but read it twice: first to count its docs."""
    require_shares(shares)
    n = sum(1 for _ in read("corpus", journal))
    parts = {name: Part() for name, share in zip(SPLITS, shares) if share}
    again = read("corpus", Journal(journal.repair, journal.alignment), total=n)
    for k, doc in zip(divide(n, shares, seed), again):
        parts[SPLITS[k]].add(doc)
    if sum(part.counts["docs"] for part in parts.values()) != n or next(again, None) is not None:
        where, fix = ", ".join(map(str, sources)), "Convert it when nobody writes to it"
        raise error(where, f"{n} docs, as it had at first", "another number", fix)
    return parts


def _pack(docs: Iterable[Doc]) -> Part:
    part = Part()
    for doc in docs:
        part.add(doc)
    return part


def _write_lines(docs: Iterator[Doc], target: Path) -> Dict[str, int]:
    counts: Dict[str, int] = {}

    def counted() -> Iterator[Doc]:
        for doc in docs:
            count(doc, counts)
            yield doc

    write_jsonl(counted(), target)
    return counts


def _require_target(target: Path) -> None:
    """Raise ValueError where a file that is there would be written over, or is no folder."""
    if target.is_file():
        raise ValueError(
            f"{target}: expected a folder for the corpus, or the name of a new file that ends in "
            f"{' or '.join(FILES)}, got a file that is there. Name what to write last, and remove "
            "an old file first."
        )


def _converter(sources: List[Path], format: str, token_column: int, tag_column: int) -> Converter:
    chosen = (token_column, tag_column) != (1, -1)
    if format == "auto":
        format = "conll" if chosen else detect_format(*sources)
    if format not in CONVERTERS:
        raise ValueError(f"format: expected auto, {', '.join(CONVERTERS)}, got {format!r}.")
    if chosen and format != "conll":
        raise ValueError(f"format: expected conll, which has columns, got {format!r}.")
    if format == "conll":
        return partial(read_conll, token_column=token_column, tag_column=tag_column)
    return CONVERTERS[format]
