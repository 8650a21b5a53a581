"""Speed comparison: crf_ner and other recognizers, each in its own process. Linux only."""

import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NamedTuple,
)

import spacy
import srsly
import typer
from spacy.language import Language
from spacy.scorer import PRFScore
from spacy.training import Corpus
from spacy.util import load_config

from benchmark import ROOT, Transformer, _convert, _memory, _spread, _Training, run_name
from inputs import check_same, of_transformer
from spacy_crf_ner import data

PEERS = ROOT / "benchmarks" / "peers"
ENVIRONMENTS = ROOT / ".venv" / "peers"
VENVS = ("flair", "edsnlp")  # what does not install beside this project, each with its own


class System(NamedTuple):
    """A row of the table.

    name: Of the row.
    script: In `peers`; what it does in its process.
    model: What it loads, a key of `RATES`; empty for the transformer itself.
    venv: Whose Python runs it, one of `VENVS`; empty for this one.
    settings: For loading.
    """

    name: str
    script: str
    model: str = ""
    venv: str = ""
    settings: dict[str, Any] = {}  # noqa: RUF012  (a tuple shares it, and nobody writes to it)


FP32 = System("crf_ner, fp32", "spacy_pipeline", "transformer", settings={"dtype": "fp32"})
BF16 = System("crf_ner, bf16", "spacy_pipeline", "transformer", settings={"dtype": "bf16"})
INT8 = System("crf_ner, int8", "spacy_pipeline", "transformer", settings={"dtype": "int8"})
CNN = System("crf_ner, cnn.cfg", "spacy_pipeline", "cnn")
SPACY_CNN = System("spaCy ner over the same CNN", "spacy_pipeline", "spacy_cnn")
SPACY = System("spaCy transformer + ner", "spacy_pipeline", "spacy_ner")
HUGGING_FACE = System("Hugging Face pipeline", "hugging_face", "hugging_face")
BARE = System("transformer alone, bf16", "bare_transformer", settings={"autocast": False})
SYSTEMS = (
    System("crf_ner, not accelerated", "spacy_pipeline", "transformer"),
    FP32,
    BF16,
    INT8,
    SPACY,
    HUGGING_FACE,
    HUGGING_FACE._replace(name="Hugging Face pipeline, bf16", settings={"dtype": "bfloat16"}),
    System("flair, RNN + CRF", "flair_tagger", "flair", "flair"),
    System("flair, linear", "flair_linear", "flair_linear", "flair"),
    System("EDS-NLP, ner_crf", "eds_tagger", "edsnlp", "edsnlp"),
    System("EDS-NLP, text_cnn + ner_crf", "eds_text_cnn", "edsnlp_text_cnn", "edsnlp"),
    BARE,
    BARE._replace(name="transformer alone, bf16 autocast", settings={"autocast": True}),
    CNN,
    SPACY_CNN,
)
TARGETS = (
    (FP32, SPACY, 1.3),
    (BF16, SPACY, 2.5),
    (BF16, HUGGING_FACE, 2.0),
    (BF16, BARE, 0.8),
    (CNN, SPACY_CNN, 1.0),
)
# Learning rates, each the best one on the dev part of GMB; for spancat, of GUM.
RATES = {
    "transformer": 2e-4,
    "spacy_ner": 4e-4,
    "cnn": 2e-3,
    "spacy_cnn": 4e-3,
    "hugging_face": 8e-4,
    "flair": 8e-4,
    "flair_linear": 4e-4,
    "edsnlp": 8e-4,
    "edsnlp_text_cnn": 8e-4,
    "spancat": 2e-4,
    "spancat_singlelabel": 2e-4,
}
CNNS = ("char", "cnn", "spacy_cnn")
OURS = ("transformer", "spacy_ner", *CNNS)  # are trained by `spacy train`

Entities = set[tuple[int, int, int, str]]  # document, characters, label


