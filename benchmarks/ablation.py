"""Ablation: train variants of the model on one corpus with one budget, and compare them.

Run it with `python benchmarks/ablation.py CORPUS OUT`.
"""

import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import srsly
import torch
import typer
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from spacy.util import load_config, set_dot_to_object
from thinc.api import Config

import spacy_crf_ner
from ablation_measure import measure
from inputs import digest
from spacy_crf_ner.extras import require
from spacy_crf_ner.input_error import InputError

VARIANTS = Path(__file__).with_suffix(".yml")
PACKAGE = Path(spacy_crf_ner.__file__).parent
LIBRARIES = ("spacy", "thinc", "torch", "transformers")
PARTS = ("train", "dev", "test")
Result = dict[str, Any]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@app.command()
def compare(
    corpus: Annotated[Path, typer.Argument(help="Folder with train.spacy, dev.spacy, test.spacy.")],
    out: Annotated[Path, typer.Argument(help="Folder for the results.")],
    variants: Annotated[
        Path, typer.Option(help="YAML file: the variants, their configs and settings.")
    ] = VARIANTS,
    names: Annotated[
        list[str] | None,
        typer.Option("--variant", help="Variant to run; repeat the option for several."),
    ] = None,
    transformer: Annotated[str, typer.Option(help="Local folder or hub name.")] = "assets/minilm",
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 200,
    seeds: Annotated[
        str, typer.Option(help="Comma-separated seeds; each variant runs once per seed.")
    ] = "0,1,2",
    smoke_test: Annotated[
        bool, typer.Option("--smoke-test", help="Run one seed and 10 steps to test the setup.")
    ] = False,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
) -> None:
    """Train variants of the model on a corpus, and compare them.

    All variants have the same steps, batches and seeds. Finished runs are not repeated: you can
    stop the command at any time and continue with the same command.

    \b
    Files in the output folder:
      runs.jsonl  one line per run, written when it is measured
      table.md    mean and standard deviation over the seeds
      chart.svg   F1 of each variant
    """
    require("report")
    if smoke_test:
        steps, seeds = 10, "0"
    try:
        runs = plan(
            variants,
            corpus,
            transformer=transformer,
            steps=steps,
            seeds=_read_seeds(seeds),
            names=names or (),
            gpu_id=gpu_id,
        )
        rows = _results_with_progress(runs, out, gpu_id)
    except (InputError, ChildProcessError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    markdown = table(rows)
    (out / "table.md").write_text(markdown, encoding="utf-8")
    chart(rows, out / "chart.svg")
    typer.echo(markdown)
    typer.echo(f"Folder: {out}")


class Run(NamedTuple):
    """One training of one variant.

    variant: Its name.
    seed: Seed of the weights, the order of the docs, and dropout.
    config: The config file.
    overrides: Settings that replace those of the config, by their dotted names.
    inputs: Digests of the files that are read, the versions of the libraries, and the hardware.
    """

    variant: str
    seed: int
    config: Path
    overrides: dict[str, Any]
    inputs: dict[str, Any]

    @property
    def key(self) -> Result:
        """The key of the run: a row that contains it is its result."""
        return {
            "variant": self.variant,
            "seed": self.seed,
            "overrides": self.overrides,
            "inputs": self.inputs,
        }


def plan(
    variants: Path,
    corpus: Path,
    *,
    transformer: str,
    steps: int,
    seeds: Sequence[int],
    names: Sequence[str] = (),
    gpu_id: int = -1,
) -> list[Run]:
    """List the runs: all variants with the first seed, then all with the second, and so on.

    variants: YAML file: for each variant its config, as a path relative to this file, and the
        settings that it changes.
    corpus: Folder with train.spacy, dev.spacy and test.spacy.
    transformer: Local folder, or a name on the hub; for the configs that have one.
    steps: Training steps of each run.
    names: Variants to run; empty for all.
    gpu_id: GPU to use, -1 for the CPU.

    Raises InputError for a missing file and for an unknown variant.
    """
    for part in PARTS:
        if not (corpus / f"{part}.spacy").exists():
            raise InputError(
                f"{corpus}: expected {', '.join(f'{p}.spacy' for p in PARTS)}, got no "
                f"{part}.spacy. Convert the corpus with spacy-crf-ner convert."
            )
    all_variants = _read_variants(variants)
    unknown = set(names) - set(all_variants)
    if unknown:
        raise InputError(
            f"--variant: expected some of {list(all_variants)}, got {sorted(unknown)}. Use the "
            f"names in {variants}."
        )
    budget = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "paths.transformer": transformer,
        "training.max_steps": steps,
        "training.optimizer.learn_rate.total_steps": steps,
        # The final weights are evaluated on test. dev only calibrates: 50 docs are enough.
        "training.eval_frequency": steps,
        "corpora.dev.limit": 50,
    }
    shared = _shared_inputs(corpus, transformer, gpu_id)
    runs = []
    for seed in seeds:
        for name, settings in all_variants.items():
            if not names or name in names:
                changes = {key: value for key, value in settings.items() if key != "config"}
                config = variants.parent / settings["config"]
                overrides = {**budget, "system.seed": seed, **changes}
                inputs = {**shared, "config": digest(config)}
                runs.append(Run(name, seed, config, overrides, inputs))
    return runs


