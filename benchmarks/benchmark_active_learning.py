"""What annotation costs: simulated rounds of `suggest`, and label errors that `review` finds."""

import random
import statistics
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import spacy
import srsly
import typer
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from spacy.vocab import Vocab
from thinc.api import Config

from benchmark import ROOT, Gpu, Transformer, _convert, _print_machine, device_name
from inputs import check_same, of_transformer
from spacy_crf_ner.active_learning import STRATEGIES, Options, Unit, review
from spacy_crf_ner.active_learning.ranking import identify, rank_texts
from spacy_crf_ner.atomic import atomic_write
from spacy_crf_ner.data.merging import merge_answers
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.data.repair_log import ConversionLog
from spacy_crf_ner.docbin import without_annotation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONFIG = ROOT / "configs" / "char.cfg"
SPANS = "spans"  # questions about spans, instead of whole sentences
SHARES = (0.9, 0.95, 0.98)
KINDS = ("label", "boundary", "deleted")
TOPS = (0.01, 0.02, 0.05)  # of findings, as shares of the gold entities

Row = dict[str, Any]
Corpus = Annotated[str, typer.Option(help="A folder: gmb, wikigold or wnut17.")]
Steps = Annotated[int, typer.Option(help="Training steps.")]
Seeds = Annotated[str, typer.Option(help="Seeds; a run for each.")]
ConfigFile = Annotated[Path, typer.Option("--config", help="Config of the pipelines.")]


def active_learning(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpora.")],
    out: Annotated[Path, typer.Argument(help="Output folder; finished rounds are kept.")],
    corpus: Corpus = "wikigold",
    steps: Steps = 300,
    rounds: Annotated[int, typer.Option(help="Rounds of annotation.")] = 10,
    sentences: Annotated[int, typer.Option(help="Sentences to begin with.")] = 100,
    tokens: Annotated[int, typer.Option(help="Tokens annotated in a round.")] = 2500,
    questions: Annotated[int, typer.Option(help="Questions about spans in a round.")] = 300,
    max_per_surface: Annotated[int, typer.Option(help="As for `suggest`.")] = 3,
    strategies: Annotated[
        str, typer.Option(help=f"Comma-separated; {SPANS}: questions about spans.")
    ] = ",".join((*STRATEGIES, SPANS)),
    config: ConfigFile = CONFIG,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    seeds: Seeds = "0",
    gpu_id: Gpu = -1,
) -> None:
    """Measure test F1 over annotated tokens, where gold answers what each strategy asks.

    Each round adds a line to active_learning.jsonl in the output folder; the .svg file of the
    corpus has all of them.
    """
    _print_machine(gpu_id)
    _convert(folder / corpus, out / corpus)
    base = _read_config(config, transformer)
    check_same(out, {f"config {config.stem}": config})
    key = {"device": device_name(gpu_id), "config": config.stem, "steps": steps, "batch": tokens}
    key |= {"repeats": max_per_surface, "begin": sentences, "questions": questions}
    if base["paths"].get("transformer"):
        key = {"transformer": Path(transformer).name, **key}
        check_same(out, of_transformer(transformer))
    simulation = _Simulation(out, {"corpus": corpus, **key}, base, gpu_id)
    for seed in map(int, seeds.split(",")):
        simulation.whole(seed)
        for strategy in strategies.split(","):
            simulation.run(strategy, seed, rounds)
    print(table(simulation.rows()))
    plot(simulation.rows(), out / f"{corpus}.svg")


