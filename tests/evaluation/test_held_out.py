"""Guarantees are not fitted to documents that a pipeline has seen in its training."""

from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from typer.testing import CliRunner, Result

from pipelines import make_examples, small, train
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation import fit_guarantees as fitting
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.guarantees import guarantees
from spacy_crf_ner.evaluation.held_out import new_examples, seen_in_training
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.lookup import recognizer

pytestmark = pytest.mark.filterwarnings("ignore:.*expected a best temperature")


def written(nlp: Language, part: str, n: int) -> list[Example]:
    """Documents of one part, each with two sentences."""
    texts = [f"Bonn came to the {part} number {i}. It was day {i} of {part}." for i in range(n)]
    return make_examples(nlp, [(text, [(0, 4, "LOC")]) for text in texts])


@pytest.fixture(scope="module")
def model(shared):
    """A pipeline that was trained on 15 documents, and evaluated on 10 meanwhile."""

    def make() -> Language:
        nlp = small()
        examples = written(nlp, "train", 15)
        train(nlp, examples, steps=10)
        nlp.evaluate(written(nlp, "dev", 10))
        nlp.update(examples, sgd=nlp.resume_training())
        return nlp

    return Path(shared("held_out", make))


@pytest.fixture
def nlp(model, monkeypatch):
    monkeypatch.setattr(fitting, "HALVES", 2)
    return spacy.load(model)


def forget(nlp: Language) -> None:
    """Make it a pipeline that was saved before hashes were kept."""
    recognizer(nlp).cfg["seen"] = {"is_complete": False, "train": "", "dev": ""}


def test_guarantee_leaves_out_documents_of_train_and_dev(nlp):
    examples = [*written(nlp, "train", 15), *written(nlp, "new", 40), *written(nlp, "dev", 10)]
    message = (
        r"25 of 65 documents are left out, .*: 15 in training, and 10 in the evaluations or the "
        r"calibration that followed \(document 1, 2, 3, 4, 5, ...; the first is 'Bonn came to the "
        r"train number 0\..*40 are left\."
    )
    with pytest.warns(UserWarning, match=message):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5))
    found = guarantees(nlp)["recall"]
    assert found["documents"] == 40
    assert (found["compared_with"], found["counts_dev"]) == (["train", "dev"], False)
    with pytest.warns(UserWarning, match="15 of 65 .* 15 in training .document"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5, count_dev=True))
    found = guarantees(nlp)["recall"]
    assert found["documents"] == 50
    assert (found["compared_with"], found["counts_dev"]) == (["train"], True)


def test_promise_leaves_out_documents_of_the_calibration(nlp):
    given = written(nlp, "given", 5)
    calibrate(nlp, given)
    with pytest.warns(UserWarning, match=r"5 of 25 documents are left out"):
        new, _ = new_examples(
            nlp, "crf_ner", [*given, *written(nlp, "new", 20)], Targets(recall=0.5)
        )
    assert {eg.text for eg in new} == {eg.text for eg in written(nlp, "new", 20)}


def test_guarantee_on_documents_of_train_alone_raises_and_changes_nothing(nlp):
    before = recognizer(nlp).cfg["guarantees"], recognizer(nlp).spans_key
    for part, stated in (("train", {"held_out": True}), ("train", {}), ("dev", {})):
        with pytest.raises(InputError, match=r"0 are left\. Use new ones\. Documents of"):
            fit_guarantees(nlp, "crf_ner", written(nlp, part, 10), Targets(recall=0.5, **stated))
    assert (recognizer(nlp).cfg["guarantees"], recognizer(nlp).spans_key) == before


def test_pipeline_without_hashes_needs_train_or_statement(nlp):
    forget(nlp)
    examples = [*written(nlp, "train", 15), *written(nlp, "new", 30)]
    with pytest.raises(InputError, match=r"does not say which .*--train.*--held-out"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5))
    texts = [eg.text for eg in examples[:15]]
    with pytest.warns(UserWarning, match="15 of 45 documents are left out"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5, trained_on=texts))
    assert guarantees(nlp)["recall"]["compared_with"] == ["train"]
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5, held_out=True))
    assert guarantees(nlp)["recall"]["compared_with"] == []
    # It learns on: what it then learns is known, what came before is not.
    nlp.update(examples[:15], sgd=nlp.resume_training())
    with pytest.raises(InputError, match="does not say which"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5))
    with pytest.warns(UserWarning, match="15 of 45 documents are left out"):
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5, held_out=True))


