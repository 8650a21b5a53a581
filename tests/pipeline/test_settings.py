"""Settings: those of the config apply, changes at run time are saved, invalid values raise."""

import copy
import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.lang.en import English
from spacy.language import Language
from spacy.training import Example

from pipelines import SENTENCES, TOK2VEC, make_examples, train
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibrated_pipe import CALIBRATION, calibration_of
from spacy_crf_ner.pipeline.crf_ner import CRFEntityRecognizer

TEXT = SENTENCES[5][0]
MODEL = {"hidden_width": 16, "tok2vec": TOK2VEC}
# Each setting, and another value for it than the default.
SETTINGS: dict[str, Any] = {
    "confidence": False,
    "threshold": 0.75,
    "thresholds": {"GPE": 0.5},
    "temperature": 2.5,
    "platt_slope": 0.5,
    "platt_intercept": -1.5,
    "platt_ceiling": 0.75,
    "decode": "f_score",
    "span_threshold": 0.25,
    "spans_key": "candidates",
    "candidate_threshold": 0.25,
    "disabled_labels": ["ORG"],
    "incorrect_spans_key": "rejected",
    "overwrite": True,
}


@pytest.fixture(scope="module")
def saved(shared: Callable[..., Path]) -> Path:
    """The folder of a trained pipeline with default settings."""

    def make() -> Language:
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", name="ner", config={"model": MODEL})
        train(nlp, make_examples(nlp), steps=25)
        return nlp

    return shared("settings", make)


@pytest.fixture(scope="module")
def changed(saved: Path) -> Language:
    """A pipeline whose settings are changed one by one: only the first change is slow."""
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
    return spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())


@pytest.mark.parametrize("name, value", SETTINGS.items())
def test_load_with_config_override_applies_setting(saved: Path, name: str, value: Any) -> None:
    nlp = spacy.load(saved, config={"components": {"ner": {name: value}}})
    assert value_of(ner_of(nlp), name) == configured(nlp, name) == value


def test_a_threshold_given_to_load_drops_entities(saved: Path) -> None:
    assert spacy.load(saved)(TEXT).ents
    assert not spacy.load(saved, config={"components.ner.threshold": 1.0})(TEXT).ents
    weaker = spacy.load(saved, config={"components.ner.temperature": 50.0})(TEXT)
    assert max(ent._.confidence for ent in weaker.ents) < 0.5


def test_invalid_setting_raises_at_load_and_assignment(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"\[ner\] threshold: expected 0.0 to 1.0, got 3.0"):
        spacy.load(saved, config={"components.ner.threshold": 3.0})
    nlp = spacy.load(saved)
    with pytest.raises(
        InputError, match=r"\[ner\] temperature: expected a finite number from 1e-6, got -1"
    ):
        ner_of(nlp).temperature = -1.0
    assert (ner_of(nlp).temperature, configured(nlp, "temperature")) == (1.0, None)
    for slope in (0.0, math.inf):
        with pytest.raises(InputError, match=r"platt_slope: expected a finite number over 0, got"):
            ner_of(nlp).platt_slope = slope
    with pytest.raises(InputError, match=r"\[ner\] platt_intercept: expected a finite number"):
        ner_of(nlp).platt_intercept = float("nan")


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e-310, 1e-30])
def test_non_finite_or_tiny_temperature_raises(saved: Path, value: float) -> None:
    nlp = spacy.load(saved)
    with pytest.raises(InputError, match=rf"temperature: expected a finite .*, got {value}"):
        ner_of(nlp).temperature = value
    if math.isfinite(value):  # spaCy refuses other values in a config
        with pytest.raises(InputError, match="temperature: expected a finite"):
            spacy.load(saved, config={"components.ner.temperature": value})


def test_lowest_temperature_gives_confidence_one(saved: Path) -> None:
    best = spacy.load(saved)(TEXT).ents
    nlp = spacy.load(saved, config={"components.ner.temperature": 1e-6})
    assert [(ent.text, ent._.confidence) for ent in nlp(TEXT).ents] == [
        (ent.text, pytest.approx(1.0)) for ent in best
    ]


def test_invalid_stored_temperature_raises(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved)
    nlp.to_disk(tmp_path)
    cfg = srsly.read_json(tmp_path / "ner" / "cfg")
    srsly.write_json(tmp_path / "ner" / "cfg", {**cfg, "temperature": 0.0})
    (tmp_path / "ner" / "digests.json").unlink()
    with pytest.raises(InputError, match="temperature: expected a finite number from 1e-6, got 0"):
        spacy.load(tmp_path)(TEXT)


