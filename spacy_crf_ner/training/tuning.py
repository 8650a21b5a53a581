"""Search for the settings of a training with the best score on the dev corpus."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import srsly
from spacy.training.loop import DIR_MODEL_BEST, DIR_MODEL_LAST
from spacy.util import load_config, set_dot_to_object
from thinc.api import Config

from ..atomic import atomic_write, check_folder_name
from ..extras import required
from ..input_error import InputError
from ..pipeline.lookup import FACTORY
from .config_file import get_dotted, has_dotted

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

SEARCH, TRIALS, CONFIG, LOG = "search.json", "trials.jsonl", "config.cfg", "log.txt"
OVERRIDES = "SPACY_CONFIG_OVERRIDES"  # a variable that `spacy train` reads
RATE = "training.optimizer.learn_rate"
RANGE = 4  # rates are searched from a quarter of that in the config to four times it

# By the dotted name of a setting: its choices, or `low`, `high` and optionally `log` and `step`.
Space = Mapping[str, Sequence[Any] | Mapping[str, Any]]


class Trial(NamedTuple):
    """A training that has ended.

    Attributes:
        number: Number of the trial, from 0; its folder has this name.
        settings: What was tried, by dotted names.
        score: Score of the best checkpoint on dev, weighted by `[training.score_weights]`; None if
            the training failed.
        scores: What it consists of.
        seconds: Duration of the training.
    """

    number: int
    settings: dict[str, Any]
    score: float | None
    scores: dict[str, float | None]
    seconds: float


def search_space(config: Config) -> dict[str, Any]:
    """Return the settings that are worth a search, of those that a config has.

    These are the learning rate, the rates of groups of parameters, dropout, and whether the
    `crf_ner` components have a recurrent encoder.

    Raises:
        InputError: For a config that has none of them.
    """
    space: dict[str, Any] = {}
    values = config.interpolate()
    groups = [
        f"training.optimizer.groups.{name}.learn_rate"
        for name in get_dotted(values, "training.optimizer.groups") or {}
    ]
    for name in (RATE, f"{RATE}.initial_rate", *groups):
        rate = get_dotted(values, name)
        if isinstance(rate, float | int) and rate > 0:
            space[name] = {"low": rate / RANGE, "high": rate * RANGE, "log": True}
    space["training.dropout"] = {"low": 0.0, "high": 0.5}
    for name, component in values.get("components", {}).items():
        if component.get("factory") == FACTORY:
            rnn = get_dotted(values, f"components.{name}.model.rnn")
            if isinstance(rnn, str):
                space[f"components.{name}.model.rnn"] = [*dict.fromkeys((rnn, "lstm", "none"))]
    space = {name: space[name] for name in space if has_dotted(config, name)}
    if not space:
        raise InputError(
            "config: expected a setting to search, such as training.dropout, got none. Fill it: "
            "python -m spacy init fill-config."
        )
    return space


def tune(
    config: Config,
    output: Path,
    *,
    space: Space | None = None,
    trials: int = 20,
    minutes: float = math.inf,
    seed: int = 0,
    gpu_id: int = -1,
    code: Path | None = None,
    resume: bool = False,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Trial:
    """Train again and again, with settings that Optuna proposes from the scores before.

    The first trial has the settings of the config, if they are in the search space. Each trial is a
    run of `spacy train` in a process of its own.

    Args:
        config: A config for `spacy train`, not interpolated.
        output: Folder. `trials.jsonl` has a line for each trial. The folder of a trial has its
            config and what it has printed; if it is the best one, also its pipeline, `model-best`.
        space: For each setting its choices, or a dict of `low` and `high`, and optionally `log`, to
            search in the logarithm, or `step`. None for `search_space(config)`.
        trials: Number of trials, with those of earlier calls.
        minutes: Minutes after which no further trial begins.
        seed: Seed of the search. The config has the seed of the trainings.
        gpu_id: GPU to train on; -1 for the CPU.
        code: Python file that each training imports first.
        resume: Continue a search in the folder, with the same config, space and seed.
        on_trial: Called after each trial of this call.

    Returns:
        The best trial.

    Raises:
        InputError: For an invalid space, for a folder of another search, and if all trainings fail,
            or the first one, with the settings of the config.

    Source: Bergstra et al. (2011), "Algorithms for hyper-parameter optimization", the
    tree-structured Parzen estimator.
    """
    with required("tune"):
        from optuna import logging
        from optuna.trial import TrialState

    space = search_space(config) if space is None else space
    distributions = {name: distribution(config, name, space[name]) for name in space}
    check_folder_name(output)
    done = _begin(output, {"config": config.to_str(), "space": space, "seed": seed}, resume)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    first = {name: get_dotted(config.interpolate(), name) for name in space}
    study = _study(done, first, distributions, seed)
    end = perf_counter() + 60 * minutes
    while len(done) < trials and (perf_counter() < end or not done):
        proposed = study.ask(distributions)
        trial = _train(config, proposed.params, output, len(done), gpu_id, code)
        done.append(trial)
        _store(output, done)
        if trial.score is None:
            study.tell(proposed, state=TrialState.FAIL)
        else:
            study.tell(proposed, trial.score)
        _keep_best(output, done)
        on_trial(trial)
        if len(done) == 1 and trial.score is None and proposed.params == first:
            break  # the config itself fails
    logging.set_verbosity(verbosity)
    found = best(done)
    if found is None:
        raise InputError(
            f"{output}: expected a training that ends, got {len(done)} that failed. The reason is "
            f"at the end of {output / '0' / LOG}: correct the config, and choose another folder."
        )
    return found


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the first trial with the best score; None if all have failed."""
    ended = [trial for trial in trials if trial.score is not None]
    return max(ended, key=lambda trial: trial.score or 0.0, default=None)


