"""Find the files of a corpus, by part (train, dev, test)."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..docbin import SUFFIX
from ..input_error import CorpusError
from .brat import is_brat
from .hugging_face import STATE
from .repair_log import error

SPLITS = ("train", "dev", "test")
ALIASES = dict.fromkeys(("val", "valid", "validation", "development", "testa"), "dev")
ALIASES["testb"] = "test"
PARTS = ("corpus", *SPLITS)
TEXT = ("txt", "conll", "conllu", "iob", "bio", "csv", "tsv", "json", "jsonl")
EXTENSIONS = (*TEXT, "xlsx", "parquet", "arrow")
SPLIT_NAMES = "dataset_dict.json"  # of a folder of DatasetDict.save_to_disk; its folders say it too
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.\w+")  # train-00000-of-00002.parquet

Files = dict[str, list[Path]]  # the files of each part, in reading order


def find_files(sources: Sequence[Path], as_one: bool = False) -> tuple[Files, list[Path]]:
    """Find the files of a corpus, by part.

    A single file is the corpus. In a folder, and for several files, words in the names determine
    the parts: train.txt, my_dev.conll, eng.testa. Files without such names are one corpus, in this
    order, and so are all if `as_one`.

    Returns:
        The files of each part, or of "corpus" if there are no parts, and the other files in the
        folders, such as a README and hidden files. A folder of brat counts as a file, and so do a
        folder named .spacy and one of `Dataset.save_to_disk`. The shards
        train-00000-of-00002.parquet and so on, if there are all of them, are the files of one part.
    """
    parts: Files = {}
    ignored: list[Path] = []
    for source in sources:
        if _is_folder(source):
            found, others = _in_folder(source)
            ignored += others
        else:
            found = {(len(sources) > 1 and _part(source)) or "corpus": [source]}
        for name, files in found.items():
            parts.setdefault("corpus" if as_one else name, []).extend(files)
    where = ", ".join(map(str, sources))
    paths = [path.resolve() for files in parts.values() for path in files]
    if len(set(paths)) < len(paths):
        raise error(where, "each file once", "a file twice", "Remove one of the two")
    if parts.keys() != {"corpus"}:
        fix = "Name each file after its part, such as train.txt, or none of them"
        if "corpus" in parts:
            got = ", ".join(map(str, parts["corpus"]))
            raise error(where, f"parts named {', '.join(SPLITS)}", got, fix)
        for name, files in {"train": [], **parts}.items():
            if not _is_complete(files):
                got = " and ".join(map(str, files)) or "none"
                raise error(where, f"one file for {name}", got, fix)
    return {name: parts[name] for name in PARTS if name in parts}, ignored


def find_parts(corpus: Path, needed: Sequence[str] = ("train", "dev")) -> dict[str, Path]:
    """Find the files of train, dev and test in a folder: .spacy files before others.

    Returns nothing for a corpus without the parts that are needed, or with several files for one.
    """
    found = {part: corpus / f"{part}{SUFFIX}" for part in SPLITS}
    found = {part: path for part, path in found.items() if path.exists()}
    if corpus.is_dir() and not found.keys() >= {*needed}:
        with suppress(CorpusError):  # of a folder with other files
            files, _ = find_files([corpus])
            found = {part: paths[0] for part, paths in files.items() if len(paths) == 1}
    return found if found.keys() >= {*needed} else {}


def _is_folder(path: Path) -> bool:
    return (
        path.is_dir()
        and path.suffix != SUFFIX
        and not is_brat(path)
        and not (path / STATE).is_file()
    )


def _is_complete(files: Sequence[Path]) -> bool:
    """Return whether the files of a part are one file, or all shards of one."""
    shards = [SHARD.fullmatch(path.name) for path in files]
    if not any(shards):
        return len(files) == 1
    found = [(shard[1], shard[3], int(shard[2])) for shard in shards if shard]
    name, total, _ = found[0]
    all_of_them = [(name, total, number) for number in range(int(total))]
    return len(found) == len(files) and found == all_of_them


def _part(path: Path) -> str:
    """Read the part from a word of a name; "corpus" for none, "" for other files."""
    *stem, extension = re.split(r"[._-]+", path.name.lower())
    known = extension in (*EXTENSIONS, SUFFIX[1:], "ann")
    parts = {ALIASES.get(word, word) for word in (*stem, extension)}.intersection(SPLITS)
    if len(parts) == 1:
        return parts.pop()
    about = not known or path.stem.lower() in ("readme", "license", "licence")
    return "" if about and path.is_file() else "corpus"


def _in_folder(folder: Path) -> tuple[Files, list[Path]]:
    entries = [path for path in sorted(folder.iterdir()) if path.name != SPLIT_NAMES]
    paths = [path for path in entries if not (path.name[0] == "." or _is_folder(path))]
    # .spacy files may come from an earlier conversion, so read them only if there are no others.
    text = [path for path in paths if path.suffix != SUFFIX and _part(path)]
    named = [(_part(path), path) for path in text or paths]
    parts = {name: [path for part, path in named if part == name] for name in PARTS}
    parts = {name: files for name, files in parts.items() if files}
    if len(parts) > 1:
        parts.pop("corpus", None)
    crowded = [name for name, files in parts.items() if not _is_complete(files)]
    if crowded or not parts:
        got = ", ".join(path.name for path in paths) or "none"
        fix = f"Name them train.txt and so on (.{', .'.join(EXTENSIONS)}), or list the files"
        raise error(str(folder), f"one file for {(crowded or ['corpus'])[0]}", got, fix)
    read = [path for files in parts.values() for path in files]
    return parts, [path for path in entries if path not in read]
