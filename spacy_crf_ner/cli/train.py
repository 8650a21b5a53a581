"""The command `train`."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..extras import check_versions
from ..input_error import InputError, did_you_mean
from .console import note, plain_warnings, print_table, right

if TYPE_CHECKING:
    from spacy.language import Language

    from ..training.run import Trained

# As in `training.options`, which takes seconds to import.
CONFIG, TIMEOUT = "transformer", 30.0


def train(
    context: typer.Context,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="Folder with train and dev, or one corpus to split, in any format of `convert`; "
            "- for those that the config names.",
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="Folder for model-best, which is replaced.")
    ],
    config: Annotated[
        str,
        typer.Option(help="A config file, or a shipped config: transformer, cnn, char."),
    ] = CONFIG,
    transformer: Annotated[
        str | None,
        typer.Option(help="Transformer in place of the one in the config: a folder or a hub name."),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="auto|-1|N", help="GPU to use, -1 for the CPU; auto: a GPU if there is one."
        ),
    ] = "auto",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of steps.  [default: for the corpus]")
    ] = None,
    folds: Annotated[
        int,
        typer.Option(
            min=0,
            help="For a small corpus: train on all of it, and measure and calibrate with as many "
            "more trainings, each without one fold.",
        ),
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights and of the order of docs.  [default: the config's, 0]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training that was interrupted.")
    ] = False,
    no_calibrate: Annotated[
        bool, typer.Option("--no-calibrate", help="Do not calibrate the confidences on dev.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Minutes that a process waits for another one.")
    ] = TIMEOUT,
    code: Annotated[
        Path | None,
        typer.Option(
            "--code", "-c", exists=True, dir_okay=False, help="Python file to import first."
        ),
    ] = None,
) -> None:
    """Train a pipeline on a corpus, and calibrate it.

    Checks the corpus, and trains if it has no errors. The steps of a shipped config are for
    the size of the corpus. A config file is used as it is: write one with `init`. Options with
    a dot, such as --training.dropout 0.2, override settings of the config.

    model-best is the pipeline with the highest score on dev, which also calibrates its
    confidences. With --folds 5, train and dev are divided into 5 folds by documents. The
    scores are those of 5 pipelines, each on the fold that it was not trained on, and so is
    the calibration of the pipeline that is trained on all.

    OUTPUT also gets model-last, and the state that --resume continues from. To train on
    several GPUs or machines, start the command with torchrun.

    \b
    Examples:
      spacy-crf-ner train corpus training
      spacy-crf-ner train tickets.jsonl training --transformer roberta-base
      spacy-crf-ner train few.jsonl training --config cnn --folds 5
      torchrun --nproc-per-node 4 -m spacy_crf_ner train corpus training
    """
    for name, value in (("CORPUS", corpus), ("OUTPUT", str(output))):
        if value.startswith("--"):
            raise InputError(f"{value} is in place of {name}. Write CORPUS and OUTPUT first.")
    overrides = _read_overrides(context)
    check_versions("train")
    from spacy.util import import_file

    from ..pipeline.load import load
    from ..training.distributed.process_group import RankError
    from ..training.options import Options
    from ..training.run import train_pipeline

    if code is not None:
        import_file("python_code", code)
    asked = Options(
        *(config, transformer, steps, folds, seed, gpu, None, overrides, resume, timeout),
        calibrate=not no_calibrate,
    )
    start = time.monotonic()
    try:
        with plain_warnings():
            given = None if corpus == "-" else corpus
            trained = train_pipeline(given, None, output, asked, note)
    except RankError as error:
        raise typer.Exit(1) from error  # its message is already printed
    if trained is not None:
        _print_result(trained, load(str(trained.model)), folds)
        typer.echo(f"Time: {(time.monotonic() - start) / 60:.1f} minutes")
        typer.echo(f"Pipeline: {trained.model}")
        model = shlex.quote(str(trained.model))
        if trained.test is None:
            note(f'Next: spacy-crf-ner predict {model} "A text."')
        else:
            note(f"Next: spacy-crf-ner report {model} {shlex.quote(str(trained.test))} report")


def _read_overrides(context: typer.Context) -> dict[str, Any]:
    from click import UsageError
    from spacy.cli._util import parse_config_overrides

    try:
        return parse_config_overrides(context.args)
    except UsageError as error:  # which newer versions of typer do not print
        known = [name for each in context.command.params for name in each.opts]
        hint = did_you_mean(getattr(error, "option_name", ""), known)
        raise InputError(
            f"{error.format_message()}{hint} Settings of the config have a dot, as "
            "--training.dropout."
        ) from error


def _print_result(trained: "Trained", nlp: "Language", folds: int) -> None:
    """Print the scores of a pipeline, in all and by label, and how it is calibrated."""
    from ..pipeline.lookup import calibrations, find_entities_key, recognizer_names

    where = f"on {folds} folds" if folds else "on dev"
    names = recognizer_names(nlp)
    key = find_entities_key(nlp, names[0]) if names else None
    kind, scores = "ents" if key is None else f"spans_{key}", nlp.meta["performance"]
    if f"{kind}_f" in scores:
        table = Table("", *right("precision", "recall", "F1"))
        rows = {"all": {each: scores.get(f"{kind}_{each}") for each in "prf"}}
        rows |= dict(sorted((scores.get(f"{kind}_per_type") or {}).items()))
        for label, row in rows.items():
            figures = (row[each] for each in "prf")
            table.add_row(label, *("none" if x is None else f"{100 * x:.1f}" for x in figures))
        print_table(table)
        typer.echo(f"F1 {where}: {100 * scores[f'{kind}_f']:.1f}")
    if trained.folds is not None:
        before, after = trained.folds["before"], trained.folds["after"]
        errors = before["ece"], after["ece"], after["ece_by_chance"]
        shown = ["none" if x is None else f"{100 * x:.1f} %" for x in errors]
        typer.echo(
            f"Calibration error (ECE) {where}: {shown[0]} before calibration, {shown[1]} after "
            f"it; {shown[2]} by chance"
        )
    for each in calibrations(nlp):
        typer.echo(each)
