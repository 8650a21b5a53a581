"""What the character offsets of a file count: Unicode characters, as here, or something else.

Tools in JavaScript or Java count units of UTF-16, where an emoji is two. A pipeline that composes
its texts (NFC) counts composed letters, where the text in the file may have decomposed ones. Some
formats have inclusive ends: the offset of the last character.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from unicodedata import combining, is_normalized, normalize

from spacy.tokens import Doc

from ..input_error import CorpusError
from .json_records import is_text
from .offsets import same_text, trim_whitespace
from .record import CHARACTERS, NFC, UTF16, RawSpan, Record
from .repair_log import error

MIXED = 1 / 3  # share of the spans that may speak for another way to count, as by chance
ENDS_OF_WORDS = 0.9  # share of the spans whose inclusive end is a letter or digit


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


@dataclass(frozen=True)
class Offsets:
    """What the offsets of a file are.

    Attributes:
        counting: What they count.
        inclusive: Whether an end is the offset of the last character.
        is_certain: Whether the texts of spans show it; otherwise, the ends of words do.
    """

    counting: str = CHARACTERS
    inclusive: bool = False
    is_certain: bool = False


class OffsetSurvey:
    """Finds what the offsets of a file count: that by which most of its spans are whole tokens."""

    def __init__(self, tokens: Callable[[Record], Doc]) -> None:
        self._tokens = tokens
        self._fitting = Counter[frozenset[str]]()  # the ways by which a span is whole tokens
        # What spans say about ends, in records whose format has inclusive ones, and in others.
        self._ends = {True: Counter[str](), False: Counter[str]()}

    def add(self, record: Record) -> None:
        """Look at the spans of a record."""
        if not is_text(record.text) or record.counts_in is not None:
            return
        spans = [*record.spans, *record.incorrect]
        with suppress(CorpusError):  # `make_docs` raises it
            doc = cache(lambda: self._tokens(record))
            for span in spans:
                self._ends[record.inclusive].update(_evidence(record.text, span, doc))
            if possible_countings(record.text):
                text = doc().text
                units = {way: units_of(text, way) for way in (CHARACTERS, *UNITS)}
                for span in spans:
                    fits = (way for way in units if _is_tokens(doc(), text, span, units[way]))
                    self._fitting[frozenset(fits)] += 1

    def result(self, where: str) -> Offsets:
        """Return what the offsets of the file `where` are; CorpusError if they differ."""
        fitting, ways = self._fitting, (CHARACTERS, *UNITS)
        totals = {way: sum(n for fits, n in fitting.items() if way in fits) for way in ways}
        best = max(ways, key=totals.__getitem__)
        for other in ways:
            for_best = sum(n for fits, n in fitting.items() if best in fits and other not in fits)
            against = sum(n for fits, n in fitting.items() if other in fits and best not in fits)
            if against > MIXED * (for_best + against):
                got = f"{for_best} that fit only {best}, and {against} only {other}"
                raise error(where, "offsets that count the same", got, "Correct those that differ")
        ends = self._ends[False]
        texts = ends["text, inclusive"] - ends["text, exclusive"]
        is_certain = bool(ends["text, inclusive"] or ends["text, exclusive"])
        # Most are inside of words, and are those of words if they are inclusive.
        by_words = ends["inside"] > ends["all"] / 2 and ends["letter"] > ENDS_OF_WORDS * ends["all"]
        inclusive = texts > 0 if is_certain else by_words and best == CHARACTERS
        for found in (self._ends[True], *([ends] if inclusive else [])):
            against = found["all"] - found["letter"]
            if against > MIXED * found["all"]:
                got = f"{against} of {found['all']} spans without a text whose last character"
                fix = "Correct those that differ, or write the text of each span"
                raise error(where, "ends that are all inclusive", f"{got} is none", fix)
        return Offsets(best, inclusive, is_certain)


def _evidence(text: str, span: RawSpan, doc: Callable[[], Doc]) -> list[str]:
    """Return what a span says about inclusive ends; `doc` makes the tokens of the text."""
    start, end = span.start, span.end
    if not (type(start) is type(end) is int and 0 <= start <= end <= len(text)):
        return []
    if span.text is not None:
        ways = {"exclusive": text[start:end], "inclusive": text[start : end + 1]}
        fits = [way for way, found in ways.items() if same_text(found, span.text)]
        return [f"text, {fits[0]}"] if len(fits) == 1 else []
    before, last, after = text[:end][-1:], text[end : end + 1], text[end + 1 : end + 2]
    is_inside = last.isalnum() and not after.isalnum() and (start == end or before.isalnum())
    is_inside = is_inside and not _is_tokens(doc(), text, span, range(len(text) + 1))
    return ["all"] + ["letter"] * last.isalnum() + ["inside"] * is_inside


def including_end(text: str, span: RawSpan) -> RawSpan:
    """Move an inclusive end behind the last character, unless the text of the span has it there."""
    start, end = span.start, span.end
    if type(start) is not int or type(end) is not int:
        return span
    is_exclusive = span.text is not None and same_text(text[start:end], span.text)
    return span if is_exclusive else span._replace(end=end + 1)


def possible_countings(text: str) -> list[str]:
    """Return the ways to count that differ from characters in a text."""
    has_pairs = any(ord(character) > 0xFFFF for character in text)
    return [UTF16] * has_pairs + [NFC] * (not is_normalized("NFC", text))


def in_characters(spans: Sequence[RawSpan], units: Sequence[int]) -> list[RawSpan]:
    """Convert the offsets of spans; invalid ones stay as they are."""
    return [
        span._replace(start=units[span.start], end=units[span.end])
        if _is_within(span, len(units))
        else span
        for span in spans
    ]


def matched_in_utf16(text: str, span: RawSpan) -> RawSpan | None:
    """Convert the offsets of a span whose own text is found only if they count in UTF-16."""
    if span.text is None or (_is_within(span, len(text) + 1) and _has_text(text, span)):
        return None
    (moved,) = in_characters([span], units_of(text, UTF16))
    return moved if moved != span and _has_text(text, moved) else None


def _has_text(text: str, span: RawSpan) -> bool:
    return same_text(text[span.start : span.end], span.text or "")


def units_of(text: str, counting: str) -> Sequence[int]:
    """Return the index of the character of each unit of a text, and of its end."""
    if counting == CHARACTERS or counting not in possible_countings(text):
        return range(len(text) + 1)
    return [*UNITS[counting](text), len(text)]


def _is_within(span: RawSpan, n: int) -> bool:
    are_numbers = type(span.start) is int and type(span.end) is int
    return are_numbers and 0 <= span.start < span.end < n


def _is_tokens(doc: Doc, text: str, span: RawSpan, units: Sequence[int]) -> bool:
    """Whether a span, without whitespace at its edges, begins and ends with tokens."""
    if not _is_within(span, len(units)):
        return False
    edges = trim_whitespace(text, units[span.start], units[span.end])
    return doc.char_span(*edges) is not None
