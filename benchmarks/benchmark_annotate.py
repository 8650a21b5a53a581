"""Benchmarks of `annotate`: `python benchmarks/benchmark_annotate.py --help`. Linux only."""

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Annotated

import spacy
import torch
import typer

from benchmark import Transformer, _print_machine, _spread, _texts, _trained_a_little
from spacy_crf_ner.annotate import Progress, Settings, annotate, annotate_on_ray

ROOT = Path(__file__).parent.parent
CONFIGS = ("cnn", "transformer")
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; figures are medians.")]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@app.command()
def speed(
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    docs: Annotated[int, typer.Option(help="Documents for cnn.cfg; a tenth over MiniLM.")] = 20_000,
    rounds: Rounds = 3,
) -> None:
    """Compare the speed of a bare loop over nlp.pipe, one worker, two workers, and Ray.

    All read the same JSON lines, of one to ten sentences, in turns, with one thread a process.
    The loop is timed without loading; a worker between its first shard and its last, so without
    its beginning; and, because that is what one waits for, two workers and Ray also as a whole.
    """
    _print_machine(-1)
    print("| words/s, median (min-max) | " + " | ".join(CONFIGS) + " |\n|---|---|---|")
    columns: dict[str, dict[str, list[float]]] = {}
    for config in CONFIGS:
        with TemporaryDirectory() as folder:
            model, corpus = _prepare(config, transformer, Path(folder))
            number = docs if config == "cnn" else docs // 10
            _write(corpus, number)
            found: dict[str, list[float]] = {}
            for i in range(rounds):
                for name, rate in _rates(model, corpus, Path(folder) / f"out{i}"):
                    found.setdefault(name, []).append(rate)
            columns[config] = found
    for name in columns[CONFIGS[0]]:
        print(f"| {name} | " + " | ".join(_spread(columns[c][name]) for c in CONFIGS) + " |")
    for over, under in (
        ("one worker", "nlp.pipe"),
        ("two workers", "one worker"),
        ("Ray, two actors, whole run", "two workers, whole run"),
    ):
        ratios = [
            statistics.median(a / b for a, b in zip(columns[c][over], columns[c][under]))
            for c in CONFIGS
        ]
        print(f"| {over} / {under} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


def _rates(model: str, corpus: Path, out: Path) -> Iterator[tuple[str, float]]:
    command = [sys.executable, __file__, "loop", model, str(corpus)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    yield "nlp.pipe", float(said)
    for workers, name in ((1, "one worker"), (2, "two workers")):
        seen: list[Progress] = []
        settings = Settings(shard_size=1000 if "cnn" in model else 200)
        start = perf_counter()
        summary = annotate(
            model, [corpus], out / str(workers), settings, workers=workers, on_progress=seen.append
        )
        whole = perf_counter() - start
        first, last = seen[0], seen[-1]
        yield name, (last.words - first.words) / (last.seconds - first.seconds)
        if workers == 2:
            yield f"{name}, whole run", summary["words"] / whole
    start = perf_counter()
    summary = annotate_on_ray(model, [str(corpus)], str(out / "ray"), workers=2)
    yield "Ray, two actors, whole run", summary["words"] / (perf_counter() - start)


@app.command(hidden=True)
def loop(model: str, corpus: Path) -> None:
    """Print the words per second of a bare loop over nlp.pipe."""
    torch.set_num_threads(1)
    nlp = spacy.load(model)
    list(nlp.pipe(["Warm up."] * 10))
    words = 0
    start = perf_counter()
    with corpus.open(encoding="utf-8") as file:
        for doc in nlp.pipe(json.loads(line)["text"] for line in file):
            words += len(doc)
    print(words / (perf_counter() - start))


@app.command()
def memory(
    small: Annotated[int, typer.Option(help="Documents.")] = 10_000,
    large: Annotated[int, typer.Option(help="Documents.")] = 100_000,
) -> None:
    """Measure the peak memory of all processes for few and many documents, with two workers."""
    _print_machine(-1)
    peaks = []
    for number in (small, large):
        with TemporaryDirectory() as folder:
            model, corpus = _prepare("cnn", "", Path(folder))
            _write(corpus, number)
            command = [sys.executable, "-m", "spacy_crf_ner", "annotate", model, str(corpus)]
            command += [f"{folder}/out", "--workers", "2"]
            peaks.append(_peak(command))
            print(f"{number:,} documents: {peaks[-1]:,.0f} MB")
    print(f"Ratio: {peaks[1] / peaks[0]:.3f}")


def _prepare(config: str, transformer: str, folder: Path) -> tuple[str, Path]:
    model = folder / config
    _trained_a_little(config, transformer, -1).to_disk(model)
    return str(model), folder / "corpus.jsonl"


def _write(path: Path, number: int) -> None:
    """Write documents of one to ten sentences of the sample corpus, each with a unique word."""
    rng = random.Random(0)
    sentences = _texts(400, 1)
    with path.open("w", encoding="utf-8") as file:
        for i in range(number):
            text = " ".join(rng.choices(sentences, k=rng.choice([1, 1, 1, 2, 5, 10])))
            file.write(json.dumps({"id": i, "text": f"{text} No{i}"}) + "\n")


def _peak(command: list[str]) -> float:
    """Run a command, and return the peak total memory of its processes in MB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most: dict[int, float] = {}
    ended = Event()

    def look() -> None:
        while not ended.wait(0.1):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            try:
                for pid in (process.pid, *map(int, children.read_text().split())):
                    status = Path(f"/proc/{pid}/status").read_text()
                    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
                    most[pid] = int(peak.split()[1]) / 1024
            except (OSError, StopIteration):
                continue  # it has ended

    watcher = Thread(target=look)
    watcher.start()
    code = process.wait()
    ended.set()
    watcher.join()
    if code:
        raise RuntimeError(f"{command} ended with {code}")
    return sum(most.values())


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    app()