def _begin(output: Path, search: dict[str, Any], resume: bool) -> list[Trial]:
    """Store what is searched, or read the trials of an earlier call for the same."""
    file = output / SEARCH
    if not file.exists():
        if output.exists() and any(output.iterdir()):
            raise InputError(
                f"{output}: expected a new or an empty folder, got one with other files. Choose "
                "another."
            )
        with atomic_write(file) as unfinished:
            unfinished.write_text(json.dumps(search), "utf-8")
        return []
    if not resume:
        raise InputError(
            f"{output}: expected a folder without {SEARCH}, got one of an earlier search. Continue "
            "it with --resume, or choose another folder."
        )
    earlier, search = json.loads(file.read_text("utf-8")), json.loads(json.dumps(search))
    if changed := [name for name in search if search[name] != earlier[name]]:
        raise InputError(
            f"{output}: expected a search with the same config, space and seed, got another "
            f"{' and '.join(changed)}. Repeat the options of the first call, or choose another "
            "folder."
        )
    lines = (output / TRIALS).read_text("utf-8").splitlines() if (output / TRIALS).exists() else []
    return [Trial(**json.loads(line)) for line in lines]


def _store(output: Path, trials: Sequence[Trial]) -> None:
    with atomic_write(output / TRIALS) as unfinished:
        # srsly.json changes the last bits of floats, so that they may leave their range.
        lines = (json.dumps(trial._asdict()) for trial in trials)
        unfinished.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _study(
    done: Sequence[Trial],
    first: dict[str, Any],
    distributions: dict[str, "BaseDistribution"],
    seed: int,
) -> "Study":
    """Make a study of the trials so far; without any, the first one has the given settings."""
    from optuna import create_study
    from optuna.samplers import TPESampler

    # With the seed alone, a sampler that begins again would repeat its first proposals.
    study = create_study(direction="maximize", sampler=TPESampler(seed=seed + len(done)))
    for trial in done:
        study.add_trial(_frozen(trial, distributions))
    with suppress(TypeError, ValueError):  # if one of them is not in the space
        _frozen(Trial(0, first, 0.0, {}, 0.0), distributions)
        if not done:
            study.enqueue_trial(first)
    return study


