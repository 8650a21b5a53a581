"""Calibration: figures against plain loops, the temperature against enumerated labelings."""

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import ignore_error
from typer.testing import CliRunner

from pipelines import TOK2VEC, ents, example_of, listening, make_examples, small, train, write_docs
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation.calibration import calibrate, precision_at, reliability
from spacy_crf_ner.evaluation.matching import DocEntities, Entity, collect_entities
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.annotation import add_confidence_extension
from spacy_crf_ner.pipeline.calibration import forget_calibration, platt_scaling, score_examples
from spacy_crf_ner.pipeline.platt_scaling import UNCHANGED

TOO_FEW = "too few to trust them: 200 or more are better, see train --folds"

LEARNED = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "PER")]),
    ("Anna Bonn came", [(0, 9, "PER")]),
    ("it came", []),
]
# Differs in part from the training sentences, so that an overconfident model makes errors.
NOISY = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "PER")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "LOC")]),
    ("Anna Bonn came", [(0, 4, "PER"), (5, 9, "LOC")]),
    ("it came", []),
    ("Anna saw it", [(0, 4, "PER")]),
    ("Bonn came", [(0, 4, "LOC")]),
    ("it saw Bonn", [(7, 11, "LOC")]),
]
PRIOR = 0.03  # the variance of the temperature's logarithm
runner = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def confidences():
    add_confidence_extension()


def learned(nlp: Language | None = None, steps: int = 40) -> Language:
    nlp = nlp or small()
    train(nlp, make_examples(nlp, LEARNED), steps=steps)
    return nlp


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    """Pipelines, of which `model` is trained, gold docs, `dev.spacy`, and bad input; not to be
    changed.
    """
    root = tmp_path_factory.mktemp("calibration")
    shutil.copytree(shared("calibration", learned), root / "model")
    write_docs(root / "dev.spacy", NOISY)
    DocBin(docs=[spacy.blank("en")("Anna saw Bonn")]).to_disk(root / "bare.spacy")
    (root / "words.txt").write_text("Anna saw Bonn")
    (root / "empty.txt").write_text("  \n\n")
    none, two = spacy.blank("en"), spacy.load(root / "model")
    none.add_pipe("sentencizer")
    two.add_pipe("crf_ner", name="second", source=spacy.load(root / "model"), first=True)
    none.to_disk(root / "sentencizer")
    two.to_disk(root / "two")
    return root


@pytest.fixture
def nlp(folder):
    return spacy.load(folder / "model")


# Figures


def judged(
    confidences: Sequence[float | None], correct: Sequence[bool | None], missed: int = 0
) -> list[Example]:
    """An example of entities, one word each, that are right, wrong, or (None) not annotated.

    missed: Number of gold entities that are not predicted.
    """
    predicted = [(i, i + 1, "A") for i in range(len(confidences))]
    gold = [  # a wrong one is of another label, or there is nothing
        (i, i + 1, "A" if right else "B")
        for i, right in enumerate([*correct, *[True] * missed])
        if right or (right is False and i % 2)
    ]
    unknown = [i for i, right in enumerate(correct) if right is None]
    words = [f"w{i}" for i in range(len(confidences) + missed)]
    return [example_of(words, gold, predicted, confidences, unknown)]


def measured(examples: list[Example]) -> dict[str, Any]:
    return reliability(collect_entities(examples))


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(0)
    p = random.uniform(0, 1, 200) ** 0.3
    return p.tolist(), (random.uniform(0, 1, 200) < p**2).tolist()


