"""The search for settings: its trials, their scores, and the pipeline that it keeps."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import spacy
import srsly
from spacy.tokens import DocBin
from spacy.training import Corpus
from spacy.util import load_config
from thinc.api import Config
from typer.testing import CliRunner

from pipelines import make_examples
from spacy_crf_ner.cli import app
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.training import tuning
from spacy_crf_ner.training.config_file import get_dotted
from spacy_crf_ner.training.init_config import TOK2VECS, bundled_config
from spacy_crf_ner.training.tuning import Trial, best, search_space, tune

runner = CliRunner()
INITIAL = "training.optimizer.learn_rate.initial_rate"
GOAL = 1e-3  # the learning rate with the best score of `imitated`


@pytest.fixture
def config() -> Config:
    return load_config(bundled_config("char.cfg"), interpolate=False)


@pytest.fixture
def imitated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Score settings without a training, and list what is tried; a dropout over 0.4 fails."""
    tried: list[dict[str, Any]] = []

    def train(
        config: Config, settings: dict[str, Any], output: Path, number: int, *_: Any
    ) -> Trial:
        tried.append(settings)
        for name in ("model-best", "model-last"):
            (output / f"{number}" / name).mkdir(parents=True)
        dropout = settings.get("training.dropout", 0.0)
        if dropout > 0.4:
            return Trial(number, settings, None, {}, 1.0)
        score = 1 - abs(math.log10(settings.get(INITIAL, GOAL) / GOAL)) - dropout
        return Trial(number, settings, score, {"ents_f": score}, 1.0)

    monkeypatch.setattr(tuning, "_train", train)
    return tried


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", TOK2VECS)
def test_search_space_contains_settings_of_config(name: str) -> None:
    config = load_config(bundled_config(f"{name}.cfg"))
    space = search_space(config)
    rate = config["training"]["optimizer"]["learn_rate"]["initial_rate"]
    assert space[INITIAL] == {"low": rate / 4, "high": rate * 4, "log": True}
    assert space["components.ner.model.rnn"] == ["lstm", "none"]
    low, high = space["training.dropout"]["low"], space["training.dropout"]["high"]
    assert low <= config["training"]["dropout"] <= high
    group = "training.optimizer.groups.new_layers.learn_rate"
    assert (group in space) == (name == "transformer")
    # A group without decay has no rate of its own.
    assert not any("no_decay" in setting for setting in space)


def test_search_space_of_config_without_settings_raises(tmp_path: Path) -> None:
    part = Config().from_str('[components]\n\n[components.ner]\nfactory = "crf_ner"\n')
    for config in (part, Config().from_str("[training]\nmax_steps = 1\n")):
        with pytest.raises(InputError, match=r"training\.dropout.*spacy init fill-config"):
            search_space(config)


