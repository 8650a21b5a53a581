"""The files of a corpus, by the part of it that each is."""

from pathlib import Path
from typing import Dict

from .journal import error

SPLITS = ("train", "dev", "test")
ALIASES = {"valid": "dev", "validation": "dev", "testa": "dev", "testb": "test"}
EXTENSIONS = ("txt", "conll", "iob", "csv", "tsv")


def _part(path: Path) -> str:
    """Tell the part that a file is by its name: train, train.txt, eng.testa, eng.testa.conll."""
    stem, _, extension = path.name.lower().rpartition(".")
    name = stem.rpartition(".")[2] if extension in EXTENSIONS else extension
    part = ALIASES.get(name, name)
    named = part in (*SPLITS, "readme", "license", "licence")
    return "corpus" if extension in EXTENSIONS and not named else part


def find_files(source: Path) -> Dict[str, Path]:
    """Find the files of a corpus, by part; the name of a file that is to be split is "corpus"."""
    if not source.is_dir():
        return {"corpus": source}
    files = [path for path in sorted(source.iterdir()) if path.is_file()]
    names = SPLITS if any(_part(path) in SPLITS for path in files) else ["corpus"]
    parts = {name: [path for path in files if _part(path) == name] for name in names}
    for name, paths in parts.items():
        if len(paths) > 1 or (not paths and name != "test"):
            found = ", ".join(path.name for path in files) or "none"
            fix = f"Name them train.txt and so on (.{', .'.join(EXTENSIONS)}), or give one file"
            raise error(str(source), f"one file for {name}", found, fix)
    return {name: paths[0] for name, paths in parts.items() if paths}
