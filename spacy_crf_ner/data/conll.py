"""Columns of tokens and tags, as in CoNLL-2003: one token per line, a blank line per sentence."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import document_name
from .iob import TAG, TaggedToken, label_of_words, tagged_docs
from .json_records import shorten
from .lines import Problem, read_lines
from .repair_log import ConversionLog, error

LAYOUT_LINES = 1000  # number of lines from which the layout is detected
LAYOUT_CHARACTERS = 10_000  # longer lines say nothing about it
DOCUMENT_START = "-DOCSTART-"
NEW_DOCUMENT = re.compile(rf"{DOCUMENT_START}|# newdoc(?:[\s_]+id\s*=\s*(\S.*?))?\s*$")
INDEX = re.compile(r"[0-9]{1,9}")
OF_SEVERAL = re.compile(r"[0-9]+[-.][0-9]+")  # in CoNLL-U, the index of a range, or an empty word
# en:Ann, in WikiANN: a code of a language, perhaps with others, as in zh-min-nan.
PREFIX = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]+)*|simple):(?!//)")
COMMENT = "# ", "#\t"
EXCEPTIONS = 0.05  # share of the cells of a column that may differ from all others
MOSTLY = 0.8  # share of numbers from which a column is hardly one of tokens
REPEATED = 0.5  # share of cells that are as the one before, from which it is hardly one either
# Labels of chunks, as in CoNLL-2000 and CoNLL-2003: their tags are not those of entities.
CHUNKS = {"NP", "VP", "PP", "ADJP", "ADVP", "CONJP", "INTJ", "LST", "PRT", "SBAR", "UCP"}
CHUNKS |= {"NC", "VC", "PC", "AC"}


@dataclass(frozen=True)
class Layout:
    """The columns of a file, counted from 0.

    Attributes:
        tabs: Whether they are separated by single tabs; otherwise by runs of spaces.
        columns: The number of columns.
        token: The column of the tokens.
        tags: The columns of the tags: several if entities may overlap.
        document: A column that names the document of each sentence.
        prefix: What all tokens begin with, and is not part of them.
    """

    tabs: bool
    columns: int
    token: int = 0
    tags: tuple[int, ...] = (-1,)
    document: int | None = None
    prefix: str = ""


def read_conll(
    path: Path,
    nlp: Language,
    log: ConversionLog | None = None,
    *,
    token_column: int | None = None,
    tag_column: int | None = None,
) -> Iterator[Doc]:
    """Read columns of tokens and tags; spaCy trains on these tokens, not on those of its tokenizer.

    Args:
        path: File, UTF-8. If most of its first lines contain a tab, columns are separated by single
            tabs, and tokens may contain spaces, which are removed from their ends; otherwise by
            runs of spaces. All lines must have as many columns as most of the first lines. Before a
            sentence, a line that begins with `#` and a space or tab is a comment, unless it has
            that number of columns and a tag. A line that begins with `-DOCSTART-`, or is the
            comment `# newdoc`, begins a document; so does another value in a column that is
            constant in each sentence. The language that all tokens begin with, as in `en:Ann`, is
            taken off.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one. With a
            spans key, the entities of all columns of tags are read. Its notes say which columns
            were found.
        token_column: The number of the column, from 1, or from -1 for the last. None: the first
            column that neither counts the tokens nor is constant in each sentence.
        tag_column: The number of the column, from 1, or from -1 for the last. None: the last
            column, if no other one has tags, except those of chunks.

    Yields:
        A Doc for each sentence.

    Raises:
        CorpusError: For a wrong number of columns, a carriage return within a line, an empty token,
            an unknown tag, an entity that is not closed in BILUO, a column that does not exist,
            tokens that are numbers or repeats beside a column of words, and several columns of tags
            without a spans key.
    """
    log = log or ConversionLog()
    layout = _detect_layout(path, token_column, tag_column, log)
    return tagged_docs(path, nlp, log, partial(_rows, path, layout))


def is_columns(lines: list[str]) -> bool:
    """Return whether most of these lines end with a tag; `read_conll` reports the others."""
    rows = [line.split() for line in lines if not line.startswith(COMMENT)]
    tagged = [row for row in rows if len(row) > 1 and TAG.fullmatch(row[-1])]
    return len(tagged) > len(rows) / 2


# Layout

Sample = list[list[list[str]]]  # the cells of the rows of some sentences


def _detect_layout(
    path: Path, token_column: int | None, tag_column: int | None, log: ConversionLog
) -> Layout:
    tabs, columns = _separation(path)
    for number in (token_column, tag_column):
        if number is not None and not 1 <= abs(number) <= columns:
            expected = f"a column from 1 to {columns}, or from -1, the last, to -{columns}"
            raise error(str(path), expected, str(number), "Count the columns of a line")
    sample = [*_sample(path, tabs, columns)]
    notes: list[str] = []
    if token_column is None:
        token = _token_column(sample, columns, notes)
    else:
        token = _from_zero(token_column, columns)
    if tag_column is not None:
        tags = [_from_zero(tag_column, columns)]
    else:
        tags = _tag_columns(path, sample, columns, token, log.spans_key, notes)
    if token_column is None:
        _check_words(path, sample, token, tags)
    if token in tags:
        got = f"column {token + 1} for both"
        raise error(str(path), "a column of tokens and one of tags", got, "Choose two columns")
    if len(tags) > 1:
        notes.append(f"columns {_numbers(tags)} have tags")
    others = [i for i in range(columns) if i not in (token, *tags)]
    document = next((i for i in others if _names_documents(sample, i)), None)
    if document is not None:
        notes.append(f"column {document + 1} names the document")
    prefix = _prefix(sample, token)
    if prefix:
        notes.append(f"all tokens begin with {prefix!r}, which was taken off")
    if notes:
        log.note(f"{path}: {'; '.join(notes)}.")
    return Layout(tabs, columns, token, tuple(tags), document, prefix)


def _separation(path: Path) -> tuple[bool, int]:
    """Return whether columns are separated by single tabs, and the number of columns."""
    tokens, comments = Counter[tuple[bool, int]](), Counter[tuple[bool, int]]()
    for line in islice(read_lines(path), LAYOUT_LINES):
        if line.text.strip() and not line.text.startswith(DOCUMENT_START):
            tabs = "\t" in line.text
            counter = comments if line.text.startswith(COMMENT) else tokens
            counter[tabs, len(_split(line.text, tabs))] += 1
    # The first of equally frequent layouts; any layout for a file without lines.
    (tabs, columns), _ = next(iter((tokens or comments).most_common(1)), ((False, 2), 0))
    return tabs, max(columns, 2)


def _sample(path: Path, tabs: bool, columns: int) -> Iterator[list[list[str]]]:
    """Read the first sentences, without comments and rows of another number of columns."""
    rows: list[list[str]] = []
    for _, text, problem in islice(read_lines(path), LAYOUT_LINES):
        if not text.strip() or text.startswith(DOCUMENT_START):
            if rows:
                yield rows
            rows = []
        elif not problem and "\r" not in text and len(text) < LAYOUT_CHARACTERS:
            cells = _split(text, tabs)
            tagged = rows or not text.startswith(COMMENT) or any(map(TAG.fullmatch, cells[1:]))
            rows += [cells] if len(cells) == columns and tagged else []
    if rows:
        yield rows


def _split(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else [cell for cell in line.split(" ") if cell]


def _from_zero(number: int, columns: int) -> int:
    return (number - (number > 0)) % columns


def _numbers(columns: list[int]) -> str:
    return " and ".join(str(column + 1) for column in columns)


def _token_column(sample: Sample, columns: int, notes: list[str]) -> int:
    """Return the first column that has neither the index of each token nor ids of sentences."""
    token = 0
    while token < columns - 2:
        if _counts_tokens(sample, token):
            notes.append(f"column {token + 1} counts the tokens of each sentence")
        elif not _is_constant(sample, token):
            break
        token += 1
    if token:
        notes.append(f"column {token + 1} has the tokens")
    return token


def _counts_tokens(sample: Sample, column: int) -> bool:
    """Whether nearly all cells of a column count the tokens, and some sentences have several.

    Where no blank lines separate sentences, the numbers begin again within one.
    """
    cells = exceptions = steps = restarts = 0
    for rows in sample:
        found = [row[column] for row in rows if not OF_SEVERAL.fullmatch(row[column])]
        numbers = [int(cell) for cell in found if INDEX.fullmatch(cell)]
        next_ones = sum(after == before + 1 for before, after in pairwise(numbers))
        again = sum(after in (0, 1) and after <= before for before, after in pairwise(numbers))
        cells, steps, restarts = cells + len(found), steps + next_ones, restarts + again
        exceptions += len(found) - len(numbers) + max(len(numbers) - 1, 0) - next_ones - again
    return steps > restarts and exceptions <= EXCEPTIONS * cells


def _check_words(path: Path, sample: Sample, token: int, tags: list[int]) -> None:
    """Raise CorpusError if the tokens look like numbers or ids, and another column has words."""
    cells = [row[token] for rows in sample for row in rows]
    numbers = sum(bool(INDEX.fullmatch(cell) or OF_SEVERAL.fullmatch(cell)) for cell in cells)
    pairs = [(a[token], b[token]) for rows in sample for a, b in pairwise(rows)]
    repeats = sum(before == after for before, after in pairs)
    others = (i for i in range(len(sample[0][0]) if sample else 0) if i not in (token, *tags))
    words = next((i for i in others if _has_words(sample, i)), None)
    are_numbers = numbers > MOSTLY * len(cells)
    if words is not None and (are_numbers or repeats > REPEATED * len(pairs)):
        what = "numbers" if are_numbers else "repeats"
        got = f"{what} in column {token + 1}, and words in column {words + 1}"
        fix = f"Choose the column, as in --token-column {words + 1} (or {token + 1} for the {what})"
        raise error(str(path), "a column of tokens", got, fix)


def _has_words(sample: Sample, column: int) -> bool:
    cells = [row[column] for rows in sample for row in rows]
    lettered = sum(any(map(str.isalpha, cell)) for cell in cells)
    return len({*cells}) > 1 and lettered > 0.5 * len(cells)


def _is_constant(sample: Sample, column: int) -> bool:
    """Whether a column has one value in nearly each of several sentences of several tokens."""
    several = [rows for rows in sample if len(rows) > 1]
    others = sum(len({row[column] for row in rows}) > 1 for rows in several)
    return len(several) > 1 and others <= EXCEPTIONS * len(several)


def _names_documents(sample: Sample, column: int) -> bool:
    """Whether a column is constant in each sentence, with values for some sentences in a row."""
    if not _is_constant(sample, column):
        return False
    values = [rows[0][column] for rows in sample]
    changes = sum(before != after for before, after in pairwise(values))
    return 2 <= len({*values}) == changes + 1 < len(values)


def _tag_columns(
    path: Path,
    sample: Sample,
    columns: int,
    token: int,
    spans_key: str | None,
    notes: list[str],
) -> list[int]:
    """Return the last column; several ones that have tags of entities only with a spans key.

    Without one, a column of only O counts if no other one has labels.
    """
    last = columns - 1
    found = [i for i in range(columns) if i != token and _has_tags(sample, i)]
    if found in ([], [last]):
        return [last]
    if spans_key is not None:
        return found
    labeled = [i for i in found if any(row[i] != "O" for rows in sample for row in rows)]
    if labeled == [last]:
        unread = _numbers([i for i in found if i != last])
        notes.append(f"column {unread} has only O in the first lines, and was not read")
        return labeled
    found = labeled or found
    fix = f"Choose one, as in --tag-column {found[-1] + 1}"
    if len(found) == 1:
        expected, got = "tags of entities in the last column", f"them in column {found[0] + 1}"
        raise error(str(path), expected, got, fix)
    got, fix = f"{len(found)}: {_numbers(found)}", f"{fix}, or keep all of them with --spans-key"
    raise error(str(path), "one column of tags", got, fix)


def _has_tags(sample: Sample, column: int) -> bool:
    """Whether nearly all cells of a column are tags, and not those of chunks."""
    cells = [row[column] for rows in sample for row in rows]
    tags = [cell for cell in cells if TAG.fullmatch(cell)]
    labels = [tag[2:] for tag in tags if tag[2:]]
    chunks = sum(label in CHUNKS for label in labels)
    return len(tags) > 0.95 * len(cells) and not chunks > 0.5 * len(labels)


def _prefix(sample: Sample, column: int) -> str:
    """Return the language that all tokens begin with, as in `en:Ann`; "" for none."""
    words = {row[column] for rows in sample for row in rows}
    prefixes = {match and match[0] for match in map(PREFIX.match, words)}
    return (len(words) > 1 and len(prefixes) == 1 and prefixes.pop()) or ""


# Rows


def _rows(path: Path, layout: Layout, log: ConversionLog) -> Iterator[TaggedToken]:
    sentence = number = 0
    name = document_name(path)
    # What is before the first boundary is a document too.
    document = f"{name} 0" if _has_documents(path) else ""
    within, of = False, ""  # whether inside a sentence, and its document
    first, *others = layout.tags
    for where, text, problem in read_lines(path):
        if not problem and "\r" in text and text.strip():
            fix = "Save the file with line feeds as its line ends"
            problem = "columns", error(where, "a line without carriage returns", shorten(text), fix)
        starts = not problem and text.startswith(DOCUMENT_START)
        comment = text.startswith(COMMENT) and not (problem or within)
        if (starts or comment) and (named := NEW_DOCUMENT.match(text)):
            number += 1
            document = named[1] or f"{name} {number}"
        if starts or not (problem or text.strip()):
            sentence, within = sentence + 1, False
            continue
        cells = _split(text, layout.tabs)
        if not problem and len(cells) != layout.columns:
            expected = f"{layout.columns} columns, as in most of the first lines"
            fix = "Separate all columns by tabs, or all by spaces"
            problem = "columns", error(where, expected, f"{len(cells)}: {cells}", fix)
        if comment and (problem or not TAG.fullmatch(cells[first])):
            log.skipped("comment")
            continue
        of = (within and of) or document
        if not (within or problem or layout.document is None):
            of = cells[layout.document]
        within = True
        if problem:
            inner = ("O",) * len(others)
            yield TaggedToken(where, "", "O", sentence, of, problem, inner=inner)
            continue
        word, tag = cells[layout.token], cells[first]
        more = tuple(cells[i] for i in others) if others else ()
        if layout.prefix:
            word, problem = _without_prefix(where, word, layout.prefix)
        if more or tag != "O":
            problem = problem or label_of_words(where, (tag, *more))
        yield TaggedToken(where, word, tag, sentence, of, problem, inner=more)


def _has_documents(path: Path) -> bool:
    marks = DOCUMENT_START.encode(), b"# newdoc"
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(LAYOUT_CHARACTERS), b"")
        marked = (line.decode(errors="replace") for line in lines if line.startswith(marks))
        return any(map(NEW_DOCUMENT.match, marked))


def _without_prefix(where: str, word: str, prefix: str) -> tuple[str, Problem | None]:
    if word.startswith(prefix) and word != prefix:
        return word.removeprefix(prefix), None
    fix = "Correct it, or take the prefix off all tokens"
    expected = f"a token that begins with {prefix!r}, as all of the first ones"
    return word, ("token", error(where, expected, shorten(word), fix))