def test_reliability_matches_manual_calculation():
    # The last bin begins at 14/15 = 0.933: 0.9 is in the one before.
    found = measured(judged([0.9, 0.95, 0.97, 0.2], [True, True, False, False]))
    # |0.9 - 1| / 4 + 2 |0.96 - 0.5| / 4 + |0.2 - 0| / 4
    assert found["ece"] == pytest.approx((0.1 + 0.92 + 0.2) / 4)
    assert found["brier"] == pytest.approx((0.01 + 0.0025 + 0.9409 + 0.04) / 4)
    middle, reach = 0.5, 0.5 / math.sqrt(1 + 2 / 1.959964**2)  # Wilson's, of one of two
    assert found["bins"][14] == {
        "count": 2,
        "confidence": pytest.approx(0.96),
        "correct": 0.5,
        "interval": pytest.approx([middle - reach, middle + reach]),
    }
    empty = dict.fromkeys(("confidence", "correct", "interval"))
    assert found["bins"][0] == {"count": 0, **empty}
    # A fifth ends the third bin, and belongs to it.
    assert [i for i, b in enumerate(found["bins"]) if b["count"]] == [2, 13, 14]
    found = measured(judged([0.0, 1.0], [False, True]))
    assert [b["count"] for b in found["bins"]] == [1, *[0] * 13, 1]
    assert found["ece"] == found["ece_by_chance"] == found["brier"] == 0.0


@pytest.mark.parametrize("n", [300, 2000])
def test_reliability_ece_by_chance_matches_simulated_mean(n):
    random = np.random.default_rng(1)
    p = random.uniform(0, 1, n) ** 0.3
    drawn = []
    for _ in range(20):
        correct = random.uniform(0, 1, n) < p
        predicted = [Entity(i, i + 1, "A", each) for i, each in enumerate(p.tolist())]
        gold = [Entity(i, i + 1, "A") for i in np.flatnonzero(correct).tolist()]
        found = reliability([DocEntities("w" * n, gold, predicted, [])])
        drawn.append(found["ece"])
    assert found["ece_by_chance"] == pytest.approx(np.mean(drawn), rel=0.15)


def test_reliability_skips_entities_without_gold_or_confidence():
    found = measured(judged([0.9, 0.8, 0.7, None], [True, None, None, True]))
    assert (found["entities"], found["left_out"]) == (1, 2)
    assert found["brier"] == pytest.approx(0.01)
    nothing = measured(judged([0.9], [None]))
    assert (nothing["entities"], nothing["left_out"]) == (0, 1)
    assert nothing["ece"] is nothing["brier"] is None
    (row,) = precision_at(collect_entities(judged([0.9], [None])), [0.5])
    assert (row["entities"], row["precision"], row["recall"]) == (0, None, None)


def test_precision_at_thresholds_equals_plain_loops(drawn):
    confidences, correct = drawn
    examples = judged(confidences, correct, missed=50)
    thresholds = [0.0, 0.5, confidences[7], 0.9, 1.0]
    rows = precision_at(collect_entities(examples), thresholds)
    assert [row["threshold"] for row in rows] == thresholds
    gold = len(examples[0].reference.ents)
    assert gold > sum(correct) + 50
    for row, threshold in zip(rows, thresholds):
        kept = [right for p, right in zip(confidences, correct) if p >= threshold]
        assert row["entities"] == len(kept)
        assert row["precision"] == (pytest.approx(sum(kept) / len(kept)) if kept else None)
        assert row["recall"] == pytest.approx(sum(kept) / gold)
    assert rows[0]["precision"] < rows[3]["precision"]


# The temperature


def partly(nlp: Language) -> Example:
    """A doc whose last token is not annotated."""
    (eg,) = make_examples(nlp, [("Anna saw Bonn", [(0, 4, "PER")])])
    gold = eg.reference
    gold.set_ents(gold.ents, missing=[gold[2:3]], default="outside")
    return eg


