"""The command `predict`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..input_error import InputError
from .console import print_table, right
from .options import Dtype, GpuId, Model
from .startup import leave_out_torch_if_exported


def predict(
    model: Model,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Texts, each in quotes.")],
    gpu_id: GpuId = -1,
    dtype: Dtype = None,
) -> None:
    """Print the entities of texts, each with its label and its confidence.

    The confidence is the probability that the label and both boundaries are correct. It is
    shown for pipelines with a `crf_ner` component; a line after the table says on how many
    entities it was calibrated. Overlapping entities are all printed.

    \b
    Example:
      spacy-crf-ner predict training/model-best "Tim Cook visited Hanoi."
    """
    leave_out_torch_if_exported(model, dtype)
    from ..annotate.entities import group_entities, join_groups, overlapping_keys
    from ..data.json_records import check_unicode
    from ..pipeline.given_text import CHANGED, changes_text
    from ..pipeline.load import load
    from ..pipeline.lookup import calibrations

    for text in texts:
        check_unicode("text", text)
        if _is_path(text):
            raise InputError(
                f"{text}: this is the name of a file or a folder, but predict reads texts. For "
                "files, use spacy-crf-ner annotate; for this text, add a space."
            )
    nlp = load(model, gpu_id, dtype)
    # Number the texts: an error handler of the pipeline may drop docs.
    docs = {i: doc for doc, i in nlp.pipe(zip(texts, range(len(texts))), as_tuples=True)}
    table = Table("Text", "Entity", "Label", *right("Confidence"))
    keys = overlapping_keys(nlp)
    for doc in docs.values():
        rows = [
            (doc.text[start:end], label, "" if p is None else f"{p:.3f}")
            for start, end, label, p in join_groups(group_entities(doc, keys))
        ]
        for i, row in enumerate(rows or [("none", "", "")]):
            table.add_row("" if i else doc.text, *row)
        table.add_section()
    print_table(table)
    for line in calibrations(nlp):
        typer.echo(line, err=True)
    dropped = [text for i, text in enumerate(texts) if i not in docs]
    changed = [texts[i] for i, doc in docs.items() if changes_text(doc, texts[i])]
    problems = []
    if dropped:
        problems.append(
            f"{len(dropped)} of {len(texts)} texts: expected a doc for each, but the pipeline's "
            f"error handler dropped {', '.join(map(repr, dropped))}. See its log for the reason."
        )
    if changed:
        problems.append(f"{', '.join(map(repr, changed))}: {CHANGED}.")
    if problems:
        raise InputError(" ".join(problems))


def _is_path(text: str) -> bool:
    """Whether a text is the name of something that exists, or of the standard input."""
    try:
        return text == "-" or (bool(text.strip()) and Path(text).exists())
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False
