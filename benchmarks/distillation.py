"""Students of a teacher, by what they were trained on: docs/benchmarks.md."""

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, NamedTuple

import spacy
import typer
from spacy.language import Language
from spacy.training import Corpus, Example
from spacy.util import load_config

from benchmarks import common
from spacy_crf_ner.evaluation.calibration import reliability
from spacy_crf_ner.evaluation.matching import collect_entities
from spacy_crf_ner.training.calibration import without_calibration

TEACHER = "teacher"
SHARE = 10  # every tenth train doc has gold entities, in the conditions with a part of them


class Condition(NamedTuple):
    """What a student is trained on.

    gold: The part of the corpus with gold entities: "train" or "tenth".
    texts: Train parts whose texts the teacher reads besides: "pool" for all other corpora, "rest"
        for what is not in the tenth; "" for none.
    has_teacher: Whether a teacher reads the docs.
    folds: Of the gold docs, for teachers that have not seen what they read; 0: the teacher has.
    """

    gold: str
    texts: str
    has_teacher: bool
    folds: int = 0


CONDITIONS = {
    "gold": Condition("train", "", False),
    "gold, distilled": Condition("train", "", True),
    "gold, distilled by folds": Condition("train", "", True, folds=3),
    "gold, distilled on all texts": Condition("train", "pool", True),
    "a tenth of gold": Condition("tenth", "", False),
    "a tenth of gold, distilled on the rest": Condition("tenth", "rest", True),
}


def main(
    folder: common.Folder,
    teachers: Annotated[Path, typer.Argument(help="Folder with a teacher named as each corpus.")],
    out: common.Out,
    corpora: Annotated[str, typer.Option(help="Comma-separated names.")] = "gmb,wikigold,re3d",
    pool: Annotated[str, typer.Option(help="Corpora with more texts.")] = common.CORPORA,
    students: Annotated[str, typer.Option(help="Names of configs.")] = "cnn,char",
    only: common.Only = "",
    steps: common.Steps = 1000,
    seeds: common.Seeds = "0,1,2",
    weight: Annotated[float, typer.Option(help="Of the teacher.")] = 0.5,
    temperature: Annotated[float, typer.Option(help="Of teacher and student.")] = 1.0,
) -> None:
    """Compare students with and without a teacher on test, at equal steps.

    Each run adds a row to distillation.csv in the output folder. The last model of a run is
    measured.
    """
    inputs = {f"config {name}": common.CONFIGS / f"{name}.cfg" for name in students.split(",")}
    inputs |= {f"teacher of {name}": teachers / name for name in corpora.split(",")}
    common.check_same(out, inputs)
    prepared = {
        name: common.converted(folder / name, out) for name in f"{corpora},{pool}".split(",")
    }
    more = [prepared[name] / "train.spacy" for name in pool.split(",")]
    rows = common.Rows(out / "distillation.csv")
    distilled = {"weight": weight, "temperature": temperature}
    for name in corpora.split(","):
        corpus, teacher = prepared[name], teachers / name
        make_tenth(corpus)
        texts = {"": [], "rest": [corpus / "rest.spacy"]}
        texts["pool"] = [path for path in more if path.parent != corpus]

        def measured(
            key: common.Row, model: Path, corpus: Path = corpus, teacher: Path = teacher
        ) -> None:
            found = measure(spacy.load(model), spacy.load(teacher), corpus / "test.spacy")
            rows.add({**key, **found}, common.environment())

        key: common.Row = {"corpus": name, "student": TEACHER}
        if not rows.known(key):
            measured(key, teacher)
        for condition, of in CONDITIONS.items():
            for student in students.split(",") if only in condition else ():
                for seed in common.numbers(seeds):
                    key = {"corpus": name, "student": student, "condition": condition}
                    key |= {"steps": steps, "seed": seed, **(distilled if of.has_teacher else {})}
                    if not rows.known(key):
                        measured(key, trained(out, corpus, teacher, key, of, texts[of.texts]))
    print_tables(list(rows))


