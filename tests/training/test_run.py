"""`spacy_crf_ner.train`: what is trained on which corpus, with which settings, and calibrated."""

import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.training import Corpus
from spacy.util import load_config
from spacy.vocab import Vocab
from thinc.api import Config

import spacy_crf_ner
from helpers import LEARNED
from pipelines import ents, make_examples
from spacy_crf_ner.docbin import read_docbin
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibration import forget_calibration
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.settings import CALIBRATION
from spacy_crf_ner.pipeline.training_steps import training_steps
from spacy_crf_ner.pipeline.transformer_config import MINILM, bundled_config
from spacy_crf_ner.training import run
from spacy_crf_ner.training.corpus_parts import write_part
from spacy_crf_ner.training.init_config import fit_to_corpus, init_config
from spacy_crf_ner.training.options import Options, make_config
from training.conftest import DEV, SMALL

ENTITIES = sum(len(spans) for _, spans in DEV)
keeps_dollars = pytest.mark.skipif(
    version("confection").startswith("0."), reason="confection 0.1 loses the character after a $"
)


def train(*corpus: Any, steps: int | None = 2, **settings: Any) -> Language:
    """Train a small pipeline, and print nothing but the table."""
    settings = {"config": "cnn", "gpu": -1, "on_message": len, **settings}
    if settings["config"] == "cnn":
        settings["overrides"] = {**SMALL, **settings.get("overrides", {})}
    return spacy_crf_ner.train(*corpus, steps=steps, **settings)


def own_config(folder: Path, **changes: Any) -> Path:
    """Write the small config without the callback that calibrates, and with other components."""
    config = load_config(bundled_config("cnn"), overrides=SMALL, interpolate=False)
    del config["training"]["before_to_disk"]
    for section, settings in changes.items():
        config[section] |= settings
    config.to_disk(folder / "own.cfg")
    return folder / "own.cfg"


@pytest.fixture
def trained_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """Return the config that a training would have, and the messages before it."""
    seen: list[Config] = []
    monkeypatch.setattr(run.loop, "train", lambda config, *_, **__: seen.append(config))

    def of(train: Any, dev: Any = None, said: Any = len, **options: Any) -> Config:
        asked = Options(**{"config": "cnn", "gpu": -1, **options})
        assert run.train_pipeline(train, dev, Path("out"), asked, said) is None
        return seen.pop()

    return of


# The corpus


def test_train_on_pairs_returns_a_calibrated_pipeline(tmp_path: Path) -> None:
    nlp = train(LEARNED, DEV, steps=40)
    for text, spans in (*LEARNED, *DEV):
        assert ents(nlp(text)) == spans
    ner = recognizer(nlp)
    assert ner.calibrated_on == ENTITIES and ner.platt_ceiling < 1.0
    assert nlp.meta["performance"]["ents_f"] == 1.0


def test_docs_examples_pairs_and_files_are_the_same_corpus(corpus: Path, tmp_path: Path) -> None:
    examples = make_examples(spacy.blank("en"), LEARNED)
    docs = [eg.reference for eg in make_examples(spacy.blank("en"), DEV)]
    for part, sentences in (("train", LEARNED), ("dev", DEV)):
        records = [{"text": text, "spans": spans} for text, spans in sentences]
        srsly.write_jsonl(tmp_path / f"{part}.jsonl", records)
    given: list[tuple[Any, ...]] = [
        (LEARNED, docs),
        (examples, DEV),
        (str(corpus), None),
        (tmp_path, None),
        (corpus / "train.spacy", tmp_path / "dev.jsonl"),
    ]
    first, *others = (train(*each, steps=1) for each in given)
    for nlp in others:
        assert recognizer(nlp).model.to_bytes() == recognizer(first).model.to_bytes()
        assert nlp.meta["performance"] == first.meta["performance"]


