"""The rules of docs and words that are long for what reads them."""

from typing import Iterator, Optional

from .doc_view import Reading
from .finding import Finding
from .rule import Tally
from .subwords import Subwords

LONG_DOC = 5_000  # tokens; a batch has at least one doc, however long


class Length:
    """Compare docs with the window that is read at once.

    window: Tokens; None where it is not known, or where there is none.
    subwords: Of the transformer; None for none.
    """

    def __init__(self, window: Optional[int], subwords: Optional[Subwords]) -> None:
        self.window, self.subwords = window, subwords
        self.longest = 0
        self.cut = Tally(
            "note",
            "cut-in-windows",
            (
                f"doc is longer than the window of {window} tokens",
                f"docs are longer than the window of {window} tokens",
            ),
            "Nothing: the transformer reads it in windows, and only the CRF sees all of it.",
        )
        self.long = Tally(
            "warning",
            "long-doc",
            (
                f"doc is longer than {LONG_DOC:,} tokens",
                f"docs are longer than {LONG_DOC:,} tokens",
            ),
            "Divide it, or see that the memory is enough: a doc is in one batch as a whole.",
        )
        limit = subwords.limit if subwords else 0
        self.long_word = Tally(
            "error",
            "long-word",
            (
                f"word alone has more subwords than the {limit} that the transformer reads",
                f"words alone have more subwords than the {limit} that the transformer reads",
            ),
            "Remove it, or see that the tokenizer divides it: such are often links or tables.",
        )
        self.unread = Tally(
            "warning" if subwords is None or subwords.cuts else "error",
            "unread-word",
            (
                f"word is beyond the {limit} subwords that the transformer reads of a window",
                f"words are beyond the {limit} subwords that the transformer reads of a window",
            ),
            "Make window and stride of the transformer's get_spans smaller.",
        )

    def see(self, reading: Reading) -> None:
        """Measure a doc."""
        doc, T = reading.doc, len(reading.doc)
        self.longest = max(self.longest, T)
        if self.window is not None and T > self.window:
            self.cut.add(reading.beginning(f"{T:,} tokens"))
        if self.window is None and self.subwords is None and T > LONG_DOC:
            self.long.add(reading.beginning(f"{T:,} tokens"))
        if self.subwords is not None:
            long = set(self.subwords.long_words(doc))
            for i in sorted(long):
                self.long_word.add(reading.place(doc[i : i + 1]))
            for i in self.subwords.unread(doc):
                self.unread.add(reading.place(doc[i : i + 1]))

    def findings(self, limit: int) -> Iterator[Finding]:
        """Yield what is too long."""
        yield from self.long_word.findings(limit)
        yield from self.unread.findings(limit)
        yield from self.long.findings(limit)
        yield from self.cut.findings(limit, f"; the longest has {self.longest:,}")
