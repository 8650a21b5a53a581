"""What importing the package costs, and where it crosses between thinc and torch."""

import subprocess
import sys
from ast import literal_eval
from pathlib import Path

from typer.main import get_command

from spacy_crf_ner.cli import app

PACKAGE_DIR = Path(__file__).parents[1] / "spacy_crf_ner"


# Steps of one process, and the packages that are not imported after them.
ALL = {"torch", "transformers", "spacy", "thinc", "numpy", "scipy"}
STEPS = [
    ("import spacy_crf_ner", ALL),
    ("from spacy_crf_ner.cli import app\ntry: app(['--help'])\nexcept SystemExit: pass", ALL),
    *(
        (f"try: app(['{name}', '-h'])\nexcept SystemExit as end: assert end.code == 0", ALL)
        for name in get_command(app).commands
    ),
    ("import spacy_crf_ner.tags, spacy_crf_ner.crf", ALL - {"numpy"}),
    ("import spacy_crf_ner.pipeline.crf_ner", {"transformers"}),
    ("import spacy_crf_ner.pipeline.load", {"transformers"}),
    *(
        (f"import spacy_crf_ner.{name}", {"transformers", "scipy"})
        for name in ("active_learning", "annotate", "check", "data", "evaluation", "report.html")
    ),
]


def test_imports_load_no_package_before_it_is_needed() -> None:
    """To import spaCy and torch takes seconds."""
    code = "import sys, io\nstdout, found = sys.stdout, []\nsys.stdout = io.StringIO()\n"
    for step, _ in STEPS:
        code += f"{step}\nfound.append({{*sys.modules}} & {ALL})\n"
    code += "print(found, file=stdout)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for (step, absent), loaded in zip(STEPS, literal_eval(done.stdout), strict=True):
        assert not loaded & absent, step


def test_only_one_module_converts_between_thinc_and_torch() -> None:
    found = {
        path.relative_to(PACKAGE_DIR).as_posix()
        for path in PACKAGE_DIR.rglob("*.py")
        if any(name in path.read_text("utf-8") for name in ("xp2torch", "torch2xp"))
    }
    assert found == {"ml/arrays.py"}
