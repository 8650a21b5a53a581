"""Students of a teacher: F1, agreement, calibration and speed, by what they were trained on."""

import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import spacy
import srsly
import typer
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Corpus, Example
from spacy.util import load_config
from spacy.vocab import Vocab

from benchmark import ROOT, _spacy
from benchmark_accuracy import CORPORA, _spread, known_row
from benchmark_speed import _prepared
from inputs import check_same
from spacy_crf_ner.evaluation.calibration import reliability
from spacy_crf_ner.evaluation.matching import collect_entities
from spacy_crf_ner.training.calibration import without_calibration

TEACHER = "teacher"
SHARE = 10  # one in so many train docs has gold entities in the conditions with a part of them

Result = dict[str, Any]


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


def distillation(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpora.")],
    teachers: Annotated[Path, typer.Argument(help="Folder with a teacher named as each corpus.")],
    out: Annotated[Path, typer.Argument(help="Output folder; finished runs are kept.")],
    corpora: Annotated[str, typer.Option(help="Comma-separated names.")] = "gmb,wikigold,re3d",
    pool: Annotated[str, typer.Option(help="Corpora with more texts.")] = CORPORA,
    students: Annotated[str, typer.Option(help="Names of configs.")] = "cnn,char",
    only: Annotated[str, typer.Option(help="Only conditions that contain this.")] = "",
    steps: Annotated[int, typer.Option(help="Training steps of every run.")] = 1000,
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0,1,2",
    weight: Annotated[float, typer.Option(help="Of the teacher.")] = 0.5,
    temperature: Annotated[float, typer.Option(help="Of teacher and student.")] = 1.0,
) -> None:
    """Compare students with and without a teacher on test, at equal steps.

    Each run adds a line to distillation.jsonl in the output folder. The last model of a run is
    measured.
    """
    inputs = {f"config {s}": ROOT / "configs" / f"{s}.cfg" for s in students.split(",")}
    inputs |= {f"teacher of {name}": teachers / name for name in corpora.split(",")}
    check_same(out, inputs)
    runs = _Runs(out, steps, weight, temperature)
    prepared = {name: _prepared(folder / name, out) for name in f"{corpora},{pool}".split(",")}
    more = [prepared[name] / "train.spacy" for name in pool.split(",")]
    for name in corpora.split(","):
        corpus = prepared[name]
        make_tenth(corpus)
        teacher = teachers / name
        runs.measured({"corpus": name, "student": TEACHER}, corpus, teacher, teacher)
        for condition, of in CONDITIONS.items():
            for student in students.split(",") if only in condition else ():
                for seed in map(int, seeds.split(",")):
                    runs.result(corpus, teacher, student, condition, of, seed, more)
    print(table(list(srsly.read_jsonl(runs.file))))


