"""F1 of crf_ner and other recognizers that find overlapping spans."""

import math
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import srsly
import typer
from spacy.pipeline.spancat import DEFAULT_SPANCAT_MODEL, DEFAULT_SPANCAT_SINGLELABEL_MODEL
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_config
from spacy.vocab import Vocab

from benchmark import ROOT, Transformer, _memory, _Training
from benchmark_accuracy import Result, _Runs, _spread
from benchmark_speed import ENVIRONMENTS, Entities, System, numbered, recipes
from inputs import check_same, of_transformer
from spacy_crf_ner.data import SPLITS
from spacy_crf_ner.training.calibration import without_calibration

KEY = "sc"  # of doc.spans
COVERED = 0.99  # of the gold spans of train: spancat sees no longer spans
SYSTEMS = (
    System("crf_ner, 3 layers", "spacy_pipeline", "layers_3"),
    System("crf_ner, 3 layers, f_score", "spacy_pipeline", "layers_3"),
    System("crf_ner, 2 layers", "spacy_pipeline", "layers_2"),
    System("crf_ner, 1 layer", "spacy_pipeline", "layers_1"),
    System("spaCy spancat", "spacy_pipeline", "spancat"),
    System("spaCy single-label spancat", "spacy_pipeline", "spancat_singlelabel"),
    System("EDS-NLP ner_crf", "eds_tagger", "edsnlp", "edsnlp"),
)
CONFIG = ROOT / "configs" / "transformer.cfg"
SPANCAT = ROOT / "configs" / "spacy_ner.cfg"  # spancat replaces its `ner`
OURS: dict[str, dict[str, Any]] = {  # overrides of it
    f"layers_{layers}": {
        "components.ner.overlap": True,
        "components.ner.max_nesting": layers,
        "components.ner.spans_key": KEY,
    }
    for layers in (1, 2, 3)
}
SPANCATS = {
    "spancat": DEFAULT_SPANCAT_MODEL,
    "spancat_singlelabel": DEFAULT_SPANCAT_SINGLELABEL_MODEL,
}
THRESHOLDS = {  # to choose from on dev
    "spaCy spancat": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    "crf_ner, 3 layers, f_score": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4),
}
PLACES = ("flat", "outer", "nested", "nested in its label")
COLUMNS = {"train s": "train_seconds", "train MB": "train_peak_mb", "words/s": "words_per_second"}
COLUMNS |= {"predict MB": "predict_peak_mb", "parameters": "parameters"}


