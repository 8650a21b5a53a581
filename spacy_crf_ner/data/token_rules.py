"""Rules for tokenizers that end tokens where entities end."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

LETTER, DIGIT = "a letter", "a digit"
PATTERNS = {LETTER: r"[^\W\d_]", DIGIT: r"\d"}


class Boundary(NamedTuple):
    """The kinds of the characters before and after a place inside a token."""

    before: str
    after: str

    @property
    def infix(self) -> str | None:
        """The rule that divides tokens at such places; None between letters, as it divides all."""
        if self.before == self.after == LETTER:
            return None
        before, after = (PATTERNS.get(kind, re.escape(kind)) for kind in self)
        return f"(?<={before})(?={after})"

    def __str__(self) -> str:
        return " and ".join(kind if kind in PATTERNS else repr(kind) for kind in self)


class Cut(NamedTuple):
    """A place inside a token; the example is the token with a bar there, as "B|."."""

    boundary: Boundary
    example: str


def places_inside(doc: Doc, edges: Iterable[int]) -> list[Cut]:
    """Describe the edges, offsets of characters, that are inside tokens."""
    found = []
    for at in edges:
        token = doc.char_span(at, at + 1, alignment_mode="expand") if at < len(doc.text) else None
        if token and token.start_char < at < token.end_char:
            i = at - token.start_char
            kinds = (_kind(character) for character in token.text[i - 1 : i + 1])
            found.append(Cut(Boundary(*kinds), f"{token.text[:i]}|{token.text[i:]}"))
    return found


def _kind(character: str) -> str:
    return LETTER if character.isalpha() else DIGIT if character.isdigit() else character


def divide_tokens(infixes: Sequence[str]) -> Callable[[Language], Language]:
    """Make a callback that adds rules to the tokenizer of a pipeline.

    Registered as `spacy-crf-ner.divide_tokens.v1`, for `[initialize.before_init]` of a config. The
    tokenizer is saved with the pipeline.

    Args:
        infixes: Regular expressions; a token is divided before and after each match inside it, and
            at an empty match. `convert --alignment split` prints those for a corpus.
    """

    def add(nlp: Language) -> Language:
        tokenizer: Any = nlp.tokenizer
        own = tokenizer.infix_finditer
        before = [own.__self__.pattern] if own else []
        tokenizer.infix_finditer = re.compile("|".join([*before, *infixes])).finditer
        return nlp

    return add
