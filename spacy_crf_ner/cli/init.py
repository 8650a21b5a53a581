"""The command `init`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..atomic import atomic_write
from ..input_error import InputError
from .console import note
from .options import Lang


def init(
    out: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="Config file to write; - prints it.")
    ],
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Folder with train.spacy and dev.spacy: steps, warm-up and evaluations are for "
            "its size, and the config names these files."
        ),
    ] = None,
    lang: Lang = "en",
    transformer: Annotated[
        str | None,
        typer.Option(
            help="Use this transformer: a local folder, a hub name, or auto for the one that spaCy "
            "recommends for the language."
        ),
    ] = None,
    cnn: Annotated[
        bool, typer.Option("--cnn", help="Use spaCy's HashEmbedCNN; the default.")
    ] = False,
    char: Annotated[bool, typer.Option("--char", help="Use a CNN over characters.")] = False,
    vectors: Annotated[
        str | None,
        typer.Option(help="Also use static vectors, a folder or a package. With --cnn or --char."),
    ] = None,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Other components can use the transformer too."),
    ] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="For training on a GPU.")] = False,
    optimize: Annotated[str, typer.Option(help="One of efficiency, accuracy.")] = "efficiency",
    max_nesting: Annotated[
        int,
        typer.Option(
            "--overlapping",
            metavar="LEVELS",
            min=0,
            help="Entities may overlap; those of one label may be nested in this many levels.",
        ),
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a complete config for `train`, and for `spacy train`.

    The options change a shipped config as follows:

    \b
    --gpu                torch allocates GPU memory; batches of 4000 words, not
                         1000; half the steps; 1.5 times the learning rate: a rule
                         that was not measured, docs/gpus.md says how to
    --optimize accuracy  4000 steps, not 1000, and
      --cnn                width 256, not 96; depth 8, not 4; 10000 rows, not
                           2000; LSTM of width 200, not 100
      --char               words, characters, shapes and the LSTM twice as wide;
                           10000 rows for words, not 5000
    --shared             the transformer is in a component "tok2vec", which "ner"
                         listens to
    --vectors            static vectors are used too
    --overlapping        entities in doc.spans["sc"], not doc.ents; spaCy chooses
                         the best model by their F1

    \b
    Example:
      spacy-crf-ner init config.cfg --lang en --cnn --optimize accuracy
      spacy-crf-ner train corpus training --config config.cfg
    """
    from ..training import init_config as configs

    if sum((transformer is not None, cnn, char)) > 1:
        raise InputError("expected one of --transformer, --cnn and --char, got more. Choose one.")
    if transformer == "":
        raise InputError("--transformer: expected a local folder or a hub name, got nothing.")
    if shared and transformer is None:
        raise InputError("--shared: expected a transformer to share, got none. Add --transformer.")
    printed = str(out) == "-"
    if out.exists() and not printed and not force:
        raise InputError(
            f"{out}: expected a new file, got an existing one. Choose another, or add --force."
        )
    config = configs.init_config(
        lang,
        "transformer" if transformer is not None else "char" if char else "cnn",
        transformer=None if transformer == "auto" else transformer,
        vectors=vectors,
        gpu=gpu,
        optimize=optimize,
        max_nesting=max_nesting,
        shared=shared,
    )
    fitted = None if corpus is None else configs.fit_to_corpus(config, corpus)
    if fitted is not None:
        typer.echo(f"Training: {fitted}", err=printed)
    if printed:
        typer.echo(config.to_str())
        return
    with atomic_write(out) as unfinished:
        config.to_disk(unfinished)
    typer.echo(f"Config: {out}")
    read = "CORPUS" if corpus is None else shlex.quote(str(corpus))
    note(f"Next: spacy-crf-ner train {read} training --config {shlex.quote(str(out))}")
