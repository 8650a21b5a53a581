"""What agreement of noisy annotations is worth: docs/benchmarks.md.

Three sources are copies of the gold entities of a corpus, with changed ones. What
`spacy-crf-ner merge` makes of them is compared with the model of Dawid and Skene (1979) over the
BIO tags of the tokens, where each source has a confusion matrix, fitted by EM.
"""

import random
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import numpy as np
import spacy
import typer
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from spacy.util import load_config

from benchmarks import common
from benchmarks.systems import scores
from spacy_crf_ner import data
from spacy_crf_ner.data.iob import decode_tags

LIMIT = 1700  # train docs
SHARES = (0.1, 0.2, 0.3)  # of the entities that a source changes
CERTAIN = 0.95  # posterior from which a tag of Dawid-Skene is annotated


class Scores(NamedTuple):
    """Of the annotated tokens those that are right; of all tokens those annotated; of entities."""

    token_precision: float
    token_coverage: float
    precision: float
    recall: float
    f1: float


def main(
    folder: common.Folder,
    out: common.Out,
    seeds: common.Seeds = "0,1",
    steps: Annotated[int, typer.Option(help="Training steps; 0: do not train.")] = 150,
) -> None:
    """Measure combined annotations of three noisy sources, and the models that they train.

    10, 20 and 30 % of the entities of a source have another boundary, another label, or are
    missing, a third each; a third as many are added. The models are of char.cfg. The corpora are
    wikigold and gmb.
    """
    counts = ("token precision", "coverage", "P", "R", "F1")
    common.print_header("corpus", "annotation", *counts, "F1 of the model")
    for corpus in ("wikigold", "gmb"):
        parts = common.converted(folder / corpus, out)
        gold = common.read_docs(parts / "train.spacy")[:LIMIT]
        shown: dict[str, list[Scores]] = {}
        models: dict[str, list[float]] = {}
        for seed in common.numbers(seeds):
            for name, docs in annotations(gold, seed).items():
                shown.setdefault(name, []).append(score(gold, docs))
                found = model_f1(docs, parts, steps, seed) if steps else 0.0
                models.setdefault(name, []).append(found)
        for name, of_seeds in shown.items():
            cells = [f"{100 * mean(each):.1f}" for each in zip(*of_seeds)]
            common.print_row(
                corpus, name, *cells, ", ".join(f"{each:.1f}" for each in models[name])
            )


def annotations(gold: list[Doc], seed: int) -> dict[str, list[Doc]]:
    """Annotate docs in all ways that are compared."""
    rng = random.Random(seed)
    labels = sorted({ent.label_ for doc in gold for ent in doc.ents})
    sources = [[corrupt(doc, share, labels, rng) for doc in gold] for share in SHARES]
    sets = {"gold": gold, "the best source": sources[0]}
    with TemporaryDirectory() as scratch:
        paths = [Path(scratch, f"{i}.spacy") for i in range(len(sources))]
        for path, docs in zip(paths, sources):
            common.write_docs(docs, path)
        for needed in range(len(sources), 1, -1):
            target = Path(scratch, f"combined-{needed}.spacy")
            data.combine(paths, target, nlp=spacy.blank("en"), min_agree=needed)
            sets[f"{needed} of {len(sources)} agree"] = common.read_docs(target)
    tags = dawid_skene(sources, labels)
    for name, certain in (("", 0.0), (f", posterior at least {CERTAIN}", CERTAIN)):
        docs = [annotate(doc, *each, certain) for doc, each in zip(gold, tags)]
        sets[f"Dawid-Skene{name}"] = docs
    return sets