def speed(
    out: Annotated[Path, typer.Argument(help="Output folder; trained models are kept.")],
    corpus: Annotated[Path, typer.Option(help="Folder with train, dev and test.")] = ROOT
    / "assets"
    / "sample_en",
    peers: Annotated[Path, typer.Option(help="Output folder of `peers`.")] = ENVIRONMENTS,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    steps: Annotated[int, typer.Option(help="Training steps, twice as many for a CNN.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; 7 for published numbers.")] = 7,
    share: Annotated[
        float, typer.Option(help="Share of the documents; 1 for published numbers.")
    ] = 1.0,
    threads: Annotated[int, typer.Option(help="Threads of each system.")] = 2,
    only: Annotated[str, typer.Option(help="Only systems whose name contains this.")] = "",
    search: Annotated[
        bool, typer.Option("--search", help="Search for the learning rates on dev.")
    ] = False,
) -> None:
    """Compare words per second, peak memory and F1 of crf_ner and others on one transformer.

    Each system has a process; they take turns, so that one computes at a time. Each reads the
    same texts, and has the batch size with which it is fastest on them. A peak is that of a
    process that loads, and annotates all documents of all rounds.
    """
    folder = _prepared(corpus, out)
    texts, gold = _part(folder, "test")
    sets = document_sets(texts, share)
    nlp = spacy.blank("en")
    words = {name: sum(len(nlp.make_doc(text)) for text in of) for name, of in sets.items()}
    comparison = _Comparison(out, peers, threads)
    chosen = [row for row in SYSTEMS if only in row.name]
    for name in dict.fromkeys(row.model for row in chosen if row.model):
        with comparison.guard(f"training of {name}"):
            budget = (folder, transformer, 2 * steps if name in CNNS else steps)
            rate = comparison.best_rate(name, *budget) if search else RATES[name]
            comparison.models[name] = comparison.trained(name, *budget, rate)
    comparison.models[""] = Path(transformer)
    ready = [row for row in chosen if row.model in comparison.models]
    measured = {}
    for row in ready:
        with comparison.guard(row.name):
            measured[row.name] = comparison.choose_batch_sizes(row, sets, texts, gold)
    ready = [row for row in ready if row.name in measured]
    sizes = {name: best for name, (best, _) in measured.items()}
    times, peaks = comparison.run(ready, sets, sizes, rounds)
    rows = {
        name: {
            "seconds": times[name],
            "words_per_second": {
                of: [number / taken for taken in times[name][of]] for of, number in words.items()
            },
            "batch_sizes": sizes[name],
            "peak_mb": peak,
            "f1": measured[name][1],
        }
        for name, peak in peaks.items()
    }
    result = {
        "machine": _machine(threads),
        "versions": comparison.versions,
        "corpus": folder.name,
        "command": " ".join(["python", *sys.argv]),
        "documents": {name: len(of) for name, of in sets.items()},
        "words": words,
        "rows": rows,
        "failed": comparison.failed,
    }
    srsly.write_json(out / "speed.json", result)
    print(table(result))


