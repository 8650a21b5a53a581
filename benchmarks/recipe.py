"""F1 on dev of variants of a config, best and last model: docs/benchmarks.md, "Recipe"."""

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import typer
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from thinc.api import Config

from benchmarks import common
from spacy_crf_ner.evaluation.training_log import read_training_log

VARIANTS = Path(__file__).with_suffix(".yml")


def main(
    folder: common.Folder,
    out: common.Out,
    corpora: Annotated[str, typer.Option(help="Comma-separated names.")] = common.CORPORA,
    variants: common.VariantFile = VARIANTS,
    names: common.VariantNames = None,
    transformer: common.Transformer = common.MINILM,
    steps: common.Steps = 1000,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations on dev.")] = 100,
    seeds: common.Seeds = "0",
    gpu_id: common.Gpu = -1,
) -> None:
    """Train variants of a config, and compare their best and last models on the dev parts.

    Nothing is measured on the test parts. Each run adds a row to recipe.csv in the output folder.
    """
    if evaluate_every < 1 or steps % evaluate_every:
        raise typer.BadParameter(
            f"expected a divisor of {steps}, so that the last model is evaluated, got "
            f"{evaluate_every}.",
            param_hint="--evaluate-every",
        )
    chosen = common.read_variants(variants, names or ())
    common.check_same(out, common.variant_inputs(chosen, transformer))
    rows = common.Rows(out / "recipe.csv")
    found: list[common.Row] = []
    for name in corpora.split(","):
        corpus = common.converted(folder / name, out)
        for variant in chosen:
            for seed in common.numbers(seeds):
                key = variant.key(transformer, steps, seed, gpu_id)
                key |= {"config": variant.config.stem, "corpus": name}
                key |= {"evaluate_every": evaluate_every}
                row = rows.known(key)
                if row is None:
                    settings = {
                        **common.schedule(steps, seed),
                        **variant.settings,
                        "paths.transformer": transformer,
                        "paths.train": str(corpus / "train.spacy"),
                        "paths.dev": str(corpus / "dev.spacy"),
                        "training.eval_frequency": evaluate_every,
                        "training.before_to_disk": None,  # it calibrates
                    }
                    config = common.changed(variant.config, settings)
                    figures = measure(config, gpu_id)
                    row = rows.add({**key, **figures}, common.environment(gpu_id))
                found.append(row)
    print_table(found, corpora.split(","))


def measure(config: Config, gpu_id: int = -1) -> common.Row:
    """Train a config in a new process; return the F1 of its best and its last model on dev."""
    return dict(common.in_new_process(_measure, config.to_str(interpolate=False), gpu_id))


def _measure(text: str, gpu_id: int) -> common.Row:
    config = Config().from_str(text, interpolate=False)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        config["training"]["logger"] = {
            "@loggers": "spacy.ConsoleLogger.v3",
            "console_output": False,
            "output_file": str(log),
        }
        start = perf_counter()
        train(init_nlp(config, use_gpu=gpu_id), use_gpu=gpu_id)
        seconds = round(perf_counter() - start)
        scores = [row["scores"]["score"] for row in read_training_log(log)]
    return {"best": round(max(scores), 2), "last": round(scores[-1], 2), "seconds": seconds}


def print_table(rows: list[common.Row], corpora: list[str]) -> None:
    """Print the best and the last F1 of each variant: means of seeds, and of all corpora."""
    common.print_header("best / last F1 on dev", *corpora, "mean", "seconds")
    for (variant,), own in common.by_key(rows, "variant").items():
        cells, means = [], []
        for corpus in corpora:
            found = [row for row in own if row["corpus"] == corpus]
            if found:
                means.append([statistics.mean(row[of] for row in found) for of in ("best", "last")])
            cells.append("{:.1f} / {:.1f}".format(*means[-1]) if found else "-")
        best, last = (statistics.mean(of) for of in zip(*means)) if means else (0.0, 0.0)
        cells.append(f"{best:.1f} / {last:.1f}" if len(means) == len(corpora) else "-")
        seconds = statistics.median(row["seconds"] for row in own)
        common.print_row(variant, *cells, round(seconds))