class _Runs:
    """The runs of one budget: those of an earlier call are read, others are made."""

    def __init__(self, out: Path, steps: int, weight: float, temperature: float) -> None:
        self.out, self.file = out, out / "distillation.jsonl"
        self.steps, self.weight, self.temperature = steps, weight, temperature

    def result(
        self,
        corpus: Path,
        teacher: Path,
        student: str,
        condition: str,
        of: Condition,
        seed: int,
        pool: Sequence[Path],
    ) -> Result:
        """Train, unless done already, and measure on test."""
        key = {"corpus": corpus.name, "student": student, "condition": condition}
        key |= {"steps": self.steps, "seed": seed}
        if of.has_teacher:
            key |= {"weight": self.weight, "temperature": self.temperature}
        if (known := known_row(self.file, key)) is not None:
            return known
        # The scores of a teacher are those of all students of a condition.
        folder = self.out / f"{corpus.name} {condition}".replace(" ", "_").replace(",", "")
        folder.mkdir(exist_ok=True)
        config = folder / f"{student}.cfg"
        shipped = load_config(ROOT / "configs" / f"{student}.cfg", overrides=self._overrides(seed))
        without_calibration(shipped)  # dev is one doc
        shipped.to_disk(config)
        gold, dev = corpus / f"{of.gold}.spacy", corpus / "dev.spacy"
        if of.has_teacher:
            texts = {"": [], "rest": [corpus / "rest.spacy"]}.get(of.texts)
            if texts is None:
                texts = [path for path in pool if path.parent != corpus]
            words = ["distill", *map(str, texts), str(folder), "--teacher", str(teacher)]
            words += ["--gold", str(gold), "--dev", str(dev), "--config", str(config)]
            words += ["--weight", str(self.weight), "--temperature", str(self.temperature)]
            words += ["--folds", str(of.folds)]
            _ours([*words, "--resume"], folder / "log")
        else:
            words = ["train", str(config), "--output", str(folder)]
            words += ["--paths.train", str(gold), "--paths.dev", str(dev)]
            _spacy(words, folder / "log")
        return self.measured(key, corpus, folder / "model-last", teacher)

    def measured(self, key: Result, corpus: Path, model: Path, teacher: Path) -> Result:
        """Measure a pipeline on test, unless done already."""
        if (known := known_row(self.file, key)) is not None:
            return known
        row = {**key, **measure(spacy.load(model), spacy.load(teacher), corpus / "test.spacy")}
        srsly.write_jsonl(self.file, [row], append=True, append_new_line=False)
        print(*key.values(), f"F1 {100 * row['f']:.1f}", file=sys.stderr, flush=True)
        return row

    def _overrides(self, seed: int) -> Result:
        return {
            "system.seed": seed,
            "training.max_steps": self.steps,
            "training.eval_frequency": self.steps,
            "training.patience": 0,
            "training.optimizer.learn_rate.total_steps": self.steps,
            "corpora.dev.limit": 1,  # the last model does not depend on dev
        }


def make_tenth(corpus: Path) -> None:
    """Divide the train part: every tenth doc keeps its entities, the others go to another file."""
    if (corpus / "rest.spacy").exists():  # its time is in the fingerprint of a run
        return
    docs = list(DocBin().from_disk(corpus / "train.spacy").get_docs(Vocab()))
    DocBin(docs=docs[::SHARE]).to_disk(corpus / "tenth.spacy")
    rest = [doc for i, doc in enumerate(docs) if i % SHARE]
    DocBin(docs=rest).to_disk(corpus / "rest.spacy")


def _ours(words: list[str], log: Path) -> None:
    with log.open("a") as file:
        command = [sys.executable, "-m", "spacy_crf_ner", *words]
        subprocess.run(command, check=True, stdout=file, stderr=file)


def measure(nlp: Language, teacher: Language, test: Path) -> Result:
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


def table(rows: Sequence[Result]) -> str:
    """Format the rows as Markdown, a table for each corpus: mean and spread over seeds."""
    lines: list[str] = []
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        of_corpus = [row for row in rows if row["corpus"] == corpus]
        teacher = next((row["f"] for row in of_corpus if row["student"] == TEACHER), None)
        lines.append(f"| {corpus} | F1 | of the teacher's | agreement | ECE | words/s |")
        lines.append("|---" * 6 + "|")
        names = ("student", "condition", "steps", "weight", "temperature")
        for key in dict.fromkeys(tuple(row.get(name) for name in names) for row in of_corpus):
            own = [row for row in of_corpus if tuple(row.get(name) for name in names) == key]
            cells = [", ".join(str(part) for part in key[:2] if part)]
            cells.append(_spread([100 * row["f"] for row in own]))
            mean = statistics.mean(row["f"] for row in own)
            cells.append(f"{100 * mean / teacher:.0f} %" if teacher else "-")
            cells += [_spread([100 * row[name] for row in own]) for name in ("agreement", "ece")]
            speeds = [row["words_per_second"] for row in own if "words_per_second" in row]
            cells.append(f"{statistics.mean(speeds):,.0f}" if speeds else "-")
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