def test_tune_first_trial_uses_config_settings(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    tune(config, tmp_path, trials=1)
    (first,) = imitated
    assert first[INITIAL] == config["training"]["optimizer"]["learn_rate"]["initial_rate"]
    assert first["training.dropout"] == config["training"]["dropout"]
    assert first["components.ner.model.rnn"] == config["components"]["ner"]["model"]["rnn"]


def test_tune_improves_learn_rate_and_keeps_only_best_pipeline(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = tune(config, tmp_path, trials=30, seed=1)
    rows = read(tmp_path)
    assert [row["number"] for row in rows] == [*range(30)]
    assert [row["settings"] for row in rows] == imitated
    assert any(row["score"] is None for row in rows)
    scores = [-math.inf if row["score"] is None else row["score"] for row in rows]
    assert found.score == pytest.approx(max(scores))
    assert max(scores) > scores[0] + 0.3
    assert found.number == scores.index(max(scores))
    assert [path.parent.name for path in tmp_path.glob("*/model-*")] == [f"{found.number}"]
    # Better than as many proposals at random, in the same ranges.
    late = sorted(abs(math.log10(row["settings"][INITIAL] / GOAL)) for row in rows[15:])
    assert late[len(late) // 2] < math.log10(16) / 4


def test_tune_resume_runs_only_missing_trials(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    tune(config, tmp_path, trials=4)
    seen: list[int] = []
    tune(config, tmp_path, trials=12, resume=True, on_trial=lambda trial: seen.append(trial.number))
    assert seen == [*range(4, 12)]
    assert len({json.dumps(settings) for settings in imitated}) == 12
    tune(config, tmp_path, trials=12, resume=True)
    assert len(imitated) == 12


@pytest.mark.parametrize(
    "space",
    [
        {"training.dropout": [0.1, 0.3]},  # srsly reads 0.3 as 0.30000000000000004
        {"training.dropout": {"low": 0.0, "high": 0.3}},
        {INITIAL: {"low": 1e-5, "high": 3e-4, "log": True}},
        {"training.optimizer.eps": [1e-8, 1e-12]},
        {"components.ner.model.hidden_width": {"low": 50, "high": 350, "step": 100}},
        {"training.dropout": {"low": 0.0, "high": 0.4, "step": 0.2}},
        {"components.ner.model.dropout": [None, 0.5]},
        {"components.ner.model.skip": [True, False]},
    ],
)
def test_tune_resume_accepts_each_kind_of_values(
    space: dict[str, Any], config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The first trial has the value of the config, where the space contains it."""
    config["training"]["dropout"] = 0.3
    config["training"]["optimizer"]["learn_rate"]["initial_rate"] = 3e-4
    tune(config, tmp_path, space=space, trials=4)
    tune(config, tmp_path, space=space, trials=6, resume=True)
    rows = read(tmp_path)
    assert [row["settings"] for row in rows] == imitated and len(rows) == 6
    ((name, values),) = space.items()
    given = get_dotted(config, name)
    if isinstance(values, dict) and "step" in values:  # the config is between two steps
        steps = [(settings[name] - values["low"]) / values["step"] for settings in imitated]
        assert steps == pytest.approx([round(step) for step in steps])
    else:
        assert imitated[0][name] == given or given not in values


@pytest.mark.slow
def test_tune_resume_uses_earlier_trials(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Each call runs too few trials to learn from these alone."""
    for trials in range(5, 31, 5):
        tune(config, tmp_path, trials=trials, seed=1, resume=True)
    late = sorted(abs(math.log10(settings[INITIAL] / GOAL)) for settings in imitated[15:])
    assert late[len(late) // 2] < math.log10(16) / 4


def test_best_of_equal_scores_returns_first_trial() -> None:
    scores = [None, -0.5, 0.0, 0.0, -1.0, None]
    trials = [Trial(i, {}, score, {}, 1.0) for i, score in enumerate(scores)]
    found = best(trials)
    assert found is not None and found.number == 2
    assert best(trials[:2]) == trials[1]
    assert best(trials[:1]) is best([]) is None


def test_tune_with_only_failed_trials_raises(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    """All trials run, unless the first, with the settings of the config, fails."""
    with pytest.raises(InputError, match="got 3 that failed"):
        tune(config, tmp_path / "other", space={"training.dropout": [0.5]}, trials=3)
    config["training"]["dropout"] = 0.5
    with pytest.raises(InputError, match="got 1 that failed"):
        tune(config, tmp_path / "same", space={"training.dropout": [0.5]}, trials=3)


def test_tune_runs_spacy_train_with_given_options(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        """A training that is over at once; the third one fails after its first checkpoint."""
        commands.append(command)
        saved = Path(command[command.index("--output") + 1]) / "model-best"
        saved.mkdir()
        scores = {"ents_f": 0.5, "ents_p": 0.8, "other": 0.9}
        srsly.write_json(saved / "meta.json", {"performance": scores})
        own = load_config(command[4], interpolate=False)
        weights = {"ents_f": 0.75, "ents_p": 0.25, "ents_r": None, "none": 0.5}
        own["training"]["score_weights"] = weights
        own.to_disk(saved / "config.cfg")
        return SimpleNamespace(returncode=int(len(commands) == 3))

    monkeypatch.setattr(tuning.subprocess, "run", run)
    settings: Any = {"space": {"training.dropout": [0.15, 0.25]}, "gpu_id": 3}
    settings["code"] = tmp_path / "code.py"
    before = config.to_str()
    out = tmp_path / "out"
    found = tune(config, out, trials=1, **settings)
    assert found.score == pytest.approx(0.75 * 0.5 + 0.25 * 0.8)
    assert found.scores == {"ents_f": 0.5, "ents_p": 0.8, "none": None}
    (out / "1" / "model-best").mkdir(parents=True)  # of a call that was interrupted
    tune(config, out, trials=3, resume=True, **settings)
    rows = read(out)
    assert [row["score"] is None for row in rows] == [False, False, True]
    for row, command in zip(rows, commands):
        assert command[command.index("--gpu-id") + 1] == "3"
        assert command[command.index("--code") + 1] == str(tmp_path / "code.py")
        own = load_config(out / f"{row['number']}" / "config.cfg")
        assert own["training"]["dropout"] == row["settings"]["training.dropout"]
    assert config.to_str() == before


def test_tune_of_float_setting_with_integer_bounds_draws_fractions(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    tune(config, tmp_path, space={"training.dropout": {"low": 0, "high": 1}}, trials=4)
    assert imitated[0]["training.dropout"] == config["training"]["dropout"]
    assert all(0 < settings["training.dropout"] < 1 for settings in imitated)


def test_tune_into_nonempty_folder_raises_and_keeps_files(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="expected a new or an empty folder"):
        tune(config, tmp_path, trials=1)
    assert (tmp_path / "0" / "notes.txt").read_text() == "mine"


def test_search_space_resolves_variables_of_config(config: Config) -> None:
    config["vars"] = {"rate": 0.002}
    config["training"]["optimizer"]["learn_rate"]["initial_rate"] = "${vars.rate}"
    config["training"]["optimizer"]["groups"] = None
    config["components"]["ner"]["model"]["rnn"] = "gru"
    del config["training"]["dropout"]
    space = search_space(config)
    assert space[INITIAL] == {"low": 0.0005, "high": 0.008, "log": True}
    assert space["components.ner.model.rnn"] == ["gru", "lstm", "none"]
    assert "training.dropout" not in space


def test_tune_with_zero_minutes_runs_one_trial(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    tune(config, tmp_path, trials=5, minutes=0)
    assert len(imitated) == 1


def test_tune_into_folder_of_other_search_raises(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    tune(config, tmp_path, trials=1)
    with pytest.raises(InputError, match=r"an earlier search\. Continue it with --resume"):
        tune(config, tmp_path, trials=2)
    with pytest.raises(InputError, match="got another seed"):
        tune(config, tmp_path, trials=2, seed=1, resume=True)
    with pytest.raises(InputError, match="got another space"):
        tune(config, tmp_path, space={"training.dropout": [0.1]}, trials=2, resume=True)
    config["training"]["max_steps"] = 7
    with pytest.raises(InputError, match="got another config"):
        tune(config, tmp_path, trials=2, resume=True)
    assert len(imitated) == 1


def test_tune_with_custom_space_draws_values_from_it(
    config: Config, imitated: list[dict[str, Any]], tmp_path: Path
) -> None:
    space = {
        INITIAL: {"low": 1e-3, "high": 2e-3, "log": True},
        "training.dropout": [0.1, 0.2],
        "training.max_steps": {"low": 10, "high": 30, "step": 10},
    }
    tune(config, tmp_path, space=space, trials=8)
    for settings in imitated:
        assert 1e-3 <= settings[INITIAL] <= 2e-3
        assert settings["training.dropout"] in (0.1, 0.2)
        assert settings["training.max_steps"] in (10, 20, 30)


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("training.droput", [0.1], "training.droput: expected a setting of the config"),
        ("training.dropout", {"low": 0.5}, "training.dropout: expected a list of choices, or low"),
        ("training.dropout", {"low": 1, "high": 0}, "training.dropout: expected a list of"),
        ("training.dropout", [], "training.dropout: expected a list of choices"),
        ("training.dropout", 0.1, "training.dropout: expected a list of choices"),
        ("training.dropout", [[0.1]], "training.dropout: expected a list of choices"),
        ("training.dropout", {"low": "0.1", "high": "0.3"}, "training.dropout: expected a list of"),
        ("components.ner.model.rnn", "lstm", "components.ner.model.rnn: expected a list of"),
    ],
)
def test_tune_with_invalid_space_raises(
    name: str, values: Any, message: str, config: Config, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        tune(config, tmp_path, space={name: values})
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_tune_with_failing_config_raises_after_first_trial(config: Config, tmp_path: Path) -> None:
    config["paths"]["train"] = "nowhere.spacy"
    config["paths"]["dev"] = "nowhere.spacy"
    with pytest.raises(InputError, match=r"expected a training that ends, got 1 that failed"):
        tune(config, tmp_path, trials=5)
    assert "nowhere.spacy" in (tmp_path / "0" / "log.txt").read_text()


@pytest.mark.slow
def test_tune_command_saves_pipeline_with_reported_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It overrides the config in the trainings too, but not the settings of a trial.
    monkeypatch.setenv("SPACY_CONFIG_OVERRIDES", f"--{INITIAL} 0.02 --training.dropout 0.15")
    corpus = tmp_path / "corpus.spacy"
    DocBin(docs=[eg.reference for eg in make_examples(spacy.blank("en"))]).to_disk(corpus)
    (tmp_path / "space.yml").write_text(f"{INITIAL}: [1.0e-5, 0.01]\n")
    budget = ["--training.max_steps", "30", "--training.eval_frequency", "10"]
    paths = ["--paths.train", str(corpus), "--paths.dev", str(corpus)]
    command = ["tune", str(bundled_config("char.cfg")), str(tmp_path / "out"), "--trials", "2"]
    command += ["--space", str(tmp_path / "space.yml"), *budget, *paths]
    command += ["--training.before_to_disk", "null"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = read(tmp_path / "out")
    highest = max(rows, key=lambda row: row["score"])
    assert highest["score"] > 0
    pipeline = tmp_path / "out" / f"{highest['number']}" / "model-best"
    assert f"Pipeline: {pipeline}" in result.output
    nlp = spacy.load(pipeline)
    assert nlp.evaluate(list(Corpus(corpus)(nlp)))["ents_f"] == pytest.approx(highest["score"])
    assert nlp.config["training"]["optimizer"]["learn_rate"]["initial_rate"] == pytest.approx(
        highest["settings"][INITIAL]
    )
    assert nlp.config["training"]["dropout"] == 0.15
    assert nlp.config["paths"]["train"] == str(corpus)
    again = runner.invoke(app, command)
    assert again.exit_code == 1 and "--resume" in again.output
