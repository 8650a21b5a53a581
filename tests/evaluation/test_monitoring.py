"""Differences between documents: by counting, and on documents that differ or do not."""

import math
import shutil
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin, Span
from typer.testing import CliRunner

from pipelines import make_examples, small, train, trained_elsewhere
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation import monitoring as module
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.monitoring import Difference, compare, describe, drift
from spacy_crf_ner.input_error import InputError


def distance(x: Sequence[float], y: Sequence[float]) -> float:
    """The largest difference of the shares at or below a value, by counting."""
    return max(abs(np.mean(np.array(x) <= z) - np.mean(np.array(y) <= z)) for z in (*x, *y))


@pytest.mark.parametrize("n, m, shift", [(4, 5, 0.0), (6, 5, 1.0), (5, 5, 3.0)])
def test_compare_p_is_the_share_of_orders_that_are_as_far(n, m, shift):
    """All orders of both samples are enumerated: they are equally probable for one source."""
    rng = np.random.default_rng(n + m)
    x, y = rng.normal(size=n).tolist(), rng.normal(shift, size=m).tolist()
    (row,) = compare({"tokens": x}, {"tokens": y})
    assert row.distance == pytest.approx(distance(x, y))
    far = [
        distance(chosen, [*{*range(n + m)} - {*chosen}]) >= row.distance - 1e-9
        for chosen in combinations(range(n + m), n)
    ]
    assert row.p == pytest.approx(np.mean(far), rel=1e-9)


def test_compare_gives_medians_and_finds_small_differences():
    before = {"surprise": [0.0, 0.0, 9.0] * 20, "tokens": [3.0], "confidence": []}
    now = {"surprise": [0.01, 0.01, 0.01, 5.0] * 20, "tokens": [4.0], "confidence": [1.0]}
    rows = {row.statistic: row for row in compare(before, now)}
    assert list(rows) == ["surprise", "tokens"]
    assert (rows["surprise"].before, rows["surprise"].now) == (0.0, 0.01)
    assert rows["surprise"].distance == pytest.approx(2 / 3)
    assert rows["surprise"].p < 1e-6


def sentences(names: list[str], n: int) -> list[tuple[str, Any]]:
    rng = np.random.default_rng(n)
    made = []
    for _ in range(n):
        first, second = rng.choice(names, 2)
        text = f"{first} saw {second}" + " again" * int(rng.integers(0, 4))
        start = len(first) + 5
        made.append((text, [(0, len(first), "PER"), (start, start + len(second), "PER")]))
    return made


NAMES = ["Anna", "Bonn", "Cleo", "Dora"]


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    def plain() -> Language:
        nlp = small()
        train(nlp, make_examples(nlp, sentences(NAMES, 40)), steps=20)
        return trained_elsewhere(nlp)

    def careful() -> Language:
        nlp = spacy.load(shared("drift", plain))
        fit_guarantees(
            nlp, "crf_ner", make_examples(nlp, sentences(NAMES, 200)), Targets(recall=0.9)
        )
        return nlp

    folder = tmp_path_factory.mktemp("drift")
    shutil.copytree(shared("drift", plain), folder / "plain")
    shutil.copytree(shared("drift-careful", careful), folder / "careful")
    return folder


