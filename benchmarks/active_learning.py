"""F1 over annotated tokens, where gold answers what `suggest` asks: docs/benchmarks.md."""

import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.vocab import Vocab

from benchmarks import common
from spacy_crf_ner.active_learning import STRATEGIES, Options, Unit
from spacy_crf_ner.active_learning.ranking import identify, rank_texts
from spacy_crf_ner.data.merging import merge_answers
from spacy_crf_ner.data.offsets import INCORRECT
from spacy_crf_ner.data.repair_log import ConversionLog

SPANS = "spans"  # questions about spans, instead of whole sentences
SHARES = (0.9, 0.95, 0.98)


def main(
    folder: common.Folder,
    out: common.Out,
    corpus: Annotated[str, typer.Option(help="A folder: gmb, wikigold or wnut17.")] = "wikigold",
    steps: common.Steps = 300,
    rounds: Annotated[int, typer.Option(help="Rounds of annotation.")] = 10,
    sentences: Annotated[int, typer.Option(help="Sentences to begin with.")] = 100,
    tokens: Annotated[int, typer.Option(help="Tokens annotated in a round.")] = 2500,
    questions: Annotated[int, typer.Option(help="Questions about spans in a round.")] = 300,
    max_per_surface: Annotated[int, typer.Option(help="As for `suggest`.")] = 3,
    strategies: Annotated[
        str, typer.Option(help=f"Comma-separated; {SPANS}: questions about spans.")
    ] = ",".join((*STRATEGIES, SPANS)),
    config: common.ConfigFile = common.CONFIGS / "char.cfg",
    transformer: common.Transformer = common.MINILM,
    seeds: common.Seeds = "0",
    gpu_id: common.Gpu = -1,
) -> None:
    """Measure test F1 over annotated tokens, where gold answers what each strategy asks.

    The rounds of a strategy and a seed are added to active_learning.csv in the output folder when
    the last one has ended; `figures learning` draws it.
    """
    common.print_machine(gpu_id)
    prepared = common.converted(folder / corpus, out)
    common.check_same(out, {f"config {config.stem}": config})
    key = {
        "corpus": corpus,
        "device": common.device_name(gpu_id),
        "config": config.stem,
        "steps": steps,
    }
    key |= {"batch": tokens, "repeats": max_per_surface, "begin": sentences}
    key |= {"questions": questions}
    if common.changed(config, {})["paths"].get("transformer"):
        key["transformer"] = Path(transformer).name
        common.check_same(out, common.transformer_input(transformer))
    simulation = Simulation(prepared, key, config, transformer, gpu_id)
    rows = common.Rows(out / "active_learning.csv")
    for seed in common.numbers(seeds):
        for strategy in ("all", *strategies.split(",")):
            last = 0 if strategy == "all" else rounds
            own = {**key, "strategy": strategy, "seed": seed}
            if not rows.known({**own, "round": last}):
                for number, found in enumerate(simulation.run(strategy, seed, last)):
                    if not rows.known({**own, "round": number}):
                        rows.add({**own, "round": number, **found}, common.environment(gpu_id))
    print_table(rows.matching(key))


