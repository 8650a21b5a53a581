"""A missing package is an error that names the extra; other import errors are unchanged."""

import configparser
import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import spacy
import thinc

from helpers import blocking
from spacy_crf_ner import extras

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", ["torch", "transformers.models"])
def test_required_with_missing_package_of_extra_raises_value_error(package: str) -> None:
    with (
        pytest.raises(ValueError, match=r'pip install "spacy-crf-ner\[train\]"'),
        extras.required("train"),
    ):
        raise ModuleNotFoundError(name=package)


@pytest.mark.parametrize("package", ["torchvision", None])
def test_required_with_other_missing_package_keeps_import_error(package: str) -> None:
    with pytest.raises(ModuleNotFoundError), extras.required("train"):
        raise ModuleNotFoundError(name=package)


def test_require_with_any_missing_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.require("annotate")
    for package in ("filelock", "pandas", "pyarrow"):
        with monkeypatch.context() as context:
            context.setitem(sys.modules, package, None)
            with pytest.raises(ValueError, match=f"the package {package}, .* 'annotate'"):
                extras.require("annotate")


def test_packages_match_extras_of_pyproject() -> None:
    named = {"pytorch-crf": "torchcrf"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for extra, packages in extras.PACKAGES.items():
        lines = project["optional-dependencies"][extra]
        names = [re.split("[<>=]", line)[0] for line in lines if not line.startswith("spacy-crf")]
        assert packages == {named.get(name, name) for name in names}, extra


def test_commands_without_extras_print_error_without_traceback(tmp_path: Path) -> None:
    packages = sorted({*chain.from_iterable(extras.PACKAGES.values())})
    (tmp_path / "sitecustomize.py").write_text(blocking(packages))
    for arguments, told in (
        (["convert", "nothing.txt", "out"], "nothing.txt"),
        (["annotate", "model", "nothing.txt", "out"], 'pip install "spacy-crf-ner[annotate]"'),
    ):
        command = [sys.executable, "-m", "spacy_crf_ner", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 1 and told in run.stderr, run.stderr
        assert "Traceback" not in run.stderr


def test_registered_extras_match_entry_points() -> None:
    setup = configparser.ConfigParser()
    setup.optionxform = str  # type: ignore[assignment,method-assign]
    setup.read(ROOT / "setup.cfg", "utf-8")
    text = "\n".join(setup["options.entry_points"].values())
    named = {
        line.split(":")[1].strip() for line in text.splitlines() if "spacy_crf_ner.extras:" in line
    }
    assert named == set(extras.REGISTERED)
    for name in named:
        assert getattr(extras, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        extras.other  # noqa: B018


def test_versions_returns_installed_versions_or_none() -> None:
    found = extras.versions(["spacy", "no-such-package", "thinc"])
    assert found == {
        "spacy": spacy.__version__,
        "no-such-package": None,
        "thinc": thinc.__version__,
    }
