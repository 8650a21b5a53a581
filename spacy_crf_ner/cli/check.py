"""The command `check`."""

from pathlib import Path
from typing import Annotated, Optional

import srsly
import typer

from .. import check as checking
from .. import data
from .console import (
    print_findings,
    read_docs,
)


def check(
    train: Annotated[Path, typer.Argument(help="Corpus to train on: a .spacy file or a folder.")],
    dev: Annotated[
        Optional[Path], typer.Argument(help="Corpus to measure on, to compare with it.")
    ] = None,
    config: Annotated[Optional[Path], typer.Option(help="Config that you will train with.")] = None,
    transformer: Annotated[
        Optional[str], typer.Option(help="Local folder or a name on the hub; not the config's.")
    ] = None,
    lang: Annotated[
        Optional[str], typer.Option(help="Language; that of the config, or else English.")
    ] = None,
    places: Annotated[int, typer.Option(min=0, help="Places shown of each finding.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but JSON.")] = False,
) -> None:
    """Find what is wrong with a corpus, before you train on it.

    Prints how large it is, and what was found, errors first. The exit code is 1 where
    there is an error, else 0.

    \b
    Example:
      spacy-crf-ner check corpus/train.spacy corpus/dev.spacy --config configs/cnn.cfg
    """
    settings = checking.Settings()
    if config is not None:
        settings = checking.read_settings(config, transformer)
    vocab = data.blank_pipeline(lang or settings.lang).vocab
    report = checking.check(
        read_docs(train, vocab),
        None if dev is None else read_docs(dev, vocab),
        scheme=settings.scheme,
        incorrect_spans_key=settings.incorrect_spans_key,
        window=settings.window,
        subwords=settings.subwords,
        places=places,
    )
    if as_json:
        typer.echo(srsly.json_dumps(report.to_dict(), indent=2))
    else:
        print_findings(report)
    if report.of("error"):
        raise typer.Exit(1)
