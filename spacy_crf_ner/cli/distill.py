"""The command `distill`."""

from pathlib import Path
from typing import Annotated

import typer

from ..input_error import InputError
from . import options
from .console import annotation_progress, print_summary


def distill(
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT", help="Files, globs in quotes, or folders of texts."),
    ] = None,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Folder for the student.")],
    teacher: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL", help="Teacher: a folder, or the name of a package. Repeat it for more."
        ),
    ],
    config: Annotated[
        str, typer.Option(help="Student: a config file, or the name of a shipped one.")
    ] = "cnn.cfg",
    gold: Annotated[
        Path | None,
        typer.Option(help="Documents with gold entities, to learn from both: a .spacy file."),
    ] = None,
    dev: Annotated[
        Path | None,
        typer.Option(
            help="The same, for early stopping. Default: agreement with the teachers on a tenth of "
            "the documents, or about 1000, which are not trained on."
        ),
    ] = None,
    weight: Annotated[
        float, typer.Option(help="Weight of the teachers, 0 to 1; gold entities have the rest.")
    ] = 0.5,
    temperature: Annotated[
        float, typer.Option(help="Divides all scores: over 1, improbable entities count more.")
    ] = 1.0,
    folds: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train the teachers again, once for each fold of the --gold documents, which is "
            "read by those that have not seen it; 0: the given teachers read all.",
        ),
    ] = 0,
    text_column: options.TextField = "text",
    doc_per_file: options.DocPerFile = False,
    component: options.Component = None,
    dtype: options.TeacherDtype = "fp32",
    workers: options.Workers = 0,
    gpu_id: options.GpuIds = "-1",
    resume: options.Resume = False,
    restart: options.Restart = False,
    as_json: options.Json = False,
) -> None:
    """Train a small pipeline on what large ones predict.

    The teachers read the texts once. OUTPUT/teachers gets the scores of all tags at all
    tokens, and the student learns the whole distribution over entities from them: the
    mean of the distributions of several teachers. Their labels must be the same, tag
    schemes may differ. `spacy train` trains the student with OUTPUT/config.cfg, which
    can be changed and used again.

    INPUT has the formats of `predict`. Documents of --gold are read by the teachers too,
    so do not repeat them. A text of more than 10,000 characters is cut into several
    documents, at the ends of sentences.

    A document that cannot be read, or on which a teacher fails, is skipped:
    OUTPUT/teachers/errors.jsonl lists it, and the exit code is 2. --resume keeps finished
    shards; the training starts again. Of several GPUs, the first one trains.

    Teachers are sure of documents that they were trained on, and teach little about them.
    With --folds 3 they are trained again, with their own configs, on two thirds of the
    documents of --gold, and read the other third.

    \b
    Examples:
      spacy-crf-ner distill texts/ student --teacher training/model-best
      spacy-crf-ner distill texts/ student --teacher seed0/model-best \\
          --teacher seed1/model-best --gold train.spacy --config char.cfg
      spacy train student/config.cfg --output again --training.max_steps 4000
    """
    from .. import distillation

    if not inputs and gold is None:
        raise InputError(f"expected INPUT, --gold or both, got only OUTPUT, {output}. Add texts.")
    settings = distillation.DEFAULTS._replace(
        text_column=text_column, doc_per_file=doc_per_file, dtype=dtype
    )
    with options.resumable(resume, restart):
        summary = distillation.distill(
            *(teacher, inputs or [], output, config, settings),
            gold=gold,
            dev=dev,
            weight=weight,
            temperature=temperature,
            folds=folds,
            component=component,
            workers=workers,
            gpu_ids=options.gpu_numbers(gpu_id),
            resume=resume,
            restart=restart,
            progress=annotation_progress("Teaching"),
            on_fold=lambda k: typer.echo(f"Training without fold {k} of {folds}", err=True),
        )
    text = "Documents that the teachers read: {out:,} of {in:,}\nPipeline: {model}"
    print_summary(summary, text, as_json, Path(output, "teachers", "errors.jsonl"))
