"""The command `combine`."""

from pathlib import Path
from typing import Annotated

import typer

from .console import print_conversion_log, print_counts
from .options import MAX_LOSS, Lang, MaxLoss, Repair
from .startup import leave_out_torch


def combine(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="Two or more corpora, in any format of `convert`."),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A new .spacy file.")],
    min_agree: Annotated[
        int | None,
        typer.Option(help="Corpora that agree, more than on another tag. Default: over half."),
    ] = None,
    lang: Lang = "en",
    repair: Repair = False,
    max_loss: MaxLoss = MAX_LOSS,
) -> None:
    """Join annotations of the same texts: what they agree on is gold.

    The corpora are annotations of the same documents by several sources: rules,
    a model, a language model, a person. A token is annotated if the sources
    agree on it: for more than half of them, or for --min-agree, it is in the same
    entity, of the same label, or outside. All other tokens are missing
    annotation: in training, any tag is right there. A document that fewer sources
    have is kept, without annotation.

    Documents are matched by their text. Tokens and spaces may differ: the tokens
    are those of the first source that has the document. If a source has an
    entity that begins or ends inside a token, it says nothing about this token.

    \b
    Examples:
      spacy-crf-ner combine rules.spacy model.spacy llm.jsonl combined.spacy
      spacy-crf-ner combine a.jsonl b.jsonl c.jsonl out.spacy --min-agree 3
    """
    leave_out_torch()
    from .. import data

    log = data.ConversionLog(repair, "missing", max_loss=max_loss)
    nlp = data.blank_pipeline(lang)
    counts = data.combine(inputs, output, nlp=nlp, min_agree=min_agree, log=log)
    kinds = dict.fromkeys(kind for each in counts.values() for kind in each)
    print_counts({kind: {name: each[kind] for name, each in counts.items()} for kind in kinds})
    print_conversion_log(log)