def overlapping(
    folder: Annotated[Path, typer.Argument(help="Folder with train.jsonl, dev.jsonl, test.jsonl.")],
    out: Annotated[Path, typer.Argument(help="Output folder; finished runs are kept.")],
    only: Annotated[str, typer.Option(help="Only systems whose name contains this.")] = "",
    steps: Annotated[int, typer.Option(help="Training steps of every run.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0,1,2",
    threads: Annotated[int, typer.Option(help="Threads of each system.")] = 2,
    peers: Annotated[Path, typer.Option(help="Output folder of `peers`.")] = ENVIRONMENTS,
    transformer: Transformer = str(ROOT / "assets" / "minilm"),
) -> None:
    """Compare test scores on overlapping spans: same transformer, batches, steps, tokens, scorer.

    A doc is a sentence. crf_ner has the learning rate of its config. Others have their best one on
    the dev part, with the first seed. spancat and f_score have their best threshold there, for each
    model.
    Each run adds a line to overlapping.jsonl in the output folder. A peak of memory is that of a
    process that trains one model, or annotates one part.
    """
    corpus = out / folder.name
    chosen = [system for system in SYSTEMS if only in system.name]
    if not (corpus / "test.jsonl").exists():
        convert(folder, corpus)
    inputs = {f"config {path.stem}": path for path in (CONFIG, SPANCAT)}
    inputs |= recipes(system for system in chosen if system.venv) | of_transformer(transformer)
    check_same(out, {**inputs, f"corpus {folder.name}": folder})
    runs = _SpanRuns(out, peers, transformer, steps, threads)
    for system in chosen:
        with runs.comparison.guard(system.name):
            rate = runs.best_rate(system, corpus, int(seeds.split(",")[0]))
            for seed in seeds.split(","):
                runs.result(system, corpus, rate, int(seed), "test")
    if runs.file.exists():
        print(table([row for row in runs.rows() if row["corpus"] == corpus.name]))


class _SpanRuns(_Runs):
    """The runs of one budget, with training and prediction in a process of their own."""

    name = "overlapping.jsonl"

    def config(self, system: System) -> Path:
        return CONFIG

    def result(self, system: System, corpus: Path, rate: float, seed: int, part: str) -> Result:
        """Return the scores on a part, at the threshold that is best on dev for this model."""
        thresholds: tuple[float | None, ...] = THRESHOLDS.get(system.name, (None,))
        if len(thresholds) > 1 and part != "dev":
            thresholds = (self.result(system, corpus, rate, seed, "dev")["threshold"],)
        rows = [self._row(system, corpus, rate, seed, part, of) for of in thresholds]
        return max(rows, key=lambda row: row["f"])

    def _row(
        self,
        system: System,
        corpus: Path,
        rate: float,
        seed: int,
        part: str,
        threshold: float | None,
    ) -> Result:
        key = {**self.key(system, corpus, rate, seed, part), "threshold": threshold}
        known = self.known(key)
        if known is not None:
            return known
        model, training = self._trained(system, corpus, rate, seed)
        path = corpus / f"{part}.jsonl"
        settings = {} if threshold is None else {"threshold": threshold}
        found, process = self.predicted(system, model, path, **settings)
        gold = numbered([record["spans"] for record in srsly.read_jsonl(path)])
        of_places = {"recalls": recalls(gold, found)}
        return self.add(key, gold, found, {**of_places, **training, **process})

    def _trained(
        self, system: System, corpus: Path, rate: float, seed: int
    ) -> tuple[Path, dict[str, int]]:
        """Train, unless done already; return the folder of the model, and what training took."""
        out = self.comparison.out
        name = f"{corpus.name}_{system.model}_{Path(self.transformer).name}"
        folder = out / f"{name}_{rate:g}_{seed}_{self.steps}"
        model = folder if system.venv else folder / "model-last"
        done = folder.with_name(f"{folder.name}.json")
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            process = self.comparison.start(system)
            try:
                process.ask("versions")  # it has imported its libraries
                start = perf_counter()
                if system.venv:
                    where = (str(corpus), str(folder), self.transformer)
                    process.ask("train", *where, self.steps, rate, seed)
                else:
                    config = out / f"{system.model}.cfg"
                    _config(system.model, corpus).to_disk(config)
                    budget = (config, f"{rate:g}", f"{seed}", self.transformer, self.steps, -1)
                    overrides = _Training(out, corpus.name, *budget).overrides()
                    overrides["corpora.dev.limit"] = 1  # the last model does not depend on dev
                    process.ask("train_config", str(config), str(folder), overrides)
                figures = {"train_seconds": round(perf_counter() - start)}
                figures["train_peak_mb"] = round(_memory("VmHWM", process.pid))
                process.ask("load", str(model), {})
                figures["parameters"] = process.ask("parameters")
            finally:
                process.stop()
            srsly.write_json(done, figures)
        return model, dict(srsly.read_json(done))


def _config(model: str, corpus: Path) -> Any:
    """Return the config of a spaCy pipeline."""
    if model in OURS:
        config = load_config(CONFIG, overrides=OURS[model])
        without_calibration(config)  # dev is one doc
        return config
    config = load_config(SPANCAT)
    tok2vec = config["components"].pop("ner")["model"]["tok2vec"]
    docs = DocBin().from_disk(corpus / "train.spacy").get_docs(Vocab())
    config["components"][model] = {
        "factory": model,
        "spans_key": KEY,
        "model": {**SPANCATS[model], "tok2vec": tok2vec},
        "suggester": {
            "@misc": "spacy.ngram_range_suggester.v1",
            "min_size": 1,
            "max_size": covering(len(span) for doc in docs for span in doc.spans[KEY]),
        },
    }
    config["nlp"]["pipeline"] = ["tok2vec", model]
    return config


def covering(lengths: Iterable[int], share: float = COVERED) -> int:
    """Return the smallest length that at least this share of the lengths does not exceed."""
    ordered = sorted(lengths)
    return ordered[math.ceil(share * len(ordered)) - 1]


def convert(source: Path, folder: Path) -> None:
    """Convert the documents of a corpus to .spacy and .jsonl files with a doc for each sentence."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in SPLITS:
        docs: list[Doc] = []
        crossing = 0
        for record in srsly.read_jsonl(source / f"{part}.jsonl"):
            sentences, left_out = split_sentences(record, Vocab())
            docs += sentences
            crossing += left_out
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
        srsly.write_jsonl(folder / f"{part}.jsonl", map(_record, docs))
        number = sum(len(doc.spans[KEY]) for doc in docs)
        print(
            f"{part}: {len(docs)} sentences, {number} spans; {crossing} that cross the end of a "
            "sentence are left out",
            file=sys.stderr,
        )


def split_sentences(record: dict[str, Any], vocab: Vocab) -> tuple[list[Doc], int]:
    """Make a Doc of each sentence; also return the number of spans in no sentence.

    Docs with unknown spaces keep their tokens in `spacy train`.
    """
    tokens = record["tokens"]
    starts = {token["start"]: i for i, token in enumerate(tokens)}
    ends = {token["end"]: i + 1 for i, token in enumerate(tokens)}
    spans = sorted((starts[s["start"]], ends[s["end"]], s["label"]) for s in record["spans"])
    docs = []
    for first, last in pairwise([*(starts[i] for i in record["sentence_starts"]), len(tokens)]):
        doc = Doc(vocab, words=[token["text"] for token in tokens[first:last]])
        inside = [span for span in spans if first <= span[0] and span[1] <= last]
        doc.spans[KEY] = [Span(doc, s - first, e - first, label) for s, e, label in inside]
        docs.append(doc)
    return docs, len(spans) - sum(len(doc.spans[KEY]) for doc in docs)


def _record(doc: Doc) -> dict[str, Any]:
    tokens = [(token.idx, token.idx + len(token)) for token in doc]
    spans = [(span.start_char, span.end_char, span.label_) for span in doc.spans[KEY]]
    return {"text": doc.text, "tokens": tokens, "spans": spans}


def recalls(gold: Entities, found: Entities) -> dict[str, float | None]:
    """Compute the recall of the gold spans in each place; None where there is none."""
    of_docs = defaultdict(list)
    for span in gold:
        of_docs[span[0]].append(span)
    hits: dict[str, list[bool]] = {place: [] for place in PLACES}
    for span in gold:
        for place in places(span, of_docs[span[0]]):
            hits[place].append(span in found)
    return {place: statistics.mean(of) if of else None for place, of in hits.items()}


def places(span: tuple[int, int, int, str], spans: Sequence[Any]) -> list[str]:
    """Say where a span is among the spans of its doc.

    Flat spans overlap no other. Nested spans are inside another one, maybe of their own label.
    Outer spans overlap others, but are inside none.
    """
    _, start, end, label = span
    others = [o for o in spans if o != span and o[1] < end and start < o[2]]
    around = [o[3] for o in others if o[1] <= start and end <= o[2]]
    if around:
        return ["nested", "nested in its label"] if label in around else ["nested"]
    return ["outer"] if others else ["flat"]


def table(rows: Sequence[Result]) -> str:
    """Format the test scores as Markdown, a table for each number of steps: mean over seeds.

    Of a system that was run with several learning rates, those of its last run.
    """
    lines: list[str] = []
    titles = ["precision", "recall", "F1", *(f"recall, {place}" for place in PLACES), *COLUMNS]
    for steps in sorted({row["steps"] for row in rows}):
        lines += [f"| {steps} steps | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for system in SYSTEMS:
            own = [
                row
                for row in rows
                if (row["system"], row["steps"], row["part"]) == (system.name, steps, "test")
            ]
            if own:
                own = [row for row in own if row["rate"] == own[-1]["rate"]]  # the last one chosen
                shares = [[row[name] for row in own] for name in "prf"]
                shares += [[row["recalls"][place] for row in own] for place in PLACES]
                cells = [_spread([100 * x for x in of if x is not None]) for of in shares]
                for column in COLUMNS.values():
                    measured = [row[column] for row in own if column in row]
                    cells.append(f"{statistics.mean(measured):,.0f}" if measured else "-")
                lines.append(f"| {' | '.join([system.name, *cells])} |")
        lines.append("")
    return "\n".join(lines)
