"""Measure everything on a GPU in eight minutes: `python benchmarks/gpu.py --help`.

Steps run in the order of what is worth most, each in a process of its own with a time limit. They
print JSON lines, which are also appended to gpu.jsonl in the output folder. A system that is not
installed is skipped, with the reason.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import spacy
import srsly
import torch
import typer
from spacy.training import Corpus
from spacy.util import load_config
from transformers import BertConfig, BertModel, BertTokenizerFast

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks import common
from benchmarks.systems import (
    ENVIRONMENTS,
    PEERS,
    Process,
    System,
    best_size,
    in_turns,
    trainees,
    training_rates,
)
from spacy_crf_ner import crf
from spacy_crf_ner.data import SPLITS
from spacy_crf_ner.ml import char_embed, network
from spacy_crf_ner.ml.layer import Graph
from spacy_crf_ner.ml.shim import TorchShim
from spacy_crf_ner.ml.transformer import model as transformer_layer

LIMITS = {"tests": 150, "training": 150, "prediction": 120, "parts": 50}  # seconds
OPTIONAL = {"scores": 3600}  # takes a real transformer and corpus
ROUNDS = 3
PARTS: dict[str, list[common.Function]] = {  # of an update of crf_ner
    "subwords, windows, alignment": [(transformer_layer, "divide")],
    "copy of the subwords": [(transformer_layer, "_on_device")],
    "distinct words": [(char_embed, "read_words")],
    "transformer, forward": [(transformer_layer.TransformerShim, "begin_update")],
    "other modules, forward": [(TorchShim, "begin_update")],
    "copy of the scores": [(network, "_to_chain")],
    "loss of the CRF": [(crf, "nll_with_gradient")],
    "backward": [(Graph, "backward")],
    "Adam": [(TorchShim, "finish_update")],
}


class Sizes(NamedTuple):
    """How much is measured.

    batches: Words of a batch of training, with padding.
    words: Of a measure of training, at least; it has two batches or more.
    updates: Before predictions.
    share: Of the documents of `document_sets`, which have about 10,000 words.
    transformer: Settings of a BERT with random weights.
    """

    batches: tuple[int, ...]
    words: int
    updates: int
    share: float
    transformer: dict[str, int]


MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
MINILM |= {"intermediate_size": 1536}
TINY = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
TINY |= {"intermediate_size": 32, "vocab_size": 2000}
FULL = Sizes((1000, 4000, 16_000), 16_000, 50, 4.0, MINILM)
SMALL = Sizes((40, 80), 80, 2, 0.005, TINY)  # to test this script on a CPU


Start = Callable[[System], Any]  # an object whose method `ask` calls a method of a system
Line = dict[str, Any]
Started = tuple[System, Any]


# What systems predict in, as their `use_dtype` calls it. EDS-NLP's default is autocast to float16.
DTYPES: dict[str, dict[str, str | None]] = {
    "crf_ner": {"float32": "fp32", "16 bits": "auto", "not accelerated": None},
    "EDS-NLP": {"float32": "float32", "16 bits": "bfloat16", "its default": "auto"},
    "spaCy ner": {"float32": "fp32", "16 bits": "auto"},
}


def begin(
    chosen: list[System], start: Start, corpus: Path, transformer: str
) -> tuple[list[Started], list[Line]]:
    """Start systems, all at once; also return a line for each that is skipped."""

    def begun(system: System) -> Any:
        try:
            process = start(system)
            process.ask("begin", str(corpus), transformer, system.settings)
        except RuntimeError as error:
            return {"system": system.name, "skipped": str(error)}
        return system, process

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(begun, chosen))
    ready = [each for each in found if isinstance(each, tuple)]
    return ready, [each for each in found if isinstance(each, dict)]


def training(start: Start, corpus: Path, transformer: str, sizes: Sizes) -> Iterator[Line]:
    """Words/s of updates, in turns, and the peak of memory."""
    ready, skipped = begin(trainees(transformer), start, corpus, transformer)
    yield from skipped
    started = {system.name: process for system, process in ready}
    for size in sizes.batches:
        failed: dict[str, str] = {}
        number = max(2, sizes.words // size)
        for name, rates in training_rates(started, size, number, ROUNDS, failed).items():
            line = {"system": name, "padded_words": size, **spread(rates)}
            yield {**line, "peak_mb": round(started[name].ask("peak_mb"))}
        for name, reason in failed.items():
            yield {"system": name, "padded_words": size, "failed": reason}
            del started[name]


def prediction(start: Start, corpus: Path, transformer: str, sizes: Sizes) -> Iterator[Line]:
    """Words/s of prediction from texts, in turns, in each dtype; after a little training."""
    sets = common.document_sets(
        [r["text"] for r in srsly.read_jsonl(corpus / "test.jsonl")], sizes.share
    )
    nlp = spacy.blank("en")
    chosen = [system for system in trainees(transformer) if system.name in DTYPES]
    ready, skipped = begin(chosen, start, corpus, transformer)
    yield from skipped
    for _, process in ready:
        process.ask("updates", sizes.batches[0], sizes.updates)
    measured = {
        f"{system.name}: {name}": (system.name, name, process, dtype)
        for system, process in ready
        for name, dtype in DTYPES[system.name].items()
    }
    for of in ("sentences", "ten sentences", "2,000 words"):
        words = sum(len(nlp.make_doc(text)) for text in sets[of])
        sizes_of: dict[str, int] = {}
        acts = {
            key: partial(_predicted, sets[of], sizes_of, key, process, dtype)
            for key, (_, _, process, dtype) in measured.items()
        }
        failed: dict[str, str] = {}
        found = in_turns(acts, ROUNDS, failed)
        for key, (name, dtype_name, process, _) in measured.items():
            line = {"system": name, "dtype": dtype_name, "documents": of}
            if key in failed:
                yield {**line, "failed": failed[key]}
                continue
            line |= spread([words / seconds for seconds in found[key]])
            line["batch_size"] = sizes_of[key]
            yield {**line, "peak_mb": round(process.ask("peak_mb"))}


def _predicted(
    texts: list[str], sizes: dict[str, int], key: str, process: Any, dtype: Any, is_first: bool
) -> float:
    """Return the seconds of a prediction; the first round chooses the batch size."""
    process.ask("use_dtype", dtype)
    if is_first:
        sizes[key] = best_size(process, texts)
    return float(process.ask("seconds", texts, sizes[key]))


def parts(start: Start, corpus: Path, transformer: str, sizes: Sizes) -> Iterator[Line]:
    """Milliseconds by part of an update of crf_ner, which waits for the GPU after each part.

    And of a whole update without these waits; kernels, and how long the GPU computes.
    """
    sys.path.append(str(PEERS))
    from spacy_pipeline import SpacyPipeline
    from system import at_least, batches

    system = SpacyPipeline()
    if torch.cuda.is_available():
        system.use_gpu(0)
    system.begin(str(corpus), transformer, str(common.CONFIGS / "transformer.cfg"))

    def clock() -> float:
        system.wait()
        return perf_counter()

    for size in (sizes.batches[0], sizes.batches[-1]):
        (batch,) = batches(at_least(system.records, 4 * size), 1, 0, size)
        found: dict[str, list[float]] = {}
        for i in range(ROUNDS + 3):
            first = clock()
            system.update(batch)
            whole = clock() - first
            first = clock()
            with common.apart(PARTS, clock) as seconds:
                system.update(batch)
            rest = clock() - first - sum(seconds.values())
            if i > 2:  # the first are slower
                taken = {"whole, without waits": whole, **seconds, "the rest": rest}
                for part, of in taken.items():
                    found.setdefault(part, []).append(1000 * of)
        milliseconds = {part: round(statistics.median(of), 2) for part, of in found.items()}
        words = sum(len(record["tokens"]) for record in batch)
        line = {"padded_words": size, "words": words, "docs": len(batch), "ms": milliseconds}
        yield line | launched(lambda batch=batch: system.update(batch))


def launched(function: Callable[[], Any]) -> Line:
    """Count kernels and copies on a GPU, and the milliseconds that they take there."""
    if not torch.cuda.is_available():
        return {}
    from torch.profiler import DeviceType, ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        function()
        torch.cuda.synchronize()
    of_gpu = [each for each in profiled.events() if each.device_type == DeviceType.CUDA]
    ms = sum(each.time_range.elapsed_us() for each in of_gpu) / 1000
    return {"kernels_and_copies": len(of_gpu), "gpu_ms": round(ms, 2)}


def scores(start: Start, corpus: Path, transformer: str, sizes: Sizes) -> Iterator[Line]:
    """F1 on dev after the same number of words, by the words of a batch and the learning rate.

    It chooses what `init --gpu` writes.
    """
    if torch.cuda.is_available():
        spacy.require_gpu(0)
    path = common.CONFIGS / "transformer.cfg"
    shipped = load_config(path)["training"]
    words = (
        shipped["max_steps"] * shipped["batcher"]["size"]
        if sizes is FULL
        else sizes.batches[-1] * 2
    )
    for size in sizes.batches:
        times = size / sizes.batches[0]
        for factor in sorted({1.0, times**0.25, times**0.5}):
            rate = factor * shipped["optimizer"]["learn_rate"]["initial_rate"]
            steps = max(1, words // size)
            settings = {
                "paths.transformer": transformer,
                "paths.train": str(corpus / "train.spacy"),
                "paths.dev": str(corpus / "dev.spacy"),
                "training.batcher.size": size,
                "training.batcher.buffer": round(256 * times),
                "training.max_steps": steps,
                "training.eval_frequency": steps,
                "training.optimizer.learn_rate.total_steps": steps,
                "training.optimizer.learn_rate.warmup_steps": max(1, steps // 20),
                "training.optimizer.learn_rate.initial_rate": rate,
            }
            first = perf_counter()
            gpu_id = 0 if torch.cuda.is_available() else -1
            nlp = common.trained(load_config(path, overrides=settings), gpu_id)
            seconds = round(perf_counter() - first, 1)
            line = {"padded_words": size, "rate": rate, "steps": steps, "seconds": seconds}
            yield {**line, "f1": nlp.evaluate([*Corpus(corpus / "dev.spacy")(nlp)])["ents_f"]}


def spread(rates: list[float]) -> Line:
    names = {"words_per_s": statistics.median, "min": min, "max": max}
    return {name: round(of(rates)) for name, of in names.items()}


STEPS = {"training": training, "prediction": prediction, "parts": parts, "scores": scores}


def random_transformer(folder: Path, corpus: Path, settings: dict[str, int]) -> str:
    """Make a BERT with random weights, unless it is made; words of the corpus are one subword."""
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        records = [r for part in SPLITS for r in srsly.read_jsonl(corpus / f"{part}.jsonl")]
        known = {r["text"][start:end].lower() for r in records for start, end in r["tokens"]}
        letters = [letter for i in range(33, 127) for letter in (chr(i), f"##{chr(i)}")]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *sorted(known)]
        size = settings.get("vocab_size", 30_522)
        (folder / "vocab.txt").write_text("\n".join(vocabulary[:size]), encoding="utf-8")
        tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=512)
        tokenizer.save_pretrained(folder)
        BertModel(BertConfig(**settings)).save_pretrained(folder)
    return str(folder)


def main(
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    corpus: common.CorpusFolder = common.SAMPLE,
    transformer: Annotated[
        str, typer.Option(help="Folder; without one, MiniLM's shape with random weights.")
    ] = "",
    only: Annotated[str, typer.Option(help="Steps, comma-separated; also scores.")] = "",
    minutes: Annotated[float, typer.Option(help="For all steps.")] = 8.0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Measure little, on a CPU.")] = False,
    step: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure on a GPU: tests, training, prediction, parts of an update; scores if asked for."""
    sizes = SMALL if cpu else FULL
    corpus = common.converted(corpus, out)
    transformer = transformer or random_transformer(out / "transformer", corpus, sizes.transformer)
    if step:
        for line in STEPS[step](starter(out, cpu), corpus, transformer, sizes):
            say(out, {"step": step, **line})
        return
    packages = ("torch", "spacy", "thinc", "transformers", "numpy")
    say(out, {"machine": device(cpu), **{name: version(name) for name in packages}})
    command = [sys.executable, __file__, str(out), "--corpus", str(corpus)]
    command += ["--transformer", transformer, *(["--cpu"] if cpu else []), "--step"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
    tests.append(str(common.ROOT / "tests" / "test_gpu.py"))
    chosen = {name: limit for name, limit in (LIMITS | OPTIONAL).items() if name in only.split(",")}
    end = perf_counter() + 60 * minutes
    for name, limit in (chosen or LIMITS).items():
        call = tests if name == "tests" else [*command, name]
        left = end - perf_counter()
        ended = limited(call, min(limit, left)) if left > 10 else {"ended": "no time left"}
        say(out, {"step": name, **ended})


def limited(command: list[str], seconds: float) -> Line:
    """Run a command, and end it and its children after some seconds; say how it ended."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    paths = [str(common.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    first = perf_counter()
    process = subprocess.Popen(command, cwd=common.ROOT, env=env, start_new_session=True)
    try:
        ended: Any = process.wait(seconds)
    except subprocess.TimeoutExpired:
        ended = "time limit"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return {"ended": ended, "seconds": round(perf_counter() - first, 1)}


def starter(out: Path, cpu: bool) -> Start:
    """Return a function that starts the process of a system."""

    def start(system: System) -> Process:
        own = ENVIRONMENTS / system.venv / "bin" / "python"
        python = own if system.venv and own.exists() else Path(sys.executable)
        process = Process(python, system, out / "logs", 1 if cpu else os.cpu_count() or 1)
        if not cpu:
            process.ask("use_gpu", 0)
        return process

    return start


def device(cpu: bool) -> str:
    return "CPU" if cpu else torch.cuda.get_device_name()


def say(out: Path, line: Line) -> None:
    text = json.dumps(line)
    print(text, flush=True)
    with (out / "gpu.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


if __name__ == "__main__":
    typer.run(main)
