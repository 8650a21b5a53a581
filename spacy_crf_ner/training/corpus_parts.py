"""The parts of a corpus as .spacy files: found, converted, or written from docs."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from ..check import CheckSettings, check
from ..data import (
    SPLITS,
    ConversionLog,
    ConvertOptions,
    Split,
    blank_pipeline,
    convert,
    find_parts,
    read_gold,
)
from ..data.docs import make_docs
from ..data.record import RawSpan, Record
from ..docbin import SUFFIX, read_docbin
from ..input_error import CorpusError, InputError

# A text, and the characters and the label of each entity.
Pair = tuple[str, Sequence[tuple[int, int, str]]]
Given = str | Path | Iterable[Doc | Example | Pair]


class Parts(NamedTuple):
    """The files of a corpus.

    Attributes:
        train: A .spacy file, or a folder of them; also dev, which only folds do without.
        test: The test part, in any format, if there is one.
        notes: What was decided, as sentences for the user.
        is_made: Whether the corpus had no train or no dev.
    """

    train: Path
    dev: Path | None
    test: Path | None = None
    notes: Sequence[str] = ()
    is_made: bool = False


def convert_corpus(corpus: Path, folder: Path, lang: str, key: str | None, folds: bool) -> Parts:
    """Find the parts of a corpus in any format, and convert them if they are not .spacy files.

    A corpus without train or dev is split as the command `convert` does; for folds, it is not.
    Raises CorpusError for a corpus that cannot be read.

    Args:
        folder: A new folder for what is converted.
        key: Where entities that may overlap are in `doc.spans`; None for those in `doc.ents`.
    """
    found = find_parts(corpus)
    if found and {found["train"].suffix, found["dev"].suffix} == {SUFFIX}:
        return Parts(found["train"], found["dev"], found.get("test"))
    log = ConversionLog(spans_key=key)
    split = Split((1.0,)) if folds and not found else Split()
    try:
        convert(corpus, folder, ConvertOptions(split=split), nlp=blank_pipeline(lang), log=log)
    except InputError as error:
        if not re.search(r" --(?!help)", str(error)):
            raise
        raise CorpusError(
            f"{error} These are options of convert: spacy-crf-ner convert {corpus} FOLDER."
        ) from error
    made = {part: folder / f"{part}{SUFFIX}" for part in SPLITS}
    dev, test = (made[part] if made[part].exists() else None for part in ("dev", "test"))
    return Parts(made["train"], dev, found.get("test", test), log.notes, not found)


def write_part(given: Given, part: str, folder: Path, lang: str, key: str | None) -> Path:
    """Write docs, or what they are made of, to a .spacy file; return the path if they are in one.

    Of a folder with this part, no other is read.

    Raises InputError for what is no doc, example, or pair of a text and spans, and for entities
    that are not of whole tokens.
    """
    nlp, log, path = blank_pipeline(lang), ConversionLog(spans_key=key), folder / f"{part}{SUFFIX}"
    if isinstance(given, str | Path):
        source = find_parts(Path(given), [part]).get(part, Path(given))
        if source.suffix == SUFFIX:
            return source
        _, docs = read_gold(source, nlp, log)
    else:
        docs = _make_docs(given, part, nlp, log)
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


def _make_docs(
    given: Iterable[Doc | Example | Pair], part: str, nlp: Language, log: ConversionLog
) -> Iterator[Doc]:
    for number, each in enumerate(given, 1):
        if isinstance(each, Doc | Example):
            yield each.reference if isinstance(each, Example) else each
            continue
        where = f"{part}, text {number}"
        try:
            text, spans = each
            record = Record(where, text, spans=[RawSpan(*span) for span in spans])
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{where}: expected a Doc, an Example, or (text, [(start, end, label)]), got "
                f"{str(each)[:100]}."
            ) from error
        yield from make_docs(Path(part), nlp, log, partial(_one, record), one_pass=True)


def _one(record: Record, _: ConversionLog) -> list[Record]:
    return [record]


def check_parts(parts: Parts, settings: CheckSettings, advice: str | None) -> str:
    """Check a corpus as the command `check` does; count and list the warnings.

    Raises InputError for the first error that it finds.

    Args:
        advice: The command that shows all findings; None if there is none.
    """
    nlp = blank_pipeline(settings.lang)
    train = read_docbin(parts.train, nlp.vocab)[1]
    dev = None if parts.dev is None else read_docbin(parts.dev, nlp.vocab)[1]
    report = check(train, dev, settings)
    errors, warnings = report.of("error"), report.of("warning")
    if errors:
        first, *others = errors
        where = "".join(f" {p.part}, doc {p.doc}: {p.text!r}." for p in first.places[:1])
        more = f" Other errors: {len(others)}." if others else ""
        shown = f" This shows all: {advice}" if advice else ""
        raise InputError(f"The corpus has errors. {first.found}{where} {first.fix}{more}{shown}")
    lines = [f"Warnings in the corpus: {len(warnings)}."]
    lines += [f"  {each.found}" for each in warnings]
    if warnings and advice:
        lines.append(f"To see where: {advice}")
    return "\n".join(lines)
