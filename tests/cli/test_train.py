"""The command `train`: what it prints, and how mistakes end it."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, DocBin
from typer.testing import CliRunner

from helpers import LEARNED
from spacy_crf_ner import extras
from spacy_crf_ner.cli import app
from spacy_crf_ner.docbin import read_docbin
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.training import run
from training.conftest import DEV, SMALL

runner = CliRunner()
TINY = ["--config", "cnn", "--gpu", "-1", "--steps", "2"]
TINY += [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
Row = tuple[str, list[tuple[int, int, str]]]


def write(path: Path, rows: list[Row]) -> Path:
    """Write an export of doccano."""
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text, "label": spans}) for text, spans in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def numbered(rows: list[Row], times: int = 1) -> list[Row]:
    return [(f"{text} {i}", spans) for i in range(times) for text, spans in rows]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a corpus of two parts and one without parts."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "corpus" / "train.jsonl", LEARNED)
    write(tmp_path / "corpus" / "dev.jsonl", DEV)
    write(tmp_path / "one.jsonl", numbered([*LEARNED, *DEV], 4))
    return tmp_path


def train(*words: str) -> Any:
    return runner.invoke(app, ["train", *words])


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop before the training, as in ranks other than 0."""
    monkeypatch.setattr(run.loop, "train", lambda *_, **__: None)


def test_train_prints_table_scores_calibration_and_next_step(folder: Path) -> None:
    result = train("corpus", "out", *TINY)
    assert result.exit_code == 0, result.output
    assert re.search(r"^E +# +LOSS NER +ENTS_F", result.stdout, re.MULTILINE)
    nlp = spacy.load(folder / "out" / "model-best")
    scores = nlp.meta["performance"]
    rows = [[*map(str.strip, line.split("│"))][1:-1] for line in result.stdout.splitlines()]
    for label in ("PER", "LOC"):
        shown = [f"{100 * scores['ents_per_type'][label][each]:.1f}" for each in "prf"]
        assert [label, *shown] in rows
    entities = recognizer(nlp).calibrated_on
    assert result.stdout.splitlines()[-4:-2] == [
        f"F1 on dev: {100 * scores['ents_f']:.1f}",
        f"Confidences: calibrated on {entities} entities, too few to trust them: 200 or more are "
        "better, see train --folds",
    ]
    assert re.search(r"^Time: \d+\.\d minutes\nPipeline: out/model-best$", result.stdout, re.M)
    said = result.stderr.splitlines()
    assert said[0] == "Device: CPU" and said[1].startswith("Training: 2 steps, 2.0 epochs")
    assert said[2] == "Warnings in the corpus: 2."
    assert said[5] == "To see where: spacy-crf-ner check corpus --config cnn"
    assert said[-1] == 'Next: spacy-crf-ner predict out/model-best "A text."'
    checked = runner.invoke(app, ["check", "corpus", "--config", "cnn"])
    assert checked.exit_code == 0 and "Warnings: 2" in checked.output
    for each in said[3:5]:
        assert each.strip() in " ".join(checked.output.split())


