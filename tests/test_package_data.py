"""The distribution: files that are no Python modules are in it too."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
DRAW = """
import sys
import spacy_crf_ner
from spacy_crf_ner.explain.html import trellis_page
from spacy_crf_ner.report.html import review_page
assert spacy_crf_ner.__file__.startswith(sys.argv[1]), spacy_crf_ner.__file__
keys = ("text", "label", "tokens", "tags", "path", "backpointers", "start", "labelings", "labels")
nothing = {**dict.fromkeys(keys, []), "component": "", "calibration": ""}
assert trellis_page(nothing).count("</style>") == 1
assert review_page([], {}, [], "", "").count("</script>") == 2
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel of the package has, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "spacy_crf_ner", folder / "spacy_crf_ner", ignore=ignored)
    run = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(run, cwd=folder, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    ZipFile(path).extractall(folder / "unpacked")
    return folder / "unpacked"


def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT)
        for path in (ROOT / "spacy_crf_ner").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {path.relative_to(wheel) for path in wheel.rglob("*") if path.is_file()}
    assert len({path.suffix for path in expected}) > 3
    assert expected <= found
    configs = [path for path in (ROOT / "configs").iterdir() if path.suffix == ".cfg"]
    assert len(configs) > 3
    for path in configs:
        packed = wheel / "spacy_crf_ner" / "configs" / path.name
        assert packed.read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_wheel_renders_html_pages(wheel: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", DRAW, str(wheel)], cwd=wheel, check=True, capture_output=True
    )
