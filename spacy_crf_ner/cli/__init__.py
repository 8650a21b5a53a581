"""The command line, a file a command: what the functions of this package do, on files."""

from typing import Any

import typer
from typer.core import TyperGroup

from ..annotate import WorkerError
from .ablation import ablation
from .annotate import annotate
from .calibrate import calibrate
from .check import check
from .convert import convert
from .explain import explain
from .init_config import init_config
from .predict import predict
from .report import report
from .train_distributed import SETTINGS, train_distributed
from .visualize import visualize


class Commands(TyperGroup):
    """Commands that end in one sentence where a file, or what it holds, is not as it should be."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for; exit with 1 on an error that says what is wrong."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, WorkerError) as error:
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


# In the order of the help.
for _command in (
    convert,
    check,
    predict,
    annotate,
    explain,
    visualize,
    calibrate,
    report,
    ablation,
    init_config,
):
    app.command()(_command)
app.command(context_settings=SETTINGS)(train_distributed)


def main() -> None:
    """Run the command line."""
    app(prog_name="spacy-crf-ner")