def make_peers(
    folder: Annotated[Path, typer.Argument(help="Folder for the environments.")] = ENVIRONMENTS,
) -> None:
    """Install the compared systems that need their own environment."""
    for name in VENVS:
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        install = [str(_python(folder, name)), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--requirement", str(PEERS / f"{name}.txt")], check=True)
        print(f"{name}: {folder / name}", flush=True)


def document_sets(texts: list[str], share: float) -> dict[str, list[str]]:
    """The documents of each measure, made of the sentences of a corpus, again where it is short.

    texts: The sentences.
    share: Of the documents of a full run, which has about 10,000 words in each.
    """

    def number(of: int) -> int:
        return max(1, round(share * of))

    def joined(sentences: int, documents: int) -> list[str]:
        again = cycle(texts)
        return [" ".join(islice(again, sentences)) for _ in range(number(documents))]

    mix = joined(1, 350) + joined(10, 35)
    random.Random(0).shuffle(mix)
    return {
        "sentences": joined(1, 400),
        "ten sentences": joined(10, 40),
        "2,000 words": list(islice(_long(texts), number(5))),
        "mix": mix,
    }


def _long(texts: list[str]) -> Iterator[str]:
    """Yield texts of at least 2,000 words, separated by whitespace."""
    parts: list[str] = []
    words = 0
    for text in cycle(texts):
        parts.append(text)
        words += len(text.split())
        if words >= 2000:
            yield " ".join(parts)
            parts, words = [], 0


def best_rate(rate: float, score: Callable[[float], float]) -> float:
    """Return the learning rate with the best score: double or halve it while that is better."""
    for factor in (2, 0.5):
        while score(factor * rate) > score(rate):
            rate *= factor
    return rate


def recipes(systems: Iterable[System]) -> dict[str, Path]:
    """Return the files that say how systems are trained: configs, or scripts of peers."""
    found = {}
    for system in systems:
        if system.script == "spacy_pipeline":
            config = "cnn" if system.model == "spacy_cnn" else system.model
            found[f"config {config}"] = ROOT / "configs" / f"{config}.cfg"
        else:
            found |= {f"script {path.stem}": path for path in _scripts(system.script)}
    return found


def _scripts(name: str) -> Iterator[Path]:
    """Yield the script of a peer, and those beside it that it imports."""
    script = PEERS / f"{name}.py"
    if script.is_file():
        yield script
        for imported in re.findall(r"^(?:from|import) (\w+)", script.read_text("utf-8"), re.M):
            yield from _scripts(imported)


class _Comparison:
    """The compared systems, each trained and run in its own process.

    out: Folder for models and logs.
    peers: Folder of the environments.
    threads: Of each process.
    gpu_id: GPU to use, -1 for the CPU.

    models: Where each model is, once it is trained; the transformer's name is empty.
    failed: Why a system failed, by its name.
    """

    def __init__(self, out: Path, peers: Path, threads: int, gpu_id: int = -1) -> None:
        self.out, self.peers, self.threads, self.gpu_id = out, peers, threads, gpu_id
        self.models: dict[str, Path] = {}
        self.failed: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """If the block fails, print and store the reason, and continue with other systems."""
        try:
            yield
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            self.failed[name], *_ = f"{error}".splitlines()
            print(f"{name} failed: {self.failed[name]}", file=sys.stderr, flush=True)

    def start(self, row: System) -> "_Process":
        """Start the process of a system."""
        python = _python(self.peers, row.venv)
        if not python.exists():
            raise RuntimeError(
                f"expected {python}, which is not there: run `benchmark.py peers {self.peers}`"
            )
        process = _Process(python, row, self.out / "logs", self.threads)
        if self.gpu_id >= 0:
            process.ask("use_gpu", self.gpu_id)
        return process

    def best_rate(self, model: str, corpus: Path, transformer: str, steps: int) -> float:
        """Return the best learning rate of a model on the dev part."""
        texts, gold = _part(corpus, "dev")
        process = self.start(_row(model))

        @cache
        def score(rate: float) -> float:
            folder = self.trained(model, corpus, transformer, steps, rate)
            process.ask("load", str(folder), {})
            found = f1(gold, _entities(process, texts, process.ask("sizes")[-1]))
            print(f"{model}, F1 on dev at {rate:g}: {100 * found:.1f}", file=sys.stderr, flush=True)
            return found

        try:
            return best_rate(RATES[model], score)
        finally:
            process.stop()

    def trained(
        self,
        model: str,
        corpus: Path,
        transformer: str,
        steps: int,
        rate: float,
        seed: int = 0,
        evaluate_every: int = 0,
    ) -> Path:
        """Train a model, unless it is trained already; return its folder.

        evaluate_every: Steps between evaluations on dev, whose best model is taken; 0 takes the
            last model.
        """
        budget = (transformer, steps, rate, seed)
        if model in OURS:
            own = (f"{rate:g}", f"{seed}", transformer, steps, self.gpu_id, evaluate_every)
            return _Training(self.out, corpus.name, self._config(model), *own).trained()
        run = run_name(transformer, steps, f"{rate:g}", seed, evaluate_every, self.gpu_id)
        folder = self.out / f"{corpus.name}_{model}_{run}"
        done = folder.with_name(f"{folder.name}.trained")
        check_same(self.out, {**recipes([_row(model)]), **of_transformer(transformer)})
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            process = self.start(_row(model))
            try:
                settings = {"evaluate_every": evaluate_every} if evaluate_every else {}
                process.ask("train", str(corpus), str(folder), *budget, settings)
            finally:
                process.stop()
            done.touch()
        return folder

    def _config(self, model: str) -> Path:
        if model != "spacy_cnn":
            return ROOT / "configs" / f"{model}.cfg"
        config = self.out / "spacy_cnn.cfg"
        spacys_ner_over_cnn().to_disk(config)
        return config

    def choose_batch_sizes(
        self,
        row: System,
        sets: dict[str, list[str]],
        texts: list[str],
        gold: Entities,
    ) -> tuple[dict[str, int], float | None]:
        """Return the best batch size for each set of documents, and the F1 on the test part."""
        process = self.start(row)
        try:
            process.ask("load", str(self.models[row.model]), row.settings)
            self.versions[row.venv or "this"] = {
                **self.versions.get(row.venv or "this", {}),
                **process.ask("versions"),
            }
            offered = process.ask("sizes")
            best = {}
            for name, documents in sets.items():
                process.ask("seconds", documents, offered[-1])  # the first is slower
                taken = {size: process.ask("seconds", documents, size) for size in offered}
                best[name] = min(taken, key=lambda size: taken[size])
            if not row.model:
                return best, None
            return best, f1(gold, _entities(process, texts, best["sentences"]))
        finally:
            process.stop()

    def run(
        self,
        rows: list[System],
        sets: dict[str, list[str]],
        sizes: dict[str, dict[str, int]],
        rounds: int,
    ) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
        """Measure the seconds of each round of each set, and the peak memory in MB, by system."""
        running: dict[str, _Process] = {}
        try:
            for row in rows:
                with self.guard(row.name):
                    running[row.name] = process = self.start(row)
                    process.ask("load", str(self.models[row.model]), row.settings)
            times: dict[str, dict[str, list[float]]] = {
                name: {of: [] for of in sets} for name in running
            }
            for of, documents in sets.items():
                for i in range(rounds + 1):  # the first is not timed
                    for name, process in running.items():
                        if name in self.failed:
                            continue
                        with self.guard(name):
                            taken = process.ask("seconds", documents, sizes[name][of])
                            if i:
                                times[name][of].append(taken)
                    print(f"{of}: round {i} of {rounds}", file=sys.stderr, flush=True)
            peaks = {
                name: _memory("VmHWM", process.pid)
                for name, process in running.items()
                if name not in self.failed
            }
        finally:
            for process in running.values():
                process.stop()
        return times, peaks


class _Process:
    """The process of a system, which answers each line with a line."""

    def __init__(self, python: Path, row: System, logs: Path, threads: int) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{row.name}.log"
        number = str(threads)
        env = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "FLAIR_CACHE_ROOT": str(logs / "flair"),
            "TOKENIZERS_PARALLELISM": "true",
            "OMP_NUM_THREADS": number,
            "RAYON_NUM_THREADS": number,
        }
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [str(python), str(PEERS / f"{row.script}.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                text=True,
            )
        self.pid = self.process.pid

    def ask(self, *request: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            last = (self.log.read_text("utf-8").splitlines() or ["no message"])[-1]
            raise RuntimeError(f"its process has ended: {last}; see {self.log}") from None
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["is"]

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def spacys_ner_over_cnn() -> Any:
    """Return the config of spaCy's `ner` for a CPU, with the tok2vec of `cnn.cfg`."""
    config = load_config(ROOT / "configs" / "cnn.cfg")
    tok2vec = config["components"]["ner"]["model"]["tok2vec"]
    config["components"]["ner"] = {
        "factory": "ner",
        "model": {
            "@architectures": "spacy.TransitionBasedParser.v2",
            "state_type": "ner",
            "extra_state_tokens": False,
            "hidden_width": 64,
            "maxout_pieces": 2,
            "use_upper": True,
            "tok2vec": tok2vec,
        },
    }
    return config


def f1(gold: Entities, found: Entities) -> float:
    """Compute the strict F1 of entities."""
    return float(scores(gold, found).fscore)


def scores(gold: Entities, found: Entities) -> PRFScore:
    """Compute strict precision, recall and F1 of entities."""
    score = PRFScore()
    score.score_set(found, gold)
    return score


def _prepared(corpus: Path, out: Path) -> Path:
    """Convert the corpus to .spacy and .jsonl files in a folder of its name, unless done."""
    folder = out / corpus.resolve().name
    _convert(corpus, folder)
    nlp = spacy.blank("en")
    for part in data.SPLITS:
        srsly.write_jsonl(folder / f"{part}.jsonl", _records(folder, part, nlp))
    return folder


def _records(folder: Path, part: str, nlp: Language) -> Iterator[dict[str, Any]]:
    """Yield each text, its tokens as in `spacy train`, and its entities."""
    for eg in Corpus(folder / f"{part}.spacy")(nlp):
        tokens = [(token.idx, token.idx + len(token)) for token in eg.predicted]
        ents = [(ent.start_char, ent.end_char, ent.label_) for ent in eg.reference.ents]
        yield {"text": eg.reference.text, "tokens": tokens, "ents": ents}


def _part(folder: Path, part: str) -> tuple[list[str], Entities]:
    """Return the texts of a part of a corpus, and its entities."""
    records = list(srsly.read_jsonl(folder / f"{part}.jsonl"))
    return [r["text"] for r in records], numbered([r["ents"] for r in records])


def _row(model: str) -> System:
    """Return the first system with a model, which trains it."""
    return next(row for row in SYSTEMS if row.model == model)


def _entities(process: _Process, texts: list[str], batch_size: int) -> Entities:
    return numbered(process.ask("find", texts, batch_size))


def numbered(of_texts: Sequence[Sequence[Any]]) -> Entities:
    """Return the entities of texts, each with the number of its text."""
    return {(i, *entity) for i, entities in enumerate(of_texts) for entity in entities}


def _python(peers: Path, venv: str) -> Path:
    return peers / venv / "bin" / "python" if venv else Path(sys.executable)


def _machine(threads: int) -> str:
    cpu = next(
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    cores = f"{os.cpu_count()} cores, {threads} threads each"
    return f"{cpu}, {cores}, Python {platform.python_version()}"


def table(result: dict[str, Any]) -> str:
    """Write a comparison as Markdown: a row for each system, and a line for each target."""
    rows, sets = result["rows"], result["words"]
    lines = [f"{result['machine']}; corpus {result['corpus']}"]
    for versions in result["versions"].values():
        lines.append(", ".join(f"{name} {number}" for name, number in versions.items()))
    lines += ["", "| words/s, median (min-max) | " + " | ".join(sets)]
    lines[-1] += " | mix, times spaCy's | batch size | peak MB | F1 |"
    lines.append("|---" * (len(sets) + 5) + "|")
    for name, row in rows.items():
        cells = [name, *(_spread(row["words_per_second"][of]) for of in sets)]
        cells.append(_times(_ratio(rows, name, SPACY.name)))
        cells.append(_shown(list(row["batch_sizes"].values())))
        cells.append(f"{row['peak_mb']:,.0f}")
        cells.append("-" if row["f1"] is None else f"{100 * row['f1']:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| on the mix | times | target |", "|---|---|---|"]
    for ours, theirs, target in TARGETS:
        times = _times(_ratio(rows, ours.name, theirs.name))
        lines.append(f"| {ours.name} / {theirs.name} | {times} | {target:.1f} |")
    lines += ["", *(f"{name} failed: {why}" for name, why in result["failed"].items())]
    return "\n".join([*lines, f"`{result['command']}`"])


def _ratio(rows: dict[str, Any], ours: str, theirs: str) -> float | None:
    """Return the median speed-up over the rounds, on the mix."""
    if ours not in rows or theirs not in rows:
        return None
    pairs = zip(rows[ours]["seconds"]["mix"], rows[theirs]["seconds"]["mix"])
    return statistics.median(their / our for our, their in pairs)


def _shown(sizes: list[int]) -> str:
    """Format batch sizes, as one number if they are equal."""
    return "/".join(str(size or "-") for size in (sizes if len(set(sizes)) > 1 else sizes[:1]))


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
