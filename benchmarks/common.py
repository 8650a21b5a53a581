"""What benchmarks share: machines, inputs, results, corpora, small pipelines, timing and tables."""

import csv
import os
import platform
import random
import shutil
import statistics
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TextIO
from unittest.mock import patch

import spacy
import srsly
import torch
import typer
from spacy.language import Language
from spacy.scorer import PRFScore
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus, Example
from spacy.training.batchers import minibatch_by_padded_size
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, set_dot_to_object
from spacy.vocab import Vocab
from thinc.api import Config
from transformers import AutoConfig

import spacy_crf_ner
from spacy_crf_ner import data
from spacy_crf_ner.atomic import atomic_write
from spacy_crf_ner.input_error import InputError

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
SAMPLE = ROOT / "assets" / "sample_en"
MINILM = str(ROOT / "assets" / "minilm")
CORPORA = "wnut17,gmb,wikigold,re3d,anem"
TRANSFORMER = "components.ner.model.tok2vec.*.transformer"  # of transformer.cfg
FLOAT32 = {f"{name}.mixed_precision": False for name in ("components.ner.model", TRANSFORMER)}

Row = dict[str, Any]
Acts = Mapping[str, Callable[[], Any]]
Function = tuple[Any, str]  # what it is an attribute of, and its name

Folder = Annotated[Path, typer.Argument(help="Folder with the corpora, each in a folder.")]
Out = Annotated[Path, typer.Argument(help="Output folder; finished runs are kept.")]
Seeds = Annotated[str, typer.Option(help="Comma-separated seeds; a run for each.")]
Steps = Annotated[int, typer.Option(min=1, help="Training steps of every run.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; figures are medians.")]
Transformer = Annotated[str, typer.Option(help="Local folder or hub name.")]
Only = Annotated[str, typer.Option(help="Only those whose name contains this.")]
ConfigFile = Annotated[Path, typer.Option(help="Config of the pipelines.")]
CorpusFolder = Annotated[Path, typer.Option(help="Folder with train, dev and test.")]
Peers = Annotated[Path, typer.Option(help="Environments of the peers.")]
VariantFile = Annotated[
    Path, typer.Option(help="YAML file: the variants, their configs and settings.")
]
VariantNames = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Variant to run; repeat the option for several."),
]
Gpu = Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")]


# Machines


def print_machine(gpu_id: int = -1) -> None:
    """Print machine and versions as the caption of a table."""
    found = environment(gpu_id)
    print(f"{found['machine']}, {', '.join(' '.join(each) for each in found['versions'].items())}")


def environment(gpu_id: int = -1, versions: Mapping[str, str] | None = None) -> Row:
    """Describe the machine, and versions of libraries, by default of the ones here."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    cpu = next(names, platform.machine())
    cores = f"{os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '')}"
    machine = f"{device_name(gpu_id)}: {cpu}, {cores}, Python {platform.python_version()}"
    return {"machine": machine, "versions": dict(versions or installed())}


def installed() -> dict[str, str]:
    found = {}
    for name in ("spacy", "thinc", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(gpu_id: int) -> str:
    """Return the name of a GPU; "cpu" for -1."""
    return torch.cuda.get_device_name(gpu_id) if gpu_id >= 0 else "cpu"


def memory_mb(which: str, pid: int | str = "self") -> float:
    """Return the memory (VmRSS) or peak memory (VmHWM) of a process, in MB; Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def reset_peak() -> None:
    """Let the peak memory of this process begin with what it has now; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")


def in_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function of a module; its memory is freed with its process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


# Inputs


def digest(path: Path) -> str:
    """Hash the content of a file, or of the files in a folder and their names.

    Hidden files are left out.
    """
    if path.is_file():
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")
    names = [(file.relative_to(path).as_posix(), file) for file in files]
    lines = [f"{name} {digest(file)}\n" for name, file in names if "/." not in f"/{name}"]
    return sha256("".join(lines).encode("utf-8")).hexdigest()


def check_same(out: Path, inputs: Mapping[str, Path]) -> None:
    """Store the digests of files and folders in inputs.json of an output folder, by their names.

    Raises InputError for a path where nothing is, and if an earlier call had another content of
    this name.
    """
    file = out / "inputs.json"
    known = dict(srsly.read_json(file)) if file.exists() else {}
    new = {}
    for name, path in inputs.items():
        if not path.exists():
            raise InputError(f"{path}: expected the {name}, got nothing. Correct the path.")
        new[name] = digest(path)
        if known.get(name, new[name]) != new[name]:
            raise InputError(
                f"{path}: expected the {name} of the results in {out}, got another one. Results of "
                f"both would be mixed: give another output folder, or remove them and {file}."
            )
    if not new.items() <= known.items():
        out.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as path:
            srsly.write_json(path, {**known, **new})


def transformer_input(name: str) -> dict[str, Path]:
    """Return the input that a transformer is; none for a name on the hub."""
    return {f"transformer {Path(name).name}": Path(name)} if Path(name).is_dir() else {}


class Rows:
    """Results in a CSV file, a row for each run, with the number of its environment.

    Machines and versions are in environments.jsonl beside the file. A run whose key is in a row is
    not repeated, so a command that was stopped can be called again.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.environments = file, file.with_name("environments.jsonl")

    def __iter__(self) -> Iterator[Row]:
        if self.file.exists():
            with self.file.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            yield from ({name: _value(text) for name, text in row.items()} for row in rows)

    def matching(self, key: Row) -> list[Row]:
        """Return the rows with these values; a column that the file does not have is None."""
        return [row for row in self if all(row.get(name) == of for name, of in key.items())]

    def known(self, key: Row) -> Row | None:
        """Return the row of a run; None if there is none."""
        return next(iter(self.matching(key)), None)

    def add(self, row: Row, environment: Row) -> Row:
        """Store, print and return a row."""
        known = list(srsly.read_jsonl(self.environments)) if self.environments.exists() else []
        if environment not in known:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            srsly.write_jsonl(self.environments, [*known, environment])
        row = {**row, "environment": [*known, environment].index(environment)}
        rows = [*self, row]
        columns = dict.fromkeys(name for each in rows for name in each)
        with atomic_write(self.file) as path, path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(*(f"{name} {value}," for name, value in row.items()), flush=True)
        return row


