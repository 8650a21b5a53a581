"""The command `review`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..atomic import atomic_write, check_new_folder
from ..input_error import InputError
from .options import TOOLS, Component, GoldCorpus, GpuId, Model

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
    n: Annotated[int, typer.Option(min=1, help="Number of documents for the tasks.")] = 200,
    tool: Annotated[
        str,
        typer.Option("--tool", metavar=TOOLS, help="The tool to correct with."),
    ] = "jsonl",
    seed: Annotated[int, typer.Option(help="Seed of the folds.")] = 0,
    gpu_id: GpuId = -1,
    component: Component = None,
) -> None:
    """Find gold annotation that is probably wrong.

    Trains the pipeline without a fold of the corpus, with its own config, and lists where it is
    most sure of the contrary of the gold annotation of this fold: by the log odds of its
    prediction against gold, from its probabilities, from how other texts annotate the same words,
    and from how often annotators make such an error.

    \b
    Writes into the folder:
      review.html     the list, with both sides in their context
      findings.jsonl  the same, for programs
      tasks           documents with their gold entities, the most suspicious
                      first: .jsonl, or .json for Label Studio, with its
                      configuration in labeling.xml

    `convert ANSWERS OUTPUT --merge CORPUS` replaces the annotation by the corrected one.

    \b
    Example:
      spacy-crf-ner review model corpus/train.spacy suspicious --tool prodigy
    """
    import srsly

    from .. import active_learning
    from ..active_learning.tasks import check_tool, write_tasks
    from ..pipeline.load import load
    from ..pipeline.lookup import recognizer
    from ..report.html import review_page
    from ..templates import write_page

    check_tool(tool, binary=False)
    check_new_folder(output)
    if folds == 1:
        raise InputError("--folds: expected 0, or 2 or more, got 1. Use 5.")
    nlp = load(model, gpu_id)
    with Console(stderr=True).status("Predicting" if not folds else "Training fold 1") as status:
        found = active_learning.review(
            nlp,
            corpus,
            folds,
            seed=seed,
            gpu_id=gpu_id,
            component=component,
            on_fold=lambda done: status.update(f"Training fold {done + 1}"),
        )
    kinds = Counter(each["kind"] for each in found.findings)
    by_kind = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
    summary = (
        f"{found.docs:,} documents. {len(found.findings):,} disagreements in "
        f"{len(found.docs_of):,} of them{f': {by_kind}' if by_kind else ''}. "
        f"{found.left_out:,} predictions in text without annotation are left out."
    )
    if found.negatives:
        summary += f" {found.negatives:,} negative spans have a label that is not in all folds."
    others = "fold" if folds == 2 else f"{folds - 1} folds"
    method = (CALIBRATED if folds else SEEN).format(folds=others, model=model)
    with atomic_write(output) as folder:
        folder.mkdir()
        page = review_page(found.findings, f"Review of {corpus}", summary, method)
        write_page(folder / "review.html", page)
        srsly.write_jsonl(folder / "findings.jsonl", found.findings)
        in_gold = {ent.label_ for doc in found.docs_of.values() for ent in doc.ents}
        labels = sorted({*recognizer(nlp, component).labels, *in_gold})
        units = [unit for unit, _ in zip(found.units(), range(n))]
        write_tasks(folder, "tasks", units, tool, labels, binary=False)
    typer.echo(summary)
    typer.echo(method)
    for path in sorted(output.iterdir()):
        typer.echo(path)
