"""`.ci/pip-install`, which sets up the environment of a make target: what it shows of pip."""

import subprocess
from pathlib import Path

PIP_INSTALL = Path(__file__).parents[1] / ".ci" / "pip-install"
LINES = """\
WARNING: a mirror does not answer
Collecting spacy<3.9,>=3.8.2 (from spacy-crf-ner==0.1.0)
  Downloading spacy-3.8.18-cp311.whl (34.7 MB)
Progress 262144 of 34680337
Processing /wheels/torch-2.13.0+cpu-cp311.whl
Installing collected packages: spacy, torch
"""


def install(folder: Path, end: str, code: int) -> subprocess.CompletedProcess[str]:
    python = folder / "python"
    python.write_text(
        f"#!/bin/sh\necho $@ >{folder}/called\ncat <<'EOF'\n{LINES}{end}\nEOF\nexit {code}"
    )
    python.chmod(0o755)
    return subprocess.run([PIP_INSTALL, python, "spacy"], capture_output=True, text=True)


def test_pip_install_success_prints_two_lines(tmp_path: Path) -> None:
    run = install(tmp_path, "Successfully installed spacy-3.8.18 torch-2.13.0+cpu", 0)
    assert run.returncode == 0 and not run.stderr
    first, second = run.stdout.splitlines()
    assert first == "  packages: 2, installing" and "packages: 2, installed in" in second
    assert (tmp_path / "called").read_text().split()[:3] == ["-m", "pip", "install"]


def test_pip_install_failure_exits_1_and_shows_log(tmp_path: Path) -> None:
    run = install(tmp_path, "ERROR: no space left on device", 2)
    assert run.returncode == 1
    assert run.stderr.endswith("\nERROR: no space left on device\n")
    assert "Progress" not in run.stderr and "installed" not in run.stdout
