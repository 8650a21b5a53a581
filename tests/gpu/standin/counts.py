"""What a GPU would be asked to do: kernels that are launched, and waits of the host for them."""

import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

HERE = str(Path(__file__).parent)


class Counts:
    """Counts since the last reset.

    launches: By operation, of torch and cupy. A memory copy is one too.
    waits: By reason: a number is read, the size of a result is unknown, a blocking copy.
    places: The lines that wait, if they are traced.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.traced = False

    def launch(self, name: str, times: int = 1) -> None:
        self.launches[name] += times

    def wait(self, reason: str) -> None:
        self.waits[reason] += 1
        if self.traced:
            outside = [
                frame
                for frame in traceback.extract_stack()
                if not frame.filename.startswith(HERE) and "/torch/" not in frame.filename
            ]
            place = "a backward pass"  # of a thread of torch
            if outside:
                name = "/".join(Path(outside[-1].filename).parts[-2:])
                place = f"{name}:{outside[-1].lineno}: {outside[-1].line}"
            self.places[f"{reason}, {place}"] += 1

    def sums(self) -> tuple[int, int]:
        """Number of launches, number of waits."""
        return sum(self.launches.values()), sum(self.waits.values())


COUNTS = Counts()


@contextmanager
def counted(trace: bool = False):
    """Count from here; yields the counts."""
    COUNTS.reset()
    COUNTS.traced = trace
    try:
        yield COUNTS
    finally:
        COUNTS.traced = False
