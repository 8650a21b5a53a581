"""The files of a corpus that is to be annotated, in the order in which they are read."""

import os
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

TEXTS = ("txt", "jsonl", "csv", "tsv")
# How names end, and what that says: the kind, and the compression.
ENDINGS: Dict[str, Tuple[str, str]] = {
    **{f".{kind}": (kind, "") for kind in (*TEXTS, "parquet", "spacy")},
    **{f".{kind}.{packed}": (kind, packed) for kind in TEXTS for packed in ("gz", "zst")},
}
HIDDEN = ("_", ".")  # how names begin that are no part of a corpus: _SUCCESS, .ipynb_checkpoints
WILD = frozenset("*?[")


class Source(NamedTuple):
    """A file, and how it is to be read.

    kind: "txt", "jsonl", "csv", "tsv", "parquet" or "spacy".
    compression: "", "gz" or "zst".
    size: Bytes, as it lies on the disk.
    """

    path: Path
    kind: str
    compression: str
    size: int


class Sources(NamedTuple):
    """The files of a corpus.

    ignored: What folders and globs have beside them: files of no such kind, names that begin with
        "_" or ".", and all in a folder of such a name; links to folders, which are not followed.
    """

    sources: List[Source]
    ignored: List[Path]


def find_sources(inputs: Sequence[str | Path], output: Path) -> Sources:
    """Find the files of a corpus.

    inputs: Files, folders, of which all files beneath are taken, and globs, in which `**` is any
        number of folders. What is there is no glob, whatever its name.
    output: Folder in which the annotated corpus will be.

    Returns them in the order of the inputs, those of a folder or a glob sorted by path.
    Raises ValueError for no input, one that is not there or has nothing to be read, a file that is
    there twice, an output in a folder of the input, an input in the output, and a file that needs
    pyarrow where that is not installed; OSError for a folder that cannot be listed.
    """
    if not inputs:
        raise ValueError("inputs: expected a file, a folder or a glob, got none. Name one.")
    sources: List[Source] = []
    ignored: List[Path] = []
    for given in map(Path, inputs):
        if given.is_dir() and output.resolve().is_relative_to(given.resolve()):
            raise ValueError(
                f"{output}: expected an output outside of the input, got one within {given}. "
                "Name another folder."
            )
        found = _alone(given) if given.is_file() else _together(given)
        sources += found.sources
        ignored += found.ignored
    _require_usable(sources, output)
    return Sources(sources, ignored)


def _alone(path: Path) -> Sources:
    source = _source(path)
    if source is None:
        raise ValueError(
            f"{path}: expected a name that ends with {', '.join(ENDINGS)}, got another. "
            "Convert the file, or rename it for what it has."
        )
    return Sources([source], [])


def _together(given: Path) -> Sources:
    """Find the files of a folder or a glob."""
    found = Sources([], [])
    base, paths = _listed(given)
    for path in paths:
        hidden = any(part.startswith(HIDDEN) for part in path.relative_to(base).parts)
        source = None if hidden or not path.is_file() else _source(path)
        if source is None:
            found.ignored.append(path)
        else:
            found.sources.append(source)
    if not found.sources:
        raise ValueError(
            f"{given}: expected files whose names end with {', '.join(ENDINGS)} and do not begin "
            f"with _ or a dot, got {len(found.ignored)} others. Correct the path."
        )
    return found


def _listed(given: Path) -> Tuple[Path, List[Path]]:
    """List a folder, or what a glob matches. Returns also the folder that was looked into."""
    if given.is_dir():
        return given, sorted(_beneath(given))
    base = Path(*takewhile(WILD.isdisjoint, given.parts))
    if base == given:
        raise ValueError(
            f"{given}: expected a file, a folder or a glob, got nothing of that name. "
            "Correct the path."
        )
    matches = base.glob(str(given.relative_to(base)))
    return base, sorted({path for match in matches for path in _beneath(match)})


def _beneath(path: Path) -> Iterator[Path]:
    """Yield the files of a folder, and links to folders; of anything else, itself."""
    if not path.is_dir():
        yield path
        return
    for parent, folders, names in os.walk(path, onerror=_fail):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in [*names, *links])


def _fail(problem: OSError) -> None:
    raise problem


def _source(path: Path) -> Optional[Source]:
    for ending, (kind, compression) in ENDINGS.items():
        if path.name.lower().endswith(ending):
            return Source(path, kind, compression, path.stat().st_size)
    return None


def _require_usable(sources: List[Source], output: Path) -> None:
    before: Dict[Path, Path] = {}
    folder = output.resolve()
    for path, kind, compression, _ in sources:
        place = path.resolve()
        if place in before:
            raise ValueError(
                f"{path}: expected every file once, got it as {before[place]} before. "
                "Leave one of them out."
            )
        before[place] = path
        if place.is_relative_to(folder):
            raise ValueError(
                f"{path}: expected an input outside of the output, got one within {output}. "
                "Name another folder for the output."
            )
        if compression == "zst" or kind == "parquet":
            _require_pyarrow(path)


def _require_pyarrow(path: Path) -> None:
    if find_spec("pyarrow") is None:
        raise ValueError(
            f"{path}: expected pyarrow, which reads it, got none. "
            "pip install spacy-crf-ner[annotate]."
        )
