"""The command line, with one module per command.

Importing it is quick: a command imports spaCy, which takes seconds, when it runs.
"""

import sys
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..extras import required
from ..input_error import InputError
from . import console
from .calibrate import calibrate
from .check import check
from .convert import convert
from .distill import distill
from .explain import explain
from .export import export
from .info import info
from .init import init
from .merge import merge
from .predict import predict
from .promise import promise
from .redact import redact
from .report import report
from .review import review
from .serve import serve
from .suggest import suggest
from .train import train

# In the order of the help.
PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Data": (convert, check, merge),
    "Train": (init, train, distill),
    "Evaluate": (report, calibrate, promise, explain),
    "Annotate": (suggest, review),
    "Predict": (predict, redact, export, serve, info),
}
# For options with a dot, such as --paths.train, which are settings of the config.
CONFIG_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


class Commands(TyperGroup):
    """Commands that print a user error as one line and exit with 1."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by panel, each with the first paragraph of its help."""
        commands: Mapping[str, Any] = self.commands
        width = max(map(len, commands))
        for panel, functions in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl(
                    (f"{name:{width}}", commands[name].help.partition("\n\n")[0])
                    for name in map(_name, functions)
                )

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An error that is not a user error is a bug and shows its traceback."""
        try:
            with required("train"):
                return super().invoke(ctx)
        except Exception as error:
            if ctx.params["debug"] or not _is_mistake(error):
                raise
            console.print_error(_message(error))
            raise typer.Exit(1) from error


def _name(function: Callable[..., None] | typer.Typer) -> str:
    if isinstance(function, typer.Typer):
        return str(function.info.name)
    return function.__name__.replace("_", "-")


def _is_mistake(error: Exception) -> bool:
    """Whether an error is one of the user. Errors of modules that are not imported are none.

    Nor is a reader of the output that wants no more, such as `head`: Typer ends the program.
    """
    mistakes: list[type[Exception]] = [InputError, OSError]
    if "thinc" in sys.modules:
        from thinc.api import ConfigValidationError

        mistakes.append(ConfigValidationError)
    if run := sys.modules.get("spacy_crf_ner.annotate.run"):
        mistakes.append(run.WorkerError)
    return isinstance(error, (*mistakes,)) and not isinstance(error, BrokenPipeError)


def _message(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return (
            f"{error.filename} does not exist. Correct the name, or put it back if it was deleted."
        )
    return str(error)


# Help is plain text: rich would read [Tim Cook](PERSON) as markup.
app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"spacy-crf-ner {__version__}")
        raise typer.Exit


@app.callback()
def commands(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show results, warnings and errors alone.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Print without colors, as NO_COLOR does.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of every error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version, and exit."
        ),
    ] = False,
) -> None:
    """Prepare corpora for `crf_ner`, train it, and use and evaluate trained pipelines."""
    console.set_up(quiet=quiet, no_color=no_color)


for functions in PANELS.values():
    for function in functions:
        settings = CONFIG_OVERRIDES if function is train else None
        if isinstance(function, typer.Typer):  # of several commands
            app.add_typer(function)
        else:
            app.command(_name(function), context_settings=settings)(function)


def main() -> None:
    """Run the command line. Characters that a terminal does not have are written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="spacy-crf-ner")
