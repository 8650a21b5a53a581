"""The command `monitor`."""

import typer
from rich.table import Table

from .console import print_table, right
from .options import Component, DocPerFile, Dtype, GpuId, Model, TextField, Texts
from .startup import leave_out_torch_if_exported


def monitor(
    model: Model,
    inputs: Texts,
    text_column: TextField = "text",
    doc_per_file: DocPerFile = False,
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
    component: Component = None,
) -> None:
    """Test whether new documents are like those that the guarantees of a pipeline are for.

    Compares 500 documents of each: their length, how surprising their best labeling is
    (minus its log probability, per token), and the mean confidence of its entities, with
    the Kolmogorov-Smirnov test. Input formats are those of `annotate`.

    If they differ, the exit code is 2: the guarantees do not hold for the new documents.
    No difference is no proof that they do.

    \b
    Example:
      spacy-crf-ner monitor careful new-records/
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.sample import read_sample
    from ..annotate.settings import Settings
    from ..evaluation.monitoring import SAMPLE, different, drift
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer_name

    nlp = load(model, gpu_id, dtype)
    name = recognizer_name(nlp, component)
    settings = Settings(text_column=text_column, doc_per_file=doc_per_file)
    docs = list(read_sample(nlp, name, inputs, settings, SAMPLE))
    rows = drift(nlp, docs, name)
    table = Table("statistic", *right("median before", "median now", "distance", "p"))
    for row in rows:
        table.add_row(row.statistic, *(f"{x:.3g}" for x in row[1:]))
    print_table(table)
    if differ := different(rows):
        typer.echo(
            f"These documents differ from those that the pipeline was calibrated on, in "
            f"{' and '.join(differ)}: its guarantees do not hold for them. Calibrate it on some of "
            "them."
        )
        raise typer.Exit(2)
    typer.echo("No difference to the documents that the pipeline was calibrated on.")