def test_of_a_folder_with_parts_one_part_is_read(
    corpus: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """If dev is given too, dev and test in the folder of train are not trained on."""
    for part, sentences in (("train", LEARNED), ("dev", DEV), ("test", DEV)):
        records = [{"text": text, "spans": spans} for text, spans in sentences]
        srsly.write_jsonl(tmp_path / f"{part}.jsonl", records)
    expected = {"train": [text for text, _ in LEARNED], "dev": [text for text, _ in DEV]}
    for folder in (corpus, tmp_path):
        for part, texts in expected.items():
            path = write_part(folder, part, tmp_path_factory.mktemp("out"), "en", None)
            assert [doc.text for doc in read_docbin(path, Vocab())[1]] == texts
    (tmp_path / "dev.jsonl").unlink()
    path = write_part(tmp_path, "train", tmp_path_factory.mktemp("out"), "en", None)
    assert [doc.text for doc in read_docbin(path, Vocab())[1]] == expected["train"]


@pytest.mark.parametrize(
    "given, says",
    [
        ([("Anna saw Bonn", [(0, 3, "PER")])], "train, text 1: expected an entity of whole tokens"),
        ([*LEARNED, ("it came", [(0, 99, "PER")])], "train, text 5: expected whole numbers"),
        ([*LEARNED, "it came"], r"train, text 5: expected a Doc, an Example, or \(text, \["),
        ([("Anna", [(0, 4)])], r"train, text 1: expected a Doc, an Example, or \(text, \["),
        ([("it came", [])], "The corpus has errors. No doc has an entity in train"),
        ([], "train.spacy: expected docs with tokens, got none"),
    ],
)
def test_wrong_docs_raise(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        train(given, DEV)


def test_docs_without_dev_raise() -> None:
    with pytest.raises(InputError, match="dev: expected docs that choose the best pipeline"):
        train(LEARNED)


def test_entities_that_overlap_are_read_from_spans(tmp_path: Path) -> None:
    """As the config says; pairs are written there too."""
    config = own_config(tmp_path, training={"score_weights": {"spans_mine_f": 1.0}})
    overlapping = {"components.ner.overlap": True, "components.ner.spans_key": "mine"}
    pairs = [("the mayor of Bonn came", [(0, 17, "PER"), (13, 17, "LOC")])]
    nlp = train(pairs, DEV, steps=60, config=config, overrides=overlapping)
    doc = nlp(pairs[0][0])
    found = [(span.start_char, span.end_char, span.label_) for span in doc.spans["mine"]]
    assert found == pairs[0][1]


def test_corpus_of_the_config_is_not_checked(corpus: Path, trained_with: Any) -> None:
    said: list[str] = []
    paths = {f"paths.{part}": str(corpus / f"{part}.spacy") for part in ("train", "dev")}
    config = trained_with(None, said=said.append, overrides=paths)
    assert config.interpolate()["corpora"]["train"]["path"] == paths["paths.train"]
    assert [each.partition(":")[0] for each in said] == ["Device", "Training"]


# The config


def test_steps_of_a_shipped_config_are_for_the_corpus(corpus: Path, trained_with: Any) -> None:
    said: list[str] = []
    training = trained_with(corpus, said=said.append)["training"]
    fitted = training_steps(1, 1000)
    assert f"Training: {fitted}; for the size of the corpus" in said
    rates = training["optimizer"]["learn_rate"]
    assert training["max_steps"] == rates["total_steps"] == fitted.steps == 200
    assert (rates["warmup_steps"], training["eval_frequency"], training["patience"]) == (50, 20, 0)


@pytest.mark.parametrize("override", [False, True])
def test_check_is_of_the_steps_and_the_transformer_of_the_training(
    override: bool, corpus: Path, trained_with: Any, tiny_transformer: str, monkeypatch: Any
) -> None:
    """It warns of a config with many more steps than a small corpus needs."""
    checked: list[Any] = []
    monkeypatch.setattr(run, "check_parts", lambda *given: checked.append(given) or "")
    name: dict[str, Any] = {"transformer": tiny_transformer}
    if override:
        name = {"overrides": {"paths.transformer": tiny_transformer}}
    trained_with(corpus, config="transformer", **name)
    ((_, settings, advice),) = checked
    assert settings.max_steps == 200
    assert advice.endswith(f" --config transformer --transformer {tiny_transformer}")


@pytest.mark.parametrize("options", [{"steps": 30}, {"overrides": {"training.max_steps": 30}}])
def test_given_steps_set_what_depends_on_them(
    options: dict[str, Any], corpus: Path, trained_with: Any
) -> None:
    said: list[str] = []
    training = trained_with(corpus, said=said.append, **options)["training"]
    rates = training["optimizer"]["learn_rate"]
    assert training["max_steps"] == rates["total_steps"] == 30
    assert (rates["warmup_steps"], training["eval_frequency"]) == (15, 3)
    assert any(each.startswith("Training: 30 steps, 30.0 epochs") for each in said)


@pytest.mark.parametrize("steps, expected", [(None, "2 steps, 2.0"), (1, "1 step, 1.0")])
def test_max_epochs_sets_the_steps_of_a_shipped_config(
    steps: int | None, expected: str, corpus: Path, trained_with: Any
) -> None:
    said: list[str] = []
    overrides = {"training.max_epochs": 2}
    training = trained_with(corpus, said=said.append, steps=steps, overrides=overrides)["training"]
    assert training["max_steps"] == training["optimizer"]["learn_rate"]["total_steps"]
    assert any(each.startswith(f"Training: {expected} epochs; warm-up") for each in said)


def test_override_wins_over_what_is_computed(corpus: Path, trained_with: Any) -> None:
    overrides = {"training.eval_frequency": 7, "training.optimizer.learn_rate.warmup_steps": 3}
    overrides["training.patience"] = 7  # a second evaluation is at its last step
    training = trained_with(corpus, steps=40, overrides=overrides)["training"]
    assert training["eval_frequency"] == training["patience"] == 7
    assert training["optimizer"]["learn_rate"]["warmup_steps"] == 3


@keeps_dollars
@pytest.mark.parametrize("name", ["d$x", "a${b}c$"])
def test_dollar_in_a_path_or_an_override_is_no_variable(
    name: str, corpus: Path, tmp_path: Path, trained_with: Any
) -> None:
    folder = shutil.copytree(corpus, tmp_path / name)
    overrides = {"training.logger.progress_bar": "a$b"}
    config = trained_with(folder, overrides=overrides).interpolate()
    assert config["corpora"]["train"]["path"] == str(folder / "train.spacy")
    assert config["training"]["logger"]["progress_bar"] == "a$b"
    own = init_config("en", "cnn")
    fit_to_corpus(own, folder)
    own.to_disk(tmp_path / "own.cfg")  # with "$$" for "$"
    read = make_config(Options(config=tmp_path / "own.cfg")).interpolate()
    for written in (load_config(tmp_path / "own.cfg", interpolate=True), read):
        assert written["corpora"]["train"]["path"] == str(folder / "train.spacy")


@keeps_dollars
def test_corpus_whose_path_has_a_dollar_is_trained_on(corpus: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus, tmp_path / "d$x")
    assert recognizer(train(folder, steps=1)).labels == ("LOC", "PER")


def test_config_file_is_not_changed(corpus: Path, tmp_path: Path, trained_with: Any) -> None:
    own = load_config(bundled_config("cnn"), interpolate=False)
    own["training"] |= {"max_steps": 1234, "eval_frequency": 56, "seed": 7}
    own.to_disk(tmp_path / "own.cfg")
    said: list[str] = []
    config = trained_with(corpus, said=said.append, config=tmp_path / "own.cfg")
    for part in ("train", "dev"):
        own["paths"][part] = str(corpus / f"{part}.spacy")
    assert config == own
    assert f"Training: max_steps = 1234, as {tmp_path / 'own.cfg'} says" in said
    given = trained_with(corpus, config=tmp_path / "own.cfg", steps=5)
    rates = given["training"]["optimizer"]["learn_rate"]
    assert given["training"]["max_steps"] == given["training"]["eval_frequency"] == 5
    own_rates = own["training"]["optimizer"]["learn_rate"]
    assert rates == {**own_rates, "total_steps": 5, "warmup_steps": 2}


def test_default_config_is_the_shipped_transformer() -> None:
    shipped = load_config(bundled_config("transformer"), interpolate=False)
    assert make_config(Options()) == shipped
    assert shipped["paths"]["transformer"] == MINILM


def test_learning_rate_is_for_the_width_of_the_transformer(tmp_path: Path) -> None:
    srsly.write_json(tmp_path / "config.json", {"hidden_size": 768})
    given: list[dict[str, Any]] = [
        {"transformer": str(tmp_path)},
        {"overrides": {"paths.transformer": str(tmp_path)}},
    ]
    for options in given:
        config = make_config(Options(**options))
        assert config["paths"]["transformer"] == str(tmp_path)
        assert config["training"]["optimizer"]["learn_rate"]["initial_rate"] == 5e-5


def test_transformer_auto_is_the_one_that_spacy_recommends() -> None:
    for config in ("transformer", bundled_config("transformer")):
        options = Options(config=config, transformer="auto", overrides={"nlp.lang": "de"})
        assert make_config(options)["paths"]["transformer"] == "bert-base-german-cased"


def test_transformer_of_a_config_file_is_replaced(tmp_path: Path) -> None:
    path = bundled_config("transformer")
    config = make_config(Options(config=path, transformer="some/other"))
    assert config.interpolate()["paths"]["transformer"] == "some/other"
    assert config["training"] == load_config(path, interpolate=False)["training"]
    with pytest.raises(InputError, match=r"config cnn has no .*, which --transformer would set"):
        make_config(Options(config="cnn", transformer="some/other"))


def test_seed_language_and_labels_are_set() -> None:
    options = Options(config="cnn", seed=5, labels=["PER", "ORG"], overrides={"nlp.lang": "de"})
    config = make_config(options).interpolate()
    assert config["training"]["seed"] == config["system"]["seed"] == 5
    assert config["initialize"]["components"]["ner"] == {"labels": ["PER", "ORG"]}
    assert config["nlp"]["lang"] == "de"
    assert make_config(Options(config="cnn")).interpolate()["training"]["seed"] == 0


def test_labels_are_predicted_beside_those_of_the_corpus(corpus: Path) -> None:
    nlp = train(corpus, steps=1, labels=["LOC", "PER", "ORG"])
    assert recognizer(nlp).labels == ("LOC", "PER", "ORG")


@pytest.mark.parametrize(
    "options, says",
    [
        ({"config": "cnnn"}, r"There is no config 'cnnn'. Did you mean cnn\?"),
        ({"steps": 0}, "steps: expected 1 or more, got 0"),
        (
            {"steps": 5, "overrides": {"training.max_steps": 10}},
            r"expected one number of steps, got 5 and training.max_steps 10\. Remove one",
        ),
        ({"folds": 1}, "folds: expected 2 or more, got 1"),
        ({"folds": 2, "calibrate": False}, "Folds calibrate the pipeline. Train without folds, or"),
        ({"folds": 2, "resume": True}, "folds: expected a corpus, one process, and a new training"),
        (
            {"overrides": {"training.patience": 1, "training.eval_frequency": 2}, "folds": 2},
            r"patience 1 is less than training.eval_frequency 2: .* Set it to 0",
        ),
        ({"overrides": {"training.max_stepz": 3}}, r"no setting training.max_stepz .*max_steps\?"),
        ({"overrides": {"trainin.max_steps": 3}}, r"no setting trainin.max_steps .*max_steps\?"),
        ({"overrides": {"training.max_steps": "many"}}, "cnn cannot be used. .*max_steps: "),
        (
            {"steps": None, "overrides": {"training.max_steps": "many"}},
            "cnn cannot be used. .*max_steps: ",
        ),
        ({"overrides": {"components.ner.treshold": 1}}, "cnn cannot be used. .*treshold"),
        ({"overrides": {"components.ner.factory": "nerr"}}, "cnn cannot be used. .E002. .* class"),
        ({"overrides": {"paths.vectors": "no_vectors"}}, "cnn cannot be used. .E884. .*no_vectors"),
        ({"overrides": {"nlp.lang": "english"}}, "lang: expected a language of spaCy, .*'english'"),
        ({"transformer": "no/such", "config": "transformer"}, "transformer: expected .*'no/such'"),
        ({"resume": True}, "--resume: expected a file training_state.pt in the output folder"),
        ({"output": "out.json"}, "out.json: this is the name of a file"),
    ],
)
def test_mistakes_in_options_raise_one_line(
    options: dict[str, Any], says: str, corpus: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says) as raised:
        train(corpus, **{"overrides": {}, **options})
    assert len(str(raised.value).splitlines()) == 1
    assert not [*tmp_path.glob("*/model-*")]


def test_a_component_of_a_missing_package_raises_one_line(corpus: Path, tmp_path: Path) -> None:
    missing = {"tagger": {"source": "en_not_installed"}}
    own = own_config(tmp_path, nlp={"pipeline": ["tagger", "ner"]}, components=missing)
    with pytest.raises(InputError, match=r"own.cfg cannot be used. .E050. .*'en_not_installed'"):
        train(corpus, config=own)


# Calibration


def test_config_without_calibration_is_calibrated_at_the_end(
    corpus: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = own_config(tmp_path_factory.mktemp("config"))
    nlp = train(corpus, None, tmp_path, config=own, steps=8)
    found = [getattr(recognizer(nlp), name) for name in CALIBRATION]
    assert recognizer(spacy.load(tmp_path / "model-last")).calibrated_on is None
    forget_calibration(recognizer(nlp))
    calibrate(nlp, Corpus(corpus / "dev.spacy")(nlp))
    assert found == pytest.approx([getattr(recognizer(nlp), name) for name in CALIBRATION])
    assert found != [1.0, 1.0, 0.0, 1.0]
    assert {path.name for path in tmp_path.iterdir()} == {
        "model-best",
        "model-last",
        "training_state.pt",
    }


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"overrides": {"training.before_to_disk": None}}, ENTITIES),  # as spaCy fills it in
        ({"calibrate": False}, None),
    ],
)
def test_only_the_option_turns_calibration_off(
    options: dict[str, Any], expected: int | None, corpus: Path
) -> None:
    assert recognizer(train(corpus, steps=1, **options)).calibrated_on == expected


