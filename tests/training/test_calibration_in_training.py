"""Calibration in `spacy train`, against `calibrate` on the saved pipelines."""

import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Corpus, Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry
from thinc.api import Config

from helpers import LEARNED
from pipelines import make_examples
from spacy_crf_ner.distillation.student import student_config
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibration import forget_calibration, is_calibrated
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.seen_texts import hashes_of
from spacy_crf_ner.pipeline.settings import CALIBRATION
from spacy_crf_ner.training.calibration import calibrate_on_dev
from spacy_crf_ner.training.cross_validation import train_folds

ROOT = Path(__file__).parents[2]
# In part contradicts LEARNED.
DEV = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "PER")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "LOC")]),
    ("Anna saw it", [(0, 4, "PER")]),
    ("Bonn came", []),
    ("it saw Bonn", [(7, 11, "LOC")]),
]
NEUTRAL = [1.0, 1.0, 0.0, 1.0]
UNCALIBRATED = {"training.before_to_disk": None}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    nlp = spacy.blank("en")
    for name, sentences in ("train", LEARNED), ("dev", DEV):
        docs = [eg.reference for eg in make_examples(nlp, sentences)]
        DocBin(docs=docs).to_disk(folder / f"{name}.spacy")
    return folder


def make_config(corpus: Path, name: str = "cnn", **overrides: Any) -> Config:
    """A shipped config, small, for twelve steps, evaluated before and after."""
    small = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "components.ner.model.hidden_width": 16,
        "training.max_steps": 12,
        "training.eval_frequency": 12,
        "training.optimizer.learn_rate.warmup_steps": 1,
        "training.optimizer.learn_rate.initial_rate": 0.01,
    }
    if name == "cnn":
        tok2vec = {"width": 32, "depth": 1, "embed_size": 500}
        small |= {f"components.ner.model.tok2vec.{key}": size for key, size in tok2vec.items()}
    callback = overrides.pop("training.before_to_disk", ...)
    config = load_config(ROOT / "configs" / f"{name}.cfg", overrides={**small, **overrides})
    if callback is None:  # old versions of confection do not override a block with it
        config["training"]["before_to_disk"] = None
    return config


def trained(config: Config, output: Path) -> Language:
    """The last pipeline that a training saves."""
    output.mkdir(exist_ok=True)
    train(init_nlp(config), output)
    return spacy.load(output / "model-last")


@pytest.fixture(scope="module")
def plain(shared: Any, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline that was trained and calibrated as the config says."""

    def make() -> Language:
        return trained(make_config(corpus), tmp_path_factory.mktemp("plain"))

    return Path(shared("calibrated_in_training", make))


@pytest.fixture(scope="module")
def uncalibrated(shared: Any, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without calibration."""

    def make() -> Language:
        config = make_config(corpus, **UNCALIBRATED)
        return trained(config, tmp_path_factory.mktemp("uncalibrated"))

    return Path(shared("uncalibrated_in_training", make))


def fits(nlp: Language, name: str = "ner") -> list[float]:
    return [getattr(nlp.get_pipe(name), each) for each in CALIBRATION]


def expected(nlp: Language, dev: Path | list[Example], name: str = "ner") -> list[float]:
    """What `calibrate` fits to the same weights; the pipeline keeps it."""
    for each in CALIBRATION:
        setattr(nlp.get_pipe(name), each, None)
    assert fits(nlp, name) == NEUTRAL
    found = calibrate(nlp, dev if isinstance(dev, list) else Corpus(dev)(nlp), name)
    return [found[each] for each in CALIBRATION]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "char", "transformer"])