def model_f1(docs: list[Doc], parts: Path, steps: int, seed: int) -> float:
    """Train on docs, and return the test F1."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "train.spacy")
        common.write_docs(docs, path)
        corpora = {"paths.train": str(path), "paths.dev": str(parts / "dev.spacy")}
        overrides = {**common.schedule(steps, seed), **corpora}
        nlp = common.trained(load_config(common.CONFIGS / "char.cfg", overrides=overrides))
    return common.f1(nlp, common.read_docs(parts / "test.spacy"))


def corrupt(doc: Doc, share: float, labels: list[str], rng: random.Random) -> Doc:
    """Change some entities, a boundary, the label, or all of the entity, and add others."""
    changed, taken, ents = common.without_entities(doc, doc.vocab), set(), []
    for ent in doc.ents:
        start, end, label = ent.start, ent.end, ent.label_
        kind = rng.choice(("boundary", "label", "missing")) if rng.random() < share else ""
        if kind == "missing":
            continue
        if kind == "label":
            label = rng.choice([each for each in labels if each != label])
        if kind == "boundary":
            moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
            inside = [
                (start + a, end + b) for a, b in moves if start + a >= 0 and end + b <= len(doc)
            ]
            start, end = rng.choice([(a, b) for a, b in inside if a < b] or [(start, end)])
        if not taken & {*range(start, end)}:
            taken |= {*range(start, end)}
            ents.append(Span(changed, start, end, label))
    for _ in range(sum(rng.random() < share / 3 for _ in doc.ents)):
        at = rng.randrange(len(doc))
        if at not in taken:
            taken.add(at)
            ents.append(Span(changed, at, at + 1, rng.choice(labels)))
    changed.set_ents(ents, default="outside")
    return changed


def bio(doc: Doc) -> list[str]:
    return [f"{t.ent_iob_}-{t.ent_type_}" if t.ent_type_ else t.ent_iob_ for t in doc]


def dawid_skene(
    sources: list[list[Doc]], labels: list[str], steps: int = 50
) -> list[tuple[list[str], NDArray[np.float64]]]:
    """Return for each doc the most probable tag of each token, and its posterior."""
    names = ["O", *(f"{prefix}-{label}" for label in labels for prefix in "BI")]
    ids = {name: i for i, name in enumerate(names)}
    said = np.array([[ids[tag] for doc in docs for tag in bio(doc)] for docs in sources])  # (S, N)
    C, each = len(names), np.arange(said.shape[1])
    posterior = np.zeros((len(each), C))
    for row in said:
        posterior[each, row] += 1 / len(said)
    for _ in range(steps):
        prior = np.log(posterior.mean(0) + 1e-9)
        scores = np.tile(prior, (len(each), 1))
        for row in said:
            confusion = np.zeros((C, C))  # [said, true]
            np.add.at(confusion, row, posterior)
            confusion = (confusion + 0.01) / (confusion.sum(0) + 0.01 * C)
            scores += np.log(confusion[row])
        scores -= scores.max(1, keepdims=True)
        posterior = np.exp(scores)
        posterior /= posterior.sum(1, keepdims=True)
    best = posterior.argmax(1)
    ends = np.cumsum([len(doc) for doc in sources[0]])[:-1]
    parts = zip(np.split(best, ends), np.split(posterior[each, best], ends))
    return [([names[i] for i in tags], certain) for tags, certain in parts]


def annotate(doc: Doc, tags: list[str], posterior: NDArray[np.float64], certain: float) -> Doc:
    annotated = common.without_entities(doc, doc.vocab)
    spans, _ = decode_tags(tags, closed=False)
    kept = [span for span in spans if posterior[span[0] : span[1]].min() >= certain]
    inside = {i for start, end, _ in spans for i in range(start, end)}
    outside = [i for i in range(len(doc)) if i not in inside and posterior[i] >= certain]
    ents = [Span(annotated, *span) for span in kept]
    annotated.set_ents(ents, outside=[annotated[i : i + 1] for i in outside], default="missing")
    return annotated


def score(gold: list[Doc], docs: list[Doc]) -> Scores:
    pairs = [pair for doc, other in zip(gold, docs) for pair in zip(bio(doc), bio(other))]
    annotated = [(ours, theirs) for ours, theirs in pairs if theirs]
    right = sum(ours == theirs for ours, theirs in annotated)
    entities = [
        {(i, ent.start, ent.end, ent.label_) for i, doc in enumerate(of) for ent in doc.ents}
        for of in (gold, docs)
    ]
    found = scores(*entities)
    shares = (right / len(annotated), len(annotated) / len(pairs))
    return Scores(*shares, found.precision, found.recall, found.fscore)
