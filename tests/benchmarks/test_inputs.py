"""Results that depend on different inputs are not mixed in one folder."""

from pathlib import Path

import pytest
import srsly
import typer

import benchmark_active_learning as simulation
from benchmark import ROOT
from benchmark_accuracy import SYSTEMS, accuracy
from benchmark_active_learning import active_learning
from benchmark_speed import recipes
from inputs import require_same


def test_another_input_of_the_same_name_is_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "deeper").mkdir(parents=True)
    (corpus / "deeper" / "train.txt").write_text("one")
    out = tmp_path / "out"
    require_same(out, {"corpus": corpus, "sentences": 100})
    require_same(out, {"corpus": corpus})
    require_same(out, {"other": corpus, "sentences": 100})
    with pytest.raises(typer.BadParameter, match="sentences of its results, 100, got 20"):
        require_same(out, {"sentences": 20})
    (corpus / "deeper" / "train.txt").write_text("two")
    with pytest.raises(typer.BadParameter, match="expected the corpus"):
        require_same(out, {"corpus": corpus})
    require_same(tmp_path / "new", {"corpus": corpus})


def test_each_system_has_a_file_that_says_how_it_is_trained() -> None:
    found = recipes(SYSTEMS)
    assert {*found} == {
        "transformer.cfg",
        "spacy_ner.cfg",
        "char.cfg",
        "cnn.cfg",
        "eds_tagger.py",
        "eds_text_cnn.py",
        "flair_tagger.py",
        "hugging_face.py",
    }
    assert all(path.is_file() for path in found.values())


def corpora(folder: Path, word: str) -> Path:
    (folder / "gmb").mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev", "test"):
        (folder / "gmb" / f"{part}.conll").write_text(f"{word} B-PER\nsleeps O\n\n" * 3)
    return folder


def test_an_accuracy_folder_is_of_one_corpus_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = corpora(tmp_path / "data", "Ann"), tmp_path / "out"
    accuracy(data, out, corpora="gmb", only="nothing has this name")
    assert not capsys.readouterr().out  # no table of no rows
    corpora(data, "Bob")
    with pytest.raises(typer.BadParameter, match="expected the gmb"):
        accuracy(data, out, corpora="gmb", only="nothing has this name")


def test_a_learning_curve_is_of_one_start_and_one_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = corpora(tmp_path / "data", "Ann"), tmp_path / "out"
    config = tmp_path / "char.cfg"
    shipped = (ROOT / "configs" / "char.cfg").read_text()
    config.write_text(shipped)
    monkeypatch.setattr(simulation, "trained", lambda *_: None)
    monkeypatch.setattr(simulation, "f1", lambda *_: 50.0)
    monkeypatch.setattr(simulation, "table", lambda rows: "")
    monkeypatch.setattr(simulation, "plot", lambda rows, path: None)

    def run(**settings: int) -> list[dict[str, object]]:
        settings = {"sentences": 1, "questions": 5, **settings}
        active_learning(data, out, "gmb", strategies="", rounds=-1, config=config, **settings)
        return list(srsly.read_jsonl(out / "runs.jsonl"))

    (row,) = run()
    assert "transformer" not in row  # char.cfg has none
    assert run() == [row]
    for settings in ({"sentences": 2}, {"questions": 6}):
        with pytest.raises(typer.BadParameter, match=next(iter(settings))):
            run(**settings)
    config.write_text(f"{shipped}\n# another")
    with pytest.raises(typer.BadParameter, match=r"char\.cfg"):
        run()
