"""Results that depend on different inputs are not mixed in one folder."""

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
import typer

import benchmark_accuracy
import benchmark_active_learning as simulation
import benchmark_distill
import benchmark_overlapping
import benchmark_speed
from benchmark import ROOT, _convert, _Training
from benchmark_accuracy import accuracy
from benchmark_distill import distillation
from benchmark_labels import labels
from benchmark_overlapping import overlapping
from benchmark_speed import _Comparison, _prepared, recipes
from inputs import check_same, of_transformer


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    return write(tmp_path / "data", "Ann")


def write(data: Path, word: str) -> Path:
    for corpus in ("gmb", "wikigold"):
        (data / corpus).mkdir(parents=True, exist_ok=True)
        for part in ("train", "dev", "test"):
            sentences = (f"{word}{i} B-PER\nsleeps O\n\n" for i in range(3))
            (data / corpus / f"{part}.conll").write_text("".join(sentences))
    return data


def another(name: str) -> Any:
    return pytest.raises(typer.BadParameter, match=f"expected the {name} of the results")


def test_require_same_changed_content_raises(tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "train.txt").write_text("one")
    check_same(out, {"corpus": folder, "file": folder / "deeper" / "train.txt"})
    written = (out / "inputs.json").stat().st_ino
    check_same(out, {"corpus": folder})
    (folder / ".hidden").write_text("left out")
    check_same(out, {"corpus": folder})
    assert (out / "inputs.json").stat().st_ino == written  # not written again
    check_same(out, {"other": folder})
    (folder / "deeper" / "train.txt").write_text("two")
    with another("corpus"):
        check_same(out, {"corpus": folder})
    check_same(tmp_path / "new", {"corpus": folder})


def test_require_same_missing_input_raises_without_writing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gmb: expected the corpus gmb, got nothing"):
        check_same(tmp_path / "out", {"corpus gmb": tmp_path / "gmb"})
    assert not (tmp_path / "out").exists()


def test_of_transformer_returns_only_local_folder(tmp_path: Path) -> None:
    (tmp_path / "minilm").mkdir()
    assert of_transformer(str(tmp_path / "minilm")) == {"transformer minilm": tmp_path / "minilm"}
    assert not of_transformer("sentence-transformers/all-MiniLM-L6-v2")


def test_recipes_returns_existing_files_of_all_systems() -> None:
    found = recipes(benchmark_accuracy.SYSTEMS)
    names = ["config transformer", "config spacy_ner", "config char", "config cnn"]
    peers = ("eds_tagger", "eds_text_cnn", "flair_tagger", "flair_linear", "hugging_face")
    imported = ("spacy_pipeline", "system")
    assert {*found} == {*names, *(f"script {name}" for name in (*peers, *imported))}
    assert all(path.is_file() for path in found.values())


def test_recipes_includes_imported_scripts() -> None:
    system = next(s for s in benchmark_accuracy.SYSTEMS if s.script == "eds_text_cnn")
    scripts = ("eds_text_cnn", "eds_tagger", "spacy_pipeline", "system")
    assert {*recipes([system])} == {f"script {name}" for name in scripts}


