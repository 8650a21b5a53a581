"""The files of a corpus, and the part (train, dev, test) that each of them is."""

from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from ..docbin import SUFFIX
from .brat import looks_like_brat
from .repair_log import error

SPLITS = ("train", "dev", "test")
ALIASES = {
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "development": "dev",
    "testa": "dev",
    "testb": "test",
}
EXTENSIONS = ("txt", "conll", "conllu", "iob", "bio", "csv", "tsv", "json", "jsonl")


class Files(NamedTuple):
    """The files of a corpus.

    parts: The files of each part, in the order in which they are read; "corpus" if the corpus has
        no parts. A folder of brat counts as a file, and so does a folder named .spacy.
    ignored: Other files in the folders, such as a README.
    """

    parts: Dict[str, List[Path]]
    ignored: List[Path]


def find_files(sources: Sequence[Path], as_one: bool = False) -> Files:
    """Find the files of a corpus, by part.

    sources: Files and folders. A single file is the corpus, whatever its name. Of several files,
        and in a folder, names decide: train.txt, dev.conll, eng.testa. If none has such a name,
        they are one corpus, in this order.
    as_one: Ignore the parts.

    Raises CorpusError for a file that is given twice, two files of one part, a file without a
    part beside others, a corpus without train, and a folder with several files but no parts.
    """
    parts: Dict[str, List[Path]] = {}
    paths: List[Path] = []
    ignored: List[Path] = []
    for source in sources:
        if _is_folder(source):
            found, others = _in_folder(source)
            ignored += others
        else:
            part = _part(source) if len(sources) > 1 else "corpus"
            found = {part if part in SPLITS else "corpus": [source]}
        for name, files in found.items():
            parts.setdefault(name, []).extend(files)
            paths += files
    where = ", ".join(map(str, sources))
    if len({path.resolve() for path in paths}) < len(paths):
        raise error(where, "each file once", "a file twice", "Name it once")
    if as_one:
        return Files({"corpus": paths}, ignored)
    if set(parts) != {"corpus"}:
        _require_parts(where, parts)
    return Files({name: parts[name] for name in ("corpus", *SPLITS) if name in parts}, ignored)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and path.suffix != SUFFIX and not looks_like_brat(path)


def _part(path: Path) -> str:
    """Read the part from a name: train, train.txt, eng.testa, eng.testa.conll."""
    stem, _, extension = path.name.lower().rpartition(".")
    known = (*EXTENSIONS, SUFFIX[1:], "ann")
    name = stem.rpartition(".")[2] if extension in known else extension
    part = ALIASES.get(name, name)
    named = part in (*SPLITS, "readme", "license", "licence")
    return "corpus" if extension in known and not named else part


def _in_folder(folder: Path) -> Files:
    paths = [path for path in sorted(folder.iterdir()) if not _is_folder(path)]
    parts: Dict[str, List[Path]] = {}
    # A .spacy file may come from an earlier conversion: they are read if there is nothing else.
    for binary in (False, True):
        for path in paths:
            part = _part(path)
            part = part if part in SPLITS or path.is_file() else "corpus"
            if part in ("corpus", *SPLITS) and (path.suffix == SUFFIX) == binary:
                parts.setdefault(part, []).append(path)
        if parts:
            break
    if set(parts) - {"corpus"}:
        parts.pop("corpus", None)
    crowded = [name for name, files in parts.items() if len(files) > 1]
    if crowded or not parts:
        found = ", ".join(path.name for path in paths) or "none"
        fix = f"Name them train.txt and so on (.{', .'.join(EXTENSIONS)}), or give the files"
        raise error(str(folder), f"one file for {(crowded or ['corpus'])[0]}", found, fix)
    parts = {name: parts[name] for name in ("corpus", *SPLITS) if name in parts}
    read = [path for files in parts.values() for path in files]
    return Files(parts, [path for path in paths if path not in read])


def _require_parts(where: str, parts: Dict[str, List[Path]]) -> None:
    fix = "Name each file for its part, as train.txt, or none of them"
    if "corpus" in parts:
        got = ", ".join(map(str, parts["corpus"]))
        raise error(where, f"parts named {', '.join(SPLITS)}", got, fix)
    for name in SPLITS:
        paths = parts.get(name, [])
        if len(paths) > 1 or (name == "train" and not paths):
            raise error(where, f"one file for {name}", " and ".join(map(str, paths)) or "none", fix)