def test_what_is_calibrated_in_training_is_not_calibrated_again(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "save_fitted", None)
    assert recognizer(train(corpus)).calibrated_on == ENTITIES


def test_pipeline_without_crf_is_trained(corpus: Path, tmp_path: Path) -> None:
    own = own_config(tmp_path, components={"ner": {"factory": "ner"}})
    nlp = train(corpus, config=own, steps=1)
    assert nlp.pipe_names == ["ner"]


# Several processes


def test_steps_are_for_the_batches_of_all_processes(
    corpus: Path, trained_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"training.batcher.size": 3, "training.batcher.buffer": 1}  # a sentence a batch
    said: list[str] = []
    for processes, epochs in ((1, 20 / 4), (2, 20 / 2), (3, 20 / 2)):
        monkeypatch.setenv("WORLD_SIZE", f"{processes}")
        trained_with(corpus, said=said.append, steps=20, overrides=overrides)
        assert any(f"20 steps, {epochs} epochs" in each for each in said)
        said.clear()


def test_rank_1_says_nothing_and_checks_nothing(
    corpus: Path, trained_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(run, "check_parts", None)
    said: list[str] = []
    config = trained_with(corpus, said=said.append)
    assert config["paths"]["train"] == str(corpus / "train.spacy") and not said


def test_train_in_python_refuses_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"expected one process, got several\. Run torchrun"):
        train(LEARNED, DEV)
