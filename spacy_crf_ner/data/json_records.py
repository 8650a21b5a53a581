"""Records of annotation tools: values of JSON, each of which becomes a Doc or is counted."""

import json
import re
import reprlib
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type, TypeVar

import srsly
from spacy.tokens import Doc

from .lines import MAX_LINE, Line, scan_lines
from .repair_log import CorpusError, Journal, error

# Of the user_data of a Doc: what its record says beside text and annotation.
META = "meta"
# Characters that are read at once.
CHUNK = 2**16
TYPES = {str: "a string", bool: "true or false", list: "a list", dict: "an object"}
BLANK = re.compile(r"[ \t\r\n]*")  # what JSON allows between values

Record = Dict[str, Any]
Content = TypeVar("Content")
Value = TypeVar("Value")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: object) -> str:
    """Show a value of any size and depth in a message, shortened."""
    return _short.repr(value)


def docs_of(
    contents: Iterable[Tuple[str, Content]],
    to_doc: Callable[[str, Content], Optional[Doc]],
    journal: Journal,
) -> Iterator[Doc]:
    """Make a Doc of each record, one at a time.

    contents: The records, each behind its place.
    to_doc: Makes a Doc, or None of a record that it has counted as left out. It raises CorpusError
        for a record that cannot be read, before it counts any of its entities.
    journal: Decides whether such a record is an error, or is left out and counted.
    """
    for where, content in contents:
        try:
            doc = to_doc(where, content)
        except CorpusError as problem:
            journal.read()
            journal.rejected("record", problem, records=1)
        else:
            if doc is not None:
                journal.read()
                yield doc


# JSON


def json_lines(path: Path) -> Iterator[Tuple[str, Line]]:
    """Read the lines of a file that are not blank, each behind its place, for `parse`."""
    return ((line.where, line) for line in scan_lines(path) if line.text.strip() or line.problem)


def parse(line: Line) -> object:
    """Read a line of JSON. Raises CorpusError, also for a key that is there twice, and for NaN."""
    if line.problem:
        raise line.problem[1]
    fix = "Write one JSON object a line"
    try:
        return _decoder().decode(line.text)
    except (ValueError, RecursionError) as problem:
        got = f"{shown(line.text)} ({problem})"
        raise error(line.where, "JSON", got, fix) from problem


def json_array(path: Path) -> Iterator[Tuple[str, object]]:
    """Read the items of a file that is one JSON array, of which one at a time is in memory.

    Raises CorpusError for a file that is anything else. What comes behind a mistake is lost, and
    nobody knows how much: no journal can count it, so this is always an error.
    """
    decoder, where, number = _decoder(), str(path), 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            rest = _Rest(file.read)
            rest.skip("[")
            more = rest.peek() != "]"
            while more:
                number += 1
                where = f"{path}, record {number}"
                yield where, rest.decode(decoder)
                more = rest.peek() == ","
                rest.skip("," if more else "]")
            if not number:
                rest.skip("]")
            rest.skip("")
    except (ValueError, RecursionError) as problem:
        fix = "Export the file again; what comes behind this cannot be read"
        raise error(where, "an array of JSON, in UTF-8", str(problem), fix) from problem


class _Rest:
    """The part of a file that is not yet read, of which as little as possible is in memory."""

    def __init__(self, read: Callable[[int], str]) -> None:
        self.read, self.text, self.at, self.ended = read, "", 0, False

    def grow(self) -> None:
        """Read as much again as there is: a long value is then tried few times."""
        self.text = self.text[self.at :]
        more = self.read(max(CHUNK, len(self.text)))
        self.text, self.at, self.ended = self.text + more, 0, not more

    def peek(self) -> str:
        """Tell the next character that is not blank; an empty one at the end."""
        while True:
            blank = BLANK.match(self.text, self.at)
            self.at = blank.end() if blank else self.at
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self.grow()

    def skip(self, mark: str) -> None:
        """Go behind a character, or, for an empty one, require the end."""
        if self.peek() != mark:
            got = shown(self.text[self.at : self.at + 60])
            raise ValueError(f"{got} where {mark or 'nothing more'} was to come")
        self.at += len(mark)

    def decode(self, decoder: json.JSONDecoder) -> object:
        """Read one value, up to something behind it: 12 may be the half of 1234."""
        self.peek()
        while True:
            try:
                value, end = decoder.raw_decode(self.text, self.at)
            except ValueError:
                if self.ended:
                    raise
                value, end = None, len(self.text)
            if end - self.at > MAX_LINE:
                raise ValueError(f"no value of at most {MAX_LINE:,} characters")
            if end < len(self.text) or self.ended:
                self.at = end
                return value
            self.grow()


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)


def _object(pairs: List[Tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError(f"a key twice among {shown([key for key, _ in pairs])}")
    return record


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# What is in a record


def require_record(where: str, value: object) -> Record:
    """Pass on an object of JSON. Raises CorpusError for any other value."""
    if not isinstance(value, dict):
        raise error(where, "an object of JSON", shown(value), "Write {...}, with a text")
    return value


def take(where: str, record: Record, key: str, kind: Type[Value], default: Value) -> Value:
    """Take the value of a key out of a record; null is as good as none.

    Raises CorpusError for a value of another type.
    """
    value = record.pop(key, None)
    if value is None:
        return default
    if type(value) is not kind:
        fix = f"Correct {key!r}, or leave it out"
        raise error(where, f"{TYPES[kind]} for {key!r}", shown(value), fix)
    return value


def is_text(value: object) -> bool:
    """Tell whether a value is a string, and not one with half a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def keep(where: str, doc: Doc, meta: Record) -> None:
    """Keep what a record says beside text and annotation, as `doc.user_data["meta"]`.

    Raises CorpusError for what JSON, or a file of spaCy, cannot hold.
    """
    try:
        json.dumps(meta, allow_nan=False)
        srsly.msgpack_dumps(meta)
    except (ValueError, OverflowError, RecursionError) as problem:
        fix = "Leave out half a surrogate pair, a number of 20 digits, and what is nested deeply"
        raise error(where, "metadata that can be stored", str(problem), fix) from problem
    if meta:
        doc.user_data[META] = meta


class Identities:
    """The ids of the records of a file, of which it keeps hashes and places, and not the ids."""

    def __init__(self) -> None:
        self.places: Dict[int, str] = {}

    def require_new(self, where: str, identity: object) -> None:
        """Remember an id; None is none. Raises CorpusError for one that was there before."""
        if identity is None:
            return
        if type(identity) not in (str, int):
            fix = "Correct it, or leave it out"
            raise error(where, "a string or a whole number for 'id'", shown(identity), fix)
        # Not of the id itself: the hashes of -1 and -2 are the same.
        before = self.places.setdefault(hash(repr(identity)), where)
        if before != where:
            fix = "Keep one of the two, or give them different ids"
            raise error(where, "an id that is new", f"{shown(identity)}, as in {before}", fix)
