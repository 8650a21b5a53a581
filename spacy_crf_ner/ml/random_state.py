"""The states of random numbers: Python's, of the order of docs, and numpy's, of thinc's dropout."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the state of `random` at the end."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextmanager
def kept_numpy_state() -> Iterator[None]:
    """Restore the state of `numpy.random` at the end."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