def trained(
    out: Path, corpus: Path, teacher: Path, key: common.Row, condition: Condition, texts: list[Path]
) -> Path:
    """Train a student by the commands of a user; return the folder of its last model."""
    # The scores of a teacher are those of all students of a condition.
    folder = out / f"{corpus.name} {key['condition']}".replace(" ", "_").replace(",", "")
    folder.mkdir(exist_ok=True)
    path = folder / f"{key['student']}.cfg"
    overrides = {**common.schedule(key["steps"], key["seed"]), "corpora.dev.limit": 1}
    config = load_config(common.CONFIGS / path.name, overrides=overrides)
    without_calibration(config)  # dev is one doc: the last model does not depend on it
    config.to_disk(path)
    gold, dev = corpus / f"{condition.gold}.spacy", corpus / "dev.spacy"
    if condition.has_teacher:
        words = ["spacy_crf_ner", "distill", *texts, folder, "--teacher", teacher]
        words += ["--gold", gold, "--dev", dev, "--config", path, "--folds", condition.folds]
        words += ["--weight", key["weight"], "--temperature", key["temperature"], "--resume"]
    else:
        words = ["spacy", "train", path, "--output", folder]
        words += ["--paths.train", gold, "--paths.dev", dev]
    with (folder / "log").open("a") as log:
        command = [sys.executable, "-m", *map(str, words)]
        subprocess.run(command, check=True, stdout=log, stderr=log)
    return folder / "model-last"


def make_tenth(corpus: Path) -> None:
    """Divide the train part: every tenth doc keeps its entities, the others go to another file."""
    if (corpus / "rest.spacy").exists():  # its time is in the fingerprint of a run
        return
    docs = common.read_docs(corpus / "train.spacy")
    common.write_docs(docs[::SHARE], corpus / "tenth.spacy")
    common.write_docs([doc for i, doc in enumerate(docs) if i % SHARE], corpus / "rest.spacy")


def measure(nlp: Language, teacher: Language, test: Path) -> common.Row:
    """Measure F1, agreement with the teacher (an F1), calibration error, and words per second."""
    golds = [eg.reference for eg in Corpus(test)(nlp)]
    predicted, seconds = _predicted(nlp, test)
    from_teacher, _ = _predicted(teacher, test)
    of_teacher = [
        Example(eg.predicted, other.predicted) for eg, other in zip(predicted, from_teacher)
    ]
    words = sum(map(len, golds))
    return {
        "f": nlp.get_pipe("ner").score(predicted)["ents_f"],  # type: ignore[attr-defined]
        "agreement": nlp.get_pipe("ner").score(of_teacher)["ents_f"],  # type: ignore[attr-defined]
        "ece": reliability(collect_entities(predicted))["ece"],
        "words_per_second": round(words / seconds),
    }


def _predicted(nlp: Language, test: Path) -> tuple[list[Example], float]:
    examples = list(Corpus(test)(nlp))
    texts = [eg.predicted for eg in examples]
    list(nlp.pipe([doc.copy() for doc in texts[:64]]))  # warm up
    start = perf_counter()
    docs = list(nlp.pipe(texts))
    seconds = perf_counter() - start
    return [Example(doc, eg.reference) for doc, eg in zip(docs, examples)], seconds


def print_tables(rows: Sequence[common.Row]) -> None:
    """Print a table for each corpus: mean and spread over seeds."""
    for (corpus,), of_corpus in common.by_key(rows, "corpus").items():
        teacher = next((row["f"] for row in of_corpus if row["student"] == TEACHER), None)
        common.print_header(corpus, "F1", "of the teacher's", "agreement", "ECE", "words/s")
        names = ("student", "condition", "steps", "weight", "temperature")
        for key, own in common.by_key(of_corpus, *names).items():
            mean = statistics.mean(row["f"] for row in own)
            spreads = {
                name: common.mean_and_deviation([100 * row[name] for row in own])
                for name in ("f", "agreement", "ece")
            }
            speeds = [row["words_per_second"] for row in own if row.get("words_per_second")]
            common.print_row(
                ", ".join(str(part) for part in key[:3] if part),
                spreads["f"],
                f"{100 * mean / teacher:.0f} %" if teacher else "-",
                spreads["agreement"],
                spreads["ece"],
                f"{statistics.mean(speeds):,.0f}" if speeds else "-",
            )
        print()
