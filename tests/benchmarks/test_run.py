"""The runner: what it lists, and what the documentation calls."""

import ast
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from benchmarks import run

ROOT = Path(__file__).parents[2]
PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "project.yml"]


def commands() -> list[str]:
    """The commands of the documentation, without their `python benchmarks/`."""
    found = []
    for page in PAGES:
        text = re.sub(r" *\\\n *", " ", page.read_text("utf-8")).replace("\n", " ")
        found += re.findall(
            r"python\s+benchmarks/((?:run|gpu)\.py[^`\"]*?)(?=`|\"|python | {3})", text
        )
    return found


def test_each_benchmark_names_its_page_which_shows_its_command() -> None:
    for name, says in run.names().items():
        if name == "gpu":  # `benchmarks/gpu.py`
            continue
        pages = re.findall(r"docs/[\w-]+\.md", says) or ["docs/benchmarks.md"]  # figures
        text = (ROOT / pages[0]).read_text("utf-8")
        assert re.search(rf"run\.py\s+{name}\b", text), name


def test_commands_of_the_documentation_have_existing_options() -> None:
    seen = set()
    for command in commands():
        script, *words = shlex.split(command)
        name = words.pop(0) if script == "run.py" and words else "gpu"
        app = typer.Typer()
        app.command()(import_module(f"benchmarks.{name.replace('-', '_')}").main)
        parameters = typer.main.get_command(app).params
        options = {each for parameter in parameters for each in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, command
        seen.add(name)
    assert len(seen) > 15


def test_no_benchmark_imports_another_one() -> None:
    benchmarks = {name.replace("-", "_") for name in run.names()}
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks"):
                modules = {node.module} | {f"benchmarks.{each.name}" for each in node.names}
                others = {each.split(".")[1] for each in modules if "." in each}
                assert not others & benchmarks, path


def test_unknown_name_lists_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["absent"]) == 2 and run.main([]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("accuracy", "annotate-memory"))


@pytest.mark.slow
def test_runner_started_elsewhere_measures_and_reports_errors(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "frozen", "--rounds", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "--rounds" in done.stderr
    command[2:] = ["figures", "absent"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("Error: Expected bars")
