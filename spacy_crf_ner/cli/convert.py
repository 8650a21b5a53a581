"""The command `convert`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from .. import data
from ..input_error import InputError
from .console import print_conversion_log, print_counts, progress_callback


def convert(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="Corpus: files, or folders with train, dev, test."),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="Folder for train.spacy, dev.spacy, test.spacy; or a new file, .spacy or .jsonl.",
        ),
    ],
    format: Annotated[str, typer.Option(help=f"One of auto, {', '.join(data.FORMATS)}.")] = "auto",
    lang: Annotated[str, typer.Option(help="Language of the tokenizer.")] = "en",
    n_sents: Annotated[
        int,
        typer.Option(min=0, help="Sentences per doc; 0 joins all between two -DOCSTART- lines."),
    ] = 1,
    syllables: Annotated[
        str, typer.Option(help=f"Vietnamese: {', '.join(data.SYLLABLES)} the syllables of a word.")
    ] = "keep",
    split: Annotated[
        str,
        typer.Option(
            metavar="TRAIN,DEV,TEST",
            help="Shares of a corpus without parts; of train and dev, if there is no dev.",
        ),
    ] = "0.8,0.1,0.1",
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Fix mistakes, leave out what cannot be fixed, and count."),
    ] = False,
    alignment: Annotated[
        str,
        typer.Option(
            metavar="|".join(data.ALIGNMENTS),
            help="An entity with an edge inside a token is an error; or is expanded to whole "
            "tokens; or contracted to them; or its tokens are not annotated.",
        ),
    ] = "strict",
    tag_column: Annotated[
        int, typer.Option(help="Column of the tags, from 1; -1 is the last. Format conll only.")
    ] = -1,
    token_column: Annotated[int, typer.Option(help="Column of the tokens.")] = 1,
) -> None:
    """Convert a corpus to the binary files that `spacy train` reads.

    Files named for train, dev and test are these parts: train.txt, dev.conll,
    eng.testa. A single file, and files with other names, are one corpus, which
    is split at random; the same seed gives the same split. Without a file for
    dev, dev is split off train. If OUTPUT is a file, it gets the whole corpus.

    The first mistake stops the conversion with its file and line, and nothing is
    written. With --repair, mistakes are fixed, or the sentence or entity is left
    out, and both are counted.

    \b
    Formats, detected by content unless --format is given:
      inline        [Tim Cook](PERSON) visited [Hanoi](GPE).     a sentence a line
      conll         Hanoi NNP B-GPE     a token a line, a blank line after a
                    sentence, any number of columns, separated by tabs or spaces;
                    tags in IOB1, IOB2 (BIO), BILUO, BIOES or BMES
      gmb           Sentence: 1,Hanoi,NNP,B-geo     Kaggle's ner_dataset.csv
      jsonl         {"text": "Hanoi.", "spans": [{"start": 0, "end": 5, "label":
                    "GPE"}]}     of spaCy and Prodigy
      doccano       {"text": "Hanoi.", "label": [[0, 5, "GPE"]]}     JSONL export
      label_studio  [{"data": {"text": "Hanoi."}, "annotations": ...}]     JSON or
                    JSON-MIN export
      brat          T1<tab>GPE 0 5<tab>Hanoi     a folder of name.txt and name.ann
      spacy         corpus.spacy     binary, as this command and spaCy write it

    \b
    Examples:
      spacy-crf-ner convert ner_dataset.csv corpus --n-sents 10
      spacy-crf-ner convert eng.train eng.testa eng.testb corpus --n-sents 0
      spacy-crf-ner convert export.jsonl corpus --repair --alignment expand
      spacy-crf-ner convert tweets.conllu corpus --token-column 2 --tag-column 4
      spacy-crf-ner convert corpus/dev.spacy dev.jsonl
    """
    log = data.ConversionLog(repair, alignment)
    if format == "auto":
        columns = (token_column, tag_column) != (1, -1)
        format = "conll" if columns else data.detect_format(*inputs)
    typer.echo(f"Format: {format}")
    nlp = data.blank_pipeline(lang, segment=syllables == "keep")
    console = Console(stderr=True)
    columns_shown = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns_shown, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        counts = data.convert(
            inputs,
            output,
            nlp=nlp,
            format=format,
            n_sents=n_sents,
            syllables=syllables,
            shares=_shares(split),
            seed=seed,
            token_column=token_column,
            tag_column=tag_column,
            log=log,
            on_progress=progress_callback(progress),
        )
    print_counts(counts)
    print_conversion_log(log)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError as error:
        raise InputError(f"--split: expected shares such as 0.8,0.1,0.1, got {text!r}.") from error
