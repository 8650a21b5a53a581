"""The command `export`."""

from pathlib import Path
from typing import Annotated

import typer

from ..atomic import atomic_write, check_new_folder
from .options import Model


def export(
    model: Model,
    target: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="New folder for the exported pipeline.")
    ],
    dtype: Annotated[
        str,
        typer.Option(
            metavar="fp32|int8",
            help="int8: faster on CPUs without AMX and smaller, nearly the same result.",
        ),
    ] = "fp32",
) -> None:
    """Export a pipeline that predicts without torch and transformers.

    Transformer, recurrent encoder and characters run in ONNX Runtime. The exported
    pipeline has the same entities, and confidences within 1e-4 in fp32. All that predicts
    works, such as annotate, calibrate and n-best; it can no longer be trained.
    Where it runs, the extra `runtime` is enough, in place of `train`.

    \b
    Examples:
      spacy-crf-ner export training/model-best exported
      spacy-crf-ner export training/model-best exported --dtype int8
    """
    from ..export import export_pipeline
    from ..extras import install
    from ..pipeline.load import load

    check_new_folder(target)
    nlp = export_pipeline(load(model), dtype)
    with atomic_write(target) as folder:
        nlp.to_disk(folder)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    typer.echo(f"Pipeline: {target} ({size / 1e6:.0f} MB, {dtype})")
    typer.echo(f"Install where it runs, in a clone of the project: {install('runtime')}")
