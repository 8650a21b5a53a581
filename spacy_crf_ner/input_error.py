"""Errors in user input."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A file, setting, label or text of the user is invalid.

    The message has the place (file, line, document, span), the expected and the found value, and
    what to do. The command line prints it as one line; other exceptions are bugs and show their
    traceback.
    """


class CorpusError(InputError):
    """A corpus cannot be read."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name that is most like another one; "" for none."""
    return "".join(f" Did you mean {each}?" for each in get_close_matches(name, known, 1))
