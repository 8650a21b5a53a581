"""Files of Docs: written whole or not at all."""

from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a file another name until it is written: what is only half written never looks whole.

    path: File, in a folder that may not exist yet. One that is there is replaced at the end.

    Yields the name to write to. What has that name is removed if the writing fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