def test_warning_is_printed_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one of each step, and of the calibration of each evaluation."""
    vocab = spacy.blank("en").vocab
    for part in ("train", "dev"):
        words = [["co", "uldn", part, str(i)] for i in range(4)]  # "couldn" is one token
        docs = [Doc(vocab, each, [False, True, True, False], ents=["B-PER", "O", "B-LOC", "O"])
                for each in words]  # fmt: skip
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    result = train(".", "out", *TINY, "--training.eval_frequency", "1")
    assert result.exit_code == 0, result.output
    assert "Warning: [ner] 4 of 8 gold entities do not align" in result.stderr
    said = result.stderr + caplog.text
    assert said.count("some gold entities do not align with the predicted tokens") == 1


def test_corpus_without_parts_is_split_and_its_test_part_kept(folder: Path) -> None:
    result = train("one.jsonl", "out", *TINY)
    assert result.exit_code == 0, result.output
    assert "(26 train, 3 dev, 3 test; seed 0)" in result.stderr
    check = "spacy-crf-ner convert one.jsonl corpus && spacy-crf-ner check corpus --config cnn"
    assert check in result.stderr
    assert result.stderr.endswith(
        "Next: spacy-crf-ner report out/model-best out/test.spacy report\n"
    )
    # The parts are those of `convert`.
    assert runner.invoke(app, ["convert", "one.jsonl", "parts"]).exit_code == 0
    vocab = spacy.blank("en").vocab
    kept, test = (
        [doc.text for doc in read_docbin(Path(name, "test.spacy"), vocab)[1]]
        for name in ("out", "parts")
    )
    assert kept == test and len(kept) == 3


def test_command_that_shows_warnings_has_what_the_corpus_is_read_with(
    folder: Path, untrained: None
) -> None:
    words = ["--config", "cnn", "--nlp.lang", "de"]
    (folder / "one.jsonl").rename(folder / "my own.jsonl")
    check = "spacy-crf-ner convert 'my own.jsonl' corpus --lang de && spacy-crf-ner check corpus"
    assert (
        f"\nTo see where: {check} --config cnn --lang de\n"
        in train("my own.jsonl", "out", *words).stderr
    )


def test_test_part_of_a_corpus_is_the_next_to_read(folder: Path) -> None:
    write(folder / "corpus" / "test.jsonl", DEV)
    result = train("corpus", "out", *TINY)
    assert result.exit_code == 0, result.output
    report = "spacy-crf-ner report out/model-best corpus/test.jsonl report"
    assert result.stderr.endswith(f"Next: {report}\n")
    assert not (folder / "out" / "test.spacy").exists()


def test_folds_print_pooled_scores_and_calibration_error(folder: Path) -> None:
    result = train("corpus", "out", *TINY, "--folds", "2")
    assert result.exit_code == 0, result.output
    scores = spacy.load(folder / "out" / "model-best").meta["performance"]
    assert f"F1 on 2 folds: {100 * scores['ents_f']:.1f}\n" in result.stdout
    assert "Calibration error (ECE) on 2 folds: " in result.stdout
    assert "Confidences: calibrated on 8 entities" in result.stdout
    assert "Training without fold 2 of 2" in result.stderr
    assert [path.name for path in (folder / "out").iterdir()] == ["model-best"]


def test_resume_seed_and_no_calibration_are_passed_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def record(config: Any, output: Path, **options: Any) -> None:
        settings = config["training"]
        given.append((settings["seed"], settings["before_to_disk"], output, options))

    monkeypatch.setattr(run.loop, "train", record)
    words = "--resume", "--seed", "3", "--timeout", "2", "--no-calibrate"
    assert train("corpus", "out", *TINY, *words).exit_code == 0
    options = {"gpu_id": -1, "resume": True, "timeout": 2.0}
    assert given == [(3, None, Path("out"), options)]


def test_device_is_a_gpu_if_there_is_one(
    folder: Path, untrained: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(run, "choose_gpu", lambda gpu: 1 if gpu == "auto" else -1)
    monkeypatch.setattr(run, "use_gpu", used.append)
    monkeypatch.setattr(run, "device_name", lambda gpu_id: f"GPU {gpu_id}, H200")
    assert "Device: GPU 1, H200\n" in train("corpus", "out", "--config", "cnn").stderr
    assert used == [1]


# Mistakes


def one_error(*words: str) -> str:
    """Train, and return the only line of the error."""
    result = train(*words)
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output
    assert "Traceback" not in result.output
    *others, error = result.stderr.splitlines()
    assert error.startswith("Error: ") and not any("Error" in each for each in others)
    assert not Path("out").exists()
    return str(error)


# Mistakes that beginners make.
MISTAKES: list[tuple[list[Row], list[str], str]] = [
    # a label of dev is misspelled
    (
        [],
        [],
        r"Labels of dev that do not occur in train: 1\. dev, doc 0: 'Anna'\. Split the corpus",
    ),
    # offsets are one too small
    ([("Anna came", [(0, 3, "PER")])], [], r"off.jsonl, line 33: .* got 'Ann' \(PER, 0:3\)"),
    ([], ["--gpu", "0"], "expected a GPU with the number 0, got none that can be used"),
    ([], ["versions"], r"transformers 4\.1\.0 is installed, but spacy-crf-ner needs transformers"),
    ([], ["few.jsonl"], "expected at least 3 docs to split into train, dev, test, got 1"),
    # before the transformer is looked for
    (
        [],
        ["missing", "--config", "transformer", "--transformer", "no/such"],
        r"missing does not exist\. Correct the name",
    ),
    # entities overlap
    (
        [("Anna came", [(0, 4, "PER"), (0, 9, "LOC")])],
        [],
        r"off.jsonl, line 33: .*without a common token.* or keep both with --spans-key\. These are "
        r"options of convert: spacy-crf-ner convert off.jsonl FOLDER\.",
    ),
    # JSON is not closed
    ([], ["broken.jsonl"], "broken.jsonl, line 1: expected JSON, got"),
]


@pytest.mark.parametrize("rows, words, says", MISTAKES)
def test_common_mistakes_print_one_line(
    rows: list[Row],
    words: list[str],
    says: str,
    folder: Path,
    untrained: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(folder / "corpus" / "dev.jsonl", [("Anna met Rome", [(0, 4, "PRE")])])
    write(folder / "off.jsonl", [*numbered([*LEARNED, *DEV], 4), *rows])
    write(folder / "few.jsonl", LEARNED[:1])
    (folder / "broken.jsonl").write_text('{"text": "Anna')
    corpus = "off.jsonl" if rows else "corpus"
    if words == ["versions"]:
        of_package = metadata.version
        lower = {"transformers": "4.1.0"}
        monkeypatch.setattr(extras, "version", lambda name: lower.get(name) or of_package(name))
        words = []
    if words and not words[0].startswith("--"):
        corpus, *words = words
    config = [] if "--config" in words else ["--config", "cnn"]
    assert re.search(says, one_error(corpus, "out", *config, *words))


def test_unknown_option_suggests_another(folder: Path, untrained: None) -> None:
    error = one_error("corpus", "out", "--config", "cnn", "--step", "3")
    assert re.search(r"No such option.*--step.* Did you mean --steps\?", error)


def test_options_before_the_corpus_print_one_line(folder: Path) -> None:
    error = one_error("--training.dropout", "0.1", "corpus", "out")
    assert "--training.dropout is in place of CORPUS. Write CORPUS and OUTPUT first." in error


def test_option_in_place_of_the_output_prints_one_line(folder: Path, untrained: None) -> None:
    error = one_error("corpus", "--training.dropout=0.2", "--config", "cnn")
    assert "--training.dropout=0.2 is in place of OUTPUT. Write CORPUS and OUTPUT first." in error
    assert not [*folder.glob("--*")]


@pytest.mark.parametrize("part", ["train", "dev"])
def test_part_without_entities_or_docs_prints_one_line(
    part: str, folder: Path, untrained: None
) -> None:
    path = folder / "corpus" / f"{part}.jsonl"
    write(path, [("it came", []), ("it met it", [])])
    error = one_error("corpus", "out", *TINY)
    assert f"The corpus has errors. No doc has an entity in {part}. " in error
    assert "spacy-crf-ner check corpus --config cnn" in error
    path.write_text("")
    assert f"corpus/{part}.jsonl: expected a corpus, got no text" in one_error(
        "corpus", "out", *TINY
    )


def test_config_without_corpora_and_one_that_is_not_utf8_print_one_line(folder: Path) -> None:
    assert "[corpora.train] path: expected a .spacy file" in one_error("-", "out", *TINY)
    error = one_error("-", "out", *TINY, "--paths.train", "train.spacy")
    assert "[corpora.dev] path: expected a .spacy file" in error
    (folder / "own.cfg").write_bytes(b"[paths]\ntrain = \xff\xfe\n")
    assert "a file that is not UTF-8" in one_error("corpus", "out", "--config", "own.cfg")
