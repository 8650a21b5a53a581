"""The command `redact`."""

from pathlib import Path
from typing import Annotated

import typer

from .console import tracked
from .options import Component, DocPerFile, Dtype, GpuId, IDField, Model, TextField, Texts
from .startup import leave_out_torch_if_exported


def redact(
    model: Model,
    inputs: Texts,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="New .jsonl file.")],
    labels: Annotated[
        str, typer.Option(help="Labels to remove, comma-separated; all if none is given.")
    ] = "",
    text_column: TextField = "text",
    id_column: IDField = "id",
    doc_per_file: DocPerFile = False,
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
    component: Component = None,
) -> None:
    """Remove entities from documents, with a guarantee of how many are missed.

    Replaces all candidates by their label, such as [PERSON]. The pipeline has to promise a
    recall: `spacy-crf-ner promise fit --recall 0.98`; its entities cannot overlap. Input
    formats are those of `predict`.

    Each output record has the id, the new "text", and "replaced": the start and end of each
    label in the new text, and of what it replaces in the original one. Nothing of what is
    removed is written, and no other column. If a document cannot be read, nothing is.

    \b
    Example:
      spacy-crf-ner redact careful records/ redacted.jsonl --labels PERSON,DATE
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.redaction import redact_files
    from ..annotate.settings import Settings

    settings = Settings(
        text_column=text_column, id_column=id_column, doc_per_file=doc_per_file, dtype=dtype
    )
    documents, replaced, guarantee = redact_files(
        model,
        inputs,
        output,
        settings,
        labels=[each.strip() for each in labels.split(",")] if labels else None,
        component=component,
        gpu_id=gpu_id,
        progress=lambda docs: tracked(docs, "Redacting"),
    )
    typer.echo(f"Documents: {documents}")
    for label, count in replaced.most_common():
        typer.echo(f"Replaced by [{label}]: {count}")
    level = guarantee["confidence_level"]
    sure = "on average" if level is None else f"{level:.3g} certain"
    of_label = " of a label" if guarantee["by_label"] else ""
    typer.echo(
        f"Promise: the mean share of missed entities{of_label} in a document is at most "
        f"{1 - guarantee['level']:.3g}, {sure}, if documents are like the {guarantee['documents']} "
        f"that it was fitted to, of {guarantee['tokens']:.0f} tokens on average"
    )
    if "train" not in guarantee["compared_with"]:
        typer.echo("It was stated, and not checked, that those were not trained on")
    if guarantee["counts_dev"]:
        typer.echo("Some of those may have chosen the checkpoint: the guarantee is then too good")
