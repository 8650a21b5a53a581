"""Commands: what the functions of this package do, on files, from a shell."""

from pathlib import Path
from typing import Annotated, Any, Dict, List, Optional, Tuple

import spacy
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TimeElapsedColumn,
    track,
)
from rich.table import Table
from spacy.cli._util import setup_gpu
from spacy.language import Language
from spacy.training import Corpus
from typer.core import TyperGroup

from . import ablation as family
from . import calibration, data
from .visualize import comparison_page


class Commands(TyperGroup):
    """Commands that end in one sentence where a file, or what it holds, is not as it should be."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for; exit with 1 on a ValueError or an OSError."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error


# Help is plain text: rich would read [Tim Cook](PERSON) as markup.
app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def commands() -> None:
    """Prepare corpora for spaCy's `crf_ner`, and look at what it finds."""


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="Corpus: a file, or a folder with train, dev and test.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder for train.spacy, dev.spacy, test.spacy.")],
    format: Annotated[
        str, typer.Option(help=f"One of auto, {', '.join(data.CONVERTERS)}.")
    ] = "auto",
    lang: Annotated[str, typer.Option(help="Language, for the tokenizer.")] = "en",
    group_sents: Annotated[
        int, typer.Option(min=0, help="Sentences a doc; 0 for all between two -DOCSTART- lines.")
    ] = 1,
    syllables: Annotated[
        str, typer.Option(help=f"Vietnamese: {', '.join(data.SYLLABLES)} the syllables of a word.")
    ] = "keep",
    split: Annotated[
        str, typer.Option(metavar="TRAIN,DEV,TEST", help="Shares of a corpus that is one file.")
    ] = "0.8,0.1,0.1",
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Convert a corpus to the binary files that `spacy train` reads.

    A folder has one file for each of train, dev and (not required) test, named so:
    train.txt, dev.conll, eng.testa. A single file is split at random, always the
    same way for the same seed.

    \b
    Formats, told by the content unless --format names one:
      inline  a sentence a line:  [Tim Cook](PERSON) visited [Hanoi](GPE).
      conll   a token and its tag a line, a blank line after a sentence
      gmb     Kaggle's ner_dataset.csv (Groningen Meaning Bank)

    \b
    Example:
      spacy-crf-ner convert ner_dataset.csv corpus --group-sents 10
    """
    if format == "auto":
        format = data.detect_format(source)
    typer.echo(f"Format: {format}")
    nlp = data.blank_pipeline(lang, segment=syllables == "keep")
    counts = data.convert(
        source,
        target,
        nlp=nlp,
        format=format,
        group=group_sents,
        syllables=syllables,
        shares=_shares(split),
        seed=seed,
    )
    _print_counts(counts)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    texts: Annotated[List[str], typer.Argument(help="Texts, each in quotes.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
) -> None:
    """Print the entities that a pipeline finds in texts."""
    nlp = _load(model, gpu_id)
    table = Table("Text", "Entity", "Label")
    for doc in nlp.pipe(texts):
        ents = [(ent.text, ent.label_) for ent in doc.ents] or [("none", "")]
        for i, (ent, label) in enumerate(ents):
            table.add_row(doc.text if i == 0 else "", ent, label, end_section=i == len(ents) - 1)
    _print(table)


@app.command()
def visualize(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[Path, typer.Argument(help="Documents with gold entities: a .spacy file.")],
    page: Annotated[Path, typer.Argument(help="HTML file to write.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
) -> None:
    """Draw documents as a page, their gold entities beside the predicted ones."""
    nlp = _load(model, gpu_id)
    examples = list(Corpus(corpus)(nlp))
    docs = nlp.pipe(eg.predicted for eg in examples)
    for doc, eg in zip(track(docs, "Predicting", total=len(examples)), examples):
        eg.predicted = doc
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(comparison_page(examples, f"{model} on {corpus}"), encoding="utf-8")
    typer.echo(f"Page: {page}")


@app.command()
def calibrate(
    model: Annotated[str, typer.Argument(help="Pipeline: a folder, or the name of a package.")],
    corpus: Annotated[
        Path, typer.Argument(help="Documents with gold entities, not those of the training.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder for the calibrated pipeline: a new one.")],
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
    component: Annotated[
        Optional[str], typer.Option(help="Name of the crf_ner component, where there are several.")
    ] = None,
) -> None:
    """Make the confidences of entities say how often they are right.

    One number is fitted to the gold entities, the temperature, which divides all scores.
    No entity changes, but where thresholds drop those of low confidence.

    \b
    Prints, before and after, for the entities that are found:
      ECE    how far confidence and share of right ones lie apart, in 15 bins
      Brier  mean of (confidence - right)^2
    """
    _require_free(target)
    nlp = _load(model, gpu_id)
    examples = list(Corpus(corpus)(nlp))
    result = calibration.calibrate(nlp, track(examples, "Calibrating"), component)
    nlp.to_disk(target)
    before, after = result["before"], result["after"]
    table = Table("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    table.add_row("ECE", _figure(before["ece"]), _figure(after["ece"]))
    table.add_row("Brier", _figure(before["brier"]), _figure(after["brier"]))
    _print(table)
    typer.echo(
        f"Entities: {before['entities']}, and {before['left_out']} left out where the gold "
        "annotation is missing"
    )
    typer.echo(f"Temperature: {result['temperature']:.3f}")
    typer.echo(f"Pipeline: {target}")


@app.command()
def ablation(
    corpus: Annotated[Path, typer.Argument(help="Folder with train.spacy, dev.spacy, test.spacy.")],
    out: Annotated[Path, typer.Argument(help="Folder for the results.")],
    members: Annotated[
        Optional[List[str]], typer.Option("--member", help="One to run; repeat for several.")
    ] = None,
    definition: Annotated[
        Path, typer.Option("--family", help="YAML file: the members, their configs and settings.")
    ] = Path("configs/family.yml"),
    transformer: Annotated[str, typer.Option(help="Local folder, or a name on the hub.")] = (
        "assets/minilm"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas; a run of each member.")] = "0,1,2",
    small: Annotated[
        bool, typer.Option("--small", help="One seed, 10 steps: does it all run?")
    ] = False,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
) -> None:
    """Train a family of models on a corpus, and compare them.

    All have the same steps, batches and seeds. A run whose result is known is not
    repeated: stop whenever you like, and go on with the same command.

    \b
    Writes into the folder:
      runs.jsonl  a line a run, as soon as it is measured
      table.md    mean and standard deviation over the seeds
      chart.svg   F1 of each model
    """
    family.require_charts()
    if small:
        steps, seeds = 10, "0"
    runs = family.plan(
        definition,
        corpus,
        transformer=transformer,
        steps=steps,
        seeds=_numbers(seeds),
        members=members or (),
    )
    rows = []
    with Progress(
        SpinnerColumn(), *Progress.get_default_columns(), TimeElapsedColumn(), MofNCompleteColumn()
    ) as progress:
        task = progress.add_task("", total=len(runs))
        results = family.results(runs, out, gpu_id)
        for run in runs:
            progress.update(task, description=escape(f"{run.member}, seed {run.seed}"))
            rows.append(next(results))
            progress.advance(task)
    table = family.table(rows)
    (out / "table.md").write_text(table, encoding="utf-8")
    family.chart(rows, out / "chart.svg")
    typer.echo(table)
    typer.echo(f"Folder: {out}")


def main() -> None:
    """Run the command line."""
    app(prog_name="spacy-crf-ner")


def _shares(text: str) -> Tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError as error:
        raise ValueError(f"--split: expected shares such as 0.8,0.1,0.1, got {text!r}.") from error


def _numbers(text: str) -> List[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--seeds: expected numbers such as 0,1,2, got {text!r}.") from error


def _require_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(
            f"{target}: expected a new or an empty folder, got one that holds something, or a "
            "file. Name another."
        )


def _figure(value: Optional[float]) -> str:
    return "none" if value is None else f"{value:.4f}"


def _print_counts(counts: Dict[str, Dict[str, int]]) -> None:
    table = Table("")
    for name in counts:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for column in counts.values() for row in column):
        table.add_row(row, *(str(column.get(row, 0)) for column in counts.values()))
    _print(table)


def _print(table: Table) -> None:
    # Texts and labels are the user's: not markup.
    for column in table.columns:
        column.overflow = "fold"
    Console(markup=False, emoji=False, highlight=False).print(table)


def _load(model: str, gpu_id: int) -> Language:
    setup_gpu(gpu_id, silent=True)
    return spacy.load(model)
