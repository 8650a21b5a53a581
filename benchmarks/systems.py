"""The compared systems: each is trained, and annotates, in a process of its own. Linux only."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import srsly
from spacy.scorer import PRFScore
from spacy.util import load_config

from benchmarks import common

PEERS = common.ROOT / "benchmarks" / "peers"
ENVIRONMENTS = common.ROOT / ".venv" / "peers"
BATCH_SIZE = 64
# Learning rates, each the best one on the dev part of GMB; for spancat, of GUM. crf_ner has those
# of its configs.
RATES = {
    "spacy_ner": 4e-4,
    "spacy_cnn": 4e-3,
    "hugging_face": 8e-4,
    "flair": 8e-4,
    "flair_linear": 4e-4,
    "edsnlp": 8e-4,
    "edsnlp_text_cnn": 8e-4,
    "spancat": 2e-4,
}

Entities = set[tuple[int, int, int, str]]  # document, characters, label


class System(NamedTuple):
    """A row of a table.

    name: Of the row.
    script: In `peers`; what it does in its process.
    model: What it trains: a config, or a variant of the script; empty for the transformer itself.
    venv: Whose Python runs it, a folder of the environments; empty for this one.
    settings: For loading.
    """

    name: str
    script: str
    model: str = ""
    venv: str = ""
    settings: common.Row = {}  # noqa: RUF012  (a tuple shares it, and nobody writes to it)

    @property
    def recipes(self) -> dict[str, Path]:
        """The files that say how it is trained."""
        if self.script == "spacy_pipeline":
            path = common.CONFIGS / f"{'cnn' if self.model == 'spacy_cnn' else self.model}.cfg"
            return {f"config {path.stem}": path} if path.exists() else {}
        scripts = (self.script, "system", *(["spacy_pipeline"] if self.venv == "edsnlp" else []))
        return {f"script {name}": PEERS / f"{name}.py" for name in scripts}


class Budget(NamedTuple):
    """What a training may use.

    rate: Learning rate; None for the one of the config.
    evaluate_every: Steps between evaluations on dev, whose best model is taken; 0 takes the last,
        which a training with evaluations also saves, in `last_of`.
    """

    transformer: str
    steps: int
    rate: float | None
    seed: int
    evaluate_every: int = 0


def last_of(best: Path) -> Path:
    """Return the folder of the last model of a training whose best model is in a folder."""
    return best.with_name(f"{best.name}.last")


class Process:
    """The process of a system, which answers each line with a line."""

    def __init__(self, python: Path, system: System, logs: Path, threads: int) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{system.name}.log"
        env = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "FLAIR_CACHE_ROOT": str(logs / "flair"),
            "TOKENIZERS_PARALLELISM": "true",
            "OMP_NUM_THREADS": str(threads),
            "RAYON_NUM_THREADS": str(threads),
        }
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [str(python), str(PEERS / f"{system.script}.py"), system.model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                text=True,
            )
        self.pid = self.process.pid

    def ask(self, *request: Any) -> Any:
        """Call a method with arguments, and settings if the last one is a dictionary."""
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

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.communicate()


class Comparison:
    """Trains and runs systems.

    out: Folder of models and logs.
    peers: Folder of the environments.
    threads: Of each process; 0 for those of the machine.
    gpu_id: GPU to use, -1 for the CPU.

    failed: Why a system failed, by its name.
    """

    def __init__(
        self, out: Path, peers: Path = ENVIRONMENTS, threads: int = 0, gpu_id: int = -1
    ) -> None:
        self.out, self.peers, self.gpu_id = out, peers, gpu_id
        self.threads = threads or os.cpu_count() or 1
        self.failed: dict[str, str] = {}

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """If the block fails, print and store the reason, and continue with other systems."""
        try:
            yield
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            self.failed[name], *_ = f"{error}".splitlines()
            print(f"{name} failed: {self.failed[name]}", file=sys.stderr, flush=True)

    def start(self, system: System) -> Process:
        """Start the process of a system."""
        own = self.peers / system.venv
        python = own / "bin" / "python" if system.venv else Path(sys.executable)
        if not python.exists():
            install = f"{python} -m pip install -r {PEERS / system.venv}.txt"
            raise RuntimeError(
                f"expected {python}, which is not there: `python -m venv {own} && {install}`"
            )
        process = Process(python, system, self.out / "logs", self.threads)
        if self.gpu_id >= 0:
            process.ask("use_gpu", self.gpu_id)
        return process

    def trained(
        self, system: System, corpus: Path, budget: Budget, config: Path | None = None
    ) -> tuple[Path, common.Row]:
        """Train a model, unless it is trained already; return its folder, and what that took."""
        inputs = {**system.recipes, **common.transformer_input(budget.transformer)}
        common.check_same(self.out, inputs)
        rate = "" if budget.rate is None else f"{budget.rate:g}"
        parts = [corpus.name, system.model, Path(budget.transformer).name, rate, *budget[3:]]
        parts += [budget.steps, *([] if self.gpu_id < 0 else [common.device_name(self.gpu_id)])]
        folder = self.out / "_".join(map(str, parts)).replace(" ", "-")
        done = folder.with_name(f"{folder.name}.json")
        kept = [done, folder, *([last_of(folder)] if budget.evaluate_every else [])]
        if not all(path.exists() for path in kept):
            done.unlink(missing_ok=True)
            for path in (folder, last_of(folder)):
                shutil.rmtree(path, ignore_errors=True)
            settings: common.Row = {}
            if budget.evaluate_every:
                settings["evaluate_every"] = budget.evaluate_every
            if system.script == "spacy_pipeline":
                config = config or self.config(system)
                settings["config"] = str(config)
                settings["overrides"] = common.widths(load_config(config), budget.transformer)
            with self.start(system) as process:
                process.ask("versions")  # it has imported its libraries
                start = perf_counter()
                process.ask("train", str(corpus), str(folder), *budget[:4], settings)
                figures = {"train_seconds": round(perf_counter() - start)}
                figures["train_peak_mb"] = round(common.memory_mb("VmHWM", process.pid))
            srsly.write_json(done, figures)
        return folder, dict(srsly.read_json(done))

    def config(self, system: System) -> Path:
        """Return the config of a spaCy pipeline."""
        if system.model != "spacy_cnn":
            return common.CONFIGS / f"{system.model}.cfg"
        path = self.out / "spacy_cnn.cfg"
        spacys_ner_over_cnn().to_disk(path, interpolate=False)
        return path

    def found(
        self, system: System, model: Path, path: Path, **settings: Any
    ) -> tuple[Entities, common.Row]:
        """Find the entities of a .jsonl file in its tokens; also return what that took."""
        with self.start(system) as process:
            process.ask("load", str(model), {**system.settings, **settings})
            versions = process.ask("versions")
            start = perf_counter()
            found = numbered(process.ask("find_in_tokens", str(path), BATCH_SIZE))
            seconds = perf_counter() - start
            peak = round(common.memory_mb("VmHWM", process.pid))
        words = sum(len(record["tokens"]) for record in srsly.read_jsonl(path))
        figures = {"words_per_second": round(words / seconds), "predict_peak_mb": peak}
        return found, {**figures, "versions": versions}


class Runs:
    """Scores of systems under one budget: those of an earlier call are read, others are made.

    thresholds: To choose from on dev for each model, by the names of systems.
    config: Returns the config of a spaCy pipeline that is not shipped.
    rates_of: Steps of earlier runs whose learning rates are taken; 0 searches them.
    gold: What the records of a corpus call gold entities.
    measure: Returns more figures from gold and found entities.
    """

    def __init__(
        self,
        comparison: Comparison,
        rows: common.Rows,
        transformer: str,
        steps: int,
        evaluate_every: int = 0,
        *,
        thresholds: Mapping[str, Sequence[float]] | None = None,
        config: Callable[[System], Path] | None = None,
        rates_of: int = 0,
        gold: str = "ents",
        measure: Callable[[Entities, Entities], common.Row] = lambda gold, found: {},
    ) -> None:
        self.comparison, self.rows = comparison, rows
        self.transformer, self.steps, self.evaluate_every = transformer, steps, evaluate_every
        self.thresholds, self.config = thresholds or {}, config or comparison.config
        self.rates_of, self.gold, self.measure = rates_of, gold, measure

    def measure_all(
        self, systems: Iterable[System], corpora: Iterable[Path], seeds: list[int]
    ) -> None:
        """Score systems on the test parts, with the learning rates that are best on dev."""
        for corpus in corpora:
            for system in systems:
                with self.comparison.guard(f"{system.name} on {corpus.name}"):
                    rate = self.best_rate(system, corpus, seeds[0])
                    for seed in seeds:
                        self.result(system, corpus, rate, seed, "test")
                        if self.evaluate_every:
                            self._row(system, corpus, rate, seed, "test", None, is_last=True)

    def best_rate(self, system: System, corpus: Path, seed: int) -> float:
        """Return the learning rate of our config; of another system, the best one on dev."""
        if system.name.startswith("crf_ner"):
            training = load_config(self.config(system))["training"]
            return float(training["optimizer"]["learn_rate"]["initial_rate"])
        if self.rates_of:
            return self._earlier_rate(system, corpus)
        return best_rate(
            RATES[system.model],
            lambda rate: float(self.result(system, corpus, rate, seed, "dev")["f"]),
        )

    def _earlier_rate(self, system: System, corpus: Path) -> float:
        """Return the rate of the last run on test over this transformer, on this device if any."""
        name = Path(self.transformer).name
        key = {"system": system.name, "corpus": corpus.name, "transformer": name}
        key |= {"steps": self.rates_of, "evaluate_every": 0, "part": "test"}
        device = common.device_name(self.comparison.gpu_id)
        if found := self.rows.matching({**key, "device": device}) or self.rows.matching(key):
            return float(found[-1]["rate"])
        raise RuntimeError(f"expected a run of {self.rates_of} steps over {name}, got none")

    def result(self, system: System, corpus: Path, rate: float, seed: int, part: str) -> common.Row:
        """Return the scores on a part, at the threshold that is best on dev for this model."""
        thresholds = self.thresholds.get(system.name, (None,))
        if len(thresholds) > 1 and part != "dev":
            thresholds = (self.result(system, corpus, rate, seed, "dev")["threshold"],)
        rows = [self._row(system, corpus, rate, seed, part, each) for each in thresholds]
        return max(rows, key=lambda row: float(row["f"]))

    def _row(
        self,
        system: System,
        corpus: Path,
        rate: float,
        seed: int,
        part: str,
        threshold: float | None,
        is_last: bool = False,
    ) -> common.Row:
        key = {
            "system": system.name,
            "corpus": corpus.name,
            "transformer": Path(self.transformer).name,
            "device": common.device_name(self.comparison.gpu_id),
            "steps": self.steps,
            "evaluate_every": 0 if is_last else self.evaluate_every,
            "rate": rate,
            "seed": seed,
            "part": part,
        }
        settings = {} if threshold is None else {"threshold": threshold}
        key |= settings
        if (known := self.rows.known(key)) is not None:
            return known
        budget = Budget(self.transformer, self.steps, rate, seed, self.evaluate_every)
        model, training = self.comparison.trained(system, corpus, budget, self.config(system))
        if is_last:
            model = last_of(model)
        path = corpus / f"{part}.jsonl"
        found, process = self.comparison.found(system, model, path, **settings)
        where = common.environment(self.comparison.gpu_id, process.pop("versions"))
        gold = numbered([record[self.gold] for record in srsly.read_jsonl(path)])
        score = scores(gold, found)
        figures = {"p": score.precision, "r": score.recall, "f": score.fscore}
        figures = {name: round(of, 6) for name, of in figures.items()}
        return self.rows.add(
            {**key, **figures, **self.measure(gold, found), **training, **process}, where
        )


def in_turns(
    acts: Mapping[str, Callable[[bool], float]], rounds: int, failed: dict[str, str]
) -> dict[str, list[float]]:
    """Measure in rounds in which all take turns; the first one is slower and does not count.

    acts: What to measure, by name; each gets whether it is the first round, and returns a number.
    failed: Gets the reason of those that raise RuntimeError, which are left out then.
    """
    found: dict[str, list[float]] = {name: [] for name in acts}
    for i in range(rounds + 1):
        for name, act in acts.items():
            if name in found:
                try:
                    found[name] += [act(i == 0)][: i > 0]
                except RuntimeError as error:
                    failed[name] = str(error)
                    del found[name]
    return found


def training_rates(
    started: Mapping[str, Process], size: int, number: int, rounds: int, failed: dict[str, str]
) -> dict[str, list[float]]:
    """Measure words per second of updates of systems that have begun, without padding.

    size: Words of a batch, with padding.
    number: Of batches.
    """

    def act(process: Process, is_first: bool) -> float:
        found = process.ask("updates", size, 2 if is_first else number)
        return float(found["words"] / found["seconds"])

    acts = {name: partial(act, process) for name, process in started.items()}
    return in_turns(acts, rounds, failed)


def best_size(process: Process, documents: list[str]) -> int:
    """Return the batch size with which a system predicts fastest."""
    offered = process.ask("sizes")
    process.ask("seconds", documents, offered[-1])  # the first is slower
    taken = {size: process.ask("seconds", documents, size) for size in offered}
    return min(taken, key=lambda size: taken[size])


def trainees(transformer: str) -> list[System]:
    """Return the systems whose updates are compared, with the settings of `begin`."""
    ours, spacys = (str(common.CONFIGS / f"{name}.cfg") for name in ("transformer", "spacy_ner"))
    width = common.widths(load_config(spacys), transformer)
    mixed = {"components.tok2vec.model.mixed_precision": True}
    chosen: dict[str, tuple[str, common.Row]] = {
        "crf_ner": ("spacy_pipeline", {"config": ours}),
        "crf_ner, float32": ("spacy_pipeline", {"config": ours, "overrides": common.FLOAT32}),
        "EDS-NLP": ("eds_tagger", {"mixed": True}),
        "EDS-NLP, float32": ("eds_tagger", {"mixed": False}),
        "spaCy ner": ("spacy_pipeline", {"config": spacys, "overrides": width | mixed}),
        "spaCy ner, float32": ("spacy_pipeline", {"config": spacys, "overrides": width}),
    }
    venvs = {"eds_tagger": "edsnlp"}
    return [
        System(name, script, venv=venvs.get(script, ""), settings=settings)
        for name, (script, settings) in chosen.items()
    ]


def spacys_ner_over_cnn() -> Any:
    """Return the config of spaCy's `ner` for a CPU, with the tok2vec of `cnn.cfg`."""
    config = load_config(common.CONFIGS / "cnn.cfg")
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


def best_rate(rate: float, score: Callable[[float], float]) -> float:
    """Return the learning rate with the best score: double or halve it while that is better."""
    for factor in (2, 0.5):
        while score(factor * rate) > score(rate):
            rate *= factor
    return rate


def scores(gold: Entities, found: Entities) -> PRFScore:
    """Compute strict precision, recall and F1 of entities."""
    score = PRFScore()
    score.score_set(found, gold)
    return score


def numbered(of_texts: Sequence[Sequence[Any]]) -> Entities:
    """Return the entities of texts, each with the number of its text."""
    return {(i, *entity) for i, entities in enumerate(of_texts) for entity in entities}
