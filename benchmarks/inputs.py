"""The inputs of benchmarks: what results depend on, and configs for any transformer."""

from hashlib import file_digest, sha256
from pathlib import Path

import srsly
import typer
from thinc.api import Config
from transformers import AutoConfig

from spacy_crf_ner.atomic import atomic_write


def digest(path: Path) -> str:
    """Hash the content of a file, or of the files in a folder and their names.

    Hidden files are left out.
    """
    if path.is_file():
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")
    names = [(file.relative_to(path).as_posix(), file) for file in files]
    lines = [f"{name} {digest(file)}\n" for name, file in names if "/." not in f"/{name}"]
    return sha256("".join(lines).encode("utf-8")).hexdigest()


def check_same(out: Path, inputs: dict[str, Path]) -> None:
    """Store the digests of files and folders in inputs.json of an output folder, by their names.

    Raises typer.BadParameter if an earlier call had another content of this name, and
    FileNotFoundError for a path where nothing is.
    """
    file = out / "inputs.json"
    known = dict(srsly.read_json(file)) if file.exists() else {}
    new = {}
    for name, path in inputs.items():
        if not path.exists():
            raise FileNotFoundError(f"{path}: expected the {name}, got nothing.")
        new[name] = digest(path)
        if known.get(name, new[name]) != new[name]:
            raise typer.BadParameter(
                f"{path}: expected the {name} of the results in {out}, got another one. Results of "
                f"both would be mixed: give another output folder, or remove them and {file}."
            )
    if not new.items() <= known.items():
        out.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as path:
            srsly.write_json(path, {**known, **new})


def of_transformer(name: str) -> dict[str, Path]:
    """Return the input that a transformer is; none for a name on the hub."""
    return {f"transformer {Path(name).name}": Path(name)} if Path(name).is_dir() else {}


def listener_widths(config: Config, transformer: str) -> dict[str, int]:
    """Return the settings of spaCy's listeners in a config for a transformer of another width."""
    models = {name: each.get("model", {}) for name, each in config.get("components", {}).items()}
    listening = [
        name
        for name, model in models.items()
        if model.get("tok2vec", {}).get("@architectures") == "spacy.Tok2VecListener.v1"
    ]
    if not listening:
        return {}
    width = int(AutoConfig.from_pretrained(transformer).hidden_size)
    return {f"components.{name}.model.tok2vec.width": width for name in listening}
