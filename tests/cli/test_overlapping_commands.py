"""The commands report, calibrate and promise for a pipeline whose entities overlap."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.vocab import Vocab
from typer.testing import CliRunner

from pipelines import TOK2VEC, train
from spacy_crf_ner.cli import app

WORDS = ["the", "king", "of", "France", "<b>met</b>", "Oslo"]
LEARNED = [(0, 4, "PER"), (3, 4, "LOC"), (5, 6, "LOC")]
GOLD = [(0, 4, "PER"), (0, 2, "PER"), (3, 4, "ORG"), (5, 6, "LOC")]


@pytest.fixture(scope="module")
def folder(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained pipeline, `model`, and gold docs, `dev.spacy`."""

    def annotated(vocab: Vocab, spans: list[tuple[int, int, str]]) -> Doc:
        doc = Doc(vocab, words=WORDS)
        doc.spans["sc"] = [Span(doc, *span) for span in spans]
        return doc

    def make() -> Language:
        nlp = spacy.blank("en")
        config = {"model": {"hidden_width": 16, "tok2vec": TOK2VEC}, "overlap": True}
        nlp.add_pipe("crf_ner", name="ner", config=config).add_label("ORG")  # type: ignore[attr-defined]
        train(nlp, [Example(Doc(nlp.vocab, words=WORDS), annotated(nlp.vocab, LEARNED))], steps=60)
        doc = nlp(Doc(nlp.vocab, words=WORDS))
        assert [(span.start, span.end, span.label_) for span in doc.spans["sc"]] == LEARNED
        return nlp

    root = tmp_path_factory.mktemp("overlapping")
    shutil.copytree(shared("cli-overlapping", make), root / "model")
    DocBin(docs=[annotated(Vocab(), GOLD)] * 4).to_disk(root / "dev.spacy")
    return root


def run(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.slow
def test_report_overlapping_entities_writes_metrics(folder: Path, tmp_path: Path) -> None:
    model, dev = folder / "model", folder / "dev.spacy"
    code, output = run("report", model, dev, tmp_path, "--compare", model, "--component", "ner")
    assert code == 0, output
    figures = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (figures["gold"], figures["predicted"]) == (16, 12)
    micro = figures["matching"]["strict"]["micro"]
    assert (micro["precision"], micro["recall"]) == (pytest.approx(2 / 3), 0.5)
    assert figures["errors"]["counts"]["wrong type"] == figures["errors"]["counts"]["missed"] == 4
    assert figures["nesting"]["micro"]["lost"] == 4
    assert figures["comparison"]["difference"]["micro"]["f1"]["difference"] == 0.0
    html = (tmp_path / "documents.html").read_text(encoding="utf-8")
    assert "<b>" not in html and html.count("&lt;b&gt;met&lt;/b&gt;") == 4 * (3 + 1)  # and as data
    assert html.count('article class="differs"') == 4


def test_report_flat_pipeline_with_gold_spans_prints_error(folder: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("ner").add_label("PER")  # type: ignore[attr-defined]
    nlp.initialize()
    nlp.to_disk(tmp_path / "flat")
    code, output = run("report", tmp_path / "flat", folder / "dev.spacy", tmp_path / "out")
    assert code == 1 and "Use a corpus with annotation in doc.ents." in output


def test_calibrate_overlapping_entities_saves_pipeline(folder: Path, tmp_path: Path) -> None:
    model, dev = folder / "model", folder / "dev.spacy"
    code, output = run("calibrate", model, dev, tmp_path / "new", "--f-beta", "1")
    assert code == 0, output
    assert "Entities: 12; 0 were left out" in output
    nlp = spacy.load(tmp_path / "new")
    pipe: Any = nlp.get_pipe("ner")
    assert pipe.temperature > 1.0 and pipe.decode == "max_expected_f"


def test_promise_fit_overlapping_prints_error(folder: Path, tmp_path: Path) -> None:
    arguments = (folder / "model", folder / "dev.spacy", tmp_path / "new", "--recall", "0.9")
    code, output = run("promise", "fit", *arguments)
    assert code == 1 and not (tmp_path / "new").exists()
    (error,) = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert error == (
        "Error: [ner] Nothing can be promised of entities that overlap. Expected overlap = false, "
        "got true. Train a pipeline without overlap."
    )
