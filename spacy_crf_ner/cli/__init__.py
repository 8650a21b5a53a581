"""The command line, with one module per command."""

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..extras import required
from ..input_error import InputError

# The commands in the order of the help, each with the first line of its own help. The module of a
# command is imported for its help. It imports spaCy and torch, which takes seconds, when it runs.
COMMANDS = {
    "convert": "Convert a corpus to the binary files that `spacy train` reads.",
    "combine": "Join annotations of the same texts: what they agree on is gold.",
    "check": "Find mistakes in a corpus before you train on it.",
    "predict": "Print the entities of texts, each with its label and its confidence.",
    "annotate": "Find the entities of many documents, and write them in shards.",
    "suggest": "Choose the texts that are most worth annotating next, as tasks for a tool.",
    "review": "Find gold annotation that is probably wrong.",
    "explain": "Show how Viterbi decoding finds the entities of a text.",
    "visualize": "Write an HTML page of documents, gold entities beside predicted ones.",
    "calibrate": "Calibrate the confidences of entities.",
    "monitor": "Test whether new documents are like those that the guarantees of a pipeline are "
    "for.",
    "redact": "Remove entities from documents, with a guarantee of how many are missed.",
    "report": "Evaluate a pipeline: scores, errors, calibration.",
    "export": "Export a pipeline that predicts without torch and transformers.",
    "init-config": "Write a complete config for `spacy train`.",
    "tune": "Search for the settings with the best score on the dev corpus.",
    "distill": "Train a small pipeline on what large ones predict.",
    "train-distributed": "Train a pipeline on several GPUs or machines.",
    "info": "Show versions, devices, their dtypes, and which of them `auto` chooses.",
}


class Commands(TyperGroup):
    """Commands that print a user error as one line and exit with 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; return None for an unknown one."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = import_module(f".{name}", __name__)
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        single.command(cmd_name, context_settings=getattr(module, "CONTEXT_SETTINGS", None))(
            getattr(module, name)
        )
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run a command. An error that is not a user error is a bug and shows its traceback."""
        try:
            with required("train"):
                return super().invoke(ctx)
        except Exception as error:
            if ctx.params["debug"] or not _is_mistake(error):
                raise
            typer.echo(f"Error: {_message(error)}", err=True)
            raise typer.Exit(1) from error


def _is_mistake(error: Exception) -> bool:
    """Whether an error is one of the user. Errors of modules that are not imported are none."""
    mistakes: list[type[Exception]] = [InputError, OSError]
    if "thinc" in sys.modules:
        from thinc.api import ConfigValidationError

        mistakes.append(ConfigValidationError)
    if run := sys.modules.get("spacy_crf_ner.annotate.run"):
        mistakes.append(run.WorkerError)
    return isinstance(error, (*mistakes,))


def _message(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        got = "expected a file or a folder, got neither"
        return f"{error.filename}: {got}. Correct the name, or put it back if it was deleted."
    return str(error)


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
    """Prepare corpora for `crf_ner`, train it, and use and evaluate trained pipelines."""


def main() -> None:
    """Run the command line. Characters that a terminal does not have are written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="spacy-crf-ner")
