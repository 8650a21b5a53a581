"""Changes pages while mkdocs builds the site: help of all commands, names that do not wrap."""

import re
from typing import Any

from typer.main import get_command

from spacy_crf_ner.cli import app

MARKER = "<!-- commands -->"
NAME = re.compile(r"<code>([^<\n]{1,24}|[^<\s]{1,36})</code>")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker, called by mkdocs for each page."""
    return markdown.replace(MARKER, command_reference()) if MARKER in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Keep a short name, or a mean with its deviation, in one line; called for each page."""
    return NAME.sub(r'<code class="name">\1</code>', html).replace(" ± ", "&nbsp;±&nbsp;")


def command_reference() -> str:
    """Return the help of the program, and a section for each command."""
    program = get_command(app)
    return "\n\n".join(_sections("spacy-crf-ner", program, None))


def _sections(name: str, command: Any, parent: Any) -> list[str]:
    settings = {"resilient_parsing": True, "terminal_width": 78}
    context = command.make_context(name, [], parent=parent, **settings)
    help_text = f"```text\n{command.get_help(context)}\n```"
    if parent is not None:
        title = context.command_path.removeprefix("spacy-crf-ner ")
        help_text = f"## {title}\n\n{help_text}"
    found = [help_text]
    for each, subcommand in getattr(command, "commands", {}).items():
        found += _sections(each, subcommand, context)
    return found
