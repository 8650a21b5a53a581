"""Conversion of corpora in any format to spaCy's binary training files."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from inspect import signature
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory

import spacy
from spacy.language import Language
from spacy.tokens import Doc

from ..atomic import atomic_write
from ..docbin import SUFFIX, document_of, read_docbin
from ..input_error import CorpusError, InputError
from ..pipeline.annotated_labels import KEY
from .docbin import CorpusWriter, read_spacy
from .files import SPLITS, find_files
from .format_detection import FORMATS, Reader, detect_format
from .json_records import check_unicode
from .jsonl import write_jsonl
from .offsets import INCORRECT, set_annotated_labels
from .parquet import SUFFIX as PARQUET
from .parquet import write_parquet
from .repair_log import ConversionLog, error
from .sentences import group_sentences
from .splits import DEFAULT, Split
from .vietnamese import SYLLABLES

OnProgress = Callable[[str, int], None]  # called with a part, and its number of docs so far
JSONL = ".jsonl"
FILE_SUFFIXES = (SUFFIX, JSONL, PARQUET)


@dataclass(frozen=True)
class ConvertOptions:
    """What `convert` reads, and what it does with the docs.

    Attributes:
        format: A key of `FORMATS`, or "auto" to detect it.
        columns: The columns of a file, or keys of its records, by the names of the arguments of its
            reader: "text_column", "spans_column", "token_column" and "tag_column". A number counts
            from 1, or from -1 for the last.
        n_sents: Sentences per Doc; 0 joins all sentences of a document. No Doc spans two files.
        syllables: A key of `SYLLABLES`: keep tokens, split words into syllables, or join them to
            words.
        labels: The labels that the corpus annotates, stored with each doc; None for all, or those
            that its docs say.
        split: How it is split. A part without a share, or a share of 0, is not written. The log
            notes how it was split, and if another split than by default is not used.
        parquet: Write .parquet files, see `write_parquet`, instead of .spacy.
        overwrite: Replace the parts of an earlier conversion in the target, a folder.
    """

    format: str = "auto"
    columns: Mapping[str, int | str] = field(default_factory=dict)
    n_sents: int = 1
    syllables: str = "keep"
    labels: Sequence[str] | None = None
    split: Split = DEFAULT
    parquet: bool = False
    overwrite: bool = False


def convert(
    source: Path | Sequence[Path],
    target: Path,
    options: ConvertOptions | None = None,
    *,
    nlp: Language,
    log: ConversionLog | None = None,
    on_progress: OnProgress = lambda part, number: None,
) -> dict[str, dict[str, int]]:
    """Write a corpus as train.spacy, dev.spacy and test.spacy, or as one file.

    Args:
        source: Files and folders, see `find_files`. A corpus without parts is split. If only dev is
            missing, it is split off train, by the shares of these two.
        target: Folder for the three files; or a new file, .spacy, .jsonl or .parquet, for the whole
            corpus. Nothing is written unless the whole corpus can be read. For a part of more than
            `docbin.MAX_TOKENS` tokens, see `CorpusWriter`.
        options: None for the defaults.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them and what was read of each part
            ("corpus" for one that is split); without a log, and without `repair`, all mistakes are
            raised together. Its spans_key is where entities are read from .spacy files, and stored,
            if they may overlap.
        on_progress: Called before the first doc of a part, and at each doc.

    Returns:
        The numbers of docs, sentences (if they are known), tokens and entities of each part that
        was written, and of the entities of each label, as "entities.PERSON".

    Raises:
        CorpusError: For a corpus that cannot be read, of which `repair` would leave out more than
            `max_loss`, or with a part without docs.
        InputError: For an unknown choice, a label or spans key that is not UTF-8, a missing
            package, and an output that would replace an input, add to a folder whose .spacy files
            are read, mix with an older one, or replace it without `overwrite`.
    """
    sources = [source] if isinstance(source, Path) else list(source)
    options, log = options or ConvertOptions(), log or ConversionLog()
    read_file = _reader(sources, options)
    suffix = _check_options(target, options, log.spans_key)
    one_file = target.suffix in FILE_SUFFIXES
    files, ignored = find_files(sources, as_one=one_file)
    log.skipped_files(ignored)
    split = options.split
    plan = {"corpus": {"corpus": 1.0}} if one_file else split.plan(files)
    if (one_file or "dev" in files) and replace(split, seed=DEFAULT.seed) != DEFAULT:
        why = "the output is one file" if one_file else "the corpus has its own parts"
        log.note(f"The split is not used: {why}.")
    names = [name for part in plan.values() for name in part]
    outputs = {name: target if one_file else target / f"{name}{suffix}" for name in names}
    read = [path for paths in files.values() for path in paths]
    _check_outputs(target, outputs, suffix, sources, read, options.overwrite)
    where = ", ".join(map(str, sources))

    def read_part(part: str) -> Iterator[Doc]:
        """Read the docs of a part; at its end, raise an error for its mistakes."""
        log.start_part(part)
        on_progress(part, 0)
        number = 0
        sentences = (SYLLABLES[options.syllables](read_file(f, nlp, log)) for f in files[part])
        docs = (doc for each in sentences for doc in group_sentences(each, options.n_sents))
        for number, doc in enumerate(docs, 1):
            if options.labels is not None:
                set_annotated_labels(doc, options.labels, log, f"{part}, doc {number}")
            on_progress(part, number)
            yield doc
        if not number:
            log.check_no_mistakes(where)
            counted = "".join(f", {number} {kind}" for kind, number in log.counts.items())
            fix = "Annotate some, or correct what was left out"
            found = error(f"{where}, {part}", "at least one doc", f"none{counted}", fix)
            raise CorpusError(f"{found}{log.listed(log.counts)}")
        log.check_kept(where)

    log.collects = True
    with TemporaryDirectory() as scratch:
        writers = {name: CorpusWriter(Path(scratch, name), log.spans_key) for name in names}
        for part, shares in plan.items():
            docs, parts = read_part(part), cycle(shares)
            if len(shares) > 1:
                whole = Path(scratch, f"{part}, whole{SUFFIX}")
                documents, texts = _store(docs, whole)
                log.check_no_mistakes(where)
                drawn, how = split.assign(documents, shares, where, texts)
                sizes = ", ".join(f"{drawn.count(name)} {name}" for name in shares)
                what = "No file for dev: train was split" if part == "train" else "Split"
                log.note(f"{what} {how} ({sizes}; seed {split.seed}).")
                docs, parts = read_spacy(whole, nlp), cycle(drawn)
            for doc, name in zip(docs, parts):
                writers[name].add(doc)
        log.check_no_mistakes(where)
        log.propose_rules()
        _write(writers, outputs, suffix, Path(scratch), nlp, log)
    written = {name: writers[name].counts for name in (*SPLITS, "corpus") if name in writers}
    known = any(counts["sentences"] for counts in written.values())
    return {
        part: {kind: n for kind, n in counts.items() if known or kind != "sentences"}
        for part, counts in written.items()
    }


def _write(
    writers: Mapping[str, CorpusWriter],
    outputs: Mapping[str, Path],
    suffix: str,
    scratch: Path,
    nlp: Language,
    log: ConversionLog,
) -> None:
    """Write all parts before the first is renamed."""
    counted = (kind for writer in writers.values() for kind in writer.counts)
    labels = {kind.partition(".")[2] for kind in counted if "." in kind}
    with ExitStack() as stack:
        for name, path in outputs.items():
            unfinished = stack.enter_context(atomic_write(path, folder_by_file=True))
            if suffix == SUFFIX:
                writers[name].write(unfinished)
                continue
            complete = scratch / f"{name}{SUFFIX}"
            writers[name].write(complete)
            unwritten = Counter[str]()
            if suffix == PARQUET:
                unwritten = write_parquet(read_spacy(complete, nlp), unfinished, labels)
            else:
                docs = _count_unwritten(read_spacy(complete, nlp), unwritten, log.spans_key)
                write_jsonl(docs, unfinished, nlp, log.spans_key)
            for what, number in unwritten.items():
                if number:
                    log.notes.append(f"Not written: {number} {what}.")


def _count_unwritten(docs: Iterable[Doc], counts: "Counter[str]", key: str | None) -> Iterator[Doc]:
    """Count the entities and spans that JSON lines leave out."""
    for doc in docs:
        for name in doc.spans.keys() - {key, KEY, INCORRECT}:
            counts[f"spans of doc.spans[{name!r}]; see --spans-key"] += len(doc.spans[name])
        if key is not None:
            counts["spans of doc.ents; see --spans-key"] += len(doc.ents)
        yield doc


def _store(docs: Iterable[Doc], path: Path) -> tuple[list[str | None], list[int]]:
    """Store docs until it is known which part each is in.

    Returns:
        The document of each, and the hash of its text with whitespace normalized.
    """
    writer, documents, texts = CorpusWriter(path.with_suffix("")), list[str | None](), list[int]()
    for doc in docs:
        texts.append(hash(" ".join(doc.text.split())))
        documents.append(document_of(doc))
        writer.add(doc)
    writer.write(path)
    return documents, texts


def _check_options(target: Path, options: ConvertOptions, spans_key: str | None) -> str:
    """Raise InputError for choices that do not go together. Returns the suffix of the outputs."""
    syllables = options.syllables
    if spans_key in ("", KEY, INCORRECT):
        got = f"got {spans_key!r}. Use another one, such as 'sc'"
        raise InputError(f"spans_key: expected a key for entities, {got}.")
    check_unicode("spans_key", spans_key or "")
    for label in options.labels or ():
        check_unicode("labels", label)
    if syllables not in SYLLABLES:
        raise InputError(f"syllables: expected {', '.join(SYLLABLES)}, got {syllables!r}.")
    if spans_key is not None and syllables != "keep":
        raise InputError(f"syllables: expected keep with a spans key, got {syllables!r}.")
    if re.fullmatch(r"\.[A-Za-z]+", target.suffix) and not (
        target.suffix in FILE_SUFFIXES or target.exists()
    ):
        raise InputError(
            f"{target}: expected a folder, or a file that ends in {' or '.join(FILE_SUFFIXES)}, "
            f"got {target.suffix}. Choose one of these, or create a folder of this name before."
        )
    one_file = target.suffix in FILE_SUFFIXES
    suffix = target.suffix if one_file else PARQUET if options.parquet else SUFFIX
    if options.parquet and suffix != PARQUET:
        raise InputError(
            f"--parquet: expected a folder, got the file {target}. Name a folder, or a .parquet "
            "file."
        )
    if suffix == PARQUET and spans_key is not None:
        got = f"got {str(target)!r}. Write .spacy or .jsonl"
        raise InputError(f"spans_key: expected an output with entities that may overlap, {got}.")
    return suffix


def _check_outputs(
    target: Path,
    outputs: Mapping[str, Path],
    suffix: str,
    sources: Sequence[Path],
    read: Sequence[Path],
    overwrite: bool,
) -> None:
    """Raise InputError for an output that would replace, or be read with, an input or other file.

    A remaining part of an earlier conversion would mix two splits of the corpus: docs of the old
    test might be in the new train.
    """
    if target.is_file() or (target.suffix in FILE_SUFFIXES and target.exists()):
        raise InputError(
            f"{target}: expected a folder for the corpus, or the name of a new file that ends in "
            f"{' or '.join(FILE_SUFFIXES)}, got an existing file. The output is the last "
            "argument. Remove an old file first."
        )
    inputs = {folder for path in read for folder in (path.resolve(), *path.resolve().parents)}
    if both := [path for path in outputs.values() if path.resolve() in inputs]:
        raise InputError(
            f"{both[0]}: expected an output that is not an input. Choose another folder."
        )
    # All .spacy files of a folder, at any depth, are read as one corpus.
    whole = [path for path in read if path.suffix == SUFFIX]
    whole += sources if whole else []
    for path, folder in product(outputs.values(), whole):
        if suffix == SUFFIX and folder.resolve() in path.resolve().parents:
            raise InputError(
                f"{path}: expected an output that is not in an input folder, got one in {folder}, "
                "which would then have each document twice. Choose a place beside this folder."
            )
    suffixes = [suffix] if overwrite else [SUFFIX, PARQUET]
    all_parts = [target / f"{name}{end}" for name, end in product(SPLITS, suffixes)]
    old = [path for path in all_parts if path not in outputs.values()]
    if found := [path for path in old if path.exists() and target.is_dir()]:
        written = ", ".join(path.name for path in outputs.values())
        raise InputError(
            f"{found[0]}: expected only the parts {written}, got one of an earlier "
            "conversion, which may share docs with the new ones. Remove it, or use a new folder."
        )
    if not overwrite and (found := [path for path in outputs.values() if path.exists()]):
        raise InputError(
            f"{found[0]}: expected a new file, got one of an earlier conversion. Use a new folder, "
            "or replace the corpus with --overwrite."
        )


def read_corpus(sources: Sequence[Path], nlp: Language, log: ConversionLog) -> Iterator[Doc]:
    """Read a corpus in any format, all parts of folders as one."""
    files, ignored = find_files(sources, as_one=True)
    log.skipped_files(ignored)
    read_file = FORMATS[detect_format(*sources)]
    for file in files["corpus"]:
        yield from group_sentences(read_file(file, nlp, log), 1)


def read_gold(path: Path, nlp: Language, log: ConversionLog) -> tuple[int | None, Iterator[Doc]]:
    """Open a corpus of gold docs in any format.

    Args:
        path: A .spacy file, a folder with such files, or a corpus in any format of `convert`; the
            parts of a folder are one.

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


