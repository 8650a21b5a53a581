"""Columns of tokens and tags, one token per row: CoNLL, CSV, spreadsheets, and spaCy's .iob."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import DOCUMENT, document_name
from .docs import make_docs
from .iob import MISSING, OUTSIDE, SPELLINGS, TAG, find_spelling
from .json_records import shorten
from .layout import INDEX, NO_SPACE, OF_SEVERAL, Column, Layout, detect_layout, tag_in
from .lines import Problem
from .record import Record
from .repair_log import ConversionLog, error
from .rows import DOCUMENT_START, LAYOUT_CHARACTERS, MARKS, Row, Rows, has_bars, rows_of_text

NEW_DOCUMENT = re.compile(rf"{DOCUMENT_START}|# newdoc(?:[\s_]+id\s*=\s*(\S.*?))?\s*$")


def read_conll(
    path: Path,
    nlp: Language,
    log: ConversionLog | None = None,
    *,
    token_column: Column = None,
    tag_column: Column = None,
) -> Iterator[Doc]:
    """Read columns of tokens and tags; spaCy trains on these tokens, not on those of its tokenizer.

    Args:
        path: File, UTF-8. If most of its first lines contain a tab, columns are separated by single
            tabs, and tokens may contain spaces, which are removed from their ends; otherwise by
            runs of spaces. All rows must have as many columns as most of the first ones. Before a
            sentence, a line that begins with `#` or `;` is a comment, unless it has that number of
            columns and a tag. docs/prepare-data.md says what else is found.
        log: With a spans key, the entities of all columns of tags are read. Its notes say which
            columns were found.
        token_column: The number of the column, from 1, or from -1 for the last; or its name. None:
            the first column that neither counts the tokens nor is constant in each sentence.
        tag_column: The same. "10:name" is the value of `name` in cells as `name=B-PER|Gloss=x`.
            None: the only column that has tags, except those of chunks.

    Yields:
        A Doc for each sentence.
    """
    return read_columns(rows_of_text(path), nlp, log, token_column, tag_column)


def read_columns(
    rows: Rows,
    nlp: Language,
    log: ConversionLog | None,
    token_column: Column = None,
    tag_column: Column = None,
) -> Iterator[Doc]:
    """Read rows of any kind as `read_conll`."""
    log = log or ConversionLog()
    layout = detect_layout(rows, token_column, tag_column, log)
    return make_docs(rows.path, nlp, log, partial(_records, rows, layout))


def is_columns(lines: list[str], separator: str | None = None) -> bool:
    """Return whether most lines have a tag in the same column, the second or a later one."""
    if separator is None and sum(map(has_bars, lines)) > len(lines) / 2:
        return True
    rows = [line.split(separator) for line in lines if not line.startswith(MARKS)]
    rows = [row for row in rows if not OF_SEVERAL.fullmatch(row[0])]
    tagged = Counter(i for row in rows for i, cell in enumerate(row) if i and TAG.fullmatch(cell))
    tagged.update(-1 for row in rows if len(row) > 1 and TAG.fullmatch(row[-1]))
    if max(tagged.values(), default=0) > len(rows) / 2:
        return True
    # Other spellings, such as labels alone, may be any words: all rows, after a header, are alike.
    for values in ({row[-1] for row in rows}, {row[-1] for row in rows[1:]}):
        is_few = not values.isdisjoint(OUTSIDE) and len(values) <= max(3, len(rows) / 2)
        if is_few and find_spelling(values) in SPELLINGS:
            return len({len(row) for row in rows}) == 1 < len(rows[0])
    return False


def _records(file: Rows, layout: Layout, log: ConversionLog) -> Iterator[Record]:
    number = headers = 0
    name = document_name(file.path)
    # What is before the first boundary is a document too.
    document = f"{name} 0" if _has_documents(file.path) else ""
    rows, of = list[Row](), ""  # of a sentence, and its document
    sentence = ["", ""]  # the names of its document and of itself, in columns
    for row in file.read():
        starts, blank = row.starts_document, row.ends_sentence
        is_comment = not (rows or blank) and layout.is_comment(row)
        if (starts or is_comment) and (named := NEW_DOCUMENT.match(row.text)):
            number += 1
            document = named[1] or f"{name} {number}"
        ends = blank
        if not (blank or is_comment):
            if len(row.cells) != layout.width and not row.problem:
                expected = f"{layout.width} columns, as in most of the first rows"
                fix = "Separate all columns alike, and put a cell with a comma in quotes"
                got = f"{len(row.cells)}: {row.cells}"
                row = row._replace(problem=("columns", error(row.where, expected, got, fix)))
            if layout.sentence is not None:
                before, sentence = sentence, _sentence(row, layout, sentence)
                ends = sentence != before
            elif rows:
                ends = _begins_again(rows[-1], row, layout)
        if rows and ends:
            yield _record(rows, layout, of, log)
            rows = []
        if is_comment:
            log.skipped("comment")
        elif row.cells == layout.header:
            log.skipped("header", int(headers > 0))
            headers += 1
        elif not blank:
            of = of if rows else document
            rows.append(row)
    if rows:
        yield _record(rows, layout, of, log)


def _has_documents(path: Path) -> bool:
    marks = DOCUMENT_START.encode(), b"# newdoc"
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(LAYOUT_CHARACTERS), b"")
        marked = (line.decode(errors="replace") for line in lines if line.startswith(marks))
        return any(map(NEW_DOCUMENT.match, marked))


def _sentence(row: Row, layout: Layout, before: list[str]) -> list[str]:
    """Return the names of the document and sentence of a row; a blank cell is as the one before."""
    if layout.sentence is None or row.cells == layout.header:
        return before
    names = [*before]
    for i, column in enumerate((layout.document, layout.sentence)):
        found = row.cells[column] if column is not None and column < len(row.cells) else ""
        # In a row with a mistake, it may be another cell: then it is unlike the one before.
        is_other = row.problem and re.sub(r"\d+", "", found) != re.sub(r"\d+", "", before[i])
        names[i] = before[i] if is_other or found in MISSING else found
    return names


def _begins_again(before: Row, row: Row, layout: Layout) -> bool:
    """Whether the tokens are counted from the start again: a sentence ends without a blank row."""
    if layout.index is None or before.problem or row.problem:
        return False
    cells = before.cells[layout.index], row.cells[layout.index]
    if not all(map(INDEX.fullmatch, cells)):
        return False
    last, number = map(int, cells)
    return number in (0, 1) and number <= last


def _record(rows: list[Row], layout: Layout, document: str, log: ConversionLog) -> Record:
    if layout.document is not None and not rows[0].problem:
        document = rows[0].cells[layout.document]
    joined = ""  # the index of the last token of a range without a space after it
    kept, spaces = list[Row](), list[bool]()
    for row in rows:
        index = None if layout.index is None or row.problem else row.cells[layout.index]
        if several := index and OF_SEVERAL.fullmatch(index):  # of CoNLL-U, as 2-3 or 2.1
            joined = several[1] if NO_SPACE in row.text and "-" in several[0] else joined
            continue
        kept.append(row)
        spaces.append(index != joined and NO_SPACE not in row.text)
    log.skipped("range of tokens", len(rows) - len(kept))
    problems = [row.problem or _problem(row, layout) for row in kept]
    words = ["" if row.problem else row.cells[layout.token] for row in kept]
    if layout.prefix:
        words = [word.removeprefix(layout.prefix) for word in words]
    return Record(
        (kept or rows)[0].where,
        words=[word.strip() or word for word in words],
        spaces=None if layout.spaces is None else spaces,
        tags=[
            ["O" if row.problem else tag_in(row.cells[i], layout.key) for row in kept]
            for i in layout.tags
        ],
        places=[row.where for row in kept],
        sent_starts=[0] if kept else [],
        meta={DOCUMENT: document} if document else {},
        problem=next(filter(None, problems), None),
    )


def _problem(row: Row, layout: Layout) -> Problem | None:
    """Return what is wrong with the token of a row, or with its tags."""
    word = row.cells[layout.token]
    if layout.prefix and word.removeprefix(layout.prefix) in ("", word):
        expected = f"a token that begins with {layout.prefix!r}, as all of the first ones"
        fix = "Correct it, or take the prefix off all tokens"
        return "token", error(row.where, expected, shorten(word), fix)
    for column in layout.tags:
        tag = tag_in(row.cells[column], layout.key)
        if not tag:
            got = f"none in column {column + 1} for {word!r}"
            return "tag", error(row.where, "a tag for each token", got, "Write O, or its tag")
        if tag != "O" and len(tag.split()) > 1 and TAG.fullmatch(tag):  # often, it is another cell
            fix = "Join its words, as in B-creative_work, or separate the columns"
            return "tag", error(row.where, "a tag whose label has no whitespace", repr(tag), fix)
    return None