def test_prepared_corpus_with_changed_source_raises(corpora: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (corpora / "gmb" / "dev.conll").write_text("no tag\n")
    with pytest.raises(ValueError, match=r"dev\.conll"):
        _convert(corpora / "gmb", out / "gmb")
    write(corpora, "Ann")  # repaired
    for _ in range(2):
        _prepared(corpora / "gmb", out)
        _prepared(out / "gmb", out)  # in place
        _prepared(out / "gmb", tmp_path / "copy")
    write(corpora, "Bob")
    with another("corpus gmb"):
        _prepared(corpora / "gmb", out)


def test_labels_writes_corpora_to_separate_folder(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark_labels.MIXES", {})
    monkeypatch.setattr("benchmark_labels._halve", lambda gmb: None)
    out = tmp_path / "out"
    labels(corpora, out)
    assert not (out / "gmb").exists() and (out / "labels" / "gmb").is_dir()


def test_training_changed_config_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    monkeypatch.setattr("benchmark._spacy", lambda command, log: trained.append(command))
    config = tmp_path / "char.cfg"
    config.write_text("[a]")
    run = _Training(tmp_path / "out", "gmb", config, "1e-3", "0", "minilm", 10, -1)
    assert run.trained() == run.trained() and len(trained) == 1
    best = run._replace(evaluate_every=5).trained()
    assert best.name == "model-best" and best.parent != run.trained().parent and len(trained) == 2
    config.write_text("[b]")
    with another("config char"):
        run.trained()


def test_comparison_changed_script_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "hugging_face.py"
    script.write_text("rate = 1")
    (tmp_path / "system.py").write_text("steps = 1")
    monkeypatch.setattr(benchmark_speed, "PEERS", tmp_path)
    comparison = _Comparison(tmp_path / "out", tmp_path, 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gmb_hugging_face_minilm_0.0002_0_10.trained").touch()
    train = ("hugging_face", Path("gmb"), "minilm", 10, 2e-4)
    comparison.trained(*train)
    script.write_text("rate = 2")
    with another("script hugging_face"):
        comparison.trained(*train)


def test_benchmark_commands_with_changed_input_raise(
    corpora: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Existing rows are not reused for other configs, teachers or corpora."""
    root, out = tmp_path / "root", tmp_path / "out"
    (root / "configs").mkdir(parents=True)
    for name in ("transformer", "cnn", "char", "spacy_ner"):
        (root / "configs" / f"{name}.cfg").write_text("a = 1")
    teacher = tmp_path / "teachers" / "gmb"
    teacher.mkdir(parents=True)
    gum = tmp_path / "gum"
    gum.mkdir()
    for part in ("train", "dev", "test"):
        (gum / f"{part}.jsonl").write_text("")
    for module in (benchmark_speed, benchmark_distill):
        monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(benchmark_overlapping, "CONFIG", root / "configs" / "transformer.cfg")
    monkeypatch.setattr(benchmark_overlapping, "SPANCAT", root / "configs" / "spacy_ner.cfg")
    monkeypatch.setattr(benchmark_accuracy._Runs, "best_rate", lambda *_: 1e-3)
    monkeypatch.setattr(benchmark_accuracy._Runs, "result", lambda *_: None)
    monkeypatch.setattr(benchmark_overlapping._SpanRuns, "result", lambda *_: None)
    monkeypatch.setattr(benchmark_distill._Runs, "measured", lambda *_: None)
    monkeypatch.setattr(benchmark_distill._Runs, "result", lambda *_: None)
    monkeypatch.setattr(benchmark_distill, "make_tenth", lambda corpus: None)
    monkeypatch.setattr(benchmark_distill, "table", lambda rows: "")
    out.mkdir()
    (out / "distillation.jsonl").touch()

    def run_accuracy() -> None:
        accuracy(corpora, out, corpora="gmb", only="cnn.cfg")

    def run_distillation() -> None:
        distillation(corpora, tmp_path / "teachers", out, "gmb", pool="wikigold", students="char")

    def run_overlapping() -> None:
        overlapping(gum, out, only="3 layers")

    for run in (run_accuracy, run_distillation, run_overlapping):
        run()
    assert not capsys.readouterr().out.strip()  # no table of no rows
    for run, changed, name in (
        (run_accuracy, root / "configs" / "cnn.cfg", "config cnn"),
        (run_distillation, root / "configs" / "char.cfg", "config char"),
        (run_overlapping, root / "configs" / "transformer.cfg", "config transformer"),
        (run_overlapping, gum / "test.jsonl", "corpus gum"),
        (run_distillation, teacher / "meta.json", "teacher of gmb"),
    ):
        before = changed.read_text() if changed.exists() else ""
        changed.write_text("a = 2")
        with another(name):
            run()
        changed.write_text(before)


def test_simulation_reuses_rows_and_raises_for_changed_config(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    config = tmp_path / "char.cfg"
    shipped = (ROOT / "configs" / "char.cfg").read_text()
    config.write_text(shipped)
    monkeypatch.setattr(simulation, "trained", lambda *_: spacy.blank("en"))
    monkeypatch.setattr(simulation, "f1", lambda *_: 50.0)
    monkeypatch.setattr(simulation, "table", lambda rows: "")
    monkeypatch.setattr(simulation, "plot", lambda rows, path: None)
    monkeypatch.setattr(simulation._Simulation, "_ask", lambda *_: [])
    file = out / "active_learning.jsonl"

    def run(rounds: int = 0, **settings: int) -> list[dict[str, object]]:
        settings = {"sentences": 1, "questions": 5, **settings}
        simulation.active_learning(
            corpora, out, "gmb", strategies="entropy", rounds=rounds, config=config, **settings
        )
        return list(srsly.read_jsonl(file))

    rows = run()
    assert [row["strategy"] for row in rows] == ["all", "entropy"]
    assert "transformer" not in rows[0]  # char.cfg has none
    assert run() == rows
    assert len(run(sentences=2)) == 4 and len(run(questions=6)) == 6
    assert len(run(rounds=1)) == 7
    srsly.write_jsonl(file, [{k: v for k, v in row.items() if k != "asked"} for row in rows])
    with pytest.raises(typer.BadParameter, match="expected what entropy asked in round 0"):
        run(rounds=1)
    config.write_text(f"{shipped}\n# another")
    with another("config char"):
        run()


def test_simulation_retrains_incompletely_saved_pipeline(
    tmp_path: Path, corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _convert(corpora / "gmb", tmp_path / "gmb")
    key = {"corpus": "gmb", "steps": 1, "batch": 9, "repeats": 3, "begin": 1, "questions": 5}
    run = simulation._Simulation(tmp_path, key, simulation._read_config(simulation.CONFIG, "-"))

    class Interrupted:
        def to_disk(self, path: Path) -> None:
            path.mkdir()
            raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "trained", lambda *_: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run._begun([], 0)
    monkeypatch.setattr(simulation, "trained", lambda *_: spacy.blank("vi"))
    assert run._begun([], 0).lang == "vi"