def test_stored_cfg_contains_only_labels_chains_and_hashes(saved: Path) -> None:
    cfg = srsly.read_json(saved / "ner" / "cfg")
    assert cfg.pop("seen").keys() == {"is_complete", "train", "dev"}
    assert {key: value for key, value in cfg.items() if value} == {
        "labels": ["GPE", "ORG", "PERSON"],
        "chains": ["flat", 1],
    }


# On disk too, a setting of the config and one of the weights.
@pytest.mark.parametrize(
    "name, value, how",
    [(name, value, "bytes") for name, value in SETTINGS.items()]
    + [(name, SETTINGS[name], "disk") for name in ("thresholds", "temperature")],
)
def test_a_setting_that_is_changed_is_saved(
    changed: Language, tmp_path: Path, name: str, value: Any, how: str
) -> None:
    nlp, before = changed, configured(changed, name)
    default = getattr(ner_of(nlp), name)
    assert default != value
    try:
        setattr(ner_of(nlp), name, value)
        # What is fitted belongs to the weights, and is stored with them.
        fitted = name in (*CALIBRATION, "span_threshold")
        assert configured(nlp, name) == (None if fitted else value)
        assert value_of(ner_of(stored(nlp, how, tmp_path)), name) == value
    finally:
        setattr(ner_of(nlp), name, before)
    assert (getattr(ner_of(nlp), name), configured(nlp, name)) == (default, before)


@pytest.mark.parametrize("kept", [True, False])
def test_a_setting_of_a_sourced_component_is_saved(saved: Path, tmp_path: Path, kept: bool) -> None:
    """Two pipelines hold it, of which one may be gone."""
    source, nlp = spacy.load(saved), spacy.blank("en")
    nlp.add_pipe("ner", source=source)
    if not kept:
        del source
    ner_of(nlp).threshold = 0.75
    assert ner_of(stored(nlp, "disk", tmp_path)).threshold == 0.75
    if kept:
        assert configured(source, "threshold") == 0.75


def test_pipelines_are_searched_for_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than the prediction of many docs. A new pipeline is found all the same."""
    searches, get_objects = [], gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or get_objects())
    nlp, other = spacy.load(saved), spacy.blank("en")
    for threshold in (0.25, 0.5, 0.75):
        ner_of(nlp).threshold = threshold
        assert configured(nlp, "threshold") == threshold
    assert len(searches) == 1
    other.add_pipe("ner", source=nlp)
    ner_of(nlp).threshold = 0.5
    assert configured(nlp, "threshold") == configured(other, "threshold") == 0.5


def test_pipeline_created_during_search_is_found_by_next_search(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another thread. Pipelines may be equal, and one may be incomplete."""

    class Equal(English):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

    nlp, others, get_objects = spacy.load(saved), [Equal()], gc.get_objects
    incomplete = Language.__new__(Language)

    def get_all() -> list[Any]:
        found = get_objects()
        monkeypatch.undo()
        others.append(Equal())
        others[1].add_pipe("ner", source=nlp)
        return found

    monkeypatch.setattr(gc, "get_objects", get_all)
    ner_of(nlp).threshold = 0.25
    ner_of(nlp).threshold = 0.5
    assert configured(nlp, "threshold") == configured(others[1], "threshold") == 0.5
    others[0].add_pipe("ner", source=nlp)
    ner_of(nlp).threshold = 0.75
    assert [configured(each, "threshold") for each in (nlp, *others)] == [0.75] * 3
    assert not hasattr(incomplete, "components")


def test_other_components_keep_their_settings(saved: Path) -> None:
    nlp, other = spacy.load(saved), spacy.load(saved)
    nlp.add_pipe("crf_ner", name="second", config={"model": MODEL})
    ner_of(nlp).threshold = 0.75
    assert nlp.config["components"]["second"]["threshold"] == configured(other, "threshold") == 0.0
    assert ner_of(other).threshold == 0.0


def test_a_copy_of_a_component_has_its_settings(saved: Path) -> None:
    ner = ner_of(spacy.load(saved, config={"components": {"ner": SETTINGS}}))
    twin = copy.deepcopy(ner)
    assert {name: value_of(twin, name) for name in SETTINGS} == SETTINGS


def test_thresholds_dict_is_copied_and_read_only(saved: Path) -> None:
    """A change of the dict would not reach the config."""
    ner, given = ner_of(spacy.load(saved)), {"GPE": 0.5}
    ner.thresholds = given
    given["GPE"] = 0.75
    assert ner.thresholds == {"GPE": 0.5}
    with pytest.raises(TypeError):
        ner.thresholds["GPE"] = 0.25  # type: ignore[index]


def test_thresholds_with_unknown_label_raise(saved: Path) -> None:
    expected = r"\[ner\] thresholds: expected labels among \['GPE', 'ORG', 'PERSON'\], got .*PERSN"
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", name="ner", config={"model": MODEL, "thresholds": {"PERSN": 0.5}})
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


