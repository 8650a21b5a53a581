"""A family of models, trained on one corpus with one budget, and compared."""

import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
import spacy
import srsly
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Corpus
from spacy.training.loop import create_train_batches
from spacy.util import registry
from thinc.api import require_gpu

from spacy_crf_ner.report.plots import require_matplotlib

PARTS = ("train", "dev", "test")
COMPONENT = "ner"  # its name in the configs
TIMED_BATCHES = 10
TIMED_ROUNDS = 3
Row = Dict[str, Any]


class Run(NamedTuple):
    """A member of the family with a seed.

    member: Its name.
    seed: Of the weights, the order of the docs, and dropout.
    config: The config file.
    overrides: Settings that it changes, by their names with dots.
    """

    member: str
    seed: int
    config: Path
    overrides: Dict[str, Any]

    @property
    def key(self) -> Row:
        """What makes it this run: a row that has all of it is its result."""
        return {"member": self.member, "seed": self.seed, "overrides": self.overrides}


def plan(
    family: Path,
    corpus: Path,
    *,
    transformer: str,
    steps: int,
    seeds: Sequence[int],
    members: Sequence[str] = (),
) -> List[Run]:
    """List the runs: all members with the first seed, then all with the second, and so on.

    family: YAML file: by the name of each member its config, a file in the same folder, and the
        settings that it changes.
    corpus: Folder with train.spacy, dev.spacy and test.spacy.
    transformer: Local folder, or a name on the hub; for the configs that have one.
    steps: Training steps of each run.
    members: Names of those to run; none for all.

    Raises ValueError for a file that is absent, and for a member that the family does not have.
    """
    for part in PARTS:
        if not (corpus / f"{part}.spacy").exists():
            raise ValueError(
                f"{corpus}: expected {', '.join(f'{p}.spacy' for p in PARTS)}, got no "
                f"{part}.spacy. Convert the corpus with spacy-crf-ner convert."
            )
    all_members = _read_family(family)
    unknown = set(members) - set(all_members)
    if unknown:
        raise ValueError(
            f"members: expected some of {list(all_members)}, got {sorted(unknown)}. Name them as "
            f"{family} does."
        )
    budget = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "paths.transformer": transformer,
        "training.max_steps": steps,
        "training.optimizer.learn_rate.total_steps": steps,
        # The last weights are measured, on test: dev is looked at as little as may be.
        "training.eval_frequency": steps,
        "corpora.dev.limit": 50,
    }
    return [
        Run(name, seed, family.parent / settings["config"], {
            **budget,
            "system.seed": seed,
            **{key: value for key, value in settings.items() if key != "config"},
        })
        for seed in seeds
        for name, settings in all_members.items()
        if not members or name in members
    ]  # fmt: skip


