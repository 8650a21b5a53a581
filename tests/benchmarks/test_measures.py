"""Benchmarks that measure one pipeline, end to end on small data."""

from pathlib import Path

import pytest
import spacy

from benchmarks import common, coverage, crf, distillation, few_entities, host, parts
from pipelines import OWN_TRANSFORMER, make_examples, train


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    docs = [eg.reference for eg in make_examples(spacy.blank("en")) if len(eg.x)]
    for part in ("dev", "test"):
        common.write_docs(docs, tmp_path / "corpus" / f"{part}.spacy")
    return tmp_path / "corpus"


@pytest.fixture
def model(trained: spacy.Language, tmp_path: Path) -> Path:
    """The trained pipeline, with the name that the configs give to its component."""
    nlp = spacy.util.load_model_from_config(trained.config).from_bytes(trained.to_bytes())
    nlp.rename_pipe("crf_ner", "ner")
    (tmp_path / "run").mkdir()
    nlp.to_disk(tmp_path / "run" / "model")
    return tmp_path / "run" / "model"


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The rows of the printed table, without its header."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def test_host_measures_crf_and_rest_of_updates_and_predictions(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.main(corpus / "dev.spacy", labels=2, words=100, batches=1, rounds=2)
    found = rows(capsys)
    assert [row[:2] for row in found] == [["update", "9"], ["prediction", "9"]]
    assert all(float(crf) > 0 and float(rest) > 0 for *_, crf, rest in found)


def test_each_part_of_a_prediction_is_measured_once(
    corpus: Path, tmp_path: Path, tiny_transformer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nlp = spacy.blank("en")
    layers = {
        "transformer": OWN_TRANSFORMER | {"name": tiny_transformer},
        "words": {"@architectures": "spacy-crf-ner.CharWordEmbed.v1"},
    }
    tok2vec = {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": layers}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": tok2vec}})
    train(nlp, make_examples(nlp), steps=1)
    nlp.to_disk(tmp_path / "model")
    parts.main(tmp_path / "model", corpus / "test.spacy", dtypes="plain,fp32", rounds=1)
    found = {name: [float(each) for each in times] for name, *times in rows(capsys)}
    assert {*parts.functions(nlp), "the rest", "all"} == {*found}
    assert all(time > 0 for times in found.values() for time in times)
    whole = found.pop("all")
    assert [sum(each) for each in zip(*found.values())] == pytest.approx(whole, abs=0.5)


def test_each_act_of_the_crf_benchmark_runs() -> None:
    for act in crf.acts(2, 5, 3).values():
        act()


def test_coverage_keeps_its_promise_or_refuses_it(
    model: Path, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "SPLITS", 20)
    coverage.main([model], [corpus])
    found = rows(capsys)
    assert len(found) == 2 * len(coverage.RISKS)
    for name, promised, missed, _, _, refused in found:
        assert name.startswith("corpus, ") and 0 <= int(refused) <= 20
        if int(refused) == 0:
            assert float(missed.rstrip("%")) <= float(promised.rstrip("%")) + 5


def test_few_entities_measures_each_number_and_all(
    model: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    total = sum(len(doc.ents) for doc in common.read_docs(corpus / "dev.spacy"))
    files = {part: [corpus / f"{part}.spacy"] for part in ("dev", "test")}
    few_entities.main([model], files["dev"], files["test"], sizes="2,1000", draws=2)
    found = rows(capsys)
    assert [row[:2] for row in found] == [["run", "2"], ["run", str(total)]]
    before = {row[2].partition(",")[0] for row in found}
    assert len(before) == 1  # without calibration


def test_a_pipeline_agrees_with_itself(model: Path, tmp_path: Path) -> None:
    doc = spacy.blank("en").make_doc("Tim Cook visited Hanoi.")
    doc.ents = [doc.char_span(0, 8, "PERSON")]
    common.write_docs([doc], tmp_path / "test.spacy")
    nlp = spacy.load(model)
    found = distillation.measure(nlp, nlp, tmp_path / "test.spacy")
    assert (found["agreement"], found["f"]) == (1.0, 2 / 3)
