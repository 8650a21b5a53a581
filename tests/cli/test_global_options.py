"""The options of all commands."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spacy_crf_ner import __version__
from spacy_crf_ner.cli import app, console

runner = CliRunner()


@pytest.fixture(autouse=True)
def kept_settings(monkeypatch: pytest.MonkeyPatch) -> Iterable[None]:
    """Restore what the options set in this process."""
    for name in ("NO_COLOR", "ANSI_COLORS_DISABLED"):
        monkeypatch.setenv(name, "")
    yield
    console.set_up(quiet=False, no_color=False)


def test_version_is_that_of_the_package() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"spacy-crf-ner {__version__}\n")


@pytest.mark.parametrize("option, color", [([], True), (["--no-color"], False)])
def test_no_color_prints_errors_without_color(
    option: list[str], color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    result = runner.invoke(app, [*option, "check", "none.conll"])
    assert result.exit_code == 1
    assert ("\x1b[1;31m" in result.output) == color
    assert "Error:" in result.output and "none.conll does not exist. " in result.output


def test_long_error_is_one_line() -> None:
    name = "/".join(["folder"] * 50)
    result = runner.invoke(app, ["check", name])
    assert result.output.count("\n") == 1 and name in result.output


def test_quiet_leaves_out_progress_and_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for quiet in (False, True):
        console.set_up(quiet=quiet, no_color=False)
        assert [*console.tracked(range(3), "Counting")] == [0, 1, 2]
        console.note("Next: count again")
        shown = capsys.readouterr()
        assert not shown.out
        assert ("Counting" in shown.err and "Next" in shown.err) == (not quiet)
        assert bool(shown.err) == (not quiet)


def test_quiet_keeps_results_and_errors(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("[Anna](PER) came\n")
    runs = [runner.invoke(app, [*option, "check", str(corpus)]) for option in ([], ["--quiet"])]
    assert runs[0].stdout == runs[1].stdout != ""
    assert "Error" in runner.invoke(app, ["--quiet", "check", "none.conll"]).stderr


def test_unknown_command_suggests_one() -> None:
    result = runner.invoke(app, ["covert", "a", "b"])
    assert result.exit_code == 2 and "Did you mean 'convert'?" in result.output
