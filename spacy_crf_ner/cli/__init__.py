"""The command line, a file a command: what the functions of this package do, on files."""

from typing import Annotated, Any

import typer
from thinc.api import ConfigValidationError
from typer.core import TyperGroup

from ..annotate import WorkerError
from ..input_error import InputError
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
    """Commands that print a mistake of the user as one line, and exit with 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Anything but a mistake of the user is a bug: it shows its traceback."""
        try:
            return super().invoke(ctx)
        except (InputError, ConfigValidationError, OSError, WorkerError) as error:
            if ctx.params["debug"]:
                raise
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error


# Help is plain text: rich would read [Tim Cook](PERSON) as markup.
app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def commands(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of every error.")
    ] = False,
) -> None:
    """Prepare corpora for spaCy's `crf_ner`, and look at what it finds."""


# In the order of the help.
_COMMANDS = (convert, check, predict, annotate, explain, visualize, calibrate, report, init_config)
for _command in _COMMANDS:
    app.command()(_command)
app.command(context_settings=SETTINGS)(train_distributed)


def main() -> None:
    """Run the command line."""
    app(prog_name="spacy-crf-ner")
