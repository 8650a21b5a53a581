"""The command `predict`."""

from typing import Annotated, List

import typer
from rich.table import Table

from ..pipeline.load import load
from .console import (
    print_table,
)
from .options import Precision


def predict(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    texts: Annotated[List[str], typer.Argument(help="Texts, each in quotes.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    precision: Precision = None,
) -> None:
    """Print the entities that a pipeline finds in texts."""
    nlp = load(model, gpu_id, precision)
    table = Table("Text", "Entity", "Label")
    for doc in nlp.pipe(texts):
        ents = [(ent.text, ent.label_) for ent in doc.ents] or [("none", "")]
        for i, (ent, label) in enumerate(ents):
            table.add_row(doc.text if i == 0 else "", ent, label, end_section=i == len(ents) - 1)
    print_table(table)
