"""Columns of tokens and tags, as in CoNLL-2003: one token per line, a blank line per sentence."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .iob import TAG, TaggedToken, tagged_docs
from .json_records import shorten
from .lines import read_lines
from .repair_log import ConversionLog, error

LAYOUT_LINES = 1000  # number of lines from which the layout is detected


def read_conll(
    path: Path,
    nlp: Language,
    log: ConversionLog | None = None,
    *,
    token_column: int = 1,
    tag_column: int = -1,
) -> Iterator[Doc]:
    """Read columns of tokens and tags; spaCy trains on these tokens, not on those of its tokenizer.

    path: File, UTF-8. If most of its first lines contain a tab, columns are separated by single
        tabs, and tokens may contain spaces, which are removed from their ends; otherwise by runs of
        spaces. All lines must have as many columns as most of the first lines. Before a sentence, a
        line that begins with `# ` is a comment, unless it has that number of columns and a tag. A
        line that begins with `-DOCSTART-` begins a document.
    nlp, log: As for all readers, see `format_detection.Reader`.
    token_column, tag_column: Column numbers, from 1, or from -1 for the last.

    Yields a Doc for each sentence. Raises CorpusError for a wrong number of columns, a carriage
    return within a line, an empty token, an unknown tag, an entity that is not closed in BILUO or
    has whitespace at an edge, and a column that does not exist.
    """
    tabs, columns = _detect_layout(path)
    for number in (token_column, tag_column):
        if not 1 <= abs(number) <= columns:
            expected = f"a column from 1 to {columns}, or from -1, the last, to -{columns}"
            raise error(str(path), expected, str(number), "Count the columns of a line")
    token, tag = ((number - (number > 0)) % columns for number in (token_column, tag_column))
    if token == tag:
        got = f"column {token_column} for both"
        raise error(str(path), "a column of tokens and one of tags", got, "Choose two columns")
    rows = partial(_rows, path, tabs, columns, token, tag)
    return tagged_docs(path, nlp, log or ConversionLog(), rows)


def looks_like_columns(lines: list[str]) -> bool:
    """Return whether most of these lines end with a tag; `read_conll` reports the others."""
    rows = [line.split() for line in lines if not line.startswith("# ")]
    tagged = [row for row in rows if len(row) > 1 and TAG.fullmatch(row[-1])]
    return len(tagged) > len(rows) / 2


def _detect_layout(path: Path) -> tuple[bool, int]:
    """Return whether columns are separated by single tabs, and the number of columns."""
    tokens, comments = Counter[tuple[bool, int]](), Counter[tuple[bool, int]]()
    for line in islice(read_lines(path), LAYOUT_LINES):
        if line.text.strip() and not line.text.startswith("-DOCSTART-"):
            tabs = "\t" in line.text
            counter = comments if line.text.startswith("# ") else tokens
            counter[tabs, len(_split(line.text, tabs))] += 1
    # The first of equally frequent layouts; any layout for a file without lines.
    (tabs, columns), _ = next(iter((tokens or comments).most_common(1)), ((False, 2), 0))
    return tabs, max(columns, 2)


def _split(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else [cell for cell in line.split(" ") if cell]


def _rows(
    path: Path, tabs: bool, columns: int, token: int, tag: int, log: ConversionLog
) -> Iterator[TaggedToken]:
    sentence = document = 0
    within = False  # whether inside a sentence
    for where, text, problem in read_lines(path):
        if not problem and "\r" in text and text.strip():
            fix = "Save the file with line feeds as its line ends"
            problem = "columns", error(where, "a line without carriage returns", shorten(text), fix)
        if not problem and (text.startswith("-DOCSTART-") or not text.strip()):
            document += bool(text.strip())
            sentence, within = sentence + 1, False
            continue
        cells, comment = _split(text, tabs), text.startswith("# ") and not (problem or within)
        if not problem and len(cells) != columns:
            expected = f"{columns} columns, as in most of the first lines"
            fix = "Separate all columns by tabs, or all by spaces"
            problem = "columns", error(where, expected, f"{len(cells)}: {cells}", fix)
        if comment and (problem or not TAG.fullmatch(cells[tag])):
            log.skipped("comment")
            continue
        within = True
        word_and_tag = ("", "O") if problem else (cells[token], cells[tag])
        yield TaggedToken(where, *word_and_tag, sentence, document, problem)
