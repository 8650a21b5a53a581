"""The result of a check: statistics of the corpus, and findings with their places."""

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from .statistics import Statistics

MAX_TEXT = 60  # characters of a text in a finding
SEVERITIES = ("error", "warning", "note")
# Severity, wording and advice, by kind of finding.
MESSAGES: dict[str, dict[str, str]] = tomllib.loads(
    files(__package__).joinpath("messages.toml").read_text("utf-8")
)


class Place(NamedTuple):
    """A place in a corpus: "train" or "dev", number of the doc, first character, shortened text."""

    part: str
    doc: int
    offset: int
    text: str
    note: str = ""


Problem = tuple[str, Place]  # kind of finding, a key of MESSAGES, and place


class CorpusDoc(NamedTuple):
    """A Doc of a corpus, with its gold entities, which may overlap."""

    part: str
    number: int  # in its part, from 0
    doc: Doc
    ents: Sequence[Span]
    iob: NDArray[np.uint64]  # (T,): IOB_MISSING, IOB_OUTSIDE, or another value in an entity

    def place(self, span: Span, note: str = "") -> Place:
        """Locate a span of the doc."""
        return Place(self.part, self.number, span.start_char, _shorten(span.text), note)

    def doc_place(self, note: str = "") -> Place:
        """Locate the doc as a whole."""
        return Place(self.part, self.number, 0, _shorten(self.doc.text), note)


class Finding(NamedTuple):
    """All problems of one kind, and what to do.

    In an "error", training fails, or training or scores are wrong; a "warning" is probably a
    mistake; a "note" is for information.
    """

    severity: str
    kind: str  # a key of MESSAGES
    found: str
    counts: dict[str, int]  # of places by part, or in "all" for kinds counted over both parts
    places: list[Place]  # the first ones, or the most frequent texts
    fix: str


class Report(NamedTuple):
    """The result of a check: statistics by part, and findings, errors first."""

    statistics: dict[str, Statistics]
    findings: list[Finding]

    def of(self, severity: str) -> list[Finding]:
        """Select the findings of one severity."""
        return [finding for finding in self.findings if finding.severity == severity]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types: dicts, lists, strings and numbers."""
        findings = [
            {**f._asdict(), "places": [p._asdict() for p in f.places]} for f in self.findings
        ]
        statistics = {part: s.to_dict() for part, s in self.statistics.items()}
        return {"statistics": statistics, "findings": findings}


def join_counts(counts: dict[str, int]) -> str:
    """Format counts by name: "ORG 5, PER 2"."""
    return ", ".join(f"{name} {n:,}" for name, n in counts.items())


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