def _value(text: str | None) -> Any:
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text or None


# Corpora


def converted(source: Path, out: Path) -> Path:
    """Convert a corpus, or copy a converted one, into a folder of its name, unless done.

    Each part is a .spacy file, and a .jsonl file with the texts, their tokens as in `spacy train`,
    and their entities.
    """
    folder = out / source.resolve().name
    if source.resolve() != folder.resolve():
        if not (folder / "test.spacy").exists():
            if (source / "test.spacy").exists():
                folder.mkdir(parents=True, exist_ok=True)
                for part in data.SPLITS:
                    shutil.copy(source / f"{part}.spacy", folder)
            else:
                options = data.ConvertOptions(split=data.Split((0.7, 0.1, 0.2)))
                data.convert(source, folder, options, nlp=spacy.blank("en"))
        check_same(out, {f"corpus {folder.name}": source})
    nlp = spacy.blank("en")
    for part in data.SPLITS:
        examples = Corpus(folder / f"{part}.spacy")(nlp)
        srsly.write_jsonl(folder / f"{part}.jsonl", map(_record, examples))
    return folder


def _record(eg: Example) -> Row:
    tokens = [(token.idx, token.idx + len(token)) for token in eg.predicted]
    ents = [(ent.start_char, ent.end_char, ent.label_) for ent in eg.reference.ents]
    return {"text": eg.reference.text, "tokens": tokens, "ents": ents}


def read_docs(path: Path, vocab: Vocab | None = None) -> list[Doc]:
    return list(DocBin().from_disk(path).get_docs(vocab or spacy.blank("en").vocab))


