"""What importing the package costs, and where it crosses between thinc and torch."""

import subprocess
import sys
from pathlib import Path
from typing import Set

import pytest

PACKAGE_DIR = Path(__file__).parents[1] / "spacy_crf_ner"


@pytest.mark.parametrize(
    "module, absent",
    [
        ("spacy_crf_ner", {"torch", "transformers", "spacy", "thinc"}),
        ("spacy_crf_ner.tags", {"torch", "transformers", "spacy", "thinc"}),
        ("spacy_crf_ner.crf", {"torch", "transformers", "spacy", "thinc"}),
        ("spacy_crf_ner.pipeline.crf_ner", {"transformers", "spacy_crf_ner.cli"}),
        ("spacy_crf_ner.pipeline.load", {"transformers"}),
    ],
)
def test_importing_is_cheap(module: str, absent: Set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert module in loaded
    assert not loaded & absent


def test_only_the_torch_layer_converts_between_thinc_and_torch() -> None:
    found = {
        path.relative_to(PACKAGE_DIR).as_posix()
        for path in PACKAGE_DIR.rglob("*.py")
        if any(name in path.read_text("utf-8") for name in ("xp2torch", "torch2xp"))
    }
    assert found == {"ml/torch_layer.py"}
