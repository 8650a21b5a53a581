"""The files of a corpus, by the part of it that each is."""

from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from .brat import looks_like_brat
from .repair_log import CorpusError, error

SPLITS = ("train", "dev", "test")
ALIASES = {"valid": "dev", "validation": "dev", "testa": "dev", "testb": "test"}
EXTENSIONS = ("txt", "conll", "conllu", "iob", "bio", "csv", "tsv", "json", "jsonl")


class Files(NamedTuple):
    """The files of a corpus.

    parts: Of each part, its files in the order in which they are read; the part that is to be
        split is "corpus". A folder of brat counts as a file.
    ignored: Files in folders that are none of these, such as a README.
    """

    parts: Dict[str, List[Path]]
    ignored: List[Path]


def find_files(sources: Sequence[Path], whole: bool = False) -> Files:
    """Find the files of a corpus, by part.

    sources: Files and folders. A file that is alone is to be split, whatever its name. Of several,
        and in a folder, names tell the parts: train.txt, dev.conll, eng.testa. Where none has such
        a name, they are one corpus, in this order.
    whole: Whether it is one corpus in any case, and no part is looked for.

    Raises CorpusError for two files of one part, a corpus that is not all in parts or has no train
    or dev, and a folder in which it is not clear which file is the corpus.
    """
    parts: Dict[str, List[Path]] = {}
    ignored: List[Path] = []
    for source in sources:
        found = _in_folder(source) if _is_folder(source) else Files(_alone(source, sources), [])
        ignored += found.ignored
        for name, paths in found.parts.items():
            parts.setdefault(name, []).extend(paths)
    if whole:
        return Files({"corpus": [path for paths in parts.values() for path in paths]}, ignored)
    if set(parts) != {"corpus"}:
        _require_parts(sources, parts)
    return Files({name: parts[name] for name in ("corpus", *SPLITS) if name in parts}, ignored)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not looks_like_brat(path)


def _alone(path: Path, sources: Sequence[Path]) -> Dict[str, List[Path]]:
    part = _part(path) if len(sources) > 1 else "corpus"
    return {part if part in SPLITS else "corpus": [path]}


def _part(path: Path) -> str:
    """Tell the part that a file is by its name: train, train.txt, eng.testa, eng.testa.conll."""
    stem, _, extension = path.name.lower().rpartition(".")
    known = (*EXTENSIONS, "spacy", "ann")
    name = stem.rpartition(".")[2] if extension in known else extension
    part = ALIASES.get(name, name)
    named = part in (*SPLITS, "readme", "license", "licence")
    return "corpus" if extension in known and not named else part


def _in_folder(folder: Path) -> Files:
    paths = [path for path in sorted(folder.iterdir()) if not _is_folder(path)]
    # Binary corpora may be what an earlier conversion wrote here: only where there is no other.
    for binary in (False, True):
        files = [path for path in paths if (path.suffix == ".spacy") == binary]
        named = any(_part(path) in SPLITS for path in files)
        parts: Dict[str, List[Path]] = {name: [] for name in (SPLITS if named else ["corpus"])}
        for path in files:
            parts.get(_part(path) if named or path.is_file() else "corpus", []).append(path)
        if any(parts.values()):
            break
    for name, found in parts.items():
        if len(found) > 1 or (not found and name != "test"):
            raise _unclear(folder, name, paths)
    kept = [path for found in parts.values() for path in found]
    parts = {name: found for name, found in parts.items() if found}
    return Files(parts, [path for path in paths if path not in kept])


def _unclear(folder: Path, name: str, paths: List[Path]) -> CorpusError:
    found = ", ".join(path.name for path in paths) or "none"
    fix = f"Name them train.txt and so on (.{', .'.join(EXTENSIONS)}), or give the files"
    return error(str(folder), f"one file for {name}", found, fix)


def _require_parts(sources: Sequence[Path], parts: Dict[str, List[Path]]) -> None:
    where = ", ".join(map(str, sources))
    fix = "Name each file for its part, as train.txt, or none of them"
    if "corpus" in parts:
        got = ", ".join(map(str, parts["corpus"]))
        raise error(where, f"parts named {', '.join(SPLITS)}", got, fix)
    for name in SPLITS:
        paths = parts.get(name, [])
        if len(paths) > 1 or (not paths and name != "test"):
            raise error(where, f"one file for {name}", " and ".join(map(str, paths)) or "none", fix)