def blank_pipeline(lang: str, segment: bool = True) -> Language:
    """Make a pipeline that only tokenizes.

    Args:
        lang: spaCy's language code. pyvi segments Vietnamese ("vi") into words, which may contain
            spaces. Without pyvi, spaCy's general rules return syllables.
        segment: False returns syllables even if pyvi is installed.

    Raises:
        InputError: If spaCy lacks the language or a package for it.
    """
    if lang == "vi" and not (segment and find_spec("pyvi")):
        rules = {"nlp": {"tokenizer": {"@tokenizers": "spacy.Tokenizer.v1"}}}
        return spacy.blank("vi", config=rules)
    try:
        return spacy.blank(lang)
    except ImportError as error:
        raise InputError(f"lang: expected a language of spaCy, got {lang!r}: {error}") from error


def _reader(sources: list[Path], options: ConvertOptions) -> Reader:
    """Return the reader of the format, with the columns that were chosen."""
    format, columns = options.format, options.columns
    if format == "auto":
        format = detect_format(*sources, columns=[*columns.values()])
        if format == "conll" and not columns.keys().isdisjoint(("text_column", "spans_column")):
            format = "table"  # with tabs
    if format not in FORMATS:
        raise InputError(f"format: expected auto, {', '.join(FORMATS)}, got {format!r}.")
    chosen = signature(FORMATS[format]).parameters
    for name, column in columns.items():
        kinds = str(chosen[name].annotation) if name in chosen else ""
        if type(column).__name__ not in kinds:
            raise InputError(
                f"{name}: expected a format with such columns, by their numbers or names, got "
                f"{column!r} and the format {format!r}."
            )
    return partial(FORMATS[format], **columns)
