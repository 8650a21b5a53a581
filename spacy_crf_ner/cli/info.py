"""The command `info`."""

import textwrap

import typer

from ..ml import hardware

WIDTH = 80


def info() -> None:
    """Show versions, devices, their precisions, and which of them `auto` chooses.

    If no GPU can be used, it shows what is missing.

    \b
    Example:
      spacy-crf-ner info
    """
    for name, version in hardware.versions().items():
        typer.echo(f"{name:20}{version}")
    for device in hardware.devices():
        typer.echo()
        _echo(device.name)
        for name, fact in device.facts.items():
            _echo(f"  {name:10}{fact}", 12)
    problems = hardware.gpu_problems()
    if problems:
        typer.echo("\nGPU: none can be used")
    for problem in problems:
        _echo(f"  {problem}", 2)


def _echo(text: str, indent: int = 2) -> None:
    lines = textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    typer.echo("\n".join(lines))
