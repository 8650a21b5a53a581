"""Exported pipelines beside accelerated ones of torch, in the same dtypes: docs/benchmarks.md."""

import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import spacy
import typer
from spacy.training import Corpus

from benchmarks import common
from benchmarks.systems import Process, System
from spacy_crf_ner.export import DTYPE_NAMES, export_pipeline

THREADS = 2
SETS = ("sentences", "2,000 words")
TEXT = "Ngozi Adeyemi flew from Lagos to Oslo on Friday."


def main(
    model: Annotated[Path, typer.Argument(help="Trained pipeline over a transformer.")],
    corpus: Annotated[Path, typer.Argument(help="Texts: a .spacy file.")],
    runtime: Annotated[
        Path, typer.Option(help="Environment with the extra `runtime` only.")
    ] = Path(sys.prefix),
    train: Annotated[Path, typer.Option(help="Environment with the extra `train`.")] = Path(
        sys.prefix
    ),
    share: Annotated[float, typer.Option(help="Of the documents of a full run.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are medians.")] = 7,
) -> None:
    """Measure disk, memory, seconds to the first entity and words/s, with two threads.

    All pipelines are loaded, each in a process of its own, and predict in turns.
    """
    common.print_machine()
    nlp = spacy.blank("en")
    sets = common.document_sets([eg.reference.text for eg in Corpus(corpus)(nlp)], share)
    words = {kind: sum(len(nlp.make_doc(text)) for text in sets[kind]) for kind in SETS}
    with TemporaryDirectory() as name, ExitStack() as running:
        logs = Path(name) / "logs"
        systems: dict[str, tuple[Path, Path, common.Row]] = {}
        for dtype in DTYPE_NAMES:
            exported = Path(name) / dtype
            export_pipeline(spacy.load(model), dtype).to_disk(exported)
            systems[f"torch, {dtype}"] = train, model, {"dtype": dtype}
            systems[f"exported, {dtype}"] = runtime, exported, {}
        first: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, (environment, path, settings) in systems.items():
                start = perf_counter()
                with started(environment, path, settings, logs):
                    first[name].append(perf_counter() - start)
        processes = {
            name: running.enter_context(started(*system, logs)) for name, system in systems.items()
        }
        rates: dict[tuple[str, str], list[float]] = {}
        for i in range(rounds + 1):
            for kind in SETS:
                for name, process in processes.items():
                    seconds = process.ask("seconds", sets[kind], 0)
                    if i:  # the first is slower
                        rates.setdefault((name, kind), []).append(words[kind] / seconds)
        sizes = ("environment, MB", "pipeline, MB", "first entity, s")
        common.print_header(
            "pipeline", *sizes, *(f"words/s, {kind}" for kind in SETS), "peak memory, MB"
        )
        for name, (environment, path, _) in systems.items():
            common.print_row(
                name,
                f"{_size(environment):,.0f}",
                f"{_size(path):,.0f}",
                f"{statistics.median(first[name]):.2f}",
                *(common.median_and_range(rates[name, kind]) for kind in SETS),
                f"{common.memory_mb('VmHWM', processes[name].pid):,.0f}",
            )


def started(environment: Path, model: Path, settings: common.Row, logs: Path) -> Process:
    """Start a process with a pipeline, which has found the entities of a text."""
    system = System(f"{environment.name} {model.name}", "spacy_pipeline")
    process = Process(environment / "bin" / "python", system, logs, THREADS)
    process.ask("load", str(model), settings)
    process.ask("find", [TEXT], 0)
    return process


def _size(folder: Path) -> float:
    """Sum the disk space of a folder, in MB."""
    done = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0])
