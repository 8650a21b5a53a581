"""A missing package is an error that names the extra; other import errors are unchanged."""

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
from spacy_crf_ner.cli import startup

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", ["torch", "transformers.models"])
def test_required_with_missing_package_of_extra_raises_value_error(package: str) -> None:
    with (
        pytest.raises(ValueError, match=r'pip install .* "\.\[train\]"'),
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
            with pytest.raises(ValueError, match=f"The package {package} .* 'annotate'"):
                extras.require("annotate")


def test_packages_match_extras_of_pyproject() -> None:
    named = {"pytorch-crf": "torchcrf"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]
    for extra, packages in extras.PACKAGES.items():
        names = {re.split("[<>=]", line)[0] for line in optional[extra]}
        if "spacy-crf-ner[calibrate]" in names:
            names |= {re.split("[<>=]", line)[0] for line in optional["calibrate"]}
        names = {name for name in names if not name.startswith("spacy-crf-ner")}
        assert packages == {named.get(name, name) for name in names}, extra


def test_nothing_advises_to_install_the_project_from_an_index() -> None:
    """It is on none, where others could take its name."""
    folders = "spacy_crf_ner", "docs", "examples", ".github", ".ci"
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "project.yml"]
    files = [path for path in files if path.suffix != ".pyc"]
    texts = {path: path.read_text("utf-8", errors="ignore") for path in files}
    assert any("pip install -c constraints.txt" in text for text in texts.values())
    for path, text in texts.items():
        assert not re.search(r"pip install[^\n]*\bspacy[-_]crf[-_]ner\b", text), path


def test_commands_without_extras_print_error_without_traceback(tmp_path: Path) -> None:
    packages = sorted({*chain.from_iterable(extras.PACKAGES.values())})
    (tmp_path / "sitecustomize.py").write_text(blocking(packages))
    for arguments, told in (
        (["convert", "nothing.txt", "out"], "nothing.txt"),
        (["predict", "model", ".", "--output", "out"], '".[annotate]"'),
        (["serve", "model"], '".[serve]"'),
    ):
        command = [sys.executable, "-m", "spacy_crf_ner", *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 1 and told in run.stderr, run.stderr
        assert "Traceback" not in run.stderr


LOAD_ALL = """
import spacy
from importlib.metadata import entry_points

for group in ("spacy_architectures", "spacy_callbacks", "spacy_misc", "spacy_readers",
              "spacy_scorers", "thinc_optimizers"):
    registry = getattr(spacy.registry, group.split("_")[1])
    for point in entry_points(group=group):
        if point.value.startswith("spacy_crf_ner."):
            try:
                registry.get(point.name)
                print("loaded", point.value)
            except ValueError as error:
                print(type(error).__name__, point.value, error)
"""


def test_registered_functions_that_need_torch_name_the_extra_and_others_load(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(blocking(sorted(extras.PACKAGES["train"])))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", LOAD_ALL]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    failed = [line for line in lines if not line.startswith("loaded")]
    assert len(failed) < len(lines)
    assert all(line.startswith("InputError") for line in failed), failed
    assert all('".[train]"' in line for line in failed), failed
    modules = {line.split()[1].split(":")[0] + ":" for line in failed}
    assert modules == {*startup.WITH_TORCH}


def test_versions_returns_installed_versions_or_none() -> None:
    found = extras.versions(["spacy", "no-such-package", "thinc"])
    assert found == {
        "spacy": spacy.__version__,
        "no-such-package": None,
        "thinc": thinc.__version__,
    }
