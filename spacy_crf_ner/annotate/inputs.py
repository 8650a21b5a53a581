"""The inputs of a command: texts, the standard input, and files, in their order."""

import os
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from itertools import chain, groupby
from pathlib import Path
from typing import BinaryIO

from ..extras import require
from ..input_error import InputError
from .files import ENDINGS, Sources, find_sources, locate
from .readers import STDIN, check_text_column, read_given, read_stream
from .settings import Settings
from .shards import Shard, cut_shards, portions

TEXT, STREAM, FILES = "a text", "the standard input", "files"


def kind_of(given: str) -> str:
    """Return the kind of an input.

    Raises InputError for what has the form of a path (no whitespace; a separator, the extension of
    a known format, or a *) and does not exist.
    """
    if given == STDIN:
        return STREAM
    if _exists(given) or ("://" in given and len(given.split()) == 1):
        return FILES
    has_form = given.lower().endswith((*ENDINGS,)) or not {os.sep, "/", "*"}.isdisjoint(given)
    if has_form and len(given.split()) == 1 and given == given.strip():
        raise InputError(
            f"{given} does not exist. Correct the name; if it is a text, put a space at its end."
        )
    return TEXT


def cut_inputs(
    inputs: Sequence[str], settings: Settings, stdin: BinaryIO
) -> tuple[Iterator[Shard], list[str]]:
    """Split inputs into shards; also return the names of files that are ignored.

    Raises InputError for inputs that do not exist, for a file that is given twice, and for files
    without the column of the texts.
    """
    numbered = enumerate(inputs, 1)
    parts: list[Iterable[Shard]] = []
    all_found = Sources([], [])
    for kind, group in groupby(numbered, lambda each: kind_of(each[1])):
        if kind == FILES:
            require("annotate")
            names = [name for _, name in group]
            found = find_sources(names, locate(os.devnull), all_found.sources)
            check_text_column(found.sources[0], settings)
            all_found.sources.extend(found.sources)
            all_found.ignored.extend(found.ignored)
            parts.append(cut_shards(found.sources, settings))
        else:
            items = (
                read_stream(stdin, settings) if kind == STREAM else read_given([*group], settings)
            )
            parts.append(Shard(cut, None, size) for cut, size in portions([items], settings))
    return chain.from_iterable(parts), all_found.ignored


def _exists(given: str) -> bool:
    try:
        return bool(given.strip()) and (Path(given).exists() or bool(glob(given, recursive=True)))
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False