def test_saved_pipelines_of_the_shipped_configs_are_calibrated(
    name: str, corpus: Path, tiny_transformer: str, tmp_path: Path
) -> None:
    overrides = {"paths.transformer": tiny_transformer} if name == "transformer" else {}
    trained(make_config(corpus, name, **overrides), tmp_path)
    for saved in ("model-best", "model-last"):
        nlp = spacy.load(tmp_path / saved)
        found = fits(nlp)
        assert found[2] != 0.0 and recognizer(nlp, "ner").calibrated_on == 6
        assert found == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_trained_pipelines_know_the_texts_of_train_and_dev(plain: Path, uncalibrated: Path) -> None:
    parts = [hashes_of(text for text, _ in sentences) for sentences in (LEARNED, DEV)]
    for folder in (plain, uncalibrated):  # of two evaluations
        assert recognizer(spacy.load(folder)).seen_texts.known() == (True, *parts)
    nlp = spacy.load(plain)  # as a frozen component, it learns nothing
    nlp.update(make_examples(nlp, [("New text", [])]), exclude=["ner"])
    assert recognizer(nlp).seen_texts.known() == (True, *parts)


def test_calibration_keeps_trained_weights_bitwise_equal(plain: Path, uncalibrated: Path) -> None:
    """Calibration must not use the random numbers of the training: dropout, order of docs."""
    with_it, without = spacy.load(plain), spacy.load(uncalibrated)
    assert with_it.get_pipe("ner").model.to_bytes() == without.get_pipe("ner").model.to_bytes()
    assert fits(without) == NEUTRAL != fits(with_it)
    for text, _ in DEV:
        a, b = with_it(text).ents, without(text).ents
        assert [(e.text, e.label_) for e in a] == [(e.text, e.label_) for e in b]


def test_calibrate_on_dev_max_words_uses_random_part_of_dev(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, **{"training.before_to_disk.max_words": 7})  # the third is cut
    nlp = trained(config, tmp_path)
    found = fits(nlp)
    examples = list(Corpus(corpus / "dev.spacy")(nlp))
    random.Random(0).shuffle(examples)
    assert sum(len(eg.predicted) for eg in examples[:2]) < 7
    assert found == pytest.approx(expected(nlp, examples[:3]), rel=1e-5)
    assert found != pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-2)
    calibrate_on_dev(max_words=0)(nlp)
    assert fits(nlp) == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def calibrated_to(temperature: float, plain: Path, folder: Path) -> str:
    """The path of a trained pipeline with a temperature of its own."""
    nlp = spacy.load(plain)
    nlp.get_pipe("ner").temperature = temperature  # type: ignore[attr-defined]
    nlp.to_disk(folder)
    return str(folder)