class Simulation:
    """Rounds of annotation of the train part of a corpus.

    corpus: Its folder.
    key: Settings: steps, tokens in a round ("batch"), repeats, sentences to begin with, and
        questions in a round.
    config: Of the pipelines.
    """

    def __init__(
        self, corpus: Path, key: common.Row, config: Path, transformer: str, gpu_id: int = -1
    ) -> None:
        self.config, self.transformer, self.gpu_id = config, transformer, gpu_id
        self.steps, self.tokens, self.max_per_surface = key["steps"], key["batch"], key["repeats"]
        self.sentences, self.questions = key["begin"], key["questions"]
        self.train, self.test = (
            common.read_docs(corpus / f"{part}.spacy") for part in ("train", "test")
        )
        self.by_id = {identify(doc.text): doc for doc in self.train if doc.text.strip()}

    def run(self, strategy: str, seed: int, rounds: int) -> list[common.Row]:
        """Ask, answer and train in rounds; "all" trains once, on all sentences."""
        ids = random.Random(seed).sample(sorted(self.by_id), self.sentences)
        asked: list[str] = []  # ids of sentences, or questions
        found = []
        for number in range(rounds + 1):
            docs = self.train if strategy == "all" else self._annotated(strategy, ids, asked)
            nlp = self._trained(docs, seed)
            known = sum(sum(token.ent_iob != 0 for token in doc) for doc in docs)
            row = {
                "sentences": len(docs),
                "tokens": known,
                "f1": round(common.f1(nlp, self.test), 4),
            }
            found.append({**row, "decisions": len(asked) if strategy == SPANS else None})
            print(strategy, seed, number, row, flush=True)
            if number < rounds:
                asked += self._ask(nlp, strategy, seed, {*ids}, asked)
        return found

    def _trained(self, docs: Sequence[Doc], seed: int) -> Language:
        settings = {
            **common.schedule(self.steps, seed),
            "components.ner.incorrect_spans_key": INCORRECT,
        }
        config = common.changed(self.config, settings)
        if config["paths"].get("transformer"):
            config["paths"]["transformer"] = self.transformer
        return common.trained_on(docs, config, self.gpu_id)

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
            nlp, [common.without_entities(doc, Vocab()).to_bytes() for doc in pool], options
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

    def _annotated(self, strategy: str, ids: list[str], asked: list[str]) -> list[Doc]:
        """Return the annotated sentences."""
        if strategy != SPANS:
            return [self.by_id[each] for each in (*ids, *asked)]
        answers = [self._answer(question) for question in asked]
        base = [self.by_id[each].copy() for each in ids]
        return list(merge_answers(base, answers, ConversionLog(repair=True)))

    def _answer(self, question: str) -> Doc:
        """Answer from gold, as somebody does who sees only this question."""
        identity, start, end, label = question.split(" ", 3)
        gold = self.by_id[identity]
        doc = common.without_entities(gold, gold.vocab)
        span = Span(doc, int(start), int(end), label)
        ents = [(ent.start, ent.end, ent.label_) for ent in gold.ents]
        if (span.start, span.end, label) in ents:
            doc.set_ents([span], default="missing")
        else:
            doc.set_ents([], default="missing")
            doc.spans[INCORRECT] = [span]
        return doc


def _name(doc: Doc, unit: Unit) -> str:
    """Name a sentence by its text, and a question by its doc and the tokens of its span."""
    if unit.question is None:
        return identify(doc.text)
    start, end, label = unit.question
    span = doc.char_span(start + unit.source["offset"], end + unit.source["offset"])
    return f"{identify(doc.text)} {span.start} {span.end} {label}"


def print_table(rows: list[common.Row]) -> None:
    """Print the tokens that reach shares of the F1 with all data; means of seeds.

    Questions cost decisions: tokens of rejected spans stay without annotation.
    """
    common.print_header(
        "strategy", *(f"{share:.0%} of F1: tokens" for share in SHARES), "decisions"
    )
    goal = {row["seed"]: row["f1"] for row in rows if row["strategy"] == "all"}
    for (strategy,), own in common.by_key(rows, "strategy").items():
        cells = []
        for share in SHARES if strategy != "all" else ():
            reached = [
                next((row["tokens"] for row in curve if row["f1"] >= share * goal[seed]), None)
                for (seed,), curve in common.by_key(own, "seed").items()
                if strategy != SPANS
            ]
            whole = [each for each in reached if each is not None]
            missed = f" ({len(reached) - len(whole)} never)" if len(whole) < len(reached) else ""
            cells.append((f"{statistics.mean(whole):,.0f}" if whole else "-") + missed)
        if cells:
            common.print_row(strategy, *cells, max(row["decisions"] or 0 for row in own) or "-")
    for seed, score in goal.items():
        print(f"F1 with all data, seed {seed}: {score:.1f}")
