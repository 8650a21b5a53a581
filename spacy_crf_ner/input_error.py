"""Errors in user input."""


class InputError(ValueError):
    """A file, setting, label or text of the user is invalid.

    The message has the place (file, line, document, span), the expected and the found value, and
    what to do. The command line prints it as one line; other exceptions are bugs and show their
    traceback.
    """


class CorpusError(InputError):
    """A corpus cannot be read."""
