"""The command `review`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..atomic import check_new_folder
from .console import note, plain_warnings
from .options import Component, GoldCorpus, GpuId, Model, Seed, Tool

CALIBRATED = (
    "Each document was predicted by a pipeline that was trained on the other {folds} of the "
    "corpus, with the config of {model}, and calibrated on its own fold."
)
SEEN = (
    "The documents were predicted by {model} as it is. If it was trained on them, it has learned "
    "their errors too: use folds to find those."
)


def review(
    model: Model,
    corpus: GoldCorpus,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="New folder for the result.")],
    folds: Annotated[
        int,
        typer.Option(
            min=0,
            help="Train this many times, each time without a fold of the corpus; 0: predict with "
            "the pipeline as it is, even if it has seen the corpus.",
        ),
    ] = 5,
    n: Annotated[
        int, typer.Option(min=1, help="Number of documents for the page and the tasks.")
    ] = 200,
    tool: Tool = "jsonl",
    seed: Seed = 0,
    gpu_id: GpuId = -1,
    component: Component = None,
) -> None:
    """Find gold annotation that is probably wrong.

    Trains the pipeline without a fold of the corpus, with its own config, and lists where the
    gold annotation of this fold is less likely than what the pipeline predicts: by the log odds of
    its prediction against gold, from its probabilities, from how other texts annotate the same
    words, and from how often annotators make such an error.

    \b
    Writes into the folder:
      review.html     the list, with both sides in their context: accept or
                      reject each, and download the answers
      findings.jsonl  the list for programs
      tasks           documents with their gold entities, the most suspicious
                      first, for a tool: .jsonl, or .json for Label Studio, with
                      its configuration in labeling.xml

    `merge ANSWERS OUTPUT --into CORPUS` replaces the annotation by the corrected one.

    \b
    Example:
      spacy-crf-ner review model corpus/train.spacy suspicious --tool prodigy
    """
    from .. import active_learning
    from ..active_learning.tasks import check_tool
    from ..pipeline.calibration import calibration_of
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer

    check_tool(tool, binary=False)
    check_new_folder(output)
    nlp = load(model, gpu_id)
    if folds:
        note(
            f"Training: {folds} pipelines, one without each fold. It takes as long as {folds} "
            "trainings; --folds 0 only predicts."
        )
    status = Console(stderr=True).status("Training fold 1" if folds else "Predicting")
    with plain_warnings(), status:
        found = active_learning.review(
            nlp,
            corpus,
            folds,
            seed=seed,
            gpu_id=gpu_id,
            component=component,
            on_fold=lambda done: status.update(f"Training fold {done + 1}"),
        )
    others = "fold" if folds == 2 else f"{folds - 1} folds"
    method = (CALIBRATED if folds else SEEN).format(folds=others, model=model)
    calibration = "Confidences: calibrated on each fold"
    if folds == 0:
        calibration = calibration_of(recognizer(nlp, component))
    facts = [
        ("Pipeline", model),
        ("Corpus", str(corpus)),
        ("Confidences", calibration.partition(": ")[2]),
    ]
    found.write(output, tool, n, facts, method)
    typer.echo(found.summary())
    typer.echo(method)
    for path in sorted(output.iterdir()):
        typer.echo(path)
    if not found.likely:
        return
    note(
        f"Next: open {shlex.quote(str(output / 'review.html'))} in a browser, download the "
        "answers, and run spacy-crf-ner merge answers.jsonl reviewed.spacy --into "
        f"{shlex.quote(str(corpus))}"
    )
