"""Training speed beside spaCy's ner and EDS-NLP: docs/benchmarks.md, "Training". Linux only."""

import statistics
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from benchmarks import common
from benchmarks.systems import ENVIRONMENTS, Comparison, Process, trainees, training_rates

SPACY = "spaCy ner, float32"


def main(
    out: common.Out,
    corpus: common.CorpusFolder = common.SAMPLE,
    transformer: common.Transformer = common.MINILM,
    peers: common.Peers = ENVIRONMENTS,
    only: common.Only = "",
    words: Annotated[int, typer.Option(help="Words of a batch, with padding.")] = 1000,
    batches: Annotated[int, typer.Option(help="Batches of a measure.")] = 12,
    rounds: common.Rounds = 5,
    threads: Annotated[int, typer.Option(help="Threads of each system.")] = 2,
    gpu_id: common.Gpu = -1,
) -> None:
    """Compare words per second of updates on the same transformer, and peak memory.

    Each system has a process, and they take turns, with the same batches. A system that is not
    installed is left out.
    """
    common.print_machine(gpu_id)
    folder = common.converted(corpus, out)
    comparison = Comparison(out, peers, threads, gpu_id)
    with ExitStack() as running:
        started: dict[str, Process] = {}
        for system in (each for each in trainees(transformer) if only in each.name):
            with comparison.guard(system.name):
                process = running.enter_context(comparison.start(system))
                process.ask("begin", str(folder), transformer, system.settings)
                started[system.name] = process
        rates = training_rates(started, words, batches, rounds, comparison.failed)
        common.print_header("", "words/s, median (min-max)", "times spaCy's", "peak MB")
        for name, rate in rates.items():
            pairs = zip(rate, rates.get(SPACY, ()))
            ratios = [ours / theirs for ours, theirs in pairs]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else "-"
            peak = f"{started[name].ask('peak_mb'):,.0f}"
            common.print_row(name, common.median_and_range(rate), ratio, peak)
    for name, reason in comparison.failed.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
