"""Run a benchmark: `python benchmarks/run.py NAME --help`. Without a name, it lists them."""

import ast
import os
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
SHARED = ("__init__", "run", "common", "systems")


def names() -> dict[str, str]:
    """Return the benchmarks, and what each says of itself in its first line."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem not in SHARED:
            says = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            found[path.stem.replace("_", "-")] = says.partition("\n")[0]
    return found


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in names():
        print(f"{__doc__}\n", *(f"{name:16} {says}" for name, says in names().items()), sep="\n")
        return 0 if arguments in ([], ["--help"], ["-h"]) else 2
    import typer

    from spacy_crf_ner.input_error import InputError

    os.environ["HF_HUB_OFFLINE"] = "1"
    name, *rest = arguments
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(import_module(f"benchmarks.{name.replace('-', '_')}").main)
    try:
        app(rest, prog_name=f"run.py {name}")
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.path[0] = str(FOLDER.parent)
    sys.exit(main(sys.argv[1:]))