def test_calibrate_on_dev_skips_frozen_components_and_those_with_a_threshold(
    corpus: Path, plain: Path, tmp_path: Path
) -> None:
    source = calibrated_to(1.5, plain, tmp_path / "source")
    config = make_config(corpus)
    config["components"]["given"] = {**config["components"]["ner"], "threshold": 0.1}
    config["components"]["frozen"] = {
        "source": source,
        "component": "ner",
    }
    config["nlp"]["pipeline"] = ["frozen", "given", "ner"]
    config["components"]["ner"]["overwrite"] = True
    config["training"]["frozen_components"] = ["frozen"]
    nlp = trained(config, tmp_path / "out")
    assert fits(nlp, "frozen")[0] == 1.5 and fits(nlp, "given") == NEUTRAL
    assert fits(nlp) == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_calibrate_on_dev_fits_each_component_when_another_fails(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first time, too."""
    config = make_config(corpus, **UNCALIBRATED)
    config["components"]["second"] = {**config["components"]["ner"], "overwrite": True}
    config["nlp"]["pipeline"] = ["ner", "second"]
    nlp = trained(config, tmp_path)
    calibrate_on_dev()(nlp)
    found = {name: fits(nlp, name) for name in ("ner", "second")}
    for name, values in found.items():
        assert values == pytest.approx(expected(nlp, corpus / "dev.spacy", name), rel=1e-5)
    assert found["ner"] != found["second"]

    def fail(*_: Any) -> None:
        raise InputError("not now")

    callback = calibrate_on_dev()
    monkeypatch.setattr(nlp.get_pipe("ner"), "fit_temperature", fail)
    callback(nlp)
    for each in CALIBRATION:
        setattr(nlp.get_pipe("second"), each, None)
    callback(nlp)
    assert "[ner] calibration failed: not now" in caplog.messages
    assert fits(nlp, "second") == pytest.approx(found["second"], rel=1e-5)
    assert fits(nlp, "ner") == NEUTRAL  # not those of an earlier save

    # A component that diverged cannot annotate docs for a later one: both are saved as they are.
    monkeypatch.setattr(nlp.get_pipe("ner"), "predict", fail)
    callback = calibrate_on_dev()
    callback(nlp)
    caplog.clear()
    callback(nlp)
    failed = [f"[{name}] calibration failed: not now" for name in ("ner", "second")]
    assert caplog.messages == failed


def test_training_on_few_dev_entities_says_so_in_one_line(
    corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model was trained on dev, and has learned it: nothing is a reason for a warning."""
    config = make_config(corpus, **{"paths.dev": str(corpus / "train.spacy")}, **UNCALIBRATED)
    config["training"].update(max_steps=40, eval_frequency=40)
    nlp, _ = train(init_nlp(config))
    callback = calibrate_on_dev()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert callback(nlp) is callback(nlp) is nlp
    assert caplog.messages == [
        "[ner] Confidences are calibrated on 4 entities of the dev corpus, too few to trust them: "
        "200 or more are better, see train --folds."
    ]
    found = fits(nlp)
    assert found[0] >= 1.0 and found[1] <= 1.0
    assert max(ent._.confidence for ent in nlp("Anna saw Bonn").ents) < 0.99


def test_calibrate_on_dev_counts_entities_of_predicted_labels(
    corpus: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DEV has three entities of each label."""
    nlp = spacy.load(plain)
    pipe = recognizer(nlp)
    examples = list(Corpus(corpus / "dev.spacy")(nlp))
    gold = [ent.label_ for eg in examples for ent in eg.reference.ents]
    pipe.disabled_labels = ["PER"]
    calibrate_on_dev()(nlp)
    n = gold.count("LOC")
    assert 0 < n < len(gold) and pipe.calibrated_on == n
    assert [f"calibrated on {n} entities" in each for each in caplog.messages] == [True]
    caplog.clear()
    pipe.disabled_labels = ["PER", "LOC"]
    forget_calibration(pipe)
    calibrate_on_dev()(nlp)
    assert not is_calibrated(pipe)
    assert ["expected entities" in each for each in caplog.messages] == [True]


def test_training_with_nan_weights_warns_and_saves_pipelines(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As without calibration. The error is that of the training."""
    nlp = init_nlp(make_config(corpus))
    pipe, steps = nlp.get_pipe("ner"), iter(range(100))
    get_loss = pipe.get_loss

    def fail(*args: Any) -> Any:
        if next(steps) == 8:
            for node in pipe.model.walk():
                for name in node.param_names:
                    if node.has_param(name):
                        node.set_param(name, node.get_param(name) * np.nan)
        return get_loss(*args)

    monkeypatch.setattr(pipe, "get_loss", fail)
    with pytest.raises(InputError, match="expected finite") as caught:
        train(nlp, tmp_path)
    assert re.search(r"\[ner\] calibration failed: .* expected finite", caplog.text)
    assert caught.value.__context__ is None
    assert (tmp_path / "model-last").exists() and (tmp_path / "model-best").exists()


def write(docs: list[Doc], path: Path) -> str:
    DocBin(docs=docs).to_disk(path)
    return str(path)


@pytest.mark.parametrize("has_entities", [False, None])
def test_calibrate_on_dev_without_entities_warns_and_skips_fit(
    has_entities: bool | None, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The docs are not annotated, or without an entity; spaCy trains as ever."""
    nlp = spacy.blank("en")
    docs = [nlp("Anna saw Bonn"), nlp("it came")]
    for doc in docs if has_entities is False else ():
        doc.set_ents([], default="outside")
    config = make_config(corpus, **{"paths.dev": write(docs, tmp_path / "dev.spacy")})
    assert fits(trained(config, tmp_path / "out")) == NEUTRAL
    assert re.search(r"\[ner\] calibration: expected entities .* got none", caplog.text)


@pytest.mark.parametrize("overlap", [False, True])
def test_calibrate_on_dev_with_unlearnable_entity_warns_and_skips_doc(
    overlap: bool, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown label, and a space at the border; spaCy scores such docs, and so do we."""
    nlp = spacy.blank("en")
    docs = list(DocBin().from_disk(corpus / "dev.spacy").get_docs(nlp.vocab))
    for space, label in (("there", "DOG"), ("\n", "PER")):
        odd = Doc(nlp.vocab, ["Anna", "saw", space, "Rex"])
        odd.set_ents([Span(odd, 2, 4, label)], default="outside")
        docs.insert(0, odd)
    settings = {"paths.dev": write(docs, tmp_path / "dev.spacy")}
    settings["components.ner.overlap"] = overlap
    found = trained(make_config(corpus, **settings), tmp_path / "out")
    assert re.search("leaves out 2 of 8 docs .*Rex", caplog.text, re.DOTALL)
    assert fits(found) == pytest.approx(expected(found, corpus / "dev.spacy"), rel=1e-5)


def test_calibrate_on_dev_max_words_ignores_unannotated_docs(corpus: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    docs = list(DocBin().from_disk(corpus / "dev.spacy").get_docs(nlp.vocab))
    path = write([*(nlp("Anna saw Bonn again") for _ in range(40)), *docs], tmp_path / "dev.spacy")
    settings = {"paths.dev": path, "training.before_to_disk.max_words": 15}
    found = trained(make_config(corpus, **settings), tmp_path / "out")
    few = {**settings, "paths.dev": str(corpus / "dev.spacy")}
    assert fits(found) == fits(trained(make_config(corpus, **few), tmp_path / "few"))


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 0.5},
        {"thresholds": {"PER": 0.5}},
        {"decode": "max_expected_f"},
    ],
)
def test_meta_performance_with_confidence_settings_equals_evaluation(
    settings: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    """spaCy scores a pipeline before it is calibrated: that must not change entities."""
    steps = {"training.max_steps": 6, "training.eval_frequency": 6}
    config = make_config(corpus, **steps)
    config["components"]["ner"].update(settings)
    nlp = trained(config, tmp_path)
    assert fits(nlp) == NEUTRAL
    scores = nlp.evaluate(list(Corpus(corpus / "dev.spacy")(nlp)))
    assert nlp.meta["performance"]["ents_f"] == pytest.approx(scores["ents_f"])


@registry.augmenters("a_test_of_numpy.v1")
def numpy_augmenter() -> Any:
    def augment(nlp: Language, eg: Example) -> Iterator[Example]:
        np.random.rand()
        yield eg

    return augment


@pytest.mark.parametrize(
    "augmenter",
    [
        {"@augmenters": "spacy.lower_case.v1", "level": 0.5},
        {"@augmenters": "a_test_of_numpy.v1"},
    ],
)
def test_calibrate_on_dev_with_random_augmenter_keeps_trained_weights(
    augmenter: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    settings = {"training.max_steps": 4, "training.eval_frequency": 2}
    weights = []
    for key, more in (("with", {}), ("without", UNCALIBRATED)):
        config = make_config(corpus, **settings, **more)
        config["corpora"]["dev"]["augmenter"] = augmenter
        ner: Any = trained(config, tmp_path / key).get_pipe("ner")
        weights.append(ner.model.to_bytes())
    assert weights[0] == weights[1]


def test_train_folds_skips_calibration(corpus: Path) -> None:
    """The tenth that chooses the checkpoint can have a label that the others lack."""
    nlp = spacy.blank("en")
    docs = [eg.reference for eg in make_examples(nlp, LEARNED * 3)]
    for i, doc in enumerate(docs):
        doc.set_ents([Span(doc, 0, 1, f"RARE{i}"), *(ent for ent in doc.ents if ent.start > 0)])
    config = make_config(corpus, **{"training.max_steps": 2, "training.eval_frequency": 1})
    for trained_nlp, held_out in train_folds(config, docs, [i % 2 for i in range(12)]):
        assert fits(trained_nlp) == NEUTRAL
        _, *seen = recognizer(trained_nlp).seen_texts.known()
        rest = [doc.text for i, doc in enumerate(docs) if i not in held_out]
        assert seen[0] | seen[1] == hashes_of(rest) and all(seen)


def test_train_folds_with_rehearse_callback_trains_all_folds(
    corpus: Path, uncalibrated: Path, tmp_path: Path
) -> None:
    """A fold starts with new weights, which have no predictions to keep."""
    config = make_config(corpus, **UNCALIBRATED, **{"training.max_steps": 2})
    config["components"]["ner"] = {"source": str(uncalibrated)}
    rehearsed = {"path": str(corpus / "train.spacy"), "component": "ner", "batch_size": 2}
    rehearsed["@callbacks"] = "spacy-crf-ner.rehearse.v1"
    config["training"]["before_update"] = rehearsed
    nlp = trained(config, tmp_path / "new")
    docs = [eg.reference for eg in make_examples(nlp, LEARNED * 3)]
    folds = list(train_folds(nlp.config, docs, [i % 2 for i in range(12)]))
    assert [len(held_out) for _, held_out in folds] == [6, 6]


@pytest.mark.parametrize("hold_out", [0, 10])
def test_student_config_with_hold_out_removes_calibration(hold_out: int, corpus: Path) -> None:
    nlp = init_nlp(make_config(corpus))
    path = corpus / "dev.spacy"
    config = student_config(
        nlp, ["LOC", "PER"], corpus, path, weight=1.0, temperature=1.0, hold_out=hold_out
    )
    assert (config["training"]["before_to_disk"] is None) == bool(hold_out)


def test_calibration_at_the_first_evaluation_keeps_hashes_of_dev(corpus: Path) -> None:
    """That pipeline may be the best one, saved before training goes on."""
    nlp = init_nlp(make_config(corpus))
    nlp.update(make_examples(nlp, LEARNED), sgd=nlp.create_optimizer())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrate_on_dev()(nlp)
    assert recognizer(nlp).seen_texts.known().dev == hashes_of(text for text, _ in DEV)


def test_pipeline_saved_again_with_the_same_weights_is_calibrated_once(
    corpus: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a training, after the last evaluation."""
    nlp = spacy.blank("en").from_config(make_config(corpus)).from_disk(plain)
    ner: Any = nlp.get_pipe("ner")
    before, calls = fits(nlp), []
    fit = type(ner).fit_temperature
    monkeypatch.setattr(
        type(ner), "fit_temperature", lambda self, read: calls.append(0) or fit(self, read)
    )
    save = calibrate_on_dev()
    save(nlp)  # of the first time, the warnings are not shown
    calls.clear()
    for _ in range(2):
        ner.temperature = 7.0
        save(nlp)
        assert fits(nlp) == pytest.approx(before) and len(calls) == 1
    node = next(node for node in ner.model.walk() if node.param_names)
    node.set_param(node.param_names[0], node.get_param(node.param_names[0]) * 1.5)
    save(nlp)
    assert len(calls) == 2 and fits(nlp) != pytest.approx(before)
    save(nlp)
    assert len(calls) == 2
