"""Seconds in some functions, summed by part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

Function = tuple[Any, str]  # what it is an attribute of, and its name


@contextmanager
def apart(
    parts: Mapping[str, Sequence[Function]], clock: Callable[[], float] = perf_counter
) -> Iterator[dict[str, float]]:
    """Sum the seconds in the functions of each part, without those in nested ones of other parts.

    clock: Returns seconds. For a GPU, one that waits for it.
    """
    seconds = dict.fromkeys(parts, 0.0)
    nested: list[float] = []

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nested.append(0.0)
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                taken = clock() - start
                seconds[part] += taken - nested.pop()
                if nested:
                    nested[-1] += taken

        return call

    replaced = [
        (owner, name, timed(part, getattr(owner, name)))
        for part, functions in parts.items()
        for owner, name in functions
    ]
    with ExitStack() as stack:
        for each in replaced:
            stack.enter_context(patch.object(*each))
        yield seconds
