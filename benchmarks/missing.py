"""F1 of training on documents with missing annotation: docs/benchmarks.md."""

import random
import shutil
import statistics
from pathlib import Path
from typing import Annotated

import spacy
import typer
from spacy.training import Corpus

from benchmarks import common
from benchmarks.systems import Budget, Comparison, System

KINDS = {
    "whole": "all",
    "half": "half of the docs with half of their tokens",
    "dropped": "without these docs",
}
CRF_NER = System("crf_ner", "spacy_pipeline", "transformer")


def main(
    folder: common.Folder,
    out: common.Out,
    transformer: common.Transformer = common.MINILM,
    steps: common.Steps = 200,
    seeds: common.Seeds = "0",
    limit: Annotated[int, typer.Option(help="Training docs, the first ones; 0 for all.")] = 0,
    gpu_id: common.Gpu = -1,
) -> None:
    """Measure test F1 if half of the tokens of a random half of the training docs are missing.

    The baselines train on the complete corpus, and only on the other half. On WNUT-17 and GMB.
    """
    common.print_machine(gpu_id)
    comparison = Comparison(out, gpu_id=gpu_id)
    common.print_header("corpus", *KINDS.values())
    for corpus, rate in (("wnut17", 1e-4), ("gmb", 2e-4)):
        source = common.converted(folder / corpus, out)
        cells = []
        for kind in KINDS:
            own = out / f"{corpus}_{kind}_{limit}"
            make_incomplete(source, own, kind, limit)
            found = []
            for seed in common.numbers(seeds):
                budget = Budget(transformer, steps, rate, seed)
                nlp = spacy.load(comparison.trained(CRF_NER, own, budget)[0])
                scores = nlp.evaluate(list(Corpus(own / "test.spacy")(nlp)))
                found.append(100 * scores["ents_f"])
            each = ", ".join(f"{f1:.1f}" for f1 in found)
            cells.append(f"{statistics.mean(found):.1f} ({each})")
        common.print_row(corpus, *cells)


def make_incomplete(source: Path, folder: Path, kind: str, limit: int) -> None:
    """Copy a corpus, its train part shorter, and whole, or a half of its docs not.

    kind: "whole", or "half": these docs have half of their tokens missing; or "dropped".
    limit: Docs of train; 0 for all.
    """
    folder.mkdir(exist_ok=True)
    for name in ("dev", "test"):
        shutil.copy(source / f"{name}.spacy", folder)
    rng = random.Random(0)
    docs = common.read_docs(source / "train.spacy")[: limit or None]
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
    common.write_docs(kept, folder / "train.spacy")
