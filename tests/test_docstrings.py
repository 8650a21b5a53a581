"""The arguments that docstrings describe are those of the functions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import spacy_crf_ner

PACKAGE = Path(spacy_crf_ner.__file__).parent
ARGS = re.compile(r"^Args:\n((?: {4}.*\n|\n)+)", re.MULTILINE)
NAME = re.compile(r"^ {4}(\S[^:]*):", re.MULTILINE)


def functions(block: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for statement in block.body:
        if isinstance(statement, ast.FunctionDef):
            yield statement
        elif isinstance(statement, ast.ClassDef):
            yield from functions(statement)


def unknown_arguments(source: str) -> list[str]:
    """Return the names in sections "Args" that the functions below them do not have."""
    unknown = []
    for function in functions(ast.parse(source)):
        known = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
        for entries in ARGS.findall(f"{ast.get_docstring(function)}\n"):
            names = {name.lstrip("*") for name in NAME.findall(entries)}
            unknown += [f"{function.name}: {name}" for name in sorted(names - known)]
    return unknown


def test_argument_of_docstring_that_function_lacks_is_found() -> None:
    section = "Do.\n\n    Args:\n        a: One.\n            Two: three.\n        bad: Four."
    assert unknown_arguments(f'def f(a: int) -> None:\n    """{section}\n    """') == ["f: bad"]


def test_docstrings_describe_arguments_of_their_functions() -> None:
    sources = {path.name: path.read_text() for path in PACKAGE.rglob("*.py")}
    unknown = {name: unknown_arguments(text) for name, text in sources.items() if "Args:" in text}
    assert not {name: names for name, names in unknown.items() if names}
