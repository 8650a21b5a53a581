"""What needs no torch, on any version of Python: `make test-runtime` runs it without torch."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language
from typer.main import get_command
from typer.testing import CliRunner

from spacy_crf_ner.cli import app


@pytest.fixture(scope="module")
def folder() -> Path:
    """The exported pipelines that another environment has made."""
    if "SPACY_CRF_NER_EXPORTED" not in os.environ:
        pytest.skip("SPACY_CRF_NER_EXPORTED names no folder of exported pipelines")
    assert importlib.util.find_spec("torch") is None
    return Path(os.environ["SPACY_CRF_NER_EXPORTED"])


def found(nlp: Language, texts: list[str]) -> list[list[list[Any]]]:
    """The entities of each text, and overlapping ones too, with their probabilities."""
    result = []
    for doc in nlp.pipe(texts):
        spans = [[ent.start, ent.end, ent.label_, ent._.confidence] for ent in doc.ents]
        for group in doc.spans.values():
            rows = zip(group, group.attrs["scores"].tolist(), strict=True)
            spans += [[span.start, span.end, span.label_, p] for span, p in rows]
        result.append(spans)
    return result


@pytest.mark.parametrize("name", ["char", "transformer", "overlapping"])
def test_exported_pipeline_predicts_as_where_it_was_made(folder: Path, name: str) -> None:
    expected = srsly.read_json(folder / "expected.json")
    docs = found(spacy.load(folder / name), expected["texts"])
    for spans, right in zip(docs, expected["found"][name], strict=True):
        assert [span[:3] for span in spans] == [span[:3] for span in right]
        assert [span[3] for span in spans] == pytest.approx([span[3] for span in right], abs=1e-4)
    assert "torch" not in sys.modules


def test_predict_command_prints_entities_of_an_exported_pipeline(folder: Path) -> None:
    result = CliRunner().invoke(app, ["predict", str(folder / "char"), "Tim Cook visited Hanoi."])
    assert result.exit_code == 0, result.output
    assert "PERSON" in result.output and "GPE" in result.output


@pytest.mark.parametrize("command", get_command(app).commands)
def test_command_help_needs_no_torch(folder: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output


def test_info_shows_what_is_not_installed(folder: Path) -> None:
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0, result.output
    rows = dict(line.split(maxsplit=1) for line in result.output.splitlines() if "  " in line)
    assert rows["torch"] == "not installed" and rows["spacy"] == spacy.__version__
    assert '".[train]"' in " ".join(result.output.split())


def test_train_names_the_extra(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "corpus", str(tmp_path / "out")])
    assert result.exit_code == 1 and '".[train]"' in result.output
