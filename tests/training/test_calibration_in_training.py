"""Calibration in `spacy train`, against `calibrate` on the saved pipelines."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Corpus, Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from thinc.api import Config

from pipelines import make_examples
from spacy_crf_ner.distillation.student import student_config
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.training.calibration import calibrate_on_dev

ROOT = Path(__file__).parents[2]
TRAIN = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "PER")]),
    ("it came", []),
]
# In part other than what is learned.
DEV = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "PER")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "LOC")]),
    ("Anna saw it", [(0, 4, "PER")]),
    ("Bonn came", []),
    ("it saw Bonn", [(7, 11, "LOC")]),
]
FITS = ("temperature", "platt_slope", "platt_intercept")
UNCALIBRATED = {"training.before_to_disk": None}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    nlp = spacy.blank("en")
    for name, sentences in ("train", TRAIN), ("dev", DEV):
        docs = [eg.reference for eg in make_examples(nlp, sentences)]
        DocBin(docs=docs).to_disk(folder / f"{name}.spacy")
    return folder


def make_config(corpus: Path, name: str = "cnn", **overrides: Any) -> Config:
    """A shipped config, small, for twelve steps with three evaluations."""
    small = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "components.ner.model.hidden_width": 16,
        "training.max_steps": 12,
        "training.eval_frequency": 6,
        "training.optimizer.learn_rate.warmup_steps": 1,
        "training.optimizer.learn_rate.initial_rate": 0.01,
    }
    return load_config(ROOT / "configs" / f"{name}.cfg", overrides={**small, **overrides})


def trained(config: Config, output: Path) -> Language:
    """The last pipeline that a training saves."""
    output.mkdir(exist_ok=True)
    train(init_nlp(config), output)
    return spacy.load(output / "model-last")


def fits(nlp: Language, name: str = "ner") -> list[float]:
    return [getattr(nlp.get_pipe(name), each) for each in FITS]


def expected(nlp: Language, dev: Path | list[Example], name: str = "ner") -> list[float]:
    """What `calibrate` fits to the same weights; the pipeline keeps it."""
    for each in FITS:
        setattr(nlp.get_pipe(name), each, None)
    assert fits(nlp, name) == [1.0, 1.0, 0.0]
    found = calibrate(nlp, dev if isinstance(dev, list) else Corpus(dev)(nlp), name)
    return [found[each] for each in FITS]


@pytest.mark.filterwarnings("ignore:.* best temperature")  # the transformer learns nothing
@pytest.mark.parametrize("name", ["cnn", "char", "transformer"])
def test_saved_pipelines_of_the_shipped_configs_are_calibrated(
    name: str, corpus: Path, tiny_transformer: str, tmp_path: Path
) -> None:
    overrides = {"paths.transformer": tiny_transformer} if name == "transformer" else {}
    trained(make_config(corpus, name, **overrides), tmp_path)
    for saved in ("model-best", "model-last"):
        nlp = spacy.load(tmp_path / saved)
        found = fits(nlp)
        assert found[0] != 1.0 and found[1] != 1.0
        assert found == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_the_training_is_the_same_to_the_bit(corpus: Path, tmp_path: Path) -> None:
    """Dropout and the order of the docs are random: calibration must not draw from there."""
    with_it = trained(make_config(corpus), tmp_path / "with")
    without = trained(make_config(corpus, **UNCALIBRATED), tmp_path / "without")
    assert with_it.get_pipe("ner").model.to_bytes() == without.get_pipe("ner").model.to_bytes()
    assert fits(without) == [1.0, 1.0, 0.0] != fits(with_it)
    for text, _ in DEV:
        a, b = with_it(text).ents, without(text).ents
        assert [(e.text, e.label_) for e in a] == [(e.text, e.label_) for e in b]


def test_a_random_part_of_a_larger_corpus(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, **{"training.before_to_disk.max_docs": 3})
    nlp = trained(config, tmp_path)
    found = fits(nlp)
    examples = random.Random(0).sample(list(Corpus(corpus / "dev.spacy")(nlp)), 3)
    assert found == pytest.approx(expected(nlp, examples), rel=1e-5)
    assert found != pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-2)
    config["training"]["before_to_disk"]["max_docs"] = 0
    nlp = trained(config, tmp_path)
    assert fits(nlp) == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_what_is_not_trained_or_given_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    source = trained(make_config(corpus), tmp_path / "source")
    source.get_pipe("ner").temperature = 1.5  # type: ignore[attr-defined]
    source.to_disk(tmp_path / "source" / "changed")
    config = make_config(corpus)
    config["components"]["given"] = {**config["components"]["ner"], "temperature": 2.0}
    config["components"]["frozen"] = {
        "source": str(tmp_path / "source" / "changed"),
        "component": "ner",
    }
    config["nlp"]["pipeline"] = ["frozen", "given", "ner"]
    config["components"]["ner"]["overwrite"] = True
    config["training"]["frozen_components"] = ["frozen"]
    nlp = trained(config, tmp_path / "out")
    assert fits(nlp, "frozen")[0] == 1.5 and fits(nlp, "given") == [2.0, 1.0, 0.0]
    assert fits(nlp) == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_a_fit_of_earlier_weights_is_replaced(corpus: Path, tmp_path: Path) -> None:
    """A sourced component was calibrated; training goes on."""
    source = trained(make_config(corpus), tmp_path / "source")
    source.get_pipe("ner").temperature = 7.0  # type: ignore[attr-defined]
    source.to_disk(tmp_path / "source" / "changed")
    config = make_config(corpus)
    config["components"]["ner"] = {"source": str(tmp_path / "source" / "changed")}
    nlp = trained(config, tmp_path / "out")
    found = fits(nlp)
    assert found[0] != pytest.approx(7.0, rel=0.1)
    assert found == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_entities_that_overlap(corpus: Path, tmp_path: Path) -> None:
    config = make_config(corpus, **{"components.ner.entities": "overlapping"})
    nlp = trained(config, tmp_path)
    assert fits(nlp) == pytest.approx(expected(nlp, corpus / "dev.spacy"), rel=1e-5)


def test_only_the_first_save_is_silent(corpus: Path) -> None:
    """The model knows dev by heart; at the first save of a training, none has learned anything."""
    config = make_config(corpus, **{"paths.dev": str(corpus / "train.spacy")}, **UNCALIBRATED)
    config["training"].update(max_steps=40, eval_frequency=40)
    nlp, _ = train(init_nlp(config))
    callback = calibrate_on_dev()
    assert callback(nlp) is nlp
    with pytest.warns(UserWarning, match="they were used for training"):
        callback(nlp)


def test_a_dev_corpus_without_annotation_is_an_error(corpus: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    docs = [nlp("Anna saw Bonn"), nlp("it came")]
    DocBin(docs=docs).to_disk(tmp_path / "dev.spacy")
    config = make_config(corpus, **{"paths.dev": str(tmp_path / "dev.spacy")})
    with pytest.raises(
        InputError, match="expected examples with annotated entities, got 2 without"
    ):
        train(init_nlp(config), tmp_path)


@pytest.mark.parametrize("hold_out", [0, 10])
def test_a_student_is_calibrated_on_gold_only(hold_out: int, corpus: Path) -> None:
    nlp = init_nlp(make_config(corpus))
    path = corpus / "dev.spacy"
    config = student_config(
        nlp, ["LOC", "PER"], corpus, path, weight=1.0, temperature=1.0, hold_out=hold_out
    )
    assert (config["training"]["before_to_disk"] is None) == bool(hold_out)


def test_confidences_match_the_precision_better(corpus: Path, tmp_path: Path) -> None:
    """The model is sure of what DEV contradicts."""
    settings = {"training.max_steps": 60, "training.eval_frequency": 30}
    likelihoods = {}
    for key, more in (("with", {}), ("without", UNCALIBRATED)):
        nlp = trained(make_config(corpus, **settings, **more), tmp_path / key)
        examples = list(Corpus(corpus / "dev.spacy")(nlp))
        ner: Any = nlp.get_pipe("ner")
        likelihoods[key] = np.sum(ner.log_likelihoods(examples))
    assert likelihoods["with"] > likelihoods["without"] + 1
