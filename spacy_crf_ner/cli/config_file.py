"""Config files that commands write."""

from pathlib import Path

import typer
from thinc.api import Config

from ..input_error import InputError


def require_new(file: Path, force: bool) -> None:
    """Raise ValueError where a file would be replaced without --force."""
    if str(file) != "-" and file.exists() and not force:
        raise InputError(
            f"{file}: expected a new file, got one that is there. Name another, or add --force."
        )


def write_config(config: Config, file: Path) -> None:
    """Write a config to a file, or print it where the file is "-"."""
    if str(file) == "-":
        typer.echo(config.to_str())
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    config.to_disk(file)
    typer.echo(f"Config: {file}")
