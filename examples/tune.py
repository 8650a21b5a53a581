"""Search for the settings of a config with the best score on the dev corpus.

python examples/tune.py configs/char.cfg tuned --paths.train train.spacy --paths.dev dev.spacy
"""

import shutil
from pathlib import Path

import optuna
import srsly
import typer
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from spacy.cli._util import parse_config_overrides
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import dot_to_object, load_config, set_dot_to_object

# The settings to search in, by their dotted names in the config: change these.
SPACE: dict[str, BaseDistribution] = {
    "training.optimizer.learn_rate.initial_rate": FloatDistribution(5e-5, 1e-2, log=True),
    "training.dropout": FloatDistribution(0.0, 0.5),
    "components.ner.model.rnn": CategoricalDistribution(["lstm", "none"]),
}
app = typer.Typer(add_completion=False)


def run(config, settings, folder, gpu_id):
    """Train with other settings; return the score of the best checkpoint on dev."""
    config = config.copy()
    for name, value in settings.items():
        set_dot_to_object(config, name, value)
    shutil.rmtree(folder, ignore_errors=True)  # of a trial that was interrupted
    folder.mkdir()
    nlp = init_nlp(config, use_gpu=gpu_id)
    train(nlp, folder, use_gpu=gpu_id)
    scores = srsly.read_json(folder / "model-best" / "meta.json")["performance"]
    weights = nlp.config["training"]["score_weights"]
    return sum(weight * (scores.get(name) or 0.0) for name, weight in weights.items() if weight)


def keep_best(study, output):
    """Remove the pipelines of all trials but the best one."""
    for trial in study.trials:
        names = ["model-last"] if trial.number == study.best_trial.number else ["model-*"]
        for path in (each for name in names for each in output.glob(f"{trial.number}/{name}")):
            shutil.rmtree(path)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def search(
    context: typer.Context,
    config_path: Path,
    output: Path,
    trials: int = 20,
    seed: int = 0,
    gpu_id: int = -1,
):
    """Train again and again; the same call continues a search that was stopped."""
    overrides = parse_config_overrides(context.args)
    config = load_config(config_path, overrides, interpolate=False)
    output.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(output / "search.log"))),
        study_name=config_path.stem,
        load_if_exists=True,
        direction="maximize",
    )
    if not study.get_trials(states=[TrialState.COMPLETE]):  # first, the settings of the config
        study.enqueue_trial({name: dot_to_object(config.interpolate(), name) for name in SPACE})
    while len(study.get_trials(states=[TrialState.COMPLETE, TrialState.FAIL])) < trials:
        # With the seed alone, a search that continues would repeat its first proposals.
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
        trial = study.ask(SPACE)
        try:
            score = run(config, trial.params, output / str(trial.number), gpu_id)
        except Exception as error:
            study.tell(trial, state=TrialState.FAIL)
            if not study.get_trials(states=[TrialState.COMPLETE]):  # the config itself fails
                raise
            typer.echo(f"Trial {trial.number} failed: {error!r}", err=True)
        else:
            study.tell(trial, score)
        keep_best(study, output)
    best = study.best_trial
    typer.echo(f"Best score on dev: {best.value:.3f}, with {best.params}")
    typer.echo(f"Pipeline: {output / str(best.number) / 'model-best'}")


if __name__ == "__main__":
    app()