def results(runs: Sequence[Run], out: Path, gpu_id: int = -1) -> Iterator[Row]:
    """Train and measure each run, but for those whose result is in runs.jsonl already.

    out: Folder for runs.jsonl, which gets a line as soon as a run is measured, and for the logs.
    gpu_id: GPU to use, -1 for the CPU.

    Yields a row for each run, in their order. Raises ChildProcessError where a training fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = out / "runs.jsonl"
    known = list(srsly.read_jsonl(file)) if file.exists() else []
    for run in runs:
        row = next((row for row in known if run.key.items() <= row.items()), None)
        if row is None:
            folder = out / "training"
            shutil.rmtree(folder, ignore_errors=True)
            _train(run, folder, out / f"{run.member}, seed {run.seed}.log", gpu_id)
            # In a process of its own, which gives its memory back.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                measured = pool.submit(measure, folder / "model-last", run, gpu_id).result()
            row = {**run.key, **measured}
            srsly.write_jsonl(file, [row], append=True, append_new_line=False)
            shutil.rmtree(folder)
        yield row


def measure(model: Path, run: Run, gpu_id: int = -1) -> Row:
    """Measure a trained pipeline on the test part of its corpus.

    Returns p, r, f, per_type: precision, recall and F1, in all and by label, from 0 to 1;
    invalid: the share of docs for which the best tag of each token, chosen alone, gives no legal
    sequence (None where the decoder is a CRF, which scores no token alone); train_speed and
    predict_speed: words a second, medians; parameters: how many the pipeline has.
    """
    if gpu_id >= 0:
        require_gpu(gpu_id)
    nlp = spacy.load(model)
    test = Path(run.overrides["paths.train"]).with_name("test.spacy")
    examples = list(Corpus(test)(nlp))
    scores = nlp.evaluate(examples, batch_size=nlp.batch_size)
    docs = [eg.reference for eg in examples]
    return {
        **{name: scores[f"ents_{name}"] for name in "prf"},
        "per_type": scores["ents_per_type"],
        "invalid": _invalid_share(nlp, [doc.text for doc in docs]),
        "predict_speed": _predict_speed(nlp, [doc.text for doc in docs]),
        "train_speed": _train_speed(nlp),
        "parameters": _count_parameters(nlp),
    }


def table(rows: Sequence[Row]) -> str:
    """Write the results as two tables in Markdown: in all, and F1 by label."""
    grouped = _by_member(rows)
    lines = [
        "| model | F1 | precision | recall | invalid sequences | parameters "
        "| training, words/s | prediction, words/s | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for member, of_member in grouped.items():
        cells = [_spread([100 * row[name] for row in of_member]) for name in "fpr"]
        invalid = [100 * row["invalid"] for row in of_member if row["invalid"] is not None]
        cells.append(f"{_spread(invalid)} %" if invalid else "-")
        cells.append(f"{of_member[0]['parameters'] / 1e6:.1f} M")
        cells += [
            f"{statistics.median(row[name] for row in of_member):,.0f}"
            for name in ("train_speed", "predict_speed")
        ]
        lines.append(f"| {member} | {' | '.join(cells)} | {len(of_member)} |")
    labels = sorted({label for row in rows for label in row["per_type"]})
    lines += ["", f"| F1 | {' | '.join(labels)} |", "|---" * (len(labels) + 1) + "|"]
    for member, of_member in grouped.items():
        cells = [
            _spread([100 * row["per_type"].get(label, {"f": 0.0})["f"] for row in of_member])
            for label in labels
        ]
        lines.append(f"| {member} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def chart(rows: Sequence[Row], path: Path) -> None:
    """Draw F1 of each member: a bar for the mean, a dot for each seed.

    path: Image file; its ending says of which kind, .svg or .png.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    grouped = _by_member(rows)
    figure = Figure(figsize=(8, 0.9 + 0.34 * len(grouped)), layout="constrained")
    axes = figure.subplots()
    for y, of_member in enumerate(grouped.values()):
        scores = [100 * row["f"] for row in of_member]
        mean = statistics.mean(scores)
        axes.barh(y, mean, color="#8fb4d9", height=0.7)
        axes.plot(scores, [y] * len(scores), "o", color="#1f3a5f", markersize=4)
        axes.annotate(f"{mean:.1f}", (max(scores), y), (6, 0), textcoords="offset points",
                      va="center", fontsize=9)  # fmt: skip
    axes.set_yticks(range(len(grouped)), list(grouped))
    axes.invert_yaxis()
    axes.set_xlabel("F1 on test, mean of the seeds; each seed is a dot")
    axes.margins(x=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _read_family(path: Path) -> Dict[str, Dict[str, Any]]:
    try:
        family = srsly.read_yaml(path)
    except ValueError as error:
        raise ValueError(f"{path}: expected YAML, got none: {error}") from error
    if not isinstance(family, dict) or not family:
        raise ValueError(f"{path}: expected members by their names, got {str(family)[:60]!r}.")
    for name, settings in family.items():
        config = settings.get("config") if isinstance(settings, dict) else None
        if not isinstance(config, str) or not (path.parent / config).is_file():
            raise ValueError(
                f"{path}, {name}: expected a file of {path.parent} under config, got {config!r}. "
                "Name the config of the member, and under it the settings that it changes."
            )
    return {
        str(name): {str(key): _plain(value) for key, value in settings.items()}
        for name, settings in family.items()
    }


def _plain(value: Any) -> Any:
    """A list of YAML's is a class of its own: compare as JSON does."""
    return list(value) if isinstance(value, list) else value


def _train(run: Run, folder: Path, log: Path, gpu_id: int) -> None:
    command = [sys.executable, "-m", "spacy", "train", str(run.config), "--output", str(folder)]
    command += ["--gpu-id", str(gpu_id)]
    for name, value in run.overrides.items():
        command += [f"--{name}", value if isinstance(value, str) else srsly.json_dumps(value)]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=file)
    if done.returncode:
        raise ChildProcessError(
            f"{run.member}, seed {run.seed}: expected `spacy train` to end with 0, got "
            f"{done.returncode}. Its output is in {log}; mend the cause, and run the command again."
        )


def _invalid_share(nlp: Language, texts: Sequence[str]) -> Optional[float]:
    ner: Any = nlp.get_pipe(COMPONENT)
    invalid = total = 0
    docs = [doc for doc in nlp.pipe(texts, disable=[COMPONENT]) if len(doc)]
    for i in range(0, len(docs), nlp.batch_size):
        batch = docs[i : i + nlp.batch_size]
        potentials = ner.model.predict(batch)
        if potentials.constrained:
            return None
        best = np.asarray(potentials.emissions.argmax(1).tolist())
        for tags in np.split(best, np.cumsum(potentials.lengths)[:-1]):
            invalid += not ner.scheme.is_legal(tags)
        total += len(batch)
    return invalid / total


def _predict_speed(nlp: Language, texts: Sequence[str]) -> float:
    times = []
    words = 0
    for _ in range(TIMED_ROUNDS):
        start = perf_counter()
        words = sum(len(doc) for doc in nlp.pipe(texts))
        times.append(perf_counter() - start)
    return words / statistics.median(times)


def _train_speed(nlp: Language) -> float:
    """Update on some batches, as `spacy train` does; the pipeline is not the same after it."""
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    corpus = registry.resolve({"corpus": config["corpora"]["train"]})["corpus"]
    optimizer = nlp.resume_training(sgd=training["optimizer"])
    batches = create_train_batches(nlp, corpus, training["batcher"], max_epochs=0)
    speeds = []
    # The first one is not timed.
    for i, (_, batch) in enumerate(islice(batches, TIMED_BATCHES + 1)):
        start = perf_counter()
        nlp.update(
            batch,
            sgd=optimizer,
            drop=training["dropout"],
            exclude=training["frozen_components"],
            annotates=training["annotating_components"],
        )
        if i:
            speeds.append(sum(len(eg.x) for eg in batch) / (perf_counter() - start))
    return statistics.median(speeds)


def _count_parameters(nlp: Language) -> int:
    count = 0
    for _, pipe in nlp.pipeline:
        for node in pipe.model.walk() if hasattr(pipe, "model") else ():
            count += sum(node.get_param(p).size for p in node.param_names if node.has_param(p))
            for shim in node.shims:
                count += sum(weight.numel() for weight in shim._model.parameters())
    return count


def _by_member(rows: Sequence[Row]) -> Dict[str, List[Row]]:
    grouped: Dict[str, List[Row]] = {}
    for row in rows:
        grouped.setdefault(row["member"], []).append(row)
    return grouped


def _spread(values: Sequence[float]) -> str:
    """Mean and, of several, standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"
