"""Exported pipelines against accelerated ones of torch, in the same dtypes."""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import spacy
import srsly
import typer
from spacy.training import Corpus

from benchmark import _print_machine, _spread
from benchmark_speed import document_sets
from spacy_crf_ner.export import DTYPE_NAMES, export_pipeline

THREADS = 2

# A process with one pipeline. It prints the first entities; for each line that it reads, the time
# to predict a file of texts; and at the end its peak memory in MB.
WORKER = """
import json, sys, time
from pathlib import Path
import spacy

model, dtype = sys.argv[1:]
nlp = spacy.load(model)
if dtype:
    import spacy_crf_ner
    spacy_crf_ner.accelerate(nlp, dtype)
print(nlp("Ngozi Adeyemi flew from Lagos to Oslo on Friday.").ents, flush=True)
for line in sys.stdin:
    texts = json.loads(Path(line.strip()).read_text("utf-8"))
    start = time.perf_counter()
    for _ in nlp.pipe(texts):
        pass
    print(time.perf_counter() - start, flush=True)
status = Path("/proc/self/status").read_text()
print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
"""


class Worker:
    """A process that predicts, and how long it took to its first entity."""

    def __init__(self, python: str, model: Path, dtype: str) -> None:
        threads = {"OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false"}
        start = perf_counter()
        self.process = subprocess.Popen(
            [python, "-c", WORKER, str(model), dtype],
            env={**os.environ, **threads},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()
        self.first = perf_counter() - start

    def seconds(self, texts: Path) -> float:
        """Predict the texts of a file."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{texts}\n")
        self.process.stdin.flush()
        return float(self._read())

    def peak(self) -> float:
        """End the process; returns its peak memory in MB."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return float(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"A worker ended with {self.process.wait()}.")
        return line


def export(
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
    _print_machine(-1)
    nlp = spacy.blank("en")
    with TemporaryDirectory() as name:
        folder = Path(name)
        systems: dict[str, tuple[Path, Path, str]] = {}
        for dtype in DTYPE_NAMES:
            exported = folder / dtype
            export_pipeline(spacy.load(model), dtype).to_disk(exported)
            systems[f"torch, {dtype}"] = train, model, dtype
            systems[f"exported, {dtype}"] = runtime, exported, ""
        all_texts = [eg.reference.text for eg in Corpus(corpus)(nlp)]
        sets = document_sets(all_texts, share)
        for kind in ("sentences", "2,000 words"):
            srsly.write_json(folder / kind, sets[kind])
        words = {kind: sum(len(nlp.make_doc(text)) for text in sets[kind]) for kind in sets}
        first: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, (environment, path, dtype) in systems.items():
                worker = Worker(_python(environment), path, dtype)
                first[name].append(worker.first)
                worker.peak()
        workers = {name: Worker(_python(e), path, p) for name, (e, path, p) in systems.items()}
        rates: dict[tuple[str, str], list[float]] = {}
        for i in range(rounds + 1):
            for kind in ("sentences", "2,000 words"):
                for name, worker in workers.items():
                    seconds = worker.seconds(folder / kind)
                    if i:  # the first is slower
                        rates.setdefault((name, kind), []).append(words[kind] / seconds)
        print(
            "| pipeline | environment, MB | pipeline, MB | first entity, s | words/s, sentences | "
            "words/s, 2,000 words | peak memory, MB |\n|---|---|---|---|---|---|---|"
        )
        for name, (environment, path, _) in systems.items():
            cells = [
                f"{_size(environment):,.0f}",
                f"{_size(path):,.0f}",
                f"{statistics.median(first[name]):.2f}",
                *(_spread(rates[name, kind]) for kind in ("sentences", "2,000 words")),
                f"{workers[name].peak():,.0f}",
            ]
            print(f"| {name} | {' | '.join(cells)} |")


def _python(environment: Path) -> str:
    return str(environment / "bin" / "python")


def _size(folder: Path) -> float:
    """Sum the disk space of a folder, in MB."""
    done = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[0])
