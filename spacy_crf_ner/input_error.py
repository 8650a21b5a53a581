"""The error classes for mistakes in what a user gave."""


class InputError(ValueError):
    """A file, setting, label or text that the user gave is not as expected.

    The message says where (file, line, document, span), what was expected, what was found and
    what to do. The command line prints it as one line; any other exception is a bug, and
    shows its traceback.
    """


class CorpusError(InputError):
    """A corpus that cannot be read; the message says where, what was expected, and what to do."""
