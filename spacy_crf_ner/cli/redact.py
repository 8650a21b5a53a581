"""The command `redact`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from ..atomic import atomic_write
from ..extras import require
from ..input_error import InputError
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

    Replaces all candidates by their label, such as [PERSON]. The pipeline has to guarantee a
    recall: `spacy-crf-ner calibrate --recall`; its entities cannot overlap. Input formats are
    those of `annotate`.

    Each output record has the id, the new "text", and "replaced": the start and end of each
    label in the new text, and of what it replaces in the original one. Nothing of what is
    removed is written, and no other column. If a document cannot be read, nothing is.

    \b
    Example:
      spacy-crf-ner redact careful records/ redacted.jsonl --labels PERSON,DATE
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.readers import read_texts
    from ..annotate.redaction import redact as redact_doc
    from ..annotate.runner import errors_raised
    from ..annotate.settings import Settings
    from ..annotate.writers import json_line
    from ..evaluation.guarantees import guarantees
    from ..pipeline.given_text import CHANGED, changes_text
    from ..pipeline.load import load
    from ..pipeline.lookup import later_names, recognizer, recognizer_name

    require("annotate")
    if output.suffix != ".jsonl" or output.exists():
        raise InputError(f"{output}: expected the name of a new .jsonl file. Choose another one.")
    nlp = load(model, gpu_id, dtype)
    name = recognizer_name(nlp, component)
    pipe = recognizer(nlp, name)
    if pipe.entities_key is not None:
        raise InputError(
            f"{model}: expected a pipeline with flat entities, got one with overlapping ones, "
            "which cannot guarantee a recall. Train one with overlap = false."
        )
    guarantee = guarantees(nlp, name).get("recall")
    if guarantee is None:
        raise InputError(
            f"{model}: expected a pipeline that guarantees a recall, got one without. Calibrate "
            "it: spacy-crf-ner calibrate --recall."
        )
    assert pipe.spans_key is not None  # the guarantee is about these spans
    # Preset entities of other labels are candidates too: without a choice, they are removed.
    chosen = [each.strip() for each in labels.split(",")] if labels else None
    if chosen and not guarantee["by_label"] and not {*pipe.enabled_labels} <= {*chosen}:
        raise InputError(
            f"--labels {labels}: expected all labels, or a guarantee for each label, got one for "
            "all together. Calibrate the pipeline with --by-label."
        )
    known = pipe.enabled_labels
    unknown = [label for label in chosen or () if label not in known]
    if unknown:
        raise InputError(
            f"--labels: expected some of {', '.join(known)}, got {', '.join(unknown)}."
        )
    settings = Settings(text_column=text_column, id_column=id_column, doc_per_file=doc_per_file)
    documents, counts = 0, Counter[str]()
    with errors_raised(nlp), atomic_write(output) as unfinished, unfinished.open("wb") as file:
        texts = read_texts(inputs, settings, str(output), False, nlp.max_length)
        pairs = ((text, (text, key)) for text, key in texts)
        docs = nlp.pipe(pairs, as_tuples=True, disable=later_names(nlp, name))
        for doc, (given, key) in track(docs, "Redacting", console=Console(stderr=True)):
            if isinstance(given, str) and changes_text(doc, given):
                raise InputError(f"{key}: {CHANGED}.")
            text, replaced = redact_doc(doc, pipe.spans_key, chosen)
            record = {"id": key, "text": text, "replaced": [each._asdict() for each in replaced]}
            file.write(json_line(record))
            counts.update(each.label for each in replaced)
            documents += 1
    typer.echo(f"Documents: {documents}")
    for label, count in counts.most_common():
        typer.echo(f"Replaced by [{label}]: {count}")
    sure = (
        "on average"
        if guarantee["confidence_level"] is None
        else f"{guarantee['confidence_level']:.3g} certain"
    )
    of_label = " of a label" if guarantee["by_label"] else ""
    typer.echo(
        f"Guarantee: the mean share of missed entities{of_label} in a document is at most "
        f"{1 - guarantee['level']:.3g}, {sure}, if documents are like the {guarantee['documents']} "
        f"to calibrate on, of {guarantee['tokens']:.0f} tokens on average"
    )
    if "train" not in guarantee["compared_with"]:
        typer.echo("It was stated, and not checked, that those were not trained on")
    if guarantee["counts_dev"]:
        typer.echo("Some of those may have chosen the checkpoint: the guarantee is then too good")