def results(runs: Sequence[Run], out: Path, gpu_id: int = -1) -> Iterator[Result]:
    """Train and measure each run that has no row in runs.jsonl.

    out: Folder for runs.jsonl, which gets a line as soon as a run is measured, and for the logs.
    gpu_id: GPU to use, -1 for the CPU.

    Yields one row per run, in their order. Raises ChildProcessError if a training fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "runs.jsonl"
    known = list(srsly.read_jsonl(file)) if file.exists() else []
    for run in runs:
        key = srsly.json_loads(srsly.json_dumps(run.key))  # as read: some floats change
        row = next((row for row in known if key.items() <= row.items()), None)
        if row is None:
            folder = out / "training"
            shutil.rmtree(folder, ignore_errors=True)
            _train(run, folder, out / f"{run.variant}, seed {run.seed}.log", gpu_id)
            test = Path(run.overrides["paths.train"]).with_name("test.spacy")
            # A separate process, whose memory is freed at its end.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                measured = pool.submit(measure, folder / "model-last", test, gpu_id).result()
            row = {**run.key, **measured}
            srsly.write_jsonl(file, [row], append=True, append_new_line=False)
            shutil.rmtree(folder)
        yield row


def table(rows: Sequence[Result]) -> str:
    """Format the results as two Markdown tables: overall, and F1 by label."""
    grouped = _by_variant(rows)
    lines = [
        "| model | F1 | precision | recall | invalid sequences | parameters "
        "| training, words/s | prediction, words/s | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant, of_variant in grouped.items():
        cells = [_spread([100 * row[name] for row in of_variant]) for name in "fpr"]
        invalid = [100 * row["invalid"] for row in of_variant if row["invalid"] is not None]
        cells.append(f"{_spread(invalid)} %" if invalid else "-")
        cells.append(f"{of_variant[0]['parameters'] / 1e6:.1f} M")
        cells += [
            f"{statistics.median(row[name] for row in of_variant):,.0f}"
            for name in ("train_speed", "predict_speed")
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} | {len(of_variant)} |")
    labels = sorted({label for row in rows for label in row["per_type"]})
    lines += ["", f"| F1 | {' | '.join(labels)} |", "|---" * (len(labels) + 1) + "|"]
    for variant, of_variant in grouped.items():
        cells = [
            _spread([100 * row["per_type"].get(label, {"f": 0.0})["f"] for row in of_variant])
            for label in labels
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def chart(rows: Sequence[Result], path: Path) -> None:
    """Draw F1 of each variant: a bar for the mean, a dot for each seed.

    path: Image file, .svg or .png.
    """
    require("report")
    from matplotlib.figure import Figure

    grouped = _by_variant(rows)
    figure = Figure(figsize=(8, 0.9 + 0.34 * len(grouped)), layout="constrained")
    axes = figure.subplots()
    for y, of_variant in enumerate(grouped.values()):
        scores = [100 * row["f"] for row in of_variant]
        mean = statistics.mean(scores)
        axes.barh(y, mean, color="#8fb4d9", height=0.7)
        axes.plot(scores, [y] * len(scores), "o", color="#1f3a5f", markersize=4)
        axes.annotate(f"{mean:.1f}", (max(scores), y), (6, 0), textcoords="offset points",
                      va="center", fontsize=9)  # fmt: skip
    axes.set_yticks(range(len(grouped)), list(grouped))
    axes.invert_yaxis()
    axes.set_xlabel("F1 on test, mean of the seeds; each seed is a dot")
    axes.margins(x=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _results_with_progress(runs: Sequence[Run], out: Path, gpu_id: int) -> list[Result]:
    rows = []
    columns = (SpinnerColumn(), *Progress.get_default_columns())
    with Progress(*columns, TimeElapsedColumn(), MofNCompleteColumn()) as progress:
        task = progress.add_task("", total=len(runs))
        pending = results(runs, out, gpu_id)
        for run in runs:
            progress.update(task, description=escape(f"{run.variant}, seed {run.seed}"))
            rows.append(next(pending))
            progress.advance(task)
    return rows


def _read_seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds: expected numbers such as 0,1,2, got {text!r}.") from error


def _read_variants(path: Path) -> dict[str, dict[str, Any]]:
    try:
        variants = srsly.read_yaml(path)
    except ValueError as error:
        raise InputError(f"{path}: expected a YAML file, got {error}") from error
    if not isinstance(variants, dict) or not variants:
        raise InputError(f"{path}: expected variants by name, got {str(variants)[:60]!r}.")
    for name, settings in variants.items():
        config = settings.get("config") if isinstance(settings, dict) else None
        if not isinstance(config, str) or not (path.parent / config).is_file():
            raise InputError(
                f"{path}, {name}: expected an existing config file under config, got {config!r}. "
                "Give its path relative to this file, and below it the settings to change."
            )
    return {str(name): dict(settings) for name, settings in variants.items()}


def _shared_inputs(corpus: Path, transformer: str, gpu_id: int) -> dict[str, Any]:
    """Return what all runs depend on, besides their configs."""
    device = f"{platform.machine()}, {os.cpu_count()} CPUs"
    return {
        "corpus": {part: digest(corpus / f"{part}.spacy") for part in PARTS},
        "transformer": _transformer_digest(transformer),
        # The version of a development install does not change with the code.
        "package": digest(PACKAGE),
        "libraries": {name: version(name) for name in LIBRARIES},
        "device": torch.cuda.get_device_name(gpu_id) if gpu_id >= 0 else device,
    }


def _transformer_digest(name: str) -> str:
    """Hash a local folder; for a model on the hub, return its name and revision."""
    if Path(name).is_dir():
        return digest(Path(name))
    try:
        config = hf_hub_download(name, "config.json")
    except (HfHubHTTPError, OSError, ValueError):  # no such model: training reports it
        return name
    return f"{name} {Path(config).parent.name}"  # the folder of a snapshot is the revision


def configured(path: Path, overrides: dict[str, Any]) -> Config:
    """Read a config, and replace settings or whole blocks of it.

    Overrides of `load_config` replace a block in some versions of confection only.

    Raises InputError for a setting of a block that the config does not have.
    """
    config = load_config(path, interpolate=False)
    for name, value in overrides.items():
        try:
            set_dot_to_object(config, name, value)
        except KeyError as error:
            raise InputError(
                f"{path}: expected a config with the block of {name}, got none. Add the block, or "
                "correct the name."
            ) from error
    return config


def _train(run: Run, folder: Path, log: Path, gpu_id: int) -> None:
    folder.mkdir(parents=True)
    configured(run.config, run.overrides).to_disk(folder / "config.cfg", interpolate=False)
    command = [sys.executable, "-m", "spacy", "train", str(folder / "config.cfg")]
    command += ["--output", str(folder), "--gpu-id", str(gpu_id)]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=file)
    if done.returncode:
        raise ChildProcessError(
            f"{run.variant}, seed {run.seed}: expected `spacy train` to end with 0, got "
            f"{done.returncode}. Its output is in {log}; fix the cause and run the command again."
        )


def _by_variant(rows: Sequence[Result]) -> dict[str, list[Result]]:
    grouped: dict[str, list[Result]] = {}
    for row in rows:
        grouped.setdefault(row["variant"], []).append(row)
    return grouped


def _spread(values: Sequence[float]) -> str:
    """Format the mean and, for several values, the standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    app()
