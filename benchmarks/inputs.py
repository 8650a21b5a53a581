"""What the results of an output folder depend on, beside what its rows say."""

from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Dict

import srsly
import typer


def digest(path: Path) -> str:
    """Hash the content of a file, or of the files in a folder and their names."""
    if path.is_file():
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")
    lines = [f"{file.relative_to(path).as_posix()} {digest(file)}\n" for file in files]
    return sha256("".join(lines).encode("utf-8")).hexdigest()


def require_same(out: Path, inputs: Dict[str, Any]) -> None:
    """Store inputs in inputs.json of an output folder.

    inputs: By name; of a path, the digest of what it contains.

    Raises typer.BadParameter if an earlier call had another input of this name.
    """
    file = out / "inputs.json"
    known = dict(srsly.read_json(file)) if file.exists() else {}
    given = {name: digest(of) if isinstance(of, Path) else of for name, of in inputs.items()}
    for name, value in given.items():
        if known.get(name, value) != value:
            raise typer.BadParameter(
                f"{out}: expected the {name} of its results, {known[name]}, got {value}. Results "
                "of both would be mixed: give another output folder."
            )
    out.mkdir(parents=True, exist_ok=True)
    srsly.write_json(file, {**known, **given})
