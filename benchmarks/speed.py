"""Words per second of crf_ner and other recognizers: docs/benchmarks.md, "Speed". Linux only."""

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import spacy
import srsly
import typer
from spacy.util import load_config

from benchmarks import common
from benchmarks.systems import (
    ENVIRONMENTS,
    RATES,
    Budget,
    Comparison,
    Process,
    System,
    best_size,
    in_turns,
    numbered,
    scores,
)

BF16 = System("crf_ner, bf16", "spacy_pipeline", "transformer", settings={"dtype": "bf16"})
SPACY = System("spaCy transformer + ner", "spacy_pipeline", "spacy_ner")
HUGGING_FACE = System("Hugging Face pipeline", "hugging_face", "hugging_face")
BARE = System("transformer alone, bf16", "bare_transformer", settings={"autocast": False})
SYSTEMS = (
    BF16._replace(name="crf_ner, not accelerated", settings={}),
    BF16._replace(name="crf_ner, fp32", settings={"dtype": "fp32"}),
    BF16,
    BF16._replace(name="crf_ner, int8", settings={"dtype": "int8"}),
    SPACY,
    HUGGING_FACE,
    HUGGING_FACE._replace(name="Hugging Face pipeline, bf16", settings={"dtype": "bfloat16"}),
    System("flair, RNN + CRF", "flair_tagger", "flair", "flair"),
    System("flair, linear", "flair_tagger", "flair_linear", "flair"),
    System("EDS-NLP, ner_crf", "eds_tagger", "edsnlp", "edsnlp"),
    System("EDS-NLP, text_cnn + ner_crf", "eds_tagger", "edsnlp_text_cnn", "edsnlp"),
    BARE,
    BARE._replace(name="transformer alone, bf16 autocast", settings={"autocast": True}),
    System("crf_ner, cnn.cfg", "spacy_pipeline", "cnn"),
    System("spaCy ner over the same CNN", "spacy_pipeline", "spacy_cnn"),
)
CNNS = ("cnn", "spacy_cnn")


def main(
    out: common.Out,
    corpus: common.CorpusFolder = common.SAMPLE,
    peers: common.Peers = ENVIRONMENTS,
    transformer: common.Transformer = common.MINILM,
    steps: common.Steps = 200,
    rounds: common.Rounds = 7,
    share: Annotated[
        float, typer.Option(help="Share of the documents; 1 for published numbers.")
    ] = 1.0,
    threads: Annotated[int, typer.Option(help="Threads of each system.")] = 2,
    only: common.Only = "",
) -> None:
    """Compare words per second, peak memory and F1 of crf_ner and others on one transformer.

    Each system has a process; they take turns, so that one computes at a time. Each reads the
    same texts, and has the batch size with which it is fastest on them. A peak is that of a
    process that loads, and annotates all documents of all rounds. A CNN is trained for twice as
    many steps. Figures of all rounds are in speed.json in the output folder.
    """
    folder = common.converted(corpus, out)
    records = list(srsly.read_jsonl(folder / "test.jsonl"))
    texts = [record["text"] for record in records]
    sets = common.document_sets(texts, share)
    nlp = spacy.blank("en")
    words = {name: sum(len(nlp.make_doc(text)) for text in of) for name, of in sets.items()}
    comparison = Comparison(out, peers, threads)
    rows: dict[str, common.Row] = {}
    gold = numbered([record["ents"] for record in records])
    with ExitStack() as running:
        started: dict[str, Process] = {}
        for system in (each for each in SYSTEMS if only in each.name):
            with comparison.guard(system.name):
                model = _model(comparison, system, folder, transformer, steps)
                with comparison.start(system) as process:
                    process.ask("load", str(model), system.settings)
                    sizes = {of: best_size(process, documents) for of, documents in sets.items()}
                    row = {"batch_sizes": sizes, "versions": process.ask("versions")}
                    if system.model:
                        found = numbered(process.ask("find", texts, sizes["sentences"]))
                        row["f1"] = scores(gold, found).fscore
                process = running.enter_context(comparison.start(system))
                process.ask("load", str(model), system.settings)
                started[system.name], rows[system.name] = process, row
        for of, documents in sets.items():
            acts = {
                name: partial(_seconds, process, documents, rows[name]["batch_sizes"][of])
                for name, process in started.items()
                if name not in comparison.failed
            }
            for name, taken in in_turns(acts, rounds, comparison.failed).items():
                rows[name].setdefault("seconds", {})[of] = taken
        rows = {name: row for name, row in rows.items() if name not in comparison.failed}
        for name, row in rows.items():
            row["peak_mb"] = common.memory_mb("VmHWM", started[name].pid)
            row["words_per_second"] = {
                of: [words[of] / seconds for seconds in taken]
                for of, taken in row["seconds"].items()
            }
    about = {"machine": common.environment()["machine"], "threads": threads, "corpus": folder.name}
    srsly.write_json(out / "speed.json", {**about, "rows": rows, "failed": comparison.failed})
    print(*about.values(), "; ".join(sorted({f"{row['versions']}" for row in rows.values()})))
    print_table(rows)


def _model(
    comparison: Comparison, system: System, corpus: Path, transformer: str, steps: int
) -> Path:
    """Return the folder of a trained model, or of the transformer."""
    if not system.model:
        return Path(transformer)
    rate = RATES.get(system.model)
    if rate is None:
        training = load_config(common.CONFIGS / f"{system.model}.cfg")["training"]
        rate = training["optimizer"]["learn_rate"]["initial_rate"]
    budget = Budget(transformer, 2 * steps if system.model in CNNS else steps, rate, 0)
    return comparison.trained(system, corpus, budget)[0]


def _seconds(process: Process, documents: list[str], size: int, is_first: bool) -> float:
    return float(process.ask("seconds", documents, size))


def print_table(rows: Mapping[str, common.Row]) -> None:
    """Print a row for each system; ratios are medians of those in each round."""
    sets = list(next(iter(rows.values()))["seconds"]) if rows else []
    more = ("mix, times spaCy's", "batch size", "peak MB", "F1")
    common.print_header("words/s, median (min-max)", *sets, *more)
    for name, row in rows.items():
        ratio = "-"
        if SPACY.name in rows:
            pairs = zip(rows[SPACY.name]["seconds"]["mix"], row["seconds"]["mix"])
            ratio = f"{statistics.median(their / our for their, our in pairs):.2f}"
        cells = [common.median_and_range(row["words_per_second"][of]) for of in sets]
        sizes = [str(size or "-") for size in row["batch_sizes"].values()]
        shown = "/".join(sizes if len({*sizes}) > 1 else sizes[:1])
        found = f"{100 * row['f1']:.1f}" if "f1" in row else "-"
        common.print_row(name, *cells, ratio, shown, f"{row['peak_mb']:,.0f}", found)
