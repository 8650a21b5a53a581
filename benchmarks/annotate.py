"""Words per second of `annotate`, beside `nlp.pipe`: docs/benchmarks.md. Linux only."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated

import spacy
import srsly
import torch
import typer

from benchmarks import common
from spacy_crf_ner.annotate import Progress, Settings, annotate, annotate_on_ray

CONFIGS = ("cnn", "transformer")
RATIOS = (
    ("one worker", "nlp.pipe"),
    ("two workers", "one worker"),
    ("Ray, two actors, whole run", "two workers, whole run"),
)


def main(
    transformer: common.Transformer = common.MINILM,
    docs: Annotated[int, typer.Option(help="Documents for cnn.cfg; a tenth over MiniLM.")] = 20_000,
    rounds: common.Rounds = 3,
    ray: Annotated[bool, typer.Option(help="Also measure Ray.")] = True,
) -> None:
    """Compare the speed of a bare loop over nlp.pipe, one worker, two workers, and Ray.

    All read the same JSON lines, of one to ten sentences, in turns, with one thread a process.
    The loop is timed without loading; a worker between its first shard and its last, so without
    its beginning; and, because that is what one waits for, two workers and Ray also as a whole.
    """
    common.print_machine()
    columns: dict[str, dict[str, list[float]]] = {}
    for config in CONFIGS:
        with TemporaryDirectory() as name:
            folder = Path(name)
            model, corpus = folder / config, folder / "corpus.jsonl"
            common.trained_a_little(config, transformer).to_disk(model)
            number, shards = (docs, 20) if config == "cnn" else (docs // 10, 10)
            common.write_sample_texts(corpus, number)
            found = columns.setdefault(config, {})
            for i in range(rounds):
                for name, rate in rates(
                    model, corpus, folder / f"out{i}", max(1, number // shards), ray
                ):
                    found.setdefault(name, []).append(rate)
    common.print_header("words/s, median (min-max)", *CONFIGS)
    for name in columns[CONFIGS[0]]:
        common.print_row(
            name, *(common.median_and_range(columns[config][name]) for config in CONFIGS)
        )
    for over, under in RATIOS:
        pairs = [zip(columns[config].get(over, ()), columns[config][under]) for config in CONFIGS]
        ratios = [[a / b for a, b in each] for each in pairs]
        if all(ratios):
            common.print_row(
                f"{over} / {under}", *(f"{statistics.median(each):.2f}" for each in ratios)
            )


def rates(
    model: Path, corpus: Path, out: Path, shard_size: int, ray: bool
) -> Iterator[tuple[str, float]]:
    """Yield the words per second of each way."""
    yield "nlp.pipe", common.in_new_process(loop, model, corpus)
    for workers, name in ((1, "one worker"), (2, "two workers")):
        seen: list[Progress] = []
        settings = Settings(shard_size=shard_size)
        start = perf_counter()
        summary = annotate(
            str(model), [corpus], out / name, settings, workers=workers, on_progress=seen.append
        )
        whole = perf_counter() - start
        first, last = seen[0], seen[-1]
        yield name, (last.words - first.words) / (last.seconds - first.seconds)
        if workers == 2:
            yield f"{name}, whole run", summary["words"] / whole
    if ray:
        start = perf_counter()
        summary = annotate_on_ray(str(model), [str(corpus)], str(out / "ray"), workers=2)
        yield "Ray, two actors, whole run", summary["words"] / (perf_counter() - start)


def loop(model: Path, corpus: Path) -> float:
    """Return the words per second of a bare loop over nlp.pipe."""
    torch.set_num_threads(1)
    nlp = spacy.load(model)
    list(nlp.pipe(["Warm up."] * 10))
    start = perf_counter()
    texts = (record["text"] for record in srsly.read_jsonl(corpus))
    words = sum(len(doc) for doc in nlp.pipe(texts))
    return words / (perf_counter() - start)
