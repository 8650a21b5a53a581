"""The supported formats, and their detection by content."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from spacy.tokens import Doc

from ..docbin import SUFFIX
from .brat import is_brat, read_brat
from .columns import is_columns, read_conll
from .docbin import is_spacy, read_spacy
from .files import find_files
from .hugging_face import is_hugging_face, read_hugging_face
from .inline import is_inline, read_inline
from .json_keys import CONTAINERS, TEXTS, WORDS
from .json_reader import read_json
from .json_records import decode_json, is_pair
from .label_studio import is_empty_task, is_label_studio
from .lines import read_lines
from .other_shapes import refuse_markdown, refuse_xml, unknown_format
from .pubtator import is_pubtator, read_pubtator
from .repair_log import error
from .rows import ZIP
from .table import has_separators, is_table, read_table
from .webanno import is_webanno, read_webanno

# The format is detected from the first lines, up to these numbers of lines and characters.
DETECTION_LINES = 200
DETECTION_CHARACTERS = 2**16
OBJECT = re.compile(r'\s*\{\s*("(?:[^"\\]|\\.)*"\s*:|$)')  # the beginning of an object of JSON
ARRAY = re.compile(r'\[\s*(?:[{\]]|\[\s*")')  # of objects, or of pairs
LINE_PAIR = re.compile(r'\["')
TASK = re.compile(
    r'"(?:data"\s*:\s*\{|(?:annotations|completions|annotation_id|annotator|lead_time)")'
)

# Yields the Docs of a file, or of a folder of brat. Arguments: the path; nlp, a pipeline with the
# vocabulary, and the tokenizer for formats without tokens; and a ConversionLog, which decides what
# happens to mistakes, and counts them. Without it, the first mistake is raised, a CorpusError.
Reader = Callable[..., Iterator[Doc]]

FORMATS: dict[str, Reader] = {
    "inline": read_inline,
    "conll": read_conll,
    "table": read_table,
    "pubtator": read_pubtator,
    "webanno": read_webanno,
    "jsonl": read_json,
    "doccano": read_json,
    "label_studio": read_json,
    "brat": read_brat,
    "hugging_face": read_hugging_face,
    "spacy": read_spacy,
}

TEXT_FORMATS: dict[str, Callable[[list[str]], bool]] = {
    "pubtator": is_pubtator,
    "webanno": is_webanno,
    "table": is_table,
    "conll": is_columns,
}


def detect_format(*sources: Path, columns: Sequence[int | str] = ()) -> str:
    """Detect the format of a corpus, a key of `FORMATS`, from its first lines.

    Args:
        *sources: Files and folders of a corpus, all in one format.
        columns: Numbers or names of columns that were chosen, which only some formats have.

    Raises:
        CorpusError: For an unknown format.
    """
    files, _ = find_files(sources, as_one=True)
    formats = {file: _format_of(file, bool(columns)) for file in files["corpus"]}
    if len(set(formats.values())) > 1:
        where = ", ".join(map(str, sources))
        found = ", ".join(f"{file.name} ({format})" for file, format in formats.items())
        raise error(where, "files of one format", found, "Convert each file separately")
    return next(iter(formats.values()))


def _format_of(path: Path, has_columns: bool) -> str:
    if is_brat(path):
        return "brat"
    if path.is_dir() and path.suffix == SUFFIX:
        return "spacy"
    if is_hugging_face(path):
        return "hugging_face"
    with path.open("rb") as file:
        head = file.read(1000)
    if is_spacy(head):
        return "spacy"
    if head.startswith(ZIP):
        return "table"
    if found := _format_of_array(head.decode("utf-8-sig", errors="replace")):
        return found
    lines = _first_lines(path)
    refuse_xml(str(path), lines)
    for format, is_format in TEXT_FORMATS.items():
        if is_format(lines):
            return format
    for line in lines:
        with suppress(ValueError):
            if found := _format_of_record(decode_json(line)):
                return found
    is_object = lines and OBJECT.match(lines[0])  # its strings may have links of Markdown
    if has_columns and not is_object:
        return "table" if lines and has_separators(lines[0]) else "conll"
    if lines and not lines[0].lstrip().startswith(("{", "[{", '["')):
        refuse_markdown(str(path), lines)
    if not is_object and is_inline(lines):
        return "inline"
    if lines and lines[0].lstrip().startswith("{"):
        return "jsonl"  # which reports the mistake of the line
    raise unknown_format(str(path), lines)


def _first_lines(path: Path) -> list[str]:
    """Read the first lines that are not blank, completely, even if a line is a long document."""
    lines: list[str] = []
    characters = 0
    for _, text, problem in read_lines(path):
        if problem and problem[0] == "length" and not lines:
            raise problem[1]
        characters += len(text)
        lines += [text] if text.strip() else []
        if len(lines) == DETECTION_LINES or characters > DETECTION_CHARACTERS:
            break
    return lines


def _format_of_array(head: str) -> str | None:
    """Return the name of the format of an array of JSON, by its first characters, or None."""
    head = head.removeprefix("\ufeff").lstrip()
    if not ARRAY.match(head) or LINE_PAIR.match(head):
        return None
    return "label_studio" if TASK.search(head) or len(head) < 20 else "jsonl"


def _format_of_record(record: object) -> str | None:
    if is_label_studio(record) or (isinstance(record, dict) and is_empty_task(record)):
        return "label_studio"
    if isinstance(record, list):
        return "jsonl" if is_pair(record) else None
    if not isinstance(record, dict) or record.keys().isdisjoint((*TEXTS, *WORDS, *CONTAINERS)):
        return None
    lists = {key for key, value in record.items() if isinstance(value, list)}
    is_doccano = not lists.isdisjoint(("label", "labels")) and "tokens" not in record
    is_doccano |= "entities" in lists and ("relations" in record or "Comments" in record)
    return "doccano" if is_doccano and "spans" not in record else "jsonl"