class _Simulation:
    """The rounds of one corpus and budget: those of an earlier call are read, others are made.

    out: Output folder.
    key: Corpus, device, config, steps, tokens in a round ("batch"), repeats, sentences to begin
        with, and questions in a round.
    base: The config.
    gpu_id: GPU to use, -1 for the CPU.
    """

    def __init__(self, out: Path, key: Row, base: Config, gpu_id: int = -1) -> None:
        self.file, self.key, self.base = out / "active_learning.jsonl", key, base
        self.gpu_id = gpu_id
        self.steps, self.tokens, self.max_per_surface = key["steps"], key["batch"], key["repeats"]
        self.sentences, self.questions = key["begin"], key["questions"]
        self.train, self.test = (
            _read(out / key["corpus"] / f"{part}.spacy") for part in ("train", "test")
        )
        self.by_id = {identify(doc.text): doc for doc in self.train if doc.text.strip()}

    def rows(self) -> list[Row]:
        rows = list(srsly.read_jsonl(self.file)) if self.file.exists() else []
        return [row for row in rows if self.key.items() <= row.items()]

    def whole(self, seed: int) -> None:
        """Train on all sentences."""
        if not self._known("all", seed):
            nlp = self._trained(self.train, seed)
            self._store("all", seed, 0, self.train, [], f1(nlp, self.test))

    def run(self, strategy: str, seed: int, rounds: int) -> None:
        """Ask, answer and train in rounds."""
        known = self._known(strategy, seed)
        if len(known) > rounds:
            return
        ids = random.Random(seed).sample(sorted(self.by_id), self.sentences)
        asked: list[str] = []  # ids of sentences, or questions
        for row in known:
            if "asked" not in row:
                raise typer.BadParameter(
                    f"{self.file}: expected what {strategy} asked in round {row['round']} of seed "
                    f"{seed}, got a row without it, which cannot be continued: remove the rows."
                )
            asked += row["asked"]
        for number in range(len(known), rounds + 1):
            docs, decisions = self._annotated(strategy, ids, asked)
            begun = number == 0
            nlp = self._begun(docs, seed) if begun else self._trained(docs, seed)
            score = f1(nlp, self.test)
            new = self._ask(nlp, strategy, seed, {*ids}, asked)
            self._store(strategy, seed, number, docs, new, score, decisions)
            asked += new

    def _trained(self, docs: list[Doc], seed: int) -> Language:
        return trained(docs, self.steps, seed, self.base, self.gpu_id)

    def _begun(self, docs: list[Doc], seed: int) -> Language:
        """Train on the first sentences, which are the same for all strategies."""
        key = (*self.key.values(), seed)
        folder = self.file.parent / "_".join(map(str, key)).replace(" ", "-")
        if not folder.exists():
            with atomic_write(folder) as new:
                self._trained(docs, seed).to_disk(new)
        return spacy.load(folder)

    def _ask(
        self, nlp: Language, strategy: str, seed: int, begun: set[str], asked: list[str]
    ) -> list[str]:
        """Return what a strategy asks next, as ids of sentences, or "id start end label"."""
        spans = strategy == SPANS
        pool = [doc for each, doc in self.by_id.items() if each not in begun]
        options = Options(
            n=self.questions if spans else len(pool),
            unit=SPANS if spans else "docs",
            strategy="entropy" if spans else strategy,
            budget=None if spans else self.tokens,
            max_per_surface=self.max_per_surface,
            random_share=0.0,
            seed=seed,
        )
        found, texts = rank_texts(
            nlp, [without_annotation(doc, Vocab()).to_bytes() for doc in pool], options
        )
        if failed := [text.error for text in texts if text.error]:
            raise RuntimeError(failed[0])
        selection = options.selection()
        done = {*asked}
        names: dict[str, str] = {}
        for doc, unit in ((doc, unit) for doc, units in zip(pool, found) for unit in units):
            names[unit.id] = _name(doc, unit)
            if names[unit.id] not in done:
                selection.add([unit])
        chosen: list[str] = []
        left = self.tokens
        for unit in selection.ranked:
            if spans or len(unit.tokens) <= left:
                chosen.append(names[unit.id])
                left -= len(unit.tokens)
        return chosen

    def _annotated(
        self, strategy: str, ids: list[str], asked: list[str]
    ) -> tuple[list[Doc], int | None]:
        """Return the annotated sentences, and the number of decisions about spans."""
        if strategy != SPANS:
            return [self.by_id[each] for each in (*ids, *asked)], None
        answers = [self._answer(question) for question in asked]
        base = [self.by_id[each].copy() for each in ids]
        log = ConversionLog(repair=True)
        return list(merge_answers(base, answers, log)), len(asked)

    def _answer(self, question: str) -> Doc:
        """Answer from gold, as somebody does who sees only this question."""
        identity, start, end, label = question.split(" ", 3)
        gold = self.by_id[identity]
        doc = without_annotation(gold, gold.vocab)
        span = Span(doc, int(start), int(end), label)
        ents = [(ent.start, ent.end, ent.label_) for ent in gold.ents]
        if (span.start, span.end, label) in ents:
            doc.set_ents([span], default="missing")
        else:
            doc.set_ents([], default="missing")
            doc.spans[INCORRECT] = [span]
        return doc

    def _known(self, strategy: str, seed: int) -> list[Row]:
        key = {"strategy": strategy, "seed": seed}
        return [row for row in self.rows() if key.items() <= row.items()]

    def _store(
        self,
        strategy: str,
        seed: int,
        number: int,
        docs: Sequence[Doc],
        asked: list[str],
        score: float,
        decisions: int | None = None,
    ) -> None:
        row = {**self.key, "strategy": strategy, "seed": seed, "round": number}
        known = sum(sum(token.ent_iob != 0 for token in doc) for doc in docs)
        row |= {"sentences": len(docs), "tokens": known, "decisions": decisions, "f1": score}
        with self.file.open("a") as file:
            file.write(srsly.json_dumps({**row, "asked": asked}) + "\n")
        print(srsly.json_dumps(row), flush=True)