def enumerated(nlp: Language, examples: list[Example]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each doc the log probability of all its labelings, and which are gold."""
    ranked = nlp.get_pipe("crf_ner").nbest([eg.predicted for eg in examples], 200)
    for eg, labelings in zip(examples, ranked):
        assert sum(labeling.probability for labeling in labelings) == pytest.approx(1.0, abs=1e-4)
        # Sets of entities over T tokens with 2 labels: 3, 11, 41, of which none underflows.
        assert len(labelings) == {2: 11, 3: 41}[len(eg.predicted)]
        tags = eg.get_aligned_ner()
        is_gold = []
        for labeling in labelings:
            written = ["O"] * len(tags)
            for ent in labeling.ents:
                for i in range(ent.start, ent.end):
                    first, last = i == ent.start, i + 1 == ent.end
                    prefix = {(1, 1): "U", (1, 0): "B", (0, 0): "I", (0, 1): "L"}[first, last]
                    written[i] = f"{prefix}-{ent.label_}"
            is_gold.append(all(g in (None, tag) for g, tag in zip(tags, written)))
        yield np.array([each.log_probability for each in labelings]), np.array(is_gold)


def negative_log_likelihood(
    labelings: list[tuple[np.ndarray, np.ndarray]], temperature: float
) -> float:
    """By the definition: p^(1 / temperature), normalized over all labelings."""
    total = 0.0
    for log_p, is_gold in labelings:
        p = np.exp(log_p / temperature)
        total -= math.log(p[is_gold].sum() / p.sum())
    return total


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("decoder, scheme", [("crf", "bio"), ("softmax", "biluo")])
def test_fit_temperature_has_highest_posterior_probability(decoder, scheme, times):
    """The likelihood of enumerated labelings, times the prior; from 200 entities on below 1,
    too.
    """
    model = {"hidden_width": 16, "tok2vec": TOK2VEC, "decoder": decoder}
    nlp = learned(small(scheme=scheme, model=model), steps=15)
    examples = [*make_examples(nlp, NOISY), partly(nlp)]
    pipe = nlp.get_pipe("crf_ner")
    labelings = list(enumerated(nlp, examples))
    assert [int(is_gold.sum()) for _, is_gold in labelings] == [1] * len(NOISY) + [3]

    def loss(temperature: float) -> float:
        prior = math.log(temperature) ** 2 / 2 / PRIOR
        return times * negative_log_likelihood(labelings, temperature) + prior

    found = pipe.fit_temperature(examples * times)
    entities = sum(len(eg.reference.ents) for eg in examples) * times
    assert pipe.calibrated_on == entities and (entities < 200) == (times == 1)
    lowest = 1.0 if times == 1 else 0.05
    best, grid = loss(found), [loss(t) for t in np.geomspace(lowest, 20, 50)]
    assert best <= min(grid) + 1e-4
    assert best < loss(found * 1.05) and (best < loss(found * 0.95) or found == 1.0)
    assert max(grid) > min(grid) + 1.0
    assert pipe.temperature == found


def test_fit_temperature_of_underconfident_model_sharpens_only_on_many_entities(nlp):
    pipe = nlp.get_pipe("crf_ner")
    network = pipe.model.get_ref("output_layer").shims[0].module
    for layer in (network.projection, network.crf):
        for parameter in layer.parameters():
            parameter.data *= 0.3
    examples = make_examples(nlp, LEARNED)  # five entities, all found
    assert pipe.fit_temperature(examples * 39) == pipe.temperature == 1.0
    assert 0.05 < pipe.fit_temperature(examples * 40) < 0.5


@pytest.mark.parametrize("n", [5, 36, 190])
def test_few_faultless_entities_leave_no_certainty(nlp, n):
    """However sure the model is, and though it is right: nothing shows more than the entities."""
    pipe = nlp.get_pipe("crf_ner")
    network = pipe.model.get_ref("output_layer").shims[0].module
    for layer in (network.projection, network.crf):
        for parameter in layer.parameters():
            parameter.data *= 100
    examples = (make_examples(nlp, LEARNED) * n)[:n]
    assert {f"{ent._.confidence:.3f}" for ent in nlp("Anna saw Bonn").ents} == {"1.000"}
    fitted = calibrate(nlp, examples)
    assert fitted["calibrated_on"] == sum(len(eg.reference.ents) for eg in examples)
    certain = [ent._.confidence for ent in nlp("Anna saw Bonn").ents]
    assert len(certain) == 2 and all(0.9 < p < 0.9995 for p in certain)


def test_fit_temperature_ignores_previous_temperature_and_entities(nlp):
    pipe = nlp.get_pipe("crf_ner")
    first = pipe.fit_temperature(make_examples(nlp, NOISY))
    pipe.temperature = 7.0
    again = make_examples(nlp, NOISY)
    assert pipe.fit_temperature(again) == pytest.approx(first, rel=1e-6)
    # Nor on entities of the docs, or on docs without annotation.
    for eg in again:
        eg.predicted.ents = [Span(eg.predicted, 0, 1, "PER")]
    nothing = Example(nlp.make_doc("Anna came"), nlp.make_doc("Anna came"))
    empty = Example(nlp.make_doc(""), nlp.make_doc(""))
    assert pipe.fit_temperature([nothing, empty, *again]) == pytest.approx(first, rel=1e-6)


def test_fits_with_more_scored_examples_match_fits_to_all(nlp):
    pipe = nlp.get_pipe("crf_ner")
    # 72 docs are two batches, and sorted none of these alone has the temperature of both.
    many = make_examples(nlp, sorted(NOISY * 9))
    expected = pipe.fit_temperature(many), *pipe.fit_platt_scaling(many)
    more = score_examples(pipe, many[64:])
    found = pipe.fit_temperature(many[:64], more), *pipe.fit_platt_scaling(many[:64], more)
    assert found == pytest.approx(expected, rel=1e-6)
    assert pipe.calibrated_on == sum(len(eg.reference.ents) for eg in many)
    alone = pipe.fit_temperature(many[:64]), *pipe.fit_platt_scaling(many[:64])
    assert alone != pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("sentence", [("Anna came", [(0, 4, "PER")]), ("it came", []), None])
def test_fits_to_no_entity_of_a_predicted_label_raise_and_change_nothing(sentence, nlp):
    """Such as entities of disabled labels alone, or none at all; a fit would halve confidences."""
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.disabled_labels = ["PER"]
    bare = [Example(nlp.make_doc("Anna came"), nlp.make_doc("Anna came"))]
    examples = make_examples(nlp, [sentence]) if sentence else bare
    message = r"expected examples with .*, got 1 without"
    for temperature in (1.0, 2.5):
        pipe.temperature = temperature
        for fit in (pipe.fit_temperature, pipe.fit_platt_scaling, lambda egs: calibrate(nlp, egs)):
            with pytest.raises(InputError, match=message):
                fit(examples)
        assert pipe.temperature == temperature and pipe.calibrated_on is None
    assert platt_scaling(pipe) == UNCHANGED
    pipe.confidence = False
    with pytest.raises(ValueError, match="confidence: expected true, got false"):
        calibrate(nlp, make_examples(nlp, NOISY))


# The pipeline


def test_calibrate_lowers_confidences_of_overconfident_model(nlp):
    examples = make_examples(nlp, NOISY)
    texts = [text for text, _ in NOISY]
    entities = [*map(ents, nlp.pipe(texts))]
    confidences = [ent._.confidence for doc in nlp.pipe(texts) for ent in doc.ents]
    result = calibrate(nlp, examples)
    assert 1.0 < result["temperature"] == nlp.get_pipe("crf_ner").temperature < 20.0
    before, after = result["before"], result["after"]
    assert before["entities"] == after["entities"] == len(confidences) > 5
    assert after["ece"] < before["ece"] - 0.05 and after["brier"] < before["brier"] - 0.01
    # Entities stay the same, and their confidences change.
    assert [*map(ents, nlp.pipe(texts))] == entities
    now = [ent._.confidence for doc in nlp.pipe(texts) for ent in doc.ents]
    assert np.mean(now) < np.mean(confidences) - 0.05
    # The examples are as they were, and can be used again.
    assert not any(eg.predicted.has_annotation("ENT_IOB") for eg in examples)
    again = calibrate(nlp, examples)
    assert again["temperature"] == pytest.approx(result["temperature"], rel=0.01)
    assert again["before"]["ece"] == pytest.approx(after["ece"], abs=1e-6)


def test_calibrate_runs_only_components_before_recognizer():
    nlp = learned(listening("tok2vec"))

    @Language.component("calibration_test_fails")
    def fails(doc: Doc) -> Doc:
        raise AssertionError

    nlp.add_pipe("calibration_test_fails")
    names = list(nlp.pipe_names)
    examples = make_examples(nlp, NOISY)
    result = calibrate(nlp, examples)
    assert nlp.pipe_names == names
    assert not any(eg.predicted.tensor.size for eg in examples)
    with pytest.raises(ValueError, match="listens to 'tok2vec', which has not run"):
        nlp.get_pipe("crf_ner").fit_temperature(examples)
    assert result["before"]["entities"] > 5
    assert result["temperature"] > 1.0


# The command


def run(*arguments: Any) -> tuple[int, str]:
    result = runner.invoke(app, ["calibrate", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command_saves_a_calibrated_pipeline(folder, tmp_path):
    code, output = run(folder / "model", folder / "dev.spacy", tmp_path / "out")
    assert code == 0, output
    first, second = spacy.load(folder / "model"), spacy.load(tmp_path / "out")
    expected = calibrate(first, make_examples(first, NOISY))
    temperature = second.get_pipe("crf_ner").temperature
    assert temperature == pytest.approx(expected["temperature"]) != 1.0
    rows = [line.replace("│", " ").split() for line in output.splitlines()]
    for row, key in (("ECE", "ece"), ("by chance", "ece_by_chance"), ("Brier", "brier")):
        numbers = [f"{expected[when][key]:.4f}" for when in ("before", "after")]
        assert [*row.split(), *numbers] in rows
    assert "as it was" not in output and "uncalibrated" in output
    assert f"Temperature: {temperature:.3f}" in output
    assert f"Pipeline: {tmp_path / 'out'}" in output
    n = sum(len(ents) for _, ents in NOISY)
    assert f"Entities: {expected['before']['entities']}; 0 were left out" in output
    for model, says in ((folder / "model", "not calibrated"),
                        (tmp_path / "out", f"calibrated on {n} entities, {TOO_FEW}")):  # fmt: skip
        for command in (["predict", str(model), "Anna saw Bonn"], ["info", str(model)]):
            result = runner.invoke(app, command)
            assert result.exit_code == 0, result.output
            assert f"Confidences: {says}" in result.output.replace("\n  ", " ").splitlines(), (
                command
            )
    assert f"Confidences: {says}" in output.splitlines()
    assert "[crf_ner] Labels: LOC, PER" in result.output.splitlines()


def test_calibrate_command_on_calibrated_pipeline_shows_three_columns(folder, tmp_path):
    """Of a pipeline that training had calibrated: without that, with it, and now."""
    nlp = spacy.load(folder / "model")
    neutral = calibrate(nlp, make_examples(nlp, NOISY))["before"]
    nlp.get_pipe("crf_ner").temperature = 3.0
    nlp.to_disk(tmp_path / "earlier")
    expected = calibrate(nlp, make_examples(nlp, NOISY))
    assert expected["uncalibrated"] == neutral
    assert len({expected[when]["ece"] for when in ("uncalibrated", "before", "after")}) == 3
    code, output = run(tmp_path / "earlier", folder / "dev.spacy", tmp_path / "out")
    assert code == 0, output
    rows = [[*map(str.strip, line.split("│"))][1:-1] for line in output.splitlines()]
    columns = [expected[when]["ece"] for when in ("uncalibrated", "before", "after")]
    assert ["ECE", *(f"{each:.4f}" for each in columns)] in rows
    heads = [line.replace("┃", " ").split() for line in output.splitlines()]
    assert ["uncalibrated", "as", "it", "was", "now"] in heads


@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_calibrate_command_f_beta_saves_threshold(beta, folder, tmp_path):
    """The table has spaCy's count; the best threshold is tested where it is fitted."""
    code, output = run(folder / "model", folder / "dev.spacy", tmp_path / "out", "--f-beta", beta)
    assert code == 0, output
    nlp = spacy.load(tmp_path / "out")
    ner: Any = nlp.get_pipe("crf_ner")
    assert ner.decode == "max_expected_f"
    scores = nlp.evaluate(make_examples(nlp, NOISY))
    p, r = scores["ents_p"], scores["ents_r"]
    rows = [line.replace("│", " ").split() for line in output.splitlines()]
    (row,) = (row for row in rows if row[:1] == [f"F{beta:g}"])
    assert row[2] == f"{(1 + beta**2) * p * r / (beta**2 * p + r):.4f}"
    assert f"F-score threshold: {ner.f_score_threshold:.2f}" in output


def test_calibrate_command_fits_threshold_to_given_texts(folder, tmp_path):
    """They need no gold, and are read as `annotate` reads them; confidences are still of gold."""
    texts = ["Anna saw Bonn", "nobody saw Anna", "Bonn Bonn Bonn", "", "it saw Berlin"]
    (tmp_path / "new.txt").write_text("\n".join(texts))
    command = folder / "model", folder / "dev.spacy"
    first = run(*command, tmp_path / "own", "--f-beta", 1)
    second = run(*command, tmp_path / "new", "--f-beta", 1, "--texts", tmp_path / "new.txt")
    assert first[0] == second[0] == 0, first[1] + second[1]
    own, new = (spacy.load(tmp_path / name).get_pipe("crf_ner") for name in ("own", "new"))
    assert new.temperature == own.temperature and platt_scaling(new) == platt_scaling(own)
    assert new.decode == "max_expected_f" and new.f_score_threshold != own.f_score_threshold
    saved = new.f_score_threshold
    docs = [spacy.blank("en").make_doc(text) for text in texts if text]
    assert new.fit_f_score_threshold(docs) == pytest.approx(saved)
    (tmp_path / "lines.jsonl").write_text('{"body": "Anna saw Bonn"}\n')
    options = "--f-beta", 1, "--texts", tmp_path / "lines.jsonl", "--text-column", "body"
    assert run(*command, tmp_path / "third", *options)[0] == 0
    options = "--f-beta", 1, "--texts", tmp_path / "new.txt", "--doc-per-file"
    assert run(*command, tmp_path / "whole", *options)[0] == 0
    whole = spacy.load(tmp_path / "whole").get_pipe("crf_ner")
    saved = whole.f_score_threshold
    doc = spacy.blank("en").make_doc((tmp_path / "new.txt").read_text())
    assert whole.fit_f_score_threshold([doc]) == pytest.approx(saved) != new.f_score_threshold


@pytest.mark.parametrize("beta, expected", [(1.0, 0.5), (2.0, 0.2)])
def test_calibrate_f_beta_of_perfect_model_gives_known_threshold(beta, expected, nlp):
    """A model that is always right: half of an F1 of 1, a fifth of an F2."""
    fitted = calibrate(nlp, make_examples(nlp, LEARNED), f_beta=beta)
    assert fitted["temperature"] == 1.0  # without an error on few entities
    assert fitted["after"]["f_beta"] == 1.0
    assert fitted["f_score_threshold"] == pytest.approx(expected, abs=0.02)


def test_the_f_score_counts_preset_entities(nlp):
    examples = make_examples(nlp, NOISY)
    for eg in examples:
        gold = [(ent.start_char, ent.end_char, ent.label_) for ent in eg.reference.ents]
        eg.predicted.set_ents([eg.predicted.char_span(*ent) for ent in gold])
    assert calibrate(nlp, examples)["before"]["f_beta"] == 1.0


def test_calibrate_command_changes_only_what_is_fitted(tiny_transformer, tmp_path):
    nlp = listening("transformer", tiny_transformer=tiny_transformer)
    train(nlp, make_examples(nlp, LEARNED), steps=2)
    nlp.to_disk(tmp_path / "model")
    spacy.load(tmp_path / "model").to_disk(tmp_path / "same")
    write_docs(tmp_path / "dev.spacy", [*NOISY, ("unheard words", [])])
    arguments = (tmp_path / "model", tmp_path / "dev.spacy", tmp_path / "out")
    code, output = run(*arguments, "--dtype", "fp32")
    assert code == 0, output
    before, after = (
        {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
        for root in (tmp_path / "same", tmp_path / "out")
    )
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"config.cfg", *(str(Path("crf_ner") / x) for x in ("cfg", "digests.json"))}
    configs = [spacy.util.load_config(tmp_path / name / "config.cfg") for name in ("model", "out")]
    assert configs[0] == configs[1]


def test_calibrate_with_failing_docs_keeps_entities_aligned(nlp):
    """An error handler lets a pipeline go on: it then yields fewer docs than it was given."""
    pipe: Any = nlp.get_pipe("crf_ner")
    expected = calibrate(nlp, make_examples(nlp, NOISY[1:]))
    forget_calibration(pipe)
    predict = pipe.predict

    def fails(docs: list[Doc]) -> Any:
        if docs[0].text == NOISY[0][0]:
            raise RuntimeError("this batch cannot be predicted")
        return predict(docs)

    pipe.predict = fails
    nlp.set_error_handler(ignore_error)
    found = calibrate(nlp, make_examples(nlp, NOISY[:1] * 128 + NOISY[1:]))
    for name in ("entities", "left_out", "ece", "brier", "bins", "precision"):
        assert found["before"][name] == expected["before"][name], name
    assert found["before"]["recall"] < expected["before"]["recall"]  # gold of docs that failed


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("sentencizer dev.spacy OUT", "a crf_ner component, got one with ['sentencizer']"),
        ("two dev.spacy OUT", "expected one of ['second', 'crf_ner'], got none"),
        ("model dev.spacy OUT --component ner", "component: expected one of ['crf_ner'], got ner"),
        ("missing dev.spacy OUT", "missing"),
        ("model missing.spacy OUT", "missing.spacy"),
        ("model bare.spacy OUT", "expected examples with annotated entities"),
        ("model dev.spacy FULL", "expected a new or an empty folder"),
        ("model dev.spacy FULL/file", "file: expected a new or an empty folder"),
        ("model dev.spacy OUT --f-beta 0", "f_beta: expected a number over 0, got"),
        ("model dev.spacy OUT --f-beta nan", "f_beta: expected a number over 0, got"),
        ("model dev.spacy OUT --texts words.txt", "--texts: expected --f-beta with it, got none"),
        ("model dev.spacy OUT --f-beta 1 --texts no.txt", "no.txt"),
        ("model dev.spacy OUT --f-beta 1 --texts empty.txt", "probable entities that are not"),
    ],
)
def test_calibrate_command_bad_argument_prints_one_line_error(
    arguments, says, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    paths = arguments.replace("OUT", str(tmp_path / "out")).replace("FULL", str(tmp_path / "full"))
    code, output = run(*paths.split())
    assert code == 1 and "Traceback" not in output
    (error,) = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert says in error
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "full", tmp_path / "full" / "file"]


def test_calibrate_command_component_option_selects_component(folder, tmp_path):
    arguments = (folder / "two", folder / "dev.spacy", tmp_path)  # an empty folder is accepted
    code, output = run(*arguments, "--component", "second")
    assert code == 0, output
    pipe = spacy.load(tmp_path).get_pipe
    assert pipe("crf_ner").temperature == 1.0 < pipe("second").temperature