def _train(
    config: Config,
    settings: dict[str, Any],
    output: Path,
    number: int,
    gpu_id: int,
    code: Path | None,
) -> Trial:
    """Run `spacy train` with other settings."""
    folder = output / f"{number}"
    shutil.rmtree(folder, ignore_errors=True)  # of a trial that was interrupted
    folder.mkdir()
    own = config.copy()
    for name, value in settings.items():
        set_dot_to_object(own, name, value)
    own.to_disk(folder / CONFIG, interpolate=False)
    command = [sys.executable, "-m", "spacy", "train", str(folder / CONFIG)]
    command += ["--output", str(folder), "--gpu-id", f"{gpu_id}"]
    command += [] if code is None else ["--code", str(code)]
    # Its overrides are in the config already, and would replace what is tried.
    environment = {name: os.environ[name] for name in os.environ if name != OVERRIDES}
    start = perf_counter()
    with (folder / LOG).open("w", encoding="utf-8") as log:
        run = subprocess.run(command, stdout=log, stderr=log, env=environment)
    ended = run.returncode == 0
    scores = dict(_scores(folder / DIR_MODEL_BEST)) if ended else {}
    score = sum(weight * (value or 0.0) for value, weight in scores.values())
    found = {name: value for name, (value, _) in scores.items()}
    is_scored = ended and math.isfinite(score)
    seconds = round(perf_counter() - start, 1)
    return Trial(number, settings, score if is_scored else None, found, seconds)


def _scores(pipeline: Path) -> Iterator[tuple[str, tuple[float | None, float]]]:
    """Yield the scores of a pipeline on dev, each with its weight."""
    performance = srsly.read_json(pipeline / "meta.json")["performance"]
    weights = load_config(pipeline / "config.cfg")["training"]["score_weights"]
    for name, weight in weights.items():
        if weight is not None:
            yield name, (performance.get(name), weight)


def _keep_best(output: Path, trials: Sequence[Trial]) -> None:
    """Remove the pipelines of all trials but the best one."""
    kept = best(trials)
    for trial in trials:
        removed = [DIR_MODEL_LAST] if trial is kept else [DIR_MODEL_LAST, DIR_MODEL_BEST]
        for name in removed:
            shutil.rmtree(output / f"{trial.number}" / name, ignore_errors=True)


def distribution(
    config: Config, name: str, values: Sequence[Any] | Mapping[str, Any]
) -> "BaseDistribution":
    """Make Optuna's distribution of a setting; of whole numbers, unless the config has another.

    Raises:
        InputError: For a setting that the config does not have, and for invalid choices or ends.
    """
    from optuna import distributions

    if not has_dotted(config, name):
        raise InputError(
            f"{name}: expected a setting of the config, got none of this name. Correct the name, "
            "or add the setting to the config."
        )
    try:
        if isinstance(values, list | tuple):
            if not all(isinstance(each, str | float | int | None) for each in values):
                raise TypeError("a choice is a list or a mapping")
            return distributions.CategoricalDistribution(values)
        if not isinstance(values, Mapping):
            raise TypeError("no list")
        kinds = {type(values[end]) for end in ("low", "high")}
        if not kinds <= {int, float}:
            raise TypeError("low or high is no number")
        if kinds == {int} and not isinstance(get_dotted(config.interpolate(), name), float):
            return distributions.IntDistribution(**values)
        return distributions.FloatDistribution(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: expected a list of choices, or low and high, and optionally log or step, got "
            f"{values!r} ({error})."
        ) from error


def _frozen(trial: Trial, distributions: dict[str, "BaseDistribution"]) -> "FrozenTrial":
    """Make Optuna's record of a trial."""
    from optuna.trial import TrialState, create_trial

    state = TrialState.FAIL if trial.score is None else TrialState.COMPLETE
    return create_trial(
        state=state, value=trial.score, params=trial.settings, distributions=distributions
    )