def test_fitted_temperature_is_stored_with_weights(saved: Path, tmp_path: Path) -> None:
    nlp, temperature = fitted(saved)
    assert ner_of(nlp).temperature == temperature != 1.0
    ner_of(nlp).to_disk(tmp_path / "ner")
    other = ner_of(spacy.load(saved))
    other.from_disk(tmp_path / "ner")
    assert other.temperature == pytest.approx(temperature, rel=1e-6)
    nlp.to_disk(tmp_path / "nlp")
    # spaCy stores nine digits of a number.
    loaded = ner_of(spacy.load(tmp_path / "nlp"))
    assert loaded.temperature == pytest.approx(temperature, rel=1e-6)
    overridden = spacy.load(tmp_path / "nlp", config={"components.ner.temperature": 3.0})
    assert ner_of(overridden).temperature == configured(overridden, "temperature") == 3.0


@pytest.mark.parametrize("name", CALIBRATION)
def test_number_that_is_given_after_a_fit_is_not_calibrated_on_entities(
    name: str, saved: Path
) -> None:
    nlp, _ = fitted(saved)
    ner = ner_of(nlp)
    gold = [ent for eg in make_examples(nlp)[1:] for ent in eg.reference.ents]
    assert calibration_of(ner) == f"Confidences: calibrated on {len(gold)} entities"
    other = spacy.load(saved, config={f"components.ner.{name}": 0.5})
    ner_of(other).from_bytes(ner.to_bytes())
    setattr(ner, name, 0.5)
    for each in (ner, ner_of(other)):
        assert calibration_of(each) == "Confidences: calibrated on given numbers"
    ner.fit_temperature(make_examples(nlp))
    assert ner.calibrated_on == len(gold) + 2


def test_initialize_resets_fitted_temperature_and_threshold(saved: Path) -> None:
    nlp, temperature = fitted(saved)
    ner_of(nlp).span_threshold = 0.7
    another = spacy.blank("en").from_config(nlp.config)
    for pipeline in (another, nlp):
        pipeline.initialize(lambda: make_examples(nlp))
        assert ner_of(pipeline).temperature == 1.0 != temperature
        assert ner_of(pipeline).span_threshold == 0.4


def test_setting_changed_with_frozen_gc_is_saved(saved: Path, tmp_path: Path) -> None:
    """As servers do before they fork: then no object can be looked up."""
    nlp = spacy.load(saved)
    gc.freeze()
    try:
        ner_of(nlp).threshold = 0.75
    finally:
        gc.unfreeze()
    assert ner_of(stored(nlp, "disk", tmp_path)).threshold == 0.75
    other = spacy.blank("en")
    other.add_pipe("ner", source=nlp)
    gc.freeze()
    try:
        ner_of(nlp).threshold = 0.25
    finally:
        gc.unfreeze()
    ner_of(nlp).threshold = 0.5
    assert configured(other, "threshold") == 0.5


def test_failed_initialize_keeps_model(saved: Path) -> None:
    nlp = spacy.load(saved)
    before, dims = [str(ent) for ent in nlp(TEXT).ents], ner_of(nlp).model.get_dim("nO")
    wrong = Example.from_dict(nlp.make_doc("  Tim saw"), {"entities": [(0, 5, "PERSON")]})
    with pytest.raises(InputError):
        ner_of(nlp).initialize(lambda: [wrong])
    assert ner_of(nlp).model.get_dim("nO") == dims
    ner_of(nlp).add_label("LATE")
    assert [str(ent) for ent in nlp(TEXT).ents] == before


def test_scheme_not_matching_weights_raises(saved: Path) -> None:
    nlp = spacy.load(saved, config={"components.ner.scheme": "bio"})
    with pytest.raises(InputError, match=r"expected a model of 7 tags .*'bio', got one of 13"):
        nlp(TEXT)


WRONG_TYPES = [("threshold", "a"), ("threshold", None), ("thresholds", {"PERSON": "x"})]
WRONG_TYPES += [("thresholds", 3), ("spans_key", 3), ("incorrect_spans_key", 5), ("decode", [])]
WRONG_TYPES += [("overwrite", "yes"), ("confidence", None), ("temperature", "a")]
WRONG_TYPES += [("disabled_labels", "ORG"), ("disabled_labels", [1]), ("disabled_labels", None)]
WRONG_TYPES += [("platt_intercept", "a"), ("span_threshold", "a"), ("candidate_threshold", None)]


@pytest.mark.parametrize("name, value", WRONG_TYPES)
def test_setting_of_wrong_type_raises(changed: Language, name: str, value: Any) -> None:
    nlp, before = changed, configured(changed, name)
    with pytest.raises(InputError, match=rf"\[ner\] {name}: expected "):
        setattr(ner_of(nlp), name, value)
    assert configured(nlp, name) == before
