"""What a file says about one text: the record that every reader makes, with unchecked values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .lines import Problem

# What the offsets of a record count; see `counting`.
CHARACTERS, UTF16, NFC = "characters", "UTF-16", "NFC"


class RawSpan(NamedTuple):
    """A span of a text by the offsets of a file.

    Attributes:
        where: Its place, if it differs from the place of the record.
        text: The text of the span in the file.
        parts: The offsets of the parts of a discontinuous span, in order.
        problem: Why it cannot be used.
    """

    start: Any
    end: Any
    label: Any
    kb_id: Any = None
    id: Any = None
    where: str = ""
    text: str | None = None
    parts: tuple[tuple[int, int], ...] = ()
    problem: Problem | None = None

    def of_each_label(self, may_overlap: bool) -> "list[RawSpan]":
        """Return a span for each label of a list; several ones only if spans may overlap."""
        if isinstance(self.label, list) and (len(self.label) == 1 or may_overlap):
            return [self._replace(label=label) for label in self.label] or [self]
        return [self]


@dataclass(slots=True)
class Record:
    """A text, or its words, and what a file says about it. `docs.make_docs` checks all of it.

    Attributes:
        where: The place for messages, as "corpus.jsonl, line 5".
        text: The text; the tokenizer makes its tokens, unless there are words.
        words: The tokens. Without a text, they make it up.
        spaces: Whether a space follows each word; None if that is unknown.
        spans: The entities, by offsets.
        tags: The entities, by words: the tags of each layer of annotation, such as a column. None
            for a word that is not annotated.
        places: The place of each word, if it has one of its own.
        partial: Whether only the entities are annotated, instead of the whole text.
        missing: [start, end] of the parts of the text that are not annotated.
        incorrect: Spans that are known not to be entities.
        labels: The labels that are annotated; None for all.
        sent_starts: The offsets at which sentences begin; empty if that is unknown.
        counts_in: What the offsets count. None: what fits most entities of the file, which is a
            mistake if it is not characters.
        inclusive: Whether the format has inclusive ends, unless the text of a span shows otherwise.
        may_divide: Whether a token may be divided at a place inside of it where an entity begins or
            ends; its arguments are the token and the place.
        id: An id that no other record of the file has; None for no id.
        meta: What else the file says, for `doc.user_data["meta"]`.
        problem: Why the record cannot be used; its entities are counted.
    """

    where: str
    text: Any = None
    words: list[str] | None = None
    spaces: list[bool] | None = None
    spans: list[RawSpan] = field(default_factory=list)
    tags: list[list[str | None]] = field(default_factory=list)
    places: Sequence[str] = ()
    partial: bool = False
    missing: Sequence[Any] = ()
    incorrect: list[RawSpan] = field(default_factory=list)
    labels: list[str] | None = None
    sent_starts: Sequence[Any] = ()
    counts_in: str | None = CHARACTERS
    inclusive: bool = False
    may_divide: Callable[[str, int], bool] | None = None
    id: Any = None
    meta: dict[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