def test_describe_matches_direct_statistics(folder, monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZE", 8)
    nlp = spacy.load(folder / "careful")
    ner: Any = nlp.get_pipe("crf_ner")
    texts = [text for text, _ in sentences(NAMES, 30)]
    found = describe(ner, [nlp.make_doc(text) for text in ["", *texts]])
    expected: list[tuple[float, float, float]] = []
    for text in texts:
        doc = nlp.make_doc(text)
        (best,) = ner.nbest([doc], 1)[0]
        mean = np.mean([ent._.confidence for ent in nlp(text).ents])
        expected.append((len(doc), -math.log(best.probability) / len(doc), float(mean)))
    for values, column in zip(found.values(), zip(*expected)):
        np.testing.assert_allclose(sorted(values), sorted(column), rtol=1e-4, atol=1e-4)
    near = {name: [x + 1e-9 for x in values] for name, values in found.items()}
    assert [row.p for row in compare(found, near)] == [1.0] * 3
    longer = {**found, "tokens": [x + 10 for x in found["tokens"]], "confidence": []}
    rows = {row.statistic: row for row in compare(found, longer)}
    assert set(rows) == {"tokens", "surprise"} and rows["surprise"].p == 1.0
    assert rows["tokens"].p < 1e-6 and rows["tokens"].now == rows["tokens"].before + 10


def test_describe_draws_random_sample_of_many_docs(folder, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 20)
    nlp = spacy.load(folder / "plain")
    docs = [nlp.make_doc(" ".join(["it"] * n)) for n in range(1, 101)]
    lengths = describe(nlp.get_pipe("crf_ner"), docs)["tokens"]
    assert len({*lengths}) == 20 and min(lengths) < 25 and max(lengths) > 75


def test_preset_entities_of_other_labels_have_no_confidence(folder):
    nlp = spacy.load(folder / "plain")
    ner: Any = nlp.get_pipe("crf_ner")
    doc = nlp.make_doc("Anna saw it")
    doc.set_ents([Span(doc, 2, 3, "OTHER")], default="missing")
    found = describe(ner, [doc.copy()])["confidence"]
    own = [ent._.confidence for ent in ner(doc).ents if ent.label_ != "OTHER"]
    assert own and found == pytest.approx([np.mean(own)], abs=1e-4)


def run(folder: Path, model: str, docs: list[tuple[str, Any]], kind: str) -> Any:
    path = folder / f"texts.{kind}"
    if kind == "txt":
        path.write_text("\n".join(text for text, _ in docs), encoding="utf-8")
    else:
        nlp = spacy.blank("en")
        DocBin(docs=[nlp.make_doc(text) for text, _ in docs]).to_disk(path)
    return CliRunner().invoke(app, ["promise", "check", str(folder / model), str(path)])


@pytest.mark.parametrize("kind", ["txt", "spacy"])
def test_promise_check_command_exits_2_for_different_documents(folder, kind):
    same = run(folder, "careful", sentences(NAMES, 150), kind)
    assert same.exit_code == 0 and "No difference" in same.stdout, same.output
    strange = [f"{name}{i}" for i, name in enumerate(["xyzzy", "ångström", "q"] * 5)]
    other = run(folder, "careful", sentences(strange, 150), kind)
    assert other.exit_code == 2 and "promises do not hold" in " ".join(other.stdout.split())
    refused = run(folder, "plain", sentences(NAMES, 5), kind)
    assert refused.exit_code == 1 and "has no promises" in refused.stderr


def test_drift_compares_with_calibration_docs(folder):
    nlp = spacy.load(folder / "careful")
    calibrated = [len(text.split()) for text, _ in sentences(NAMES, 200)]
    reference = nlp.get_pipe("crf_ner").cfg["guarantees"]["reference"]
    assert sorted(reference["tokens"]) == sorted(calibrated)
    docs = [nlp.make_doc("Anna saw Bonn" + " again" * n) for n in (5, 6, 7)]
    tokens = drift(nlp, docs)[0]
    assert (tokens.statistic, tokens.before) == ("tokens", np.median(calibrated))
    assert tokens.now == 9.0 and tokens.before < 7


@pytest.mark.parametrize("p, code", [(0.0035, 0), (0.0033, 2)])
def test_promise_check_command_applies_bonferroni_correction(folder, monkeypatch, p, code):
    """At 0.01 for all three of them, by Bonferroni's correction."""
    rows = [Difference(name, 1.0, 2.0, 0.5, each) for name, each in zip("abc", (1.0, p, 1.0))]
    monkeypatch.setattr("spacy_crf_ner.evaluation.monitoring.drift", lambda nlp, docs, name: rows)
    assert run(folder, "careful", sentences(NAMES, 3), "txt").exit_code == code


def test_the_command_compares_a_random_sample(folder, monkeypatch):
    """Documents can be in an order: the first ones are not like all."""
    compared: list[list[int]] = []
    monkeypatch.setattr("spacy_crf_ner.evaluation.monitoring.SAMPLE", 20)
    monkeypatch.setattr(
        "spacy_crf_ner.evaluation.monitoring.drift",
        lambda nlp, docs, name: compared.append([len(doc) for doc in docs]) or [],
    )
    texts = [(" ".join(["it"] * n), []) for n in range(1, 101)]
    assert run(folder, "careful", texts, "txt").exit_code == 0
    (lengths,) = compared
    assert len({*lengths}) == 20 and min(lengths) < 25 and max(lengths) > 75


def test_drift_docs_without_text_raises(folder):
    nlp = spacy.load(folder / "careful")
    with pytest.raises(InputError, match="expected documents with text, got none"):
        drift(nlp, [nlp.make_doc("")])


def test_drift_of_equal_docs_is_zero_after_reload(folder, tmp_path):
    nlp = spacy.load(folder / "plain")
    examples = make_examples(nlp, [("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "PER")])] * 50)
    fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.9))
    nlp.to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    assert [row.p for row in drift(nlp, [eg.predicted for eg in examples])] == [1.0] * 3
