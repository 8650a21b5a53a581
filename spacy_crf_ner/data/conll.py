"""Columns of tokens and tags, as of CoNLL-2003: a token a line, a blank line after a sentence."""

from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple

from spacy.language import Language
from spacy.tokens import Doc

from .iob import Row, tagged_docs
from .iob_schemes import TAG
from .lines import Line, scan_lines
from .repair_log import CorpusError, Journal, error

# As many lines as these tell how columns are separated, and how many there are.
HEAD = 1000


class Layout(NamedTuple):
    """How the lines of a file are cut into columns, and which of these are read.

    tabs: Whether single tabs separate columns, or runs of spaces.
    columns: How many there are.
    token, tag: Indices of the token and of its tag, from 0.
    """

    tabs: bool
    columns: int
    token: int
    tag: int

    def cut(self, line: str) -> List[str]:
        """Cut a line into its columns."""
        return _cut(line, self.tabs)

    def fits(self, cells: List[str]) -> bool:
        """Tell whether these can be the columns of a token."""
        return len(cells) == self.columns and bool(TAG.fullmatch(cells[self.tag]))


def read_conll(
    path: Path,
    nlp: Language,
    journal: Optional[Journal] = None,
    *,
    token_column: int = 1,
    tag_column: int = -1,
) -> Iterator[Doc]:
    """Read columns of tokens and tags; spaCy trains on these tokens, not on its tokenizer's.

    path: File, UTF-8. If most of its first lines have a tab, columns are separated by single tabs,
        so that a token may hold spaces; else by runs of spaces. All lines have as many columns as
        most of these. A line that begins with `# `, in front of the first token of a sentence, and
        is not of so many columns with a tag among them, is a comment. Documents begin at lines
        that begin with `-DOCSTART-`.
    nlp: Pipeline whose vocabulary the Docs share.
    journal: What becomes of mistakes; without one, the first is raised.
    token_column, tag_column: Numbers of columns, from 1, or from -1, which is the last.

    Yields a Doc a sentence. Raises CorpusError for a wrong number of columns, an empty token, an
    unknown tag, an entity that BILUO leaves open, or one with a whitespace token at an edge; and
    for a column that there is not.
    """
    layout = _layout(path, token_column, tag_column)
    return tagged_docs(path, nlp, journal or Journal(), partial(_rows, path, layout))


def looks_like_columns(lines: List[str]) -> bool:
    """Tell whether most of these lines, not all, end with a tag: a mistake is for `read_conll`."""
    rows = [line.split() for line in lines if not line.startswith("# ")]
    tagged = [row for row in rows if len(row) > 1 and TAG.fullmatch(row[-1])]
    return len(tagged) > len(rows) / 2


def _layout(path: Path, token_column: int, tag_column: int) -> Layout:
    tokens, comments = Counter[Tuple[bool, int]](), Counter[Tuple[bool, int]]()
    for line in islice(scan_lines(path), HEAD):
        if line.text.strip() and not line.text.startswith("-DOCSTART-"):
            tabs = "\t" in line.text
            kinds = comments if line.text.startswith("# ") else tokens
            kinds[tabs, len(_cut(line.text, tabs))] += 1
    # The first of those that are as frequent. A file without lines has no mistake either.
    (tabs, columns), _ = next(iter((tokens or comments).most_common(1)), ((False, 2), 0))
    columns = max(columns, 2)
    token, tag = (_index(path, number, columns) for number in (token_column, tag_column))
    if token == tag:
        got = f"column {token_column} for both"
        raise error(str(path), "a column of tokens and one of tags", got, "Name two columns")
    return Layout(tabs, columns, token, tag)


def _index(path: Path, number: int, columns: int) -> int:
    if not 1 <= abs(number) <= columns:
        expected = f"a column from 1 to {columns}, or from -1, the last, to -{columns}"
        raise error(str(path), expected, str(number), "Count the columns of a line")
    return number - 1 if number > 0 else columns + number


def _cut(line: str, tabs: bool) -> List[str]:
    return line.split("\t") if tabs else [cell for cell in line.split(" ") if cell]


def _rows(path: Path, layout: Layout, journal: Journal) -> Iterator[Row]:
    sentence = document = 0
    begun = False  # whether the sentence has a line
    for line in scan_lines(path):
        if line.problem:
            begun = True
            yield Row(line.where, "", "O", sentence, document, line.problem)
        elif line.text.startswith("-DOCSTART-"):
            document, begun = document + 1, False
        elif not line.text.strip():
            sentence, begun = sentence + 1, False
        else:
            cells = layout.cut(line.text)
            if not begun and line.text.startswith("# ") and not layout.fits(cells):
                journal.left_out("comment")
                continue
            begun = True
            problem = _columns(line, layout, cells)
            if problem:
                yield Row(line.where, "", "O", sentence, document, ("columns", problem))
            else:
                yield Row(line.where, cells[layout.token], cells[layout.tag], sentence, document)


def _columns(line: Line, layout: Layout, cells: List[str]) -> Optional[CorpusError]:
    if len(cells) == layout.columns:
        return None
    expected = f"{layout.columns} columns, as most of the first lines have"
    fix = "Separate all columns by tabs, or all by spaces"
    return error(line.where, expected, f"{len(cells)}: {cells}", fix)