def _name(doc: Doc, unit: Unit) -> str:
    """Name a sentence by its text, and a question by its doc and the tokens of its span."""
    if unit.question is None:
        return identify(doc.text)
    start, end, label = unit.question
    span = doc.char_span(start + unit.source["offset"], end + unit.source["offset"])
    return f"{identify(doc.text)} {span.start} {span.end} {label}"


def table(rows: list[Row]) -> str:
    """Make a table of the tokens that reach shares of the F1 with all data; means of seeds.

    Questions cost decisions: tokens of rejected spans stay without annotation.
    """
    lines = [f"| strategy | {' | '.join(f'{s:.0%} of F1: tokens' for s in SHARES)} | decisions |"]
    lines.append("|---" * (len(SHARES) + 2) + "|")
    goal = {row["seed"]: row["f1"] for row in rows if row["strategy"] == "all"}
    for strategy in dict.fromkeys(row["strategy"] for row in rows if row["strategy"] != "all"):
        cells = []
        own = [row for row in rows if row["strategy"] == strategy and row["seed"] in goal]
        for share in SHARES:
            reached = [
                next((r["tokens"] for r in curve if r["f1"] >= share * goal[seed]), None)
                for seed, curve in _curves(own).items()
                if strategy != SPANS
            ]
            whole = [each for each in reached if each is not None]
            missed = f" ({len(reached) - len(whole)} never)" if len(whole) < len(reached) else ""
            cells.append((f"{statistics.mean(whole):,.0f}" if whole else "-") + missed)
        asked = max((row["decisions"] or 0 for row in own), default=0)
        lines.append(f"| {strategy} | {' | '.join(cells)} | {asked or '-'} |")
    lines += [f"F1 with all data, seed {seed}: {score:.1f}" for seed, score in goal.items()]
    return "\n".join(lines)


def _curves(rows: list[Row]) -> dict[int, list[Row]]:
    curves: dict[int, list[Row]] = {}
    for row in rows:
        curves.setdefault(row["seed"], []).append(row)
    return curves


