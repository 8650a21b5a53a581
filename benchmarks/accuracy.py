"""F1 of crf_ner and other recognizers on several corpora: docs/benchmarks.md, "Accuracy"."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import common
from benchmarks.systems import ENVIRONMENTS, Comparison, Runs, System

SYSTEMS = (
    System("crf_ner", "spacy_pipeline", "transformer"),
    System(
        "crf_ner, decoded for F1",
        "spacy_pipeline",
        "transformer",
        settings={"decode_for_f1": True},
    ),
    System("spaCy ner", "spacy_pipeline", "spacy_ner"),
    System("EDS-NLP ner_crf", "eds_tagger", "edsnlp", "edsnlp"),
    System("EDS-NLP text_cnn + ner_crf", "eds_tagger", "edsnlp_text_cnn", "edsnlp"),
    System("flair, RNN + CRF", "flair_tagger", "flair", "flair"),
    System("flair, linear", "flair_tagger", "flair_linear", "flair"),
    System("Hugging Face", "hugging_face", "hugging_face"),
    System("crf_ner, char.cfg", "spacy_pipeline", "char"),
    System("crf_ner, cnn.cfg", "spacy_pipeline", "cnn"),
    System("spaCy ner, the same CNN", "spacy_pipeline", "spacy_cnn"),
)


def main(
    folder: common.Folder,
    out: common.Out,
    corpora: Annotated[str, typer.Option(help="Comma-separated names.")] = common.CORPORA,
    only: common.Only = "",
    steps: common.Steps = 200,
    seeds: common.Seeds = "0,1,2",
    evaluate_every: Annotated[
        int,
        typer.Option(
            help="Steps between evaluations on dev, whose best model is measured, and the last "
            "one; 0 measures the last model. Not for flair."
        ),
    ] = 0,
    rates_of: Annotated[
        int,
        typer.Option(
            help="Steps of earlier runs, whose best learning rates are taken; 0 searches them."
        ),
    ] = 0,
    peers: common.Peers = ENVIRONMENTS,
    transformer: common.Transformer = common.MINILM,
    gpu_id: common.Gpu = -1,
) -> None:
    """Compare test scores of crf_ner and others: same transformer, batches, steps, tokens, scorer.

    crf_ner has its shipped config. Others have their best learning rate on the dev part, with the
    first seed: it is doubled or halved while that is better. Each run adds a row to accuracy.csv in
    the output folder.
    """
    rows = common.Rows(out / "accuracy.csv")
    comparison = Comparison(out, peers, gpu_id=gpu_id)
    chosen = [system for system in SYSTEMS if only in system.name]
    runs = Runs(comparison, rows, transformer, steps, evaluate_every, rates_of=rates_of)
    prepared = [common.converted(folder / name, out) for name in corpora.split(",")]
    runs.measure_all(chosen, prepared, common.numbers(seeds))
    print_tables(rows.matching({"transformer": Path(transformer).name, "part": "test"}))


def print_tables(rows: Iterable[common.Row]) -> None:
    """Print F1, a table for each budget: mean and spread of seeds.

    A system that was run with several learning rates on a corpus has the one of its last row.
    """
    for (steps, every, device), own in common.by_key(
        rows, "steps", "evaluate_every", "device"
    ).items():
        corpora = [
            name for name in common.CORPORA.split(",") if name in {row["corpus"] for row in own}
        ]
        title = f"{steps} steps{f', best on dev every {every}' if every else ''}, {device}"
        common.print_header(title, *corpora, "mean")
        for (system,), of_system in common.by_key(own, "system").items():
            last = {row["corpus"]: row["rate"] for row in of_system}
            found = {
                corpus: [
                    100 * row["f"]
                    for row in of_system
                    if (row["corpus"], row["rate"]) == (corpus, last.get(corpus))
                ]
                for corpus in corpora
            }
            means = [statistics.mean(values) for values in found.values() if values]
            mean = f"{statistics.mean(means):.1f}" if len(means) == len(corpora) else "-"
            common.print_row(system, *map(common.mean_and_deviation, found.values()), mean)
        print()
