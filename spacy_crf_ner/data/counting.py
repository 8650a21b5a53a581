"""What the character offsets of a file count: Unicode characters, as here, or something else.

Tools in JavaScript or Java count units of UTF-16, where an emoji is two. A pipeline that composes
its texts (NFC) counts composed letters, where the text in the file may have decomposed ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from unicodedata import combining, is_normalized, normalize

from spacy.tokens import Doc

from ..input_error import CorpusError
from .json_records import Record
from .offsets import RawSpan, trim_whitespace
from .repair_log import ConversionLog, error

CHARACTERS, UTF16, NFC = "characters", "UTF-16", "NFC"
MIXED = 1 / 3  # share of the spans that may speak for another way to count, as by chance


def _utf16(text: str) -> list[int]:
    return [i for i, each in enumerate(text) for _ in range(1 + (ord(each) > 0xFFFF))]


def _composed(text: str) -> list[int]:
    starts: list[int] = []
    last = 0  # the start of the letters that are composed together
    for i in range(1, len(text) + 1):
        if i == len(text) or _begins_letter(text[last:i], text[i]):
            starts += [last] * len(normalize("NFC", text[last:i]))
            last = i
    return starts


def _begins_letter(before: str, character: str) -> bool:
    if combining(character):
        return False
    parts = normalize("NFC", before), normalize("NFC", character)
    return normalize("NFC", before + character) == "".join(parts)


# For each unit of a text, the index of its character.
UNITS: dict[str, Callable[[str], list[int]]] = {UTF16: _utf16, NFC: _composed}


def possible_countings(text: str) -> list[str]:
    """Return the ways to count that differ from characters in a text."""
    has_pairs = any(ord(character) > 0xFFFF for character in text)
    return [UTF16] * has_pairs + [NFC] * (not is_normalized("NFC", text))


def counting_of_file(
    path: Path,
    records: Iterable[tuple[str, object]],
    parse: Callable[[str, Record], tuple[Doc, list[RawSpan]]],
) -> str:
    """Return `find_counting` for the records of a file, as `json_lines` yields them.

    Args:
        parse: Makes the doc and its spans of a record that is an object; it may raise CorpusError.
    """

    def texts() -> Iterator[tuple[Doc, list[RawSpan]]]:
        for where, record in records:
            if isinstance(record, dict) and any(map(possible_countings, _strings(record))):
                with suppress(CorpusError):  # the reader raises it
                    yield parse(where, {**record})

    return find_counting(texts(), str(path))


def _strings(record: Record) -> Iterator[str]:
    return (value for value in record.values() if isinstance(value, str))


def find_counting(texts: Iterable[tuple[Doc, Sequence[RawSpan]]], where: str) -> str:
    """Return the way to count by which most spans of a file are whole tokens.

    Args:
        texts: The docs of the file, and their spans; those that fit by each way, or by none, do not
            decide.

    Returns:
        The way to count; CHARACTERS if nothing speaks against it.

    Raises:
        CorpusError: If more than `MIXED` of the spans that decide between two ways speak for the
            other one.
    """
    ways = (CHARACTERS, *UNITS)
    fitting = Counter[frozenset[str]]()  # the ways by which a span is whole tokens
    for doc, spans in texts:
        text = doc.text
        units = {way: _units(text, way) for way in ways}
        for span in spans:
            fitting[frozenset(w for w in ways if _is_tokens(doc, text, span, units[w]))] += 1
    totals = {way: sum(n for fits, n in fitting.items() if way in fits) for way in ways}
    best = max(ways, key=totals.__getitem__)
    for other in ways:
        for_best = sum(n for fits, n in fitting.items() if best in fits and other not in fits)
        against = sum(n for fits, n in fitting.items() if other in fits and best not in fits)
        if against > MIXED * (for_best + against):
            got = f"{for_best} that fit only {best}, and {against} only {other}"
            raise error(where, "offsets that count the same", got, "Correct those that differ")
    return best


def in_characters(text: str, spans: Sequence[RawSpan], counting: str) -> list[RawSpan]:
    """Convert the offsets of spans; invalid ones stay as they are."""
    units = _units(text, counting)
    return [
        span._replace(start=units[span.start], end=units[span.end])
        if _is_within(span, len(units))
        else span
        for span in spans
    ]


def _units(text: str, counting: str) -> Sequence[int]:
    """Return the index of the character of each unit of a text, and of its end."""
    if counting not in possible_countings(text):
        return range(len(text) + 1)
    return [*UNITS[counting](text), len(text)]


def _is_within(span: RawSpan, n: int) -> bool:
    are_numbers = type(span.start) is int and type(span.end) is int
    return are_numbers and 0 <= span.start < span.end < n


def repair_counting(
    doc: Doc, spans: Sequence[RawSpan], counting: str, log: ConversionLog, where: str
) -> list[RawSpan]:
    """Convert the offsets of spans to characters.

    Args:
        counting: How the file counts, from `find_counting`.
        log: Decides what happens if that is not by characters: "utf16" or "nfc".
    """
    found = in_characters(doc.text, spans, counting)
    if found != [*spans]:
        fix = f"The spans are whole tokens if they count in {counting}: convert them with --repair"
        problem = error(where, "offsets that count characters", counting, fix)
        log.repaired(counting.replace("-", "").lower(), problem)
    return found


def _is_tokens(doc: Doc, text: str, span: RawSpan, units: Sequence[int]) -> bool:
    """Whether a span, without whitespace at its edges, begins and ends with tokens."""
    if not _is_within(span, len(units)):
        return False
    edges = trim_whitespace(text, units[span.start], units[span.end])
    return doc.char_span(*edges) is not None


def n_units(text: str, counting: str) -> int:
    """Return the length of a text by this count."""
    return len(_units(text, counting)) - 1