def plot(rows: list[Row], path: Path) -> None:
    """Write a chart of F1 over annotated tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    draw_curves(rows, figure.subplots())
    figure.savefig(path)
    print(path)


def draw_curves(rows: list[Row], axes: "Axes") -> None:
    """Draw F1 over annotated tokens: the mean of the seeds, and a band from lowest to highest.

    Without questions about spans, which do not cost tokens.
    """
    found = dict.fromkeys(row["strategy"] for row in rows)
    for strategy in (name for name in found if name not in ("all", SPANS)):
        by_round: dict[int, list[Row]] = {}
        for row in rows:
            if row["strategy"] == strategy:
                by_round.setdefault(row["round"], []).append(row)
        at = [statistics.mean(r["tokens"] for r in each) for each in by_round.values()]
        scores = [[r["f1"] for r in each] for each in by_round.values()]
        (line,) = axes.plot(at, [statistics.mean(each) for each in scores], label=strategy)
        low, high = [min(each) for each in scores], [max(each) for each in scores]
        axes.fill_between(at, low, high, alpha=0.15, color=line.get_color())
    whole = [row["f1"] for row in rows if row["strategy"] == "all"]
    axes.axhline(statistics.mean(whole), color="gray", linestyle="--", label="all data")
    axes.set(xlabel="annotated tokens", ylabel="F1 on test")
    axes.legend(frameon=False)


def label_errors(
    folder: Annotated[Path, typer.Argument(help="Folder with the corpora.")],
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    corpus: Corpus = "wikigold",
    steps: Steps = 300,
    folds: Annotated[int, typer.Option(help="As for `review`.")] = 5,
    share: Annotated[float, typer.Option(help="Share of the entities that is corrupted.")] = 0.05,
    config: ConfigFile = CONFIG,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
    seeds: Seeds = "0",
    gpu_id: Gpu = -1,
) -> None:
    """Corrupt gold entities at random, and measure how many of them `review` ranks first.

    Counts as many findings as 1, 2 and 5 % of the entities, and the recall among the last. Findings
    of real errors count as wrong.
    """
    _print_machine(gpu_id)
    _convert(folder / corpus, out / corpus)
    precisions = " | ".join(f"precision at {top:.0%}" for top in TOPS)
    print(f"| seed | corrupted | {precisions} | recall | recall by kind |\n" + "|---" * 7 + "|")
    for seed in map(int, seeds.split(",")):
        docs = _read(out / corpus / "train.spacy")
        corrupted = corrupt(docs, share, seed)
        path = out / f"{corpus}_corrupted_{seed}.spacy"
        DocBin(docs=docs).to_disk(path)
        nlp = trained(docs, 1, seed, _read_config(config, transformer), gpu_id)
        nlp.config["training"].update(_schedule(steps))
        nlp.config["training"]["optimizer"]["learn_rate"]["total_steps"] = steps
        findings = review(nlp, path, folds, seed=seed).findings
        entities = sum(len(doc.ents) for doc in docs)
        cells = [f"{seed}", f"{len(corrupted)}"]
        for top in TOPS:
            first = findings[: round(top * entities)]
            right = [f for f in first if any(_is_about(f, *each[:3]) for each in corrupted)]
            cells.append(f"{len(right) / len(first):.2f}" if first else "-")
        hits = [each for each in corrupted if any(_is_about(found, *each[:3]) for found in first)]
        by_kind = []
        for kind in KINDS:
            own = [each for each in corrupted if each[3] == kind]
            by_kind.append(f"{kind} {sum(e in hits for e in own)} of {len(own)}")
        cells += [f"{len(hits) / len(corrupted):.2f}", ", ".join(by_kind)]
        print(f"| {' | '.join(cells)} |", flush=True)


def corrupt(docs: list[Doc], share: float, seed: int) -> list[tuple[int, int, int, str]]:
    """Change the label or a boundary of some entities, or delete them.

    Returns the doc of each, the characters of the old and the new entity together, and the kind.
    """
    rng = random.Random(seed)
    places = [(i, j) for i, doc in enumerate(docs) for j in range(len(doc.ents))]
    labels = sorted({ent.label_ for doc in docs for ent in doc.ents})
    changed = []
    by_doc: dict[int, dict[int, str]] = {}
    for i, j in rng.sample(places, round(share * len(places))):
        by_doc.setdefault(i, {})[j] = rng.choice(KINDS)
    for i, kinds in by_doc.items():
        doc, ents = docs[i], []
        taken = {token.i for ent in doc.ents for token in ent}
        for j, ent in enumerate(doc.ents):
            kind = kinds.get(j)
            new: Span | None = ent
            if kind == "label":
                others = [label for label in labels if label != ent.label_]
                new = Span(doc, ent.start, ent.end, rng.choice(others))
            elif kind == "boundary":
                bounds = [(ent.start + 1, ent.end), (ent.start, ent.end - 1)]
                bounds = [each for each in bounds if each[0] < each[1]]
                if ent.end < len(doc) and ent.end not in taken:
                    bounds.append((ent.start, ent.end + 1))
                if ent.start > 0 and ent.start - 1 not in taken:
                    bounds.append((ent.start - 1, ent.end))
                if not bounds:
                    kind, new = "deleted", None
                else:
                    new = Span(doc, *rng.choice(bounds), ent.label_)
            elif kind == "deleted":
                new = None
            if new is not None:
                ents.append(new)
                taken |= {token.i for token in new}
            if kind is not None:
                both = [ent] if new is None else [ent, new]
                start = min(each.start_char for each in both)
                changed.append((i, start, max(each.end_char for each in both), kind))
        doc.set_ents(ents, default="outside")
    return changed


def _is_about(finding: Row, doc: int, start: int, end: int) -> bool:
    ents = [finding[side] for side in ("gold", "predicted") if finding[side]]
    return finding["doc"] == doc and any(e["start"] < end and start < e["end"] for e in ents)


def _read_config(path: Path, transformer: str) -> Config:
    """Read a config, with the transformer if it has one."""
    config = load_config(path, interpolate=False)
    if config["paths"].get("transformer"):
        config["paths"]["transformer"] = transformer
    return config


def trained(docs: Sequence[Doc], steps: int, seed: int, base: Config, gpu_id: int = -1) -> Language:
    """Train the pipeline of a config on docs for a number of steps."""
    config = base.copy()
    config["system"]["seed"] = seed
    config["training"].update(_schedule(steps), before_to_disk=None)  # dev is not held out
    config["training"]["optimizer"]["learn_rate"]["total_steps"] = steps
    with TemporaryDirectory() as name:
        path = str(Path(name) / "train.spacy")
        DocBin(docs=docs, store_user_data=False).to_disk(path)
        DocBin(docs=docs[:20]).to_disk(Path(name) / "dev.spacy")
        config["components"]["ner"]["incorrect_spans_key"] = INCORRECT
        config["paths"].update(train=path, dev=str(Path(name) / "dev.spacy"))
        nlp = init_nlp(config, use_gpu=gpu_id)
        # What train() returns has no averaged weights, where the config averages them.
        _, saved = train(nlp, Path(name), use_gpu=gpu_id, stdout=open("/dev/null", "w"))  # noqa: SIM115
        return spacy.load(saved)


def _schedule(steps: int) -> dict[str, Any]:
    return {"max_steps": steps, "eval_frequency": steps, "patience": 0}


def f1(nlp: Language, docs: Sequence[Doc]) -> float:
    examples = [
        Example(without_annotation(doc, nlp.vocab), deepcopy(doc)) for doc in docs if len(doc)
    ]
    return 100 * float(nlp.evaluate(examples)["ents_f"])


def _read(path: Path) -> list[Doc]:
    return list(_docs(path, spacy.blank("en").vocab))


def _docs(path: Path, vocab: Vocab) -> Iterator[Doc]:
    yield from DocBin().from_disk(path).get_docs(vocab)
