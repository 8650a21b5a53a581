"""The command `info`."""

import textwrap
from typing import Annotated

import typer

from .startup import leave_out_torch_if_exported

WIDTH = 80
PACKAGES = ("spacy-crf-ner", "spacy", "thinc", "onnxruntime", "tokenizers", "torch")


def info(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A pipeline to describe, instead of the machine."),
    ] = None,
) -> None:
    """Show versions, devices, their dtypes, and which of them `auto` chooses.

    If no GPU can be used, it shows what is missing. Of a pipeline, it shows the components, the
    labels, and on how many entities the confidences were calibrated.

    \b
    Examples:
      spacy-crf-ner info
      spacy-crf-ner info training/model-best
    """
    if model is not None:
        _describe(model)
        return
    try:
        from ..ml import hardware
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _without_torch()
        return
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


def _describe(model: str) -> None:
    leave_out_torch_if_exported(model)
    from ..pipeline.load import load
    from ..pipeline.lookup import calibrations, recognizer, recognizer_names

    nlp = load(model)
    typer.echo(f"{model}: {', '.join(nlp.pipe_names)}")
    for name in recognizer_names(nlp):
        _echo(f"[{name}] Labels: {', '.join(recognizer(nlp, name).labels)}")
    for line in calibrations(nlp):
        _echo(line)


def _without_torch() -> None:
    from ..extras import install, versions

    for name, version in versions(PACKAGES).items():
        typer.echo(f"{name:20}{version or 'not installed'}")
    typer.echo()
    _echo(
        "Exported pipelines predict on the CPU, in the dtype that they were exported with. "
        "Training and other pipelines need the extra train, in a clone of the project: "
        f"{install('train')}.",
        0,
    )


def _echo(text: str, indent: int = 2) -> None:
    lines = textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    typer.echo("\n".join(lines))
