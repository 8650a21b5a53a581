"""The state of Python's random numbers, on which the order of docs depends."""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the state of `random` at the end."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