def test_texts_of_another_recognizer_count_too(nlp):
    """Both may share a transformer, and the first sets entities for the second."""
    other = small()
    train(other, written(other, "other", 15), steps=2)
    nlp.add_pipe("crf_ner", "second", source=other)
    examples = [*written(nlp, "other", 15), *written(nlp, "new", 15)]
    with pytest.warns(UserWarning, match="15 of 30 documents are left out"):
        assert len(new_examples(nlp, "crf_ner", examples, Targets(recall=0.5))[0]) == 15


def run(
    model: Path, folder: Path, parts: dict[str, int], *options: str, command: str = "promise fit"
) -> Result:
    nlp, corpus = spacy.blank("en"), folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for part, n in parts.items():
        docs = [eg.reference for eg in written(nlp, part, n)]
        DocBin(docs=docs).to_disk(corpus / f"{part}.spacy")
    paths = [str(each) for each in (model, corpus, folder / "careful")]
    return CliRunner().invoke(app, [*command.split(), *paths, *options])


def test_promise_fit_command_of_folder_with_train_and_dev_is_refused(model, tmp_path):
    parts = {"train": 15, "dev": 10, "test": 15}
    result = run(model, tmp_path, parts, "--recall", "0.95")
    assert result.exit_code == 1 and not (tmp_path / "careful").exists()
    error = " ".join(result.stderr.split())
    assert "25 of 40 documents are left out" in error and "15 are left." in error
    assert "needs at least 19, got 15 with such entities. Use more, or promise less. " in error
    assert error.endswith("Documents of train and dev do not count.")
    assert "UserWarning" not in error


def test_promise_fit_command_says_that_a_guarantee_from_dev_is_too_good(model, tmp_path):
    options = "--recall", "0.5", "--count-dev"
    result = run(model, tmp_path, {"train": 2, "dev": 10}, *options)
    assert result.exit_code == 0, result.output
    error = " ".join(result.stderr.split())
    assert "2 in training (document" in error and "The promise is too good." in error


@pytest.mark.parametrize("part, n", [("train", 15), ("test", 0)])
def test_documents_that_were_trained_on_are_counted(model, part, n):
    nlp = spacy.load(model)
    assert seen_in_training(nlp, written(nlp, part, 15)) == n
    assert seen_in_training(spacy.blank("en"), written(nlp, part, 15)) == 0


@pytest.mark.parametrize("command", ["report", "calibrate"])
def test_commands_warn_of_documents_that_were_trained_on(model, tmp_path, command):
    result = run(model, tmp_path, {"train": 3, "test": 3}, command=command)
    assert result.exit_code == 0, result.output
    assert "was trained on 3 of the 6 documents" in " ".join(result.stderr.split())


def test_promise_fit_command_warns_of_copies(model, tmp_path):
    (tmp_path / "corpus").mkdir()
    docs = [eg.reference for eg in written(spacy.blank("en"), "test", 30)]
    DocBin(docs=docs).to_disk(tmp_path / "corpus" / "copy.spacy")
    result = run(model, tmp_path, {"test": 30}, "--recall", "0.5")
    assert result.exit_code == 0, result.output
    found = guarantees(spacy.load(tmp_path / "careful"))["recall"]
    assert (found["texts"], found["different_texts"]) == (60, 30)
    assert "Warning: 30 of the 60 documents" in " ".join(result.stderr.split())


def test_promise_fit_command_saves_what_the_guarantee_is_about(model, tmp_path):
    old = spacy.load(model)
    forget(old)
    old.to_disk(tmp_path / "old")
    result = run(tmp_path / "old", tmp_path, {"test": 30}, "--recall", "0.5")
    assert result.exit_code == 1 and "--held-out" in result.stderr
    result = run(tmp_path / "old", tmp_path, {"test": 30}, "--recall", "0.5", "--held-out")
    assert result.exit_code == 0, result.output
    lines = " ".join(result.output.split())
    lengths = [len(eg.reference) for eg in written(old, "test", 30)]
    mean = f"{sum(lengths) / 30:.0f}"
    assert f"Promised for a document, of {mean} tokens on average, and the labels LOC" in lines
    assert "repetitions" not in lines
    found = guarantees(spacy.load(tmp_path / "careful"))["recall"]
    assert (found["unit"], found["labels"], found["drift"]) == ("document", ["LOC"], None)
    assert found["tokens"] == pytest.approx(sum(lengths) / 30, abs=1)
    assert found["compared_with"] == [] and found["counts_dev"] is False
