"""The command `merge`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..input_error import InputError
from .console import note, print_conversion_log, print_counts
from .options import MAX_LOSS, Lang, MaxLoss, Repair
from .startup import leave_out_torch


def merge(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT",
            help="Annotations of the same texts, or answers, in any format of `convert`.",
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A new .spacy file.")],
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="CORPUS",
            help="Replace the annotation of this corpus by the answers, in documents with the "
            "same text; add the other documents.",
        ),
    ] = None,
    min_agree: Annotated[
        int | None,
        typer.Option(
            help="Inputs that agree, more than on another tag. Default: over half. Not with --into."
        ),
    ] = None,
    lang: Lang = "en",
    repair: Repair = False,
    max_loss: MaxLoss = MAX_LOSS,
) -> None:
    """Join annotations of the same texts, or put answers into a corpus.

    Documents are matched by their text.

    Without --into, what the inputs agree on is gold. They are annotations by several
    sources: rules, a model, a language model, a person. A token is annotated if more
    than half of them, or --min-agree, say the same: it is in the same entity, of the
    same label, or outside. All other tokens are missing annotation: in training, any
    tag is right there. A document that fewer inputs have is kept, without
    annotation. Tokens and spaces may differ: the tokens are those of the first input
    that has the document. If an input has an entity that begins or ends inside a
    token, it says nothing about this token.

    With --into, the inputs are answers of annotators, such as those to the tasks of
    `suggest` and `review`. An answer replaces the annotation of the tokens that it
    annotates. Two answers that contradict each other are a mistake; with --repair, the
    first one counts.

    \b
    Examples:
      spacy-crf-ner merge rules.spacy model.spacy llm.jsonl merged.spacy
      spacy-crf-ner merge a.jsonl b.jsonl c.jsonl out.spacy --min-agree 3
      spacy-crf-ner merge answers.jsonl new.spacy --into corpus/train.spacy
    """
    leave_out_torch()
    from .. import data

    nlp = data.blank_pipeline(lang)
    log = data.ConversionLog(repair, "strict" if into else "missing", max_loss=max_loss)
    if into is None:
        counts = data.combine(inputs, output, nlp=nlp, min_agree=min_agree, log=log)
    elif min_agree is None:
        counts = {str(output): data.merge(inputs, into, output, nlp=nlp, log=log)}
    else:
        raise InputError("--min-agree is for inputs without --into. Leave out one of them.")
    short = {Path(name).name: each for name, each in counts.items()}
    print_counts(short if len(short) == len(counts) else counts)
    print_conversion_log(log)
    note(f"Next: spacy-crf-ner check {shlex.quote(str(output))}")
