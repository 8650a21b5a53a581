"""Benchmarks: `python benchmarks/benchmark.py --help`. They are not part of the tests."""

import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    NamedTuple,
)

import numpy as np
import spacy
import srsly
import torch
import torchcrf
import typer
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Corpus, Example
from spacy.training.batchers import minibatch_by_padded_size
from spacy.util import load_config
from transformers import AutoConfig

from inputs import check_same, listener_widths, of_transformer
from spacy_crf_ner import crf, data
from spacy_crf_ner.evaluation.calibration import calibrate, precision_at, reliability
from spacy_crf_ner.evaluation.matching import collect_entities
from spacy_crf_ner.pipeline.calibration import forget_calibration, platt_scaling
from spacy_crf_ner.pipeline.platt_scaling import UNCHANGED
from spacy_crf_ner.pipeline.posterior import Posterior
from spacy_crf_ner.training import freezing
from timed import Function, apart

ROOT = Path(__file__).parent.parent
CONFIGS = ("transformer", "spacy_ner")  # ours, and what it is compared with
TRANSFORMER = "components.ner.model.tok2vec.*.transformer"  # of transformer.cfg
FLOAT32 = {f"{name}.mixed_precision": False for name in ("components.ner.model", TRANSFORMER)}
CRF_SHAPES = [
    (32, 32, 9),
    (32, 128, 9),
    (32, 128, 17),
    (128, 64, 17),
    (256, 40, 9),
    (32, 128, 73),
]
Transformer = Annotated[str, typer.Option(help="Local folder or hub name.")]
Gpu = Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")]

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@app.command()
def training(
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    gpu_id: Gpu = -1,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds; figures are medians.")] = 5,
    corpus: Annotated[
        Path | None, typer.Option(help="train.spacy of a corpus, instead of the sample corpus.")
    ] = None,
) -> None:
    """Compare the training speed of crf_ner and spaCy's ner on the same transformer.

    They take turns in one process, with the same batches; memory is that of a process for each. And
    the share of the time that the CRF has, in training and in prediction.
    """
    _print_machine(gpu_id)
    pipelines = {
        name: _trained_a_little(config, transformer, gpu_id, settings, corpus)
        for name, config, settings in (
            ("crf_ner", "transformer", {}),
            ("crf_ner, float32", "transformer", FLOAT32),
            ("spaCy ner", "spacy_ner", {}),
        )
    }
    rates = _training(pipelines, rounds, corpus)
    print("| | words/s, median (min-max) | times spaCy's |\n|---|---|---|")
    for name, rate in rates.items():
        ratio = statistics.median(a / b for a, b in zip(rate, rates["spaCy ner"]))
        print(f"| {name} | {_spread(rate)} | {ratio:.2f} |")
    shares = _crf_shares(pipelines["crf_ner"], _texts(30, 20), corpus)
    for what, share in shares.items():
        print(f"CRF's share of the time, {what}: {share:.1%}")
    for name in CONFIGS:
        command = [sys.executable, __file__, "memory", name]
        command += ["--transformer", transformer, "--gpu-id", str(gpu_id)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


@app.command("crf")
def crf_arithmetic(rounds: Annotated[int, typer.Option(min=9, help="Rounds.")] = 9) -> None:
    """Compare time and memory of the CRF with pytorch-crf on the CPU.

    Numbers are medians; ratios are pytorch-crf's time over ours.
    """
    _print_machine(-1)
    print("| threads | B, T, C | decode: ours | torchcrf | ratio | loss + backward: ours "
          "| torchcrf | ratio | posteriors / decode |\n" + "|---" * 9 + "|")  # fmt: skip
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ratios: dict[str, list[float]] = {"decode": [], "loss": []}
        for shape in CRF_SHAPES:
            acts = _crf_acts(*shape)
            times = {
                name: statistics.median(taken) for name, taken in _alternate(acts, rounds).items()
            }
            row = [f"{threads}", ", ".join(map(str, shape))]
            for what, of in ratios.items():
                ours, theirs = times[what], times[f"torchcrf {what}"]
                of.append(theirs / ours)
                row += [f"{1000 * ours:.2f} ms", f"{1000 * theirs:.2f} ms", f"{of[-1]:.1f}"]
            row.append(f"{times['posteriors'] / times['decode']:.1f}")
            print(f"| {' | '.join(row)} |", flush=True)
        means = {what: statistics.geometric_mean(of) for what, of in ratios.items()}
        print(f"Geometric means, {threads} threads: {means}", flush=True)
    for who in ("loss", "torchcrf loss"):
        command = [sys.executable, __file__, "crf-memory", who]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


@app.command()
def crf_memory(who: str) -> None:
    """Measure the peak memory of one loss with gradients at B, T, C = 32, 512, 73."""
    _crf_acts(2, 3, 73)[who]()  # what is loaded once, code and all, is not counted
    acts = _crf_acts(32, 512, 73)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current memory
    before = _memory("VmRSS")
    acts[who]()
    print(f"Memory of {who} + backward at 32, 512, 73: {_memory('VmHWM') - before:,.0f} MB")


def _crf_acts(B: int, T: int, C: int) -> dict[str, Callable[[], None]]:
    """Return the timed functions, on random scores of docs of T/4 to T tokens."""
    torch.manual_seed(0)
    oracle = torchcrf.CRF(C, batch_first=True)
    emissions = torch.randn(B, T, C, requires_grad=True)
    lengths = torch.randint(T // 4, T + 1, (B,))
    lengths[0] = T
    mask = torch.arange(T)[None, :] < lengths[:, None]
    gold = torch.randint(0, C, (B, T))
    scores = (oracle.transitions, oracle.start_transitions, oracle.end_transitions)
    E, n, *own = (x.detach().numpy() for x in (emissions[mask], lengths, *scores))
    chain, tags = crf.Chain(E, n, *own), gold[mask].numpy()
    # A segment of two tokens at every fourth token: about as many as a text has entities.
    docs, at = torch.nonzero(mask[:, 1::4], as_tuple=True)
    starts = chain.begins[docs.numpy()] + 4 * at.numpy()
    pairs = np.stack([tags[starts], tags[starts + 1]], axis=1)
    return {
        "decode": lambda: crf.viterbi(chain),
        "torchcrf decode": torch.no_grad()(lambda: oracle.decode(emissions, mask)),
        "loss": lambda: crf.nll_with_gradient(chain, tags),
        "torchcrf loss": lambda: oracle(emissions, gold, mask).neg().backward(),
        "posteriors": lambda: crf.forward_backward(chain).log_segments(starts, pairs),
    }


@app.command()
def memory(
    config: str,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    gpu_id: Gpu = -1,
) -> None:
    """Measure the peak memory of a process that trains ten batches and predicts."""
    nlp = _trained_a_little(config, transformer, gpu_id)
    list(nlp.pipe(_texts(30, 20), batch_size=128))
    print(f"Peak memory, {config}: {_memory('VmHWM'):,.0f} MB")


@app.command()
def frozen(
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    gpu_id: Gpu = -1,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds; figures are medians.")] = 5,
) -> None:
    """Compare training speed and memory by the trained layers of the transformer."""
    _print_machine(gpu_id)
    print("| the transformer | training, words/s, median (min-max) | peak memory |\n|---|---|---|")
    for part in ("trained", "half frozen", "frozen"):
        command = [sys.executable, __file__, "frozen-part", part, "--rounds", str(rounds)]
        command += ["--transformer", transformer, "--gpu-id", str(gpu_id)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(done.stdout.strip(), flush=True)


@app.command()
def frozen_part(
    part: str,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    gpu_id: Gpu = -1,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds.")] = 5,
) -> None:
    """Measure a row of `frozen`, in its own process; the peak is after loading the weights."""
    if gpu_id >= 0:
        spacy.require_gpu(gpu_id)
    overrides = {"paths.transformer": transformer, f"{TRANSFORMER}.frozen": part == "frozen"}
    config = load_config(ROOT / "configs" / "transformer.cfg", overrides=overrides)
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: _examples(nlp))
    if part == "half frozen":
        layers = AutoConfig.from_pretrained(transformer).num_hidden_layers
        freezing.freeze_layers(layers=layers // 2)(nlp)
    if gpu_id >= 0:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    rates = _training({part: nlp}, rounds)
    peak = torch.cuda.max_memory_allocated() / 2**20 if gpu_id >= 0 else _memory("VmHWM")
    print(f"| {part} | {_spread(rates[part])} | {peak:,.0f} MB |")


@app.command()
def missing(
    folder: Annotated[Path, typer.Argument(help="Folder with wnut17/ and gmb/.")],
    out: Annotated[Path, typer.Argument(help="Output folder; finished runs are kept.")],
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    steps: Annotated[int, typer.Option(help="Training steps of every run.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0",
    limit: Annotated[int, typer.Option(help="Training docs, the first ones; 0 for all.")] = 0,
    gpu_id: Gpu = -1,
) -> None:
    """Measure test F1 if half of the tokens of a random half of the training docs are missing.

    The baselines train on the complete corpus, and only on the other half.
    """
    _print_machine(gpu_id)
    print("| corpus | all | half of the docs with half of their tokens | without these docs |")
    print("|---|---|---|---|")
    for corpus, rate in (("wnut17", "1e-4"), ("gmb", "2e-4")):
        _convert(folder / corpus, out / corpus)
        row = []
        config = ROOT / "configs" / "transformer.cfg"
        for kind in ("whole", "half", "dropped"):
            name = f"{corpus}_{kind}_{limit}"
            _make_incomplete(out / corpus, out / name, kind, limit)
            runs = [
                _Training(out, name, config, rate, seed, transformer, steps, gpu_id)
                for seed in seeds.split(",")
            ]
            results = [100 * run.score("test")["ents_f"] for run in runs]
            row.append(f"{statistics.mean(results):.1f} ({', '.join(f'{f:.1f}' for f in results)})")
        print(f"| {corpus} | {' | '.join(row)} |", flush=True)


@app.command()
def confidence(
    models: Annotated[list[Path], typer.Argument(help="Trained pipelines.")],
    dev: Annotated[list[Path], typer.Option(help="To calibrate on: a .spacy file for each.")],
    test: Annotated[list[Path], typer.Option(help="To measure on: a .spacy file for each.")],
) -> None:
    """Measure calibration on test before and after fitting on dev, and precision by confidence."""
    _print_machine(-1)
    at = (0.0, 0.5, 0.8, 0.9, 0.95)
    titles = " | ".join(f"P, R at {threshold}" for threshold in at)
    print(
        "| pipeline | entities | temperature, slope, intercept | ECE: no calibration, temperature, "
        f"also Platt scaling, by chance | the same for Brier | {titles} |"
    )
    print("|---" * (5 + len(at)) + "|")
    for model, dev_file, test_file in zip(models, dev, test):
        nlp = spacy.load(model)
        ner: Any = nlp.get_pipe("ner")
        forget_calibration(ner)  # the fits of its training
        before = collect_entities(_predicted(nlp, test_file))
        calibrate(nlp, Corpus(dev_file)(nlp))
        fitted = platt_scaling(ner)
        after = collect_entities(_predicted(nlp, test_file))
        ner.platt_slope, ner.platt_intercept, ner.platt_ceiling = UNCHANGED
        between = collect_entities(_predicted(nlp, test_file))
        measured = [reliability(docs) for docs in (before, between, after)]
        row = [model.parent.name, f"{measured[-1]['entities']}"]
        row.append(f"{ner.temperature:.2f}, {fitted.slope:.2f}, {fitted.intercept:.2f}")
        chance = f"{100 * measured[-1]['ece_by_chance']:.1f} %"
        row.append(", ".join([*(f"{100 * m['ece']:.1f} %" for m in measured), chance]))
        row.append(", ".join(f"{m['brier']:.3f}" for m in measured))
        for kept in precision_at(after, at):
            shares = (kept["precision"], kept["recall"])
            row.append(", ".join("-" if x is None else f"{100 * x:.1f}" for x in shares))
        print(f"| {' | '.join(row)} |", flush=True)


def _predicted(nlp: Language, path: Path) -> list[Example]:
    examples = list(Corpus(path)(nlp))
    docs = nlp.pipe([eg.predicted for eg in examples], batch_size=64)
    return [Example(doc, eg.reference) for doc, eg in zip(docs, examples)]


def _convert(source: Path, folder: Path) -> None:
    """Convert a corpus, or copy a converted one, unless it is there already."""
    if source.resolve() == folder.resolve():
        return
    if not (folder / "test.spacy").exists():
        if (source / "test.spacy").exists():
            folder.mkdir(parents=True, exist_ok=True)
            for part in data.SPLITS:
                shutil.copy(source / f"{part}.spacy", folder)
        else:
            split = data.Split(by="sentences")  # as in docs/benchmarks.md
            data.convert(source, folder, nlp=spacy.blank("en"), split=split)
    check_same(folder.parent, {f"corpus {folder.name}": source})


def _make_incomplete(source: Path, folder: Path, kind: str, limit: int) -> None:
    """Copy a corpus, its train part shorter, and whole, or a half of its docs not.

    kind: "whole", or "half": these docs have half of their tokens missing; or "dropped".
    limit: Docs of train; 0 for all.
    """
    folder.mkdir(exist_ok=True)
    for name in ("dev", "test"):
        shutil.copy(source / f"{name}.spacy", folder)
    rng = random.Random(0)
    docs = list(DocBin().from_disk(source / "train.spacy").get_docs(spacy.blank("en").vocab))
    docs = docs[: limit or None]
    chosen = set(rng.sample(range(len(docs)), len(docs) // 2)) if kind != "whole" else set()
    for i in chosen:
        doc = docs[i]
        tokens = set(rng.sample(range(len(doc)), len(doc) // 2))
        for ent in doc.ents:  # an entity is known or not, never in part
            if tokens & set(range(ent.start, ent.end)):
                tokens |= set(range(ent.start, ent.end))
        kept = [ent for ent in doc.ents if ent.start not in tokens]
        doc.set_ents(kept, missing=[doc[t : t + 1] for t in sorted(tokens)])
    kept = [doc for i, doc in enumerate(docs) if kind == "half" or i not in chosen]
    DocBin(docs=kept).to_disk(folder / "train.spacy")


class _Training(NamedTuple):
    """A run of `spacy train`."""

    out: Path
    corpus: str
    config: Path
    rate: str
    seed: str
    transformer: str
    steps: int
    gpu_id: int
    evaluate_every: int = 0  # steps; then the best model on dev is taken, else the last one

    def score(self, part: str) -> dict[str, float]:
        """Train, and evaluate on a part, unless done already; return the scores."""
        model = self.trained()
        scores = model.parent / f"{part}.json"
        if not scores.exists():
            test = self.out / self.corpus / f"{part}.spacy"
            command = ["evaluate", str(model), str(test), "--output", str(scores)]
            _spacy([*command, "--gpu-id", str(self.gpu_id)], model.parent / "log")
        return dict(srsly.read_json(scores))

    def trained(self) -> Path:
        """Train, unless done already; return the folder of the pipeline."""
        transformer = of_transformer(self.transformer)
        check_same(self.out, {f"config {self.config.stem}": self.config, **transformer})
        budget = (self.transformer, self.steps, self.rate, self.seed)
        run = run_name(*budget, self.evaluate_every, self.gpu_id)
        folder = self.out / f"{self.corpus}_{self.config.stem}_{run}"
        done = folder / "trained"  # a training that was stopped has left a model too
        if not done.exists():
            folder.mkdir(parents=True, exist_ok=True)
            settings = self.overrides().items()
            words = [word for name, value in settings for word in (f"--{name}", str(value))]
            command = ["train", str(self.config), "--output", str(folder), *words]
            _spacy([*command, "--gpu-id", str(self.gpu_id)], folder / "log")
            done.touch()
        return folder / ("model-best" if self.evaluate_every else "model-last")

    def overrides(self) -> dict[str, Any]:
        """Return the settings of the run that the config does not have."""
        return {
            "paths.train": str(self.out / self.corpus / "train.spacy"),
            "paths.dev": str(self.out / self.corpus / "dev.spacy"),
            "paths.transformer": self.transformer,
            "system.seed": int(self.seed),
            "training.max_steps": self.steps,
            "training.eval_frequency": self.evaluate_every or self.steps,
            "training.patience": 0,
            "training.optimizer.learn_rate.total_steps": self.steps,
            "training.optimizer.learn_rate.initial_rate": float(self.rate),
            **listener_widths(load_config(self.config), self.transformer),
        }


def _spacy(command: list[str], log: Path) -> None:
    """Run a command of spaCy, with its output in a log."""
    with log.open("a") as file:
        command = [sys.executable, "-m", "spacy", *command]
        subprocess.run(command, check=True, stdout=file, stderr=file)


def _trained_a_little(
    config: str,
    transformer: str,
    gpu_id: int,
    settings: Mapping[str, Any] = MappingProxyType({}),
    corpus: Path | None = None,
) -> Language:
    """Train a pipeline for ten steps, so that it finds some entities."""
    if gpu_id >= 0:
        spacy.require_gpu(gpu_id)
    path = ROOT / "configs" / f"{config}.cfg"
    overrides = {"paths.transformer": transformer, "training.max_steps": 10, **settings}
    overrides |= listener_widths(load_config(path), transformer)
    filled = load_config(path, overrides=overrides)
    nlp = spacy.util.load_model_from_config(filled, auto_fill=True)
    examples = _examples(nlp, corpus)
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 2e-4
    for batch in _batches(examples)[:10]:
        nlp.update(batch, sgd=optimizer)
    return nlp


def _examples(nlp: Language, corpus: Path | None = None) -> list[Example]:
    """Read the sample corpus, or 500 random docs of another one."""
    if corpus is None:
        path = ROOT / "assets" / "sample_en" / "train.txt"
        return [Example(nlp.make_doc(doc.text), doc) for doc in data.read_inline(path, nlp)]
    examples = list(Corpus(corpus)(nlp))
    return random.Random(0).sample(examples, min(500, len(examples)))


def _batches(examples: list[Example]) -> list[list[Example]]:
    """Make the batches of the configs."""
    return list(minibatch_by_padded_size(examples, size=1000, buffer=256))


def _texts(n: int, sentences: int) -> list[str]:
    """Make n texts from the sentences of the sample corpus, repeated if it is too short."""
    path = ROOT / "assets" / "sample_en" / "train.txt"
    docs = [doc.text for doc in data.read_inline(path, spacy.blank("en"))]
    return [
        " ".join(docs[(i * sentences + k) % len(docs)] for k in range(sentences)) for i in range(n)
    ]


def _training(
    pipelines: dict[str, Language],
    rounds: int,
    corpus: Path | None = None,
) -> dict[str, list[float]]:
    """Measure the words per second of an epoch of updates."""
    acts, words = {}, 0
    for name, nlp in pipelines.items():
        examples = _examples(nlp, corpus)
        words = sum(len(eg.x) for eg in examples)
        optimizer = nlp.create_optimizer()
        optimizer.learn_rate = 1e-5

        def act(nlp=nlp, examples=examples, optimizer=optimizer) -> None:
            for batch in _batches(examples):
                fresh = [Example(eg.x.copy(), eg.y) for eg in batch]
                nlp.update(fresh, sgd=optimizer)

        acts[name] = act
    times = _alternate(acts, rounds)
    return {name: [words / time for time in taken] for name, taken in times.items()}


def _piping(nlp: Language, texts: list[str], batch_size: int) -> Callable[[], None]:
    def act() -> None:
        for _ in nlp.pipe(texts, batch_size=batch_size):
            pass

    return act


def _alternate(acts: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each function in each round; they take turns, after a warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for i in range(rounds + 1):
        for name, act in acts.items():
            start = perf_counter()
            act()
            if i:
                times[name].append(perf_counter() - start)
    return times


def _crf_shares(nlp: Language, texts: list[str], corpus: Path | None) -> dict[str, float]:
    """Return the share of time in the CRF's loss, with its gradient, and in decoding."""
    shares = {}
    optimizer = nlp.create_optimizer()
    optimizer.learn_rate = 1e-5
    decoding: list[Function] = [(Posterior, "decode"), (Posterior, "probabilities")]
    acts: dict[str, tuple[list[Function], Callable[[], Any]]] = {
        "training": (
            [(crf, "nll_with_gradient")],
            lambda: nlp.update(_examples(nlp, corpus)[:64], sgd=optimizer),
        ),
        "nlp.pipe on 300-word docs": (decoding, _piping(nlp, texts, 32)),
    }
    for what, (functions, act) in acts.items():
        act()
        with apart({"crf": functions}) as seconds:
            start = perf_counter()
            act()
            whole = perf_counter() - start
        shares[what] = seconds["crf"] / whole
    return shares


def _memory(which: str, pid: int | str = "self") -> float:
    """Return the memory (VmRSS) or peak memory (VmHWM) of a process, in MB; Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def device_name(gpu_id: int) -> str:
    """Return the name of a GPU; "cpu" for -1."""
    return torch.cuda.get_device_name(gpu_id) if gpu_id >= 0 else "cpu"


def run_name(
    transformer: str, steps: int, rate: str, seed: int | str, evaluate_every: int, gpu_id: int
) -> str:
    """Return the end of the name of a folder for one training."""
    name = f"{Path(transformer).name}_{rate}_{seed}_{steps}"
    name += f"_{evaluate_every}" if evaluate_every else ""
    return name + (f"_{device_name(gpu_id).replace(' ', '-')}" if gpu_id >= 0 else "")


def _print_machine(gpu_id: int) -> None:
    names: tuple[str, ...] = ("spacy", "thinc", "torch", "transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    where = f"GPU {gpu_id}" if gpu_id >= 0 else f"{os.cpu_count()} CPU cores"
    print(f"{platform.machine()}, {where}, Python {platform.python_version()}, {versions}")


if __name__ == "__main__":
    import benchmark_accuracy  # they import from this file
    import benchmark_active_learning
    import benchmark_combine
    import benchmark_coverage
    import benchmark_distill
    import benchmark_export
    import benchmark_few_entities
    import benchmark_host
    import benchmark_labels
    import benchmark_learning
    import benchmark_overlapping
    import benchmark_parts
    import benchmark_speed

    app.command()(benchmark_accuracy.accuracy)
    app.command()(benchmark_active_learning.active_learning)
    app.command()(benchmark_active_learning.label_errors)
    app.command()(benchmark_combine.combine)
    app.command()(benchmark_coverage.coverage)
    app.command()(benchmark_distill.distillation)
    app.command()(benchmark_export.export)
    app.command()(benchmark_few_entities.few_entities)
    app.command()(benchmark_host.host)
    app.command()(benchmark_labels.labels)
    app.command()(benchmark_labels.new_label)
    app.command()(benchmark_overlapping.overlapping)
    app.command()(benchmark_speed.speed)
    app.command("peers")(benchmark_speed.make_peers)
    app.command()(benchmark_parts.parts)
    app.command()(benchmark_learning.learning)
    os.environ["HF_HUB_OFFLINE"] = "1"
    app()