def write_docs(docs: Sequence[Doc], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    DocBin(docs=docs).to_disk(path)


def sample_texts(n: int, sentences: int) -> list[str]:
    """Make texts from the sentences of the sample corpus, repeated if it is too short."""
    path = SAMPLE / "train.txt"
    again = cycle([doc.text for doc in data.read_inline(path, spacy.blank("en"))])
    return [" ".join(islice(again, sentences)) for _ in range(n)]


def write_sample_texts(path: Path, number: int) -> None:
    """Write documents of one to ten sentences of the sample corpus, each with a unique word."""
    rng = random.Random(0)
    sentences = sample_texts(400, 1)
    texts = (
        " ".join(rng.choices(sentences, k=rng.choice([1, 1, 1, 2, 5, 10]))) for _ in range(number)
    )
    srsly.write_jsonl(path, ({"id": i, "text": f"{text} No{i}"} for i, text in enumerate(texts)))


def document_sets(texts: list[str], share: float) -> dict[str, list[str]]:
    """Make the documents of each measure from the sentences of a corpus, again where it is short.

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


# Pipelines


class Variant(NamedTuple):
    """A config, and settings that replace those of the config, by their dotted names."""

    name: str
    config: Path
    settings: Row

    def key(self, transformer: str, steps: int, seed: int, gpu_id: int) -> Row:
        """Return the key of a run in `Rows`."""
        return {
            "variant": self.name,
            "settings": srsly.json_dumps(self.settings, sort_keys=True),
            "transformer": transformer,
            "device": device_name(gpu_id),
            "steps": steps,
            "seed": seed,
        }


def read_variants(path: Path, names: Sequence[str] = ()) -> list[Variant]:
    """Read the variants of a YAML file, whose paths of configs are relative to it.

    names: Of the variants to return; empty for all.

    Raises InputError for another content, and for an unknown variant.
    """
    try:
        found = srsly.read_yaml(path)
    except ValueError as error:
        raise InputError(f"{path}: expected a YAML file, got {error}") from error
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path}: expected variants by name, got {str(found)[:60]!r}.")
    for name, settings in found.items():
        config = settings.get("config") if isinstance(settings, dict) else None
        if not isinstance(config, str) or not (path.parent / config).is_file():
            raise InputError(
                f"{path}, {name}: expected an existing config file under config, got {config!r}. "
                "Give its path relative to this file, and below it the settings to change."
            )
    if unknown := {*names} - {*found}:
        raise InputError(
            f"--variant: expected some of {list(found)}, got {sorted(unknown)}. Use the names in "
            f"{path}."
        )
    return [
        Variant(name, path.parent / settings.pop("config"), settings)
        for name, settings in found.items()
        if not names or name in names
    ]


def variant_inputs(variants: Iterable[Variant], transformer: str) -> dict[str, Path]:
    """Return what the results of variants depend on, for `check_same`."""
    configs = {f"config {each.config.stem}": each.config for each in variants}
    package = {"package": Path(spacy_crf_ner.__file__).parent}
    return {**configs, **package, **transformer_input(transformer)}


def changed(path: Path, settings: Mapping[str, Any]) -> Config:
    """Read a config, and replace settings or whole blocks of it, by their dotted names.

    Raises InputError for a setting of a block that the config does not have.
    """
    config = load_config(path, interpolate=False)
    for name, value in settings.items():
        try:
            set_dot_to_object(config, name, value)
        except KeyError as error:
            raise InputError(
                f"{path}: expected a config with the block of {name}, got none. Add the block, or "
                "correct the name."
            ) from error
    return config


def schedule(steps: int, seed: int = 0) -> Row:
    """Return the settings of a training of a number of steps, whose last model is evaluated."""
    return {
        "system.seed": seed,
        "training.max_steps": steps,
        "training.eval_frequency": steps,
        "training.patience": 0,
        "training.optimizer.learn_rate.total_steps": steps,
    }


def widths(config: Config, transformer: str) -> dict[str, int]:
    """Return the settings of spaCy's listeners in a config for a transformer of another width."""
    models = {name: each.get("model", {}) for name, each in config.get("components", {}).items()}
    listening = [
        name
        for name, model in models.items()
        if model.get("tok2vec", {}).get("@architectures") == "spacy.Tok2VecListener.v1"
    ]
    if not listening:
        return {}
    width = int(AutoConfig.from_pretrained(transformer).hidden_size)
    return {f"components.{name}.model.tok2vec.width": width for name in listening}


def trained(config: Config, gpu_id: int = -1) -> Language:
    """Train a pipeline in this process; returns the last model, not calibrated.

    It is read from disk: what spaCy's `train` returns has no averages of the weights.
    """
    config["training"]["before_to_disk"] = None
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        nlp = init_nlp(config, use_gpu=gpu_id)
        _, saved = train(nlp, Path(folder), use_gpu=gpu_id, stdout=nowhere)
        return spacy.load(saved)


def trained_on(docs: Sequence[Doc], config: Config, gpu_id: int = -1) -> Language:
    """Train a pipeline on docs; none is held out."""
    with TemporaryDirectory() as folder:
        for part, own in (("train", docs), ("dev", docs[:20])):
            config["paths"][part] = str(Path(folder) / f"{part}.spacy")
            DocBin(docs=own, store_user_data=False).to_disk(config["paths"][part])
        return trained(config, gpu_id)


def f1(nlp: Language, gold: Sequence[Doc], labels: Container[str] | None = None) -> float:
    """Return the F1 of the entities in gold tokens, and of those that overlap, in percent.

    labels: Only entities of these labels count; all by default.
    """
    score = PRFScore()
    for doc, found in zip(gold, nlp.pipe([without_entities(doc, nlp.vocab) for doc in gold])):
        predicted, expected = (
            {(e.start, e.end, e.label_) for e in ents if labels is None or e.label_ in labels}
            for ents in (found.spans.get("sc", found.ents), doc.ents)
        )
        score.score_set(predicted, expected)
    return 100 * float(score.fscore)


def without_entities(doc: Doc, vocab: Vocab) -> Doc:
    """Copy the tokens of a doc."""
    return Doc(vocab, [token.text for token in doc], [bool(token.whitespace_) for token in doc])


def trained_a_little(config: str, transformer: str = MINILM) -> Language:
    """Train a shipped config for ten batches, so that it finds some entities."""
    overrides = {"paths.transformer": transformer}
    filled = load_config(CONFIGS / f"{config}.cfg", overrides=overrides)
    nlp = spacy.util.load_model_from_config(filled, auto_fill=True)
    examples = some_examples(nlp)
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 2e-4
    for batch in batches(examples)[:10]:
        nlp.update(batch, sgd=optimizer)
    return nlp


def some_examples(nlp: Language, corpus: Path | None = None) -> list[Example]:
    """Read the sample corpus, or 500 random docs of another one."""
    if corpus is None:
        path = SAMPLE / "train.txt"
        return [Example(nlp.make_doc(doc.text), doc) for doc in data.read_inline(path, nlp)]
    examples = list(Corpus(corpus)(nlp))
    return random.Random(0).sample(examples, min(500, len(examples)))


def batches(examples: list[Example]) -> list[list[Example]]:
    """Make the batches of transformer.cfg."""
    return list(minibatch_by_padded_size(examples, size=1000, buffer=256))


# Timing


def alternate(acts: Acts, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each function in each round; they take turns, after a warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for i in range(rounds + 1):
        for name, act in acts.items():
            start = perf_counter()
            act()
            if i:
                times[name].append(perf_counter() - start)
    return times


def training_rates(
    pipelines: Mapping[str, Language], rounds: int, corpus: Path | None = None
) -> dict[str, list[float]]:
    """Measure the words per second of an epoch of updates; the pipelines take turns."""
    acts, words = {}, 0
    for name, nlp in pipelines.items():
        examples = some_examples(nlp, corpus)
        words = sum(len(eg.x) for eg in examples)
        optimizer = nlp.create_optimizer()
        optimizer.learn_rate = 1e-5

        def act(nlp=nlp, examples=examples, optimizer=optimizer) -> None:
            for batch in batches(examples):
                fresh = [Example(eg.x.copy(), eg.y) for eg in batch]
                nlp.update(fresh, sgd=optimizer)

        acts[name] = act
    times = alternate(acts, rounds)
    return {name: [words / time for time in taken] for name, taken in times.items()}


@contextmanager
def apart(
    parts: Mapping[str, Sequence[Function]], clock: Callable[[], float] = perf_counter
) -> Iterator[dict[str, float]]:
    """Sum the seconds in the functions of each part, without those in nested ones of other parts.

    clock: Returns seconds. For a GPU, one that waits for it.
    """
    seconds = dict.fromkeys(parts, 0.0)
    nested: list[float] = []

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nested.append(0.0)
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                taken = clock() - start
                seconds[part] += taken - nested.pop()
                if nested:
                    nested[-1] += taken

        return call

    replaced = [
        (owner, name, timed(part, getattr(owner, name)))
        for part, functions in parts.items()
        for owner, name in functions
    ]
    with ExitStack() as stack:
        for each in replaced:
            stack.enter_context(patch.object(*each))
        yield seconds


# Tables


def numbers(text: str) -> list[int]:
    """Read an option with comma-separated numbers, such as seeds."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError as error:
        raise InputError(f"Expected numbers such as 0,1,2, got {text!r}.") from error


def print_row(*cells: Any, file: TextIO | None = None) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True, file=file)


def print_header(*cells: str, file: TextIO | None = None) -> None:
    print_row(*cells, file=file)
    print("|---" * len(cells) + "|", flush=True, file=file)


def mean_and_deviation(values: Sequence[float]) -> str:
    """Format the mean of several seeds, with the standard deviation."""
    if len(values) < 2:
        return f"{values[0]:.1f} (one seed)" if values else "-"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def median_and_range(values: Sequence[float]) -> str:
    """Format the median of several rounds, with the lowest and the highest."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}-{max(values):,.0f})"


def by_key(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of some columns, in their order."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return grouped
