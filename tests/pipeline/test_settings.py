"""Settings: those of the config apply, changes at run time are saved, invalid values raise."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.training import Example

from pipelines import SENTENCES, copied, make_examples, small, train
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibration import calibration_of
from spacy_crf_ner.pipeline.crf_ner import CRFEntityRecognizer
from spacy_crf_ner.pipeline.settings import CALIBRATION

TEXT = SENTENCES[5][0]
# Each setting, and another value for it than the default.
SETTINGS: dict[str, Any] = {
    "confidence": False,
    "threshold": 0.75,
    "thresholds": {"GPE": 0.5},
    "decode": "max_expected_f",
    "f_score_threshold": 0.25,
    "spans_key": "candidates",
    "candidate_threshold": 0.25,
    "candidate_thresholds": {"GPE": 0.5},
    "disabled_labels": ["ORG"],
    "incorrect_spans_key": "rejected",
    "overwrite": True,
}
# What is fitted to held-out docs: no config has it.
FITTED = {"temperature": 2.5, "platt_slope": 0.5, "platt_intercept": -1.5, "platt_ceiling": 0.75}


@pytest.fixture(scope="module")
def saved(shared: Callable[..., Path]) -> Path:
    """The folder of a trained pipeline with default settings."""

    def make() -> Language:
        nlp = small(name="ner")
        train(nlp, make_examples(nlp), steps=25)
        return nlp

    return shared("settings", make)


@pytest.fixture(scope="module")
def changed(saved: Path) -> Language:
    """A pipeline whose settings are changed one by one, and set back."""
    return spacy.load(saved)


def ner_of(nlp: Language) -> CRFEntityRecognizer:
    pipe: Any = nlp.get_pipe("ner")
    assert isinstance(pipe, CRFEntityRecognizer)
    return pipe


def configured(nlp: Language, name: str) -> Any:
    return nlp.config["components"]["ner"][name]


def value_of(pipe: CRFEntityRecognizer, name: str) -> Any:
    """The value of an attribute, as a config has it: lists are read-only tuples in Python."""
    value = getattr(pipe, name)
    return list(value) if isinstance(value, tuple) else value


def stored(nlp: Language, how: str, path: Path) -> Language:
    """The pipeline after it was stored and loaded."""
    if how == "disk":
        nlp.to_disk(path)
        return spacy.load(path)
    return copied(nlp)


@pytest.mark.parametrize("name, value", SETTINGS.items())
def test_load_with_config_override_applies_setting(saved: Path, name: str, value: Any) -> None:
    nlp = spacy.load(saved, config={"components": {"ner": {name: value}}})
    assert value_of(ner_of(nlp), name) == configured(nlp, name) == value


def test_lowest_temperature_gives_confidence_one(saved: Path) -> None:
    best = spacy.load(saved)(TEXT).ents
    nlp = spacy.load(saved)
    ner_of(nlp).temperature = 1e-6
    assert [(ent.text, ent._.confidence) for ent in nlp(TEXT).ents] == [
        (ent.text, pytest.approx(1.0)) for ent in best
    ]


def test_stored_cfg_contains_only_labels_encoding_fits_and_hashes(saved: Path) -> None:
    cfg = srsly.read_json(saved / "ner" / "cfg")
    assert cfg.pop("seen").keys() == {"is_complete", "train", "dev"}
    assert {key: value for key, value in cfg.items() if value} == {
        "labels": ["GPE", "ORG", "PERSON"],
        "encoding": [False, 1],
        **{"temperature": 1.0, "platt_slope": 1.0, "platt_ceiling": 1.0},
    }


# On disk too, a setting of the config and one of the weights.
@pytest.mark.parametrize(
    "name, value, how",
    [(name, value, "bytes") for name, value in (SETTINGS | FITTED).items()]
    + [("thresholds", SETTINGS["thresholds"], "disk"), ("temperature", 2.5, "disk")],
)
def test_a_setting_that_is_changed_is_saved(
    changed: Language, tmp_path: Path, name: str, value: Any, how: str
) -> None:
    nlp, default, config = changed, getattr(ner_of(changed), name), changed.config.to_str()
    assert default != value
    try:
        setattr(ner_of(nlp), name, value)
        assert nlp.config.to_str() == config
        assert value_of(ner_of(stored(nlp, how, tmp_path)), name) == value
    finally:
        setattr(ner_of(nlp), name, default)
    assert getattr(ner_of(stored(nlp, "bytes", tmp_path)), name) == default


@pytest.mark.parametrize("name, value", [("threshold", 1 / 3), ("thresholds", {"GPE": 2 / 3})])
def test_config_value_other_than_the_replaced_one_overrides_saved_change(
    saved: Path, tmp_path: Path, name: str, value: Any
) -> None:
    """Also after the pipeline was saved twice."""
    other = {"threshold": 0.5, "thresholds": {"ORG": 0.5}}[name]
    nlp = spacy.load(saved, config={"components": {"ner": {name: value}}})
    setattr(ner_of(nlp), name, other)
    for folder in ("once", "twice"):
        nlp.to_disk(tmp_path / folder)
        nlp = spacy.load(tmp_path / folder)
        assert getattr(ner_of(nlp), name) == other
        # spaCy's older versions save numbers of a config with ten decimals.
        assert configured(nlp, name) == pytest.approx(value, abs=1e-10)
    third = {"threshold": 0.75, "thresholds": {"GPE": 0.25}}[name]  # spaCy joins dicts
    override = {"components": {"ner": {name: third}}}
    overridden = spacy.load(tmp_path / "twice", config=override)
    assert getattr(ner_of(overridden), name) == third
    # Saving the pipeline again keeps the override, and forgets the change.
    overridden.to_disk(tmp_path / "overridden")
    assert getattr(ner_of(spacy.load(tmp_path / "overridden")), name) == third
    cfg = srsly.read_json(tmp_path / "overridden" / "ner" / "cfg")
    assert cfg["settings"] == {}


def test_setting_changed_back_is_not_saved_as_a_change(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved)
    for threshold in (0.5, 0.0):
        ner_of(nlp).threshold = threshold
        nlp.to_disk(tmp_path)
    assert srsly.read_json(tmp_path / "ner" / "cfg")["settings"] == {}
    assert ner_of(spacy.load(tmp_path, config={"components.ner.threshold": 0.25})).threshold == 0.25


# Numbers of numpy, and small ones, of which spaCy saves ten decimals: 0 would not be valid.
NUMPY, SMALL = np.float32(0.75), 1.23456789e-12


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("threshold", NUMPY, 0.75),
        ("thresholds", {"GPE": NUMPY}, {"GPE": 0.75}),
        ("temperature", NUMPY, 0.75),
        ("platt_intercept", NUMPY, 0.75),
        ("calibrated_on", np.int64(3), 3),
        ("threshold", SMALL, SMALL),
        ("candidate_threshold", SMALL, SMALL),
        ("platt_slope", 1e-6, 1e-6),
        ("platt_ceiling", 1e-6, 1e-6),
    ],
)
def test_valid_number_can_be_saved_and_loaded(
    saved: Path, tmp_path: Path, name: str, value: Any, expected: Any
) -> None:
    nlp = spacy.load(saved)
    setattr(ner_of(nlp), name, value)
    assert getattr(ner_of(nlp), name) == expected
    assert getattr(ner_of(stored(nlp, "disk", tmp_path)), name) == expected


def test_loading_weights_without_cfg_keeps_settings(saved: Path) -> None:
    ner = ner_of(spacy.load(saved))
    data = ner.to_bytes()
    ner.threshold = 0.5
    assert ner.from_bytes(data, exclude=["cfg"]).threshold == 0.5
    assert ner.from_bytes(data).threshold == 0.0


@pytest.mark.parametrize("name", ["ner", "renamed"])
def test_settings_of_a_sourced_component_are_saved(saved: Path, tmp_path: Path, name: str) -> None:
    """Changed before and after it was sourced; also if it has another name."""
    source, nlp = spacy.load(saved), spacy.blank("en")
    ner_of(source).spans_key = "candidates"
    nlp.add_pipe("ner", name=name, source=source)
    pipe: Any = nlp.get_pipe(name)
    pipe.threshold = 0.75
    if name == "renamed":
        nlp.rename_pipe(name, "last")
        name = "last"
    for how in ("disk", "bytes"):
        found: Any = stored(nlp, how, tmp_path).get_pipe(name)
        assert (found.threshold, found.spans_key) == (0.75, "candidates")
    assert ner_of(source).threshold == 0.75  # it is the same component


def test_a_copy_of_a_component_has_its_settings(saved: Path) -> None:
    ner = ner_of(spacy.load(saved, config={"components": {"ner": SETTINGS}}))
    for name, value in FITTED.items():
        setattr(ner, name, value)
    twin = copy.deepcopy(ner)
    expected = SETTINGS | FITTED
    assert {name: value_of(twin, name) for name in expected} == expected
    ner.threshold, ner.temperature = 0.25, 1.0
    assert (twin.threshold, twin.temperature) == (0.75, 2.5)


def test_thresholds_dict_is_copied_and_read_only(saved: Path) -> None:
    """A change of the dict would not be checked."""
    ner, given = ner_of(spacy.load(saved)), {"GPE": 0.5}
    ner.thresholds = given
    given["GPE"] = 0.75
    assert ner.thresholds == {"GPE": 0.5}
    thresholds: Any = ner.thresholds
    for change in (
        lambda: thresholds.__setitem__("GPE", 0.25),
        lambda: thresholds.__delitem__("GPE"),
        lambda: thresholds.update(ORG=0.25),
        lambda: thresholds.setdefault("ORG", 0.25),
        lambda: thresholds.pop("GPE"),
        lambda: thresholds.popitem(),
        lambda: thresholds.clear(),
        lambda: thresholds.__ior__({"ORG": 0.25}),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert ner.thresholds == copy.deepcopy(ner.thresholds) == {"GPE": 0.5}


def test_thresholds_with_unknown_label_raise(saved: Path) -> None:
    expected = r"\[ner\] thresholds: expected labels among \['GPE', 'ORG', 'PERSON'\], got .*PERSN"
    nlp = small(name="ner", thresholds={"PERSN": 0.5})
    with pytest.raises(InputError, match=expected):
        nlp.initialize(lambda: make_examples(nlp))
    loaded = spacy.load(saved, config={"components": {"ner": {"thresholds": {"PERSN": 0.5}}}})
    with pytest.raises(InputError, match=expected):
        loaded(TEXT)


def fitted(path: Path) -> tuple[Language, float]:
    nlp = spacy.load(path)
    examples = make_examples(nlp)
    examples[0].reference.set_ents([], default="outside")  # one that the model has not learned
    return nlp, ner_of(nlp).fit_temperature(examples)


@pytest.mark.parametrize("name", CALIBRATION)
def test_number_that_is_given_after_a_fit_is_not_calibrated_on_entities(
    name: str, saved: Path
) -> None:
    nlp, _ = fitted(saved)
    ner = ner_of(nlp)
    gold = [ent for eg in make_examples(nlp)[1:] for ent in eg.reference.ents]
    few = "too few to trust them: 200 or more are better, see train --folds"
    assert calibration_of(ner) == f"Confidences: calibrated on {len(gold)} entities, {few}"
    ner.calibrated_on = 200
    assert calibration_of(ner) == "Confidences: calibrated on 200 entities"
    setattr(ner, name, 0.5)
    other = ner_of(spacy.load(saved)).from_bytes(ner.to_bytes())
    for each in (ner, other):
        assert calibration_of(each) == "Confidences: calibrated on given numbers"
    ner.fit_temperature(make_examples(nlp))
    assert ner.calibrated_on == len(gold) + 2


def test_initialize_resets_fitted_temperature_and_threshold(saved: Path) -> None:
    nlp, temperature = fitted(saved)
    ner_of(nlp).f_score_threshold, ner_of(nlp).threshold = 0.7, 0.2
    another = spacy.blank("en").from_config(nlp.config)
    for pipeline in (another, nlp):
        pipeline.initialize(lambda: make_examples(nlp))
        assert ner_of(pipeline).temperature == 1.0 != temperature
        assert ner_of(pipeline).f_score_threshold == 0.4
    assert ner_of(nlp).threshold == 0.2


def test_failed_initialize_keeps_model(saved: Path) -> None:
    nlp = spacy.load(saved)
    before, dims = [str(ent) for ent in nlp(TEXT).ents], ner_of(nlp).model.get_dim("nO")
    wrong = Example.from_dict(nlp.make_doc("  Tim saw"), {"entities": [(0, 5, "PERSON")]})
    with pytest.raises(InputError):
        ner_of(nlp).initialize(lambda: [wrong])
    assert ner_of(nlp).model.get_dim("nO") == dims
    ner_of(nlp).add_label("LATE")
    assert [str(ent) for ent in nlp(TEXT).ents] == before


# What each expects, and values that it is not.
NUMBER, SMALLEST = "a finite number", "a finite number from 1e-6"
WRONG: dict[str, tuple[str, list[Any]]] = {
    "confidence": ("true or false", [None]),
    "threshold": (r"0\.0 to 1\.0", [1.1, -0.1, "a", None]),
    "thresholds": (r"numbers from 0\.0 to 1\.0", [{"GPE": 2.0}, {"PERSON": "x"}, 3]),
    "decode": ("viterbi or max_expected_f", ["best", []]),
    "f_score_threshold": (r"a number between 0\.0 and 1\.0", [1.0, 0.0, "a"]),
    "spans_key": ("a string or None, not 'annotated_labels'", [3, "annotated_labels"]),
    "candidate_threshold": (r"a number over 0\.0, up to 1\.0", [1.5, 0.0, None]),
    "candidate_thresholds": (r"numbers over 0\.0, up to 1\.0", [{"GPE": 0.0}, {"GPE": 1.5}]),
    "disabled_labels": ("a list of labels", ["ORG", [1], None]),
    "incorrect_spans_key": ("a string or None", [5]),
    "overwrite": ("true or false", ["yes"]),
    "temperature": (SMALLEST, [-1.0, math.inf, math.nan, 1e-310, 1e-12, "a"]),
    "platt_slope": (SMALLEST, [0.0, math.inf, 1e-12]),
    "platt_intercept": (NUMBER, [math.nan, "a"]),
    "platt_ceiling": (r"a number from 1e-6 to 1\.0", [1e-12, 1.5]),
    "calibrated_on": ("a number of entities", ["a", -1, 0.5]),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_value_raises_and_keeps_setting(changed: Language, name: str) -> None:
    before, (expected, values) = getattr(ner_of(changed), name), WRONG[name]
    for value in values:
        with pytest.raises(InputError, match=rf"\[ner\] {name}: expected {expected}, got "):
            setattr(ner_of(changed), name, value)
    assert getattr(ner_of(changed), name) == before


def test_invalid_setting_raises_at_load(saved: Path) -> None:
    with pytest.raises(InputError, match=r"\[ner\] threshold: expected 0\.0 to 1\.0, got 3\.0"):
        spacy.load(saved, config={"components.ner.threshold": 3.0})
