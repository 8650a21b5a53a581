"""F1 of crf_ner and other recognizers on overlapping spans: docs/benchmarks.md."""

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import srsly
import typer
from spacy.pipeline.spancat import DEFAULT_SPANCAT_MODEL
from spacy.tokens import Doc, Span
from spacy.util import load_config
from spacy.vocab import Vocab

from benchmarks import common
from benchmarks.systems import ENVIRONMENTS, Comparison, Entities, Runs, System
from spacy_crf_ner.data import SPLITS
from spacy_crf_ner.training.calibration import without_calibration

KEY = "sc"  # of doc.spans
COVERED = 0.99  # of the gold spans of train: spancat sees no longer spans
SYSTEMS = (
    System("crf_ner, 3 layers", "spacy_pipeline", "layers_3"),
    System("crf_ner, 3 layers, f_score", "spacy_pipeline", "layers_3"),
    System("spaCy spancat", "spacy_pipeline", "spancat"),
    System("EDS-NLP ner_crf", "eds_tagger", "edsnlp", "edsnlp"),
)
CONFIG = common.CONFIGS / "transformer.cfg"
SPANCAT = common.CONFIGS / "spacy_ner.cfg"  # spancat replaces its `ner`
THRESHOLDS = {  # to choose from on dev
    "spaCy spancat": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    "crf_ner, 3 layers, f_score": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4),
}
PLACES = ("flat", "outer", "nested", "nested in its label")
MEASURES = ("train_seconds", "train_peak_mb", "words_per_second", "predict_peak_mb")


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with train.jsonl, dev.jsonl, test.jsonl.")],
    out: common.Out,
    only: common.Only = "",
    steps: common.Steps = 200,
    seeds: common.Seeds = "0,1,2",
    threads: Annotated[int, typer.Option(help="Threads of each system.")] = 2,
    peers: common.Peers = ENVIRONMENTS,
    transformer: common.Transformer = common.MINILM,
) -> None:
    """Compare test scores on overlapping spans: same transformer, batches, steps, tokens, scorer.

    A doc is a sentence. crf_ner has the learning rate of its config. Others have their best one on
    the dev part, with the first seed. spancat and f_score have their best threshold there, for each
    model.
    Each run adds a row to overlapping.csv in the output folder. A peak of memory is that of a
    process that trains one model, or annotates one part.
    """
    corpus = out / folder.resolve().name
    inputs = {f"config {path.stem}": path for path in (CONFIG, SPANCAT)}
    common.check_same(out, {**inputs, f"corpus {corpus.name}": folder})
    if not (corpus / "test.jsonl").exists():
        convert(folder, corpus)
    rows = common.Rows(out / "overlapping.csv")

    def written(system: System) -> Path:
        path = out / f"{system.model}.cfg"
        config(system.model, corpus).to_disk(path, interpolate=False)
        return path

    settings: Any = {"thresholds": THRESHOLDS, "config": written, "gold": "spans"}
    comparison = Comparison(out, peers, threads)
    runs = Runs(comparison, rows, transformer, steps, measure=recalls, **settings)
    runs.measure_all(
        [each for each in SYSTEMS if only in each.name], [corpus], common.numbers(seeds)
    )
    print_tables(rows.matching({"corpus": corpus.name, "part": "test"}))


def config(model: str, corpus: Path) -> Any:
    """Return the config of a spaCy pipeline."""
    if model.startswith("layers_"):
        settings = {"overlap": True, "max_nesting": int(model[-1]), "spans_key": KEY}
        overrides = {f"components.ner.{name}": value for name, value in settings.items()}
        config = load_config(CONFIG, overrides={**overrides, "corpora.dev.limit": 1})
        without_calibration(config)  # dev is one doc: the last model does not depend on it
        return config
    if model != "spancat":
        return load_config(CONFIG)
    config = load_config(SPANCAT, overrides={"corpora.dev.limit": 1})
    tok2vec = config["components"].pop("ner")["model"]["tok2vec"]
    docs = common.read_docs(corpus / "train.spacy")
    config["components"][model] = {
        "factory": model,
        "spans_key": KEY,
        "model": {**DEFAULT_SPANCAT_MODEL, "tok2vec": tok2vec},
        "suggester": {
            "@misc": "spacy.ngram_range_suggester.v1",
            "min_size": 1,
            "max_size": covering(len(span) for doc in docs for span in doc.spans[KEY]),
        },
    }
    config["nlp"]["pipeline"] = ["tok2vec", model]
    return config


def covering(lengths: Iterable[int]) -> int:
    """Return the smallest length that 99 % of the lengths do not exceed."""
    ordered = sorted(lengths)
    return ordered[math.ceil(COVERED * len(ordered)) - 1]


def convert(source: Path, folder: Path) -> None:
    """Convert the documents of a corpus to .spacy and .jsonl files with a doc for each sentence."""
    for part in SPLITS:
        docs: list[Doc] = []
        crossing = 0
        for record in srsly.read_jsonl(source / f"{part}.jsonl"):
            sentences, left_out = split_sentences(record, Vocab())
            docs += sentences
            crossing += left_out
        common.write_docs(docs, folder / f"{part}.spacy")
        srsly.write_jsonl(folder / f"{part}.jsonl", map(_record, docs))
        number = sum(len(doc.spans[KEY]) for doc in docs)
        print(
            f"{part}: {len(docs)} sentences, {number} spans; {crossing} that cross the end of a "
            "sentence are left out",
            file=sys.stderr,
        )


def split_sentences(record: common.Row, vocab: Vocab) -> tuple[list[Doc], int]:
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


def _record(doc: Doc) -> common.Row:
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
    shares = {place: statistics.mean(of) if of else None for place, of in hits.items()}
    return {f"recall, {place}": share for place, share in shares.items()}


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


def print_tables(rows: Iterable[common.Row]) -> None:
    """Print the test scores, a table for each number of steps: mean over seeds.

    Of a system that was run with several learning rates, those of its last run.
    """
    shares = ("p", "r", "f", *(f"recall, {place}" for place in PLACES))
    for (steps,), of_steps in common.by_key(rows, "steps").items():
        common.print_header(f"{steps} steps", *shares, *MEASURES)
        for (system,), own in common.by_key(of_steps, "system").items():
            own = [row for row in own if row["rate"] == own[-1]["rate"]]
            cells = [
                common.mean_and_deviation([100 * row[name] for row in own if row[name] is not None])
                for name in shares
            ]
            for name in MEASURES:
                measured = [row[name] for row in own if row.get(name)]
                cells.append(f"{statistics.mean(measured):,.0f}" if measured else "-")
            common.print_row(system, *cells)
        print()
