"""F1 of crf_ner and other recognizers on several corpora."""

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import srsly
import typer
from spacy.util import load_config

from benchmark import ROOT, Gpu, Transformer, _memory, device_name
from benchmark_speed import (
    ENVIRONMENTS,
    RATES,
    Entities,
    System,
    _Comparison,
    _machine,
    _part,
    _prepared,
    best_rate,
    numbered,
    recipes,
    scores,
)
from inputs import check_same, of_transformer

CORPORA = "wnut17,gmb,wikigold,re3d,anem"
BATCH_SIZE = 64
BUDGET = ("steps", "evaluate_every", "device")
SYSTEMS = (
    System("crf_ner", "spacy_pipeline", "transformer"),
    System("spaCy ner", "spacy_pipeline", "spacy_ner"),
    System("EDS-NLP ner_crf", "eds_tagger", "edsnlp", "edsnlp"),
    System("EDS-NLP text_cnn + ner_crf", "eds_text_cnn", "edsnlp_text_cnn", "edsnlp"),
    System("flair, RNN + CRF", "flair_tagger", "flair", "flair"),
    System("flair, linear", "flair_linear", "flair_linear", "flair"),
    System("Hugging Face", "hugging_face", "hugging_face"),
    System("crf_ner, char.cfg", "spacy_pipeline", "char"),
    System("crf_ner, cnn.cfg", "spacy_pipeline", "cnn"),
    System("spaCy ner, the same CNN", "spacy_pipeline", "spacy_cnn"),
)
Result = dict[str, Any]


