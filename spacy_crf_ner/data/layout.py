"""Which columns of a file have tokens, tags and names of sentences: found in its first rows."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, pairwise

from ..docbin import DOCUMENTS
from ..input_error import did_you_mean
from .iob import NO_PREFIX, OUTSIDE, TAG, find_spelling, spelled
from .json_records import shorten
from .repair_log import ConversionLog, error
from .rows import MARKS, Row, Rows

NUMBER = re.compile(r"-?\d+")
INDEX = re.compile(r"[0-9]{1,9}")
OF_SEVERAL = re.compile(r"[0-9]+[-.]([0-9]+)")  # in CoNLL-U, the index of a range, or an empty word
# en:Ann, in WikiANN: a code of a language, perhaps with others, as in zh-min-nan.
PREFIX = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]+)*|simple):(?!//)")
COMMENT = re.compile(r"#+[ \t]|#(?:begin|end)\b|;+[ \t]")
NO_SPACE = "SpaceAfter=No"
EXCEPTIONS = 0.05  # share of the cells of a column that may differ from all others
MOSTLY = 0.8  # share of numbers from which a column is hardly one of tokens
REPEATED = 0.5  # share of cells that are as the one before, from which it is hardly one either
# Labels of chunks, as in CoNLL-2000 and CoNLL-2003: their tags are not those of entities.
CHUNKS = {"NP", "VP", "PP", "ADJP", "ADVP", "CONJP", "INTJ", "LST", "PRT", "SBAR", "UCP"}
CHUNKS |= {"NC", "VC", "PC", "AC"}
# Usual names of columns, see `plain_name`.
TOKEN_NAMES = {"token", "tokens", "word", "words", "form"}
TAG_NAMES = {"tag", "tags", "ner", "ner_tag", "ner_tags", "label", "labels", "entity", "ne", "iob"}
SENTENCE_NAMES = {"sentence", "sentence_idx", "sentence_id", "sent", "sent_id", "sentence_number"}

Column = int | str | None  # the number of a column, from 1, or its name


@dataclass(frozen=True)
class Layout:
    """The columns of a file, counted from 0.

    Attributes:
        width: The number of columns.
        token: The column of the tokens.
        tags: The columns of the tags: several if entities may overlap.
        key: Where the tags are in cells as `name=B-PER|Gloss=x`, their key.
        header: The names of the columns, if the file has them.
        index: A column that counts the tokens of each sentence.
        sentence: A column that names, or begins, each sentence; None: blank rows are between them.
        document: A column that names the document of each sentence.
        spaces: A column in which SpaceAfter=No may be.
        prefix: What all tokens begin with, and is not part of them.
        known: The tags of the first rows.
    """

    width: int
    token: int
    tags: tuple[int, ...]
    key: str
    header: list[str] | None
    index: int | None
    sentence: int | None
    document: int | None
    spaces: int | None
    prefix: str
    known: frozenset[str]

    def is_comment(self, row: Row) -> bool:
        """Whether a row before a sentence is a comment: it has no tag, or too many cells."""
        if not is_comment(row) or len(row.cells) != self.width:
            return is_comment(row)
        if self.index is not None:
            return not INDEX.match(row.cells[self.index])
        tag = tag_in(row.cells[self.tags[0]], self.key)
        return not (tag in self.known or TAG.fullmatch(tag))


def is_comment(row: Row) -> bool:
    """Whether a row before a sentence looks like a comment."""
    if row.problem or not row.text.startswith(MARKS):
        return False
    return bool(COMMENT.match(row.text)) or not any(map(TAG.fullmatch, row.cells[1:]))


def tag_in(cell: str, key: str) -> str:
    """Return the tag in a cell as `name=B-PER|Gloss=x`; without a key, the cell is the tag.

    Several tags of a key are together, which is no tag.
    """
    if not key:
        return cell
    pairs = (each.partition("=") for each in cell.split("|"))
    found = [value for name, _, value in pairs if name == key]
    return "|".join(found) if found else "O"


def plain_name(name: str) -> str:
    """Write the name of a column without marks: "Sentence #" is "sentence"."""
    return "_".join(re.findall(r"\w+", name.lower()))


def has_names_of_columns(cells: Sequence[str]) -> bool:
    """Return whether cells are the names of a column of tokens and of one of tags."""
    names = {*map(plain_name, cells)}
    return not (names.isdisjoint(TOKEN_NAMES) or names.isdisjoint(TAG_NAMES))


def detect_layout(
    rows: Rows, token_column: Column, tag_column: Column, log: ConversionLog
) -> Layout:
    """Detect the columns of a file, and note in the log what is not as usual."""
    sample = _Sample(rows, [token_column, tag_column])
    token, _ = sample.chosen(token_column)
    sentence = sample.sentence_column(token)
    if token is None:
        token = sample.token_column(sentence)
    tag, key = sample.chosen(tag_column)
    tags = [tag] if tag is not None else sample.tag_columns(token, log.spans_key is not None)
    if token_column is None and not sample.header:
        sample.check_words(token, tags)
    if key:
        sample.check_key(tags[0], key)
    if tag_column is None and not sample.header:
        sample.check_first_row(tags[0])
    if token in tags:
        expected, got = "a column of tokens and one of tags", f"column {token + 1} for both"
        raise error(str(rows.path), expected, got, "Choose two columns")
    document = sample.document_column(sentence, [*tags, token, sentence])
    prefix = sample.prefix(token)
    if sample.notes:
        log.note(f"{rows.path}: {'; '.join(sample.notes)}.")
    columns = range(sample.width)
    cells = [sample.cells(i) for i in columns]
    return Layout(
        sample.width,
        token,
        tuple(tags),
        key,
        sample.header,
        next((i for i in columns if i != token and sample.counts_tokens(i)), None),
        sentence,
        document,
        next((i for i in columns if any(NO_SPACE in cell for cell in cells[i])), None),
        prefix,
        frozenset(tag_in(cell, key) for i in tags for cell in cells[i]),
    )


class _Sample:
    """The cells of the first sentences of a file, without comments and rows of another width."""

    def __init__(self, file: Rows, options: list[Column]) -> None:
        first = [row for row in file.first() if not row.problem]
        widths = Counter[int]()
        for row in first:
            widths[len(row.cells)] += not (row.ends_sentence or row.text.startswith(MARKS))
        self.path = file.path
        self.width = max(max(widths, key=widths.__getitem__, default=2), 2)
        found = (
            [row.cells for row in dropwhile(is_comment, rows) if len(row.cells) == self.width]
            for ends, rows in groupby(first, lambda row: row.ends_sentence)
            if not ends
        )
        self.sentences = [*filter(None, found)]
        self.notes: list[str] = []
        names = {str(each).partition(":")[0] for each in options if each is not None}
        self.header = self._header({each for each in names if not NUMBER.fullmatch(each)})

    def cells(self, column: int) -> list[str]:
        return [row[column] for rows in self.sentences for row in rows]

    def _header(self, names: set[str]) -> list[str] | None:
        """Take the names of the columns off, if the first row has them."""
        first = self.sentences[0][0] if self.sentences else []
        is_header = has_names_of_columns(first) or names & {*first}
        if not is_header or any(map(TAG.fullmatch, first)):
            return None
        del self.sentences[0][0]
        self.sentences = [*filter(None, self.sentences)]
        return first

    def _named(self, names: set[str], columns: Sequence[int]) -> int | None:
        """Return the only one of some columns that has one of these names."""
        header = self.header or [""] * self.width
        found = [i for i in columns if plain_name(header[i]) in names]
        return found[0] if len(found) == 1 else None

    def chosen(self, option: Column) -> tuple[int | None, str]:
        """Return the column that the user chose, from 0, and the key of its tags."""
        if option is None:
            return None, ""
        name, _, key = str(option).partition(":")
        header = self.header or (self.sentences[0][0] if self.sentences else [])
        if self.header and name in header:
            return header.index(name), key
        if not NUMBER.fullmatch(name):
            fix = "Choose a name in the first row, or the number of a column"
            hint = did_you_mean(name, header)
            raise error(str(self.path), f"a column {name!r}", shorten(header), fix, hint)
        number, last = int(name), self.width
        if not 1 <= abs(number) <= last:
            expected = f"a column from 1 to {last}, or from -1, the last, to -{last}"
            raise error(str(self.path), expected, str(number), "Count the columns of a line")
        return (number - (number > 0)) % last, key

    def check_first_row(self, column: int) -> None:
        """Raise CorpusError if labels are alone, and that of the first row is nowhere else."""
        first, *others = self.cells(column) or [""]
        is_other = first not in (*OUTSIDE, *others)
        if is_other and find_spelling([first, *others]) == NO_PREFIX:
            expected = "the names of columns, or a token whose label other rows have too"
            fix = f"Choose --tag-column {first!r} if these are names, or else {column + 1}"
            raise error(str(self.path), expected, shorten(self.sentences[0][0]), fix)

    def check_key(self, column: int, key: str) -> None:
        """Raise CorpusError if no cell of the column has the key, and other cells have tags."""
        if any(f"|{key}=" in f"|{cell}" for cell in self.cells(column)):
            return
        for other in range(self.width):
            for cell in self.cells(other):
                pairs = (each.partition("=") for each in cell.split("|"))
                found = [name for name, _, value in pairs if TAG.fullmatch(value) and value != "O"]
                if found:
                    fix = f"Choose the key of the tags, as in --tag-column {other + 1}:{found[0]}"
                    raise error(str(self.path), f"the key {key!r}", shorten(cell), fix)

    def sentence_column(self, token: int | None) -> int | None:
        """Return a column that is named so or, without blank rows, has a number for some rows.

        Only other such columns are before it. Numbers that may be flags raise CorpusError.
        """
        named = self._named(SENTENCE_NAMES, range(self.width))
        if named is not None or len(self.sentences) != 1:
            return named
        for column in range(self.width - 2 if token is None else token):
            values = self.cells(column)
            names = {re.sub(r"\d+", "", value) for value in values}
            if not _are_runs(values):
                return None
            if {*values} == {"0", "1"}:
                expected = "a column of flags after the tokens, or one named 'sentence'"
                fix = "Name the columns in a first row, or put blank rows between the sentences"
                raise error(str(self.path), expected, f"0 and 1 in column {column + 1}", fix)
            if len(names) == 1:
                self.notes.append(f"column {column + 1} names the sentence")
                return column
        return None

    def token_column(self, sentence: int | None) -> int:
        """Return the first column that has neither the index of each token nor ids of sentences."""
        named = self._named(TOKEN_NAMES, range(self.width))
        if named is not None:
            return named
        token = 0
        while token < self.width - 2:
            if self.counts_tokens(token):
                self.notes.append(f"column {token + 1} counts the tokens of each sentence")
            elif token != sentence and not self._is_constant(token):
                break
            token += 1
        if token:
            self.notes.append(f"column {token + 1} has the tokens")
        return token

    def counts_tokens(self, column: int) -> bool:
        """Whether nearly all cells of a column count the tokens, and some sentences have several.

        Where no blank lines separate sentences, the numbers begin again within one.
        """
        cells = exceptions = steps = restarts = 0
        for rows in self.sentences:
            found = [row[column] for row in rows if not OF_SEVERAL.fullmatch(row[column])]
            numbers = [int(cell) for cell in found if INDEX.fullmatch(cell)]
            next_ones = sum(after == before + 1 for before, after in pairwise(numbers))
            again = sum(after in (0, 1) and after <= before for before, after in pairwise(numbers))
            cells, steps, restarts = cells + len(found), steps + next_ones, restarts + again
            exceptions += len(found) - len(numbers) + max(len(numbers) - 1, 0) - next_ones - again
        return steps > restarts and exceptions <= EXCEPTIONS * cells

    def _is_constant(self, column: int) -> bool:
        """Whether a column has one value in nearly each of several sentences of several tokens."""
        several = [rows for rows in self.sentences if len(rows) > 1]
        others = sum(len({row[column] for row in rows}) > 1 for rows in several)
        return len(several) > 1 and others <= EXCEPTIONS * len(several)

    def check_words(self, token: int, tags: list[int]) -> None:
        """Raise CorpusError if tokens look like numbers or ids, and another column has words."""
        cells = self.cells(token)
        numbers = sum(bool(INDEX.fullmatch(cell) or OF_SEVERAL.fullmatch(cell)) for cell in cells)
        pairs = [(a[token], b[token]) for rows in self.sentences for a, b in pairwise(rows)]
        are_numbers = numbers > MOSTLY * len(cells)
        are_repeats = sum(before == after for before, after in pairs) > REPEATED * len(pairs)
        others = (i for i in range(self.width) if i not in (token, *tags))
        words = next((i for i in others if _are_words(self.cells(i))), None)
        if words is not None and (are_numbers or are_repeats):
            what = "numbers" if are_numbers else "repeats"
            got = f"{what} in column {token + 1}, and words in column {words + 1}"
            option = f"--token-column {words + 1} (or {token + 1} for the {what})"
            raise error(str(self.path), "a column of tokens", got, f"Choose it, as in {option}")

    def tag_columns(self, token: int, several: bool) -> list[int]:
        """Return the only column of tags of entities, or `several`; one of O alone if no other."""
        last, others = self.width - 1, [i for i in range(self.width) if i != token]
        found = [i for i in others if _are_tags(self.cells(i))]
        if all({*self.cells(i)} == {"O"} for i in found):
            named = self._named(TAG_NAMES, others)
            labels = [i for i in others if _are_labels(self.cells(i))]
            if named is not None and (not found or named in labels):
                return [named]
            if labels and {*labels, *found} != {last}:
                fix = f"Choose one, as in --tag-column {labels[0] + 1}"
                got = f"labels in {_numbers(labels)}"
                got += f", and O in {_numbers(found)}" * bool(found)
                raise error(str(self.path), "one column of tags", got, fix)
            if not found:
                return [last]
        if found == [last]:
            return found
        if len(found) == 1 and (several or not any(map(TAG.fullmatch, self.cells(last)))):
            self.notes.append(f"column {found[0] + 1} has the tags")
            return found
        if several:
            self.notes.append(f"columns {_numbers(found)} have tags")
            return found
        labeled = [i for i in found if {*self.cells(i)} != {"O"}] or found
        if labeled == [last]:
            unread = _numbers([i for i in found if i != last])
            self.notes.append(f"column {unread} has only O in the first lines, and was not read")
            return labeled
        expected, got = "one column of tags", f"{len(labeled)}: {_numbers(labeled)}"
        fix = f"Choose one, as in --tag-column {labeled[-1] + 1}"
        if len(labeled) == 1:
            expected, got = "tags of entities in the last column", f"them in column {got[3:]}"
        else:
            fix = f"{fix}, or keep all of them with --spans-key"
        raise error(str(self.path), expected, got, fix)

    def document_column(self, sentence: int | None, taken: Sequence[int | None]) -> int | None:
        """Return a column that is named so, or has a value for some sentences in a row.

        It is constant in sentences; or before the column of their names, which may begin again.
        """
        others = [i for i in range(self.width) if i not in taken]
        named = self._named({*DOCUMENTS}, others)
        first = [rows[0] for rows in self.sentences]
        constant = filter(self._is_constant, others)
        found = [i for i in constant if _are_runs([row[i] for row in first])]
        found += [i for i in others if i < (sentence or 0) and _are_runs(self.cells(i))]
        column = named if named is not None else next(iter(found), None)
        if column is not None:
            self.notes.append(f"column {column + 1} names the document")
        return column

    def prefix(self, column: int) -> str:
        """Return the language that all tokens begin with, as in `en:Ann`; "" for none."""
        words = {*self.cells(column)}
        prefixes = {match and match[0] for match in map(PREFIX.match, words)}
        prefix = (len(words) > 1 and len(prefixes) == 1 and prefixes.pop()) or ""
        if prefix:
            self.notes.append(f"all tokens begin with {prefix!r}, which was taken off")
        return prefix


def _numbers(columns: list[int]) -> str:
    return " and ".join(str(column + 1) for column in columns)


def _are_runs(values: list[str]) -> bool:
    """Whether there are several values, each for some places in a row."""
    changes = sum(before != after for before, after in pairwise(values))
    return 2 <= len({*values}) == changes + 1 < len(values)


def _are_words(cells: list[str]) -> bool:
    lettered = sum(any(map(str.isalpha, cell)) for cell in cells)
    return len({*cells}) > 1 and lettered > 0.5 * len(cells)


def _are_labels(cells: list[str]) -> bool:
    """Whether a column has few values: one that is outside, and labels without a prefix."""
    values = {*cells}
    is_few = "O" in values and len(values) <= max(2, len(cells) / 2)
    return is_few and find_spelling(values) == NO_PREFIX and not values <= {*CHUNKS, "O"}


def _are_tags(cells: list[str]) -> bool:
    """Whether nearly all cells of a column are tags with a prefix, and not those of chunks."""
    spelling = find_spelling(cells)
    tags = [tag for tag in map(spelled(spelling), cells) if TAG.fullmatch(tag)]
    labels = [tag[2:] for tag in tags if tag[2:]]
    chunks = sum(label in CHUNKS for label in labels)
    are_numbers = {*OUTSIDE[1:]} >= {*cells}  # 0 alone
    is_tagged = spelling != NO_PREFIX and len(tags) > 0.95 * len(cells)
    return is_tagged and not are_numbers and not chunks > 0.5 * len(labels)