def accuracy(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpora.")],
    out: Annotated[Path, typer.Argument(help="Output folder; finished runs are kept.")],
    corpora: Annotated[str, typer.Option(help="Comma-separated names.")] = CORPORA,
    only: Annotated[str, typer.Option(help="Only systems whose name contains this.")] = "",
    steps: Annotated[int, typer.Option(help="Training steps of every run.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0,1,2",
    evaluate_every: Annotated[
        int,
        typer.Option(
            help="Steps between evaluations on dev, whose best model is measured; 0 measures the "
            "last model. Not for flair."
        ),
    ] = 0,
    peers: Annotated[Path, typer.Option(help="Output folder of `peers`.")] = ENVIRONMENTS,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    gpu_id: Gpu = -1,
) -> None:
    """Compare test scores of crf_ner and others: same transformer, batches, steps, tokens, scorer.

    crf_ner has its shipped config. Others have their best learning rate on the dev part, with the
    first seed: it is doubled or halved while that is better. Each run adds a line to
    accuracy.jsonl in the output folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs = _Runs(out, peers, transformer, steps, evaluate_every=evaluate_every, gpu_id=gpu_id)
    chosen = [system for system in SYSTEMS if only in system.name]
    check_same(out, {**recipes(chosen), **of_transformer(transformer)})
    for corpus in corpora.split(","):
        of_corpus = _prepared(folder / corpus, out)
        for system in chosen:
            with runs.comparison.guard(f"{system.name} on {corpus}"):
                first = int(seeds.split(",")[0])
                rate = runs.best_rate(system, of_corpus, first)
                for seed in seeds.split(","):
                    runs.result(system, of_corpus, rate, int(seed), "test")
    if runs.file.exists():
        print(table(runs.rows()))


class _Runs:
    """The runs of one budget: those of an earlier call are read, others are made."""

    name = "accuracy.jsonl"  # of the file with their rows

    def __init__(
        self,
        out: Path,
        peers: Path,
        transformer: str,
        steps: int,
        threads: int = 0,
        evaluate_every: int = 0,
        gpu_id: int = -1,
    ) -> None:
        self.file = out / self.name
        self.comparison = _Comparison(out, peers, threads or os.cpu_count() or 1, gpu_id)
        self.device = device_name(gpu_id)
        self.transformer = transformer
        self.steps = steps
        self.evaluate_every = evaluate_every

    def best_rate(self, system: System, corpus: Path, seed: int) -> float:
        """Return the learning rate of our config; of another system, the best one on dev."""
        if system.name.startswith("crf_ner"):
            config = load_config(self.config(system))
            return float(config["training"]["optimizer"]["learn_rate"]["initial_rate"])
        return best_rate(
            RATES[system.model],
            lambda rate: self.result(system, corpus, rate, seed, "dev")["f"],
        )

    def rows(self) -> list[Result]:
        """Read the rows of the transformer."""
        rows = map(dict, srsly.read_jsonl(self.file))
        return [row for row in rows if row["transformer"] == Path(self.transformer).name]

    def config(self, system: System) -> Path:
        """Return the config of a crf_ner."""
        return ROOT / "configs" / f"{system.model}.cfg"

    def result(self, system: System, corpus: Path, rate: float, seed: int, part: str) -> Result:
        """Return the scores on a part of a corpus after training."""
        key = self.key(system, corpus, rate, seed, part)
        known = self.known(key)
        if known is not None:
            return known
        start = perf_counter()
        budget = (self.transformer, self.steps, rate, seed, self.evaluate_every)
        model = self.comparison.trained(system.model, corpus, *budget)
        # None for a model that an earlier row has trained.
        training = {"train_seconds": round(perf_counter() - start) or None}
        found, process = self.predicted(system, model, corpus / f"{part}.jsonl")
        _, gold = _part(corpus, part)
        return self.add(key, gold, found, {**training, **process})

    def key(
        self, system: System, corpus: Path, rate: float, seed: int, part: str
    ) -> dict[str, Any]:
        """Return what identifies a run."""
        return {
            "system": system.name,
            "corpus": corpus.name,
            "transformer": Path(self.transformer).name,
            "device": self.device,
            "steps": self.steps,
            "evaluate_every": self.evaluate_every,
            "rate": rate,
            "seed": seed,
            "part": part,
        }

    def known(self, key: dict[str, Any]) -> Result | None:
        """Return the row of a run, if it is there."""
        return known_row(self.file, key)

    def predicted(
        self, system: System, model: Path, path: Path, **settings: Any
    ) -> tuple[Entities, Result]:
        """Find the entities of a file in a process of its own; also return what that took."""
        process = self.comparison.start(system)
        try:
            process.ask("load", str(model), {**system.settings, **settings})
            versions = process.ask("versions")
            start = perf_counter()
            found = numbered(process.ask("find_in_tokens", str(path), BATCH_SIZE))
            seconds = perf_counter() - start
            peak = _memory("VmHWM", process.pid)
        finally:
            process.stop()
        words = sum(len(record["tokens"]) for record in srsly.read_jsonl(path))
        return found, {
            "words_per_second": round(words / seconds),
            "predict_peak_mb": round(peak),
            "versions": versions,
            "machine": _machine(self.comparison.threads),
        }

    def add(self, key: dict[str, Any], gold: Entities, found: Entities, figures: Result) -> Result:
        """Score a run; store, print and return its row."""
        score = scores(gold, found)
        row = {**key, "p": score.precision, "r": score.recall, "f": score.fscore, **figures}
        srsly.write_jsonl(self.file, [row], append=True, append_new_line=False)
        print(*key.values(), f"F1 {100 * row['f']:.1f}", file=sys.stderr, flush=True)
        return row


def known_row(file: Path, key: Result) -> Result | None:
    """Return the row of a file of results that has a key; None if there is none."""
    rows = srsly.read_jsonl(file) if file.exists() else []
    key = srsly.json_loads(srsly.json_dumps(key))  # reading changes the last bit of some floats
    return next((dict(row) for row in rows if key.items() <= row.items()), None)


def table(rows: Sequence[Result]) -> str:
    """Format F1 on test as Markdown, a table for each budget: mean and spread of seeds.

    A system that was run with several learning rates on a corpus has the one of its last row.
    """
    tests = [row for row in rows if row["part"] == "test"]
    lines: list[str] = []
    budgets = sorted({tuple(row[name] for name in BUDGET) for row in tests})
    for budget in budgets:
        of_budget = [row for row in tests if tuple(row[name] for name in BUDGET) == budget]
        steps, every, device = budget
        corpora = [name for name in CORPORA.split(",") if name in {r["corpus"] for r in of_budget}]
        title = f"{steps} steps{f', best on dev every {every}' if every else ''}, {device}"
        lines += [f"| {title} | {' | '.join(corpora)} | mean |", "|---" * (len(corpora) + 2) + "|"]
        for system in SYSTEMS:
            own = [row for row in of_budget if row["system"] == system.name]
            last = {row["corpus"]: row["rate"] for row in own}
            own = [row for row in own if row["rate"] == last[row["corpus"]]]
            found = {c: [100 * r["f"] for r in own if r["corpus"] == c] for c in corpora}
            if own:
                means = [statistics.mean(values) for values in found.values() if values]
                mean = f"{statistics.mean(means):.1f}" if len(means) == len(corpora) else "-"
                cells = [_spread(values) for values in found.values()]
                lines.append(f"| {' | '.join([system.name, *cells, mean])} |")
        lines.append("")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f} (one seed)" if values else "-"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
