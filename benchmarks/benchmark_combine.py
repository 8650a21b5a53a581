"""What agreement of noisy annotations is worth: agreed by all, by most, and Dawid-Skene.

Three sources are copies of the gold entities of a corpus, with changed ones. What
`spacy-crf-ner combine` makes of them is compared with the model of Dawid and Skene (1979) over the
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
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from spacy_crf_ner import data
from spacy_crf_ner.data.iob import decode_tags

CONFIG = Path(__file__).parent.parent / "configs" / "char.cfg"
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


def combine(
    folder: Annotated[Path, typer.Argument(help="Folder with wikigold/ and gmb/.")],
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0,1",
    steps: Annotated[int, typer.Option(help="Training steps; 0: do not train.")] = 150,
) -> None:
    """Measure combined annotations of three noisy sources, and the models that they train.

    10, 20 and 30 % of the entities of a source have another boundary, another label, or are
    missing, a third each; a third as many are added. The models are of char.cfg.
    """
    print("| corpus | annotation | token precision | coverage | P | R | F1 | F1 of the model |")
    print("|---|---|---|---|---|---|---|---|")
    nlp = spacy.blank("en")
    for corpus in ("wikigold", "gmb"):
        parts = out / corpus
        if not parts.exists():
            data.convert(folder / corpus, parts, nlp=nlp, split=data.Split(by="sentences"))
        gold = read(parts / "train.spacy")[:LIMIT]
        runs = []
        for seed in map(int, seeds.split(",")):
            sets = annotations(gold, seed)
            scores = {name: [*map(float, score(gold, docs))] for name, docs in sets.items()}
            for name, docs in sets.items():
                scores[name].append(model_f1(docs, parts, steps, seed) if steps else 0.0)
            runs.append(scores)
        for name in runs[0]:
            *labels, f1 = zip(*(run[name] for run in runs))
            shown = " | ".join(f"{100 * mean(each):.1f}" for each in labels)
            models = ", ".join(f"{100 * each:.1f}" for each in f1)
            print(f"| {corpus} | {name} | {shown} | {models} |", flush=True)


def read(path: Path) -> list[Doc]:
    return list(DocBin().from_disk(path).get_docs(spacy.blank("en").vocab))


def annotations(gold: list[Doc], seed: int) -> dict[str, list[Doc]]:
    """Annotate docs in all ways that are compared."""
    rng = random.Random(seed)
    labels = sorted({ent.label_ for doc in gold for ent in doc.ents})
    sources = [[corrupt(doc, share, labels, rng) for doc in gold] for share in SHARES]
    sets = {"gold": gold, "the best source": sources[0]}
    with TemporaryDirectory() as scratch:
        paths = [Path(scratch, f"{i}.spacy") for i in range(len(sources))]
        for path, docs in zip(paths, sources):
            DocBin(docs=docs).to_disk(path)
        for needed in range(len(sources), 1, -1):
            target = Path(scratch, f"combined-{needed}.spacy")
            data.combine(paths, target, nlp=spacy.blank("en"), min_agree=needed)
            sets[f"{needed} of {len(sources)} agree"] = read(target)
    tags = dawid_skene(sources, labels)
    for name, certain in (("", 0.0), (f", posterior at least {CERTAIN}", CERTAIN)):
        docs = [annotate(doc, *each, certain) for doc, each in zip(gold, tags)]
        sets[f"Dawid-Skene{name}"] = docs
    return sets


def model_f1(docs: list[Doc], parts: Path, steps: int, seed: int) -> float:
    """Train on docs, and return the test F1."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "train.spacy")
        DocBin(docs=docs).to_disk(path)
        overrides = {
            "system.seed": seed,
            "paths.train": str(path),
            "paths.dev": str(parts / "dev.spacy"),
            "training.max_steps": steps,
            "training.eval_frequency": steps,
            "training.optimizer.learn_rate.total_steps": steps,
        }
        nlp, _ = train(init_nlp(load_config(CONFIG, overrides=overrides)))
    test = [
        Example(Doc(nlp.vocab, [t.text for t in doc]), doc) for doc in read(parts / "test.spacy")
    ]
    return float(nlp.evaluate(test)["ents_f"])


def copy(doc: Doc) -> Doc:
    return Doc(doc.vocab, [token.text for token in doc])


def corrupt(doc: Doc, share: float, labels: list[str], rng: random.Random) -> Doc:
    """Change some entities, a boundary, the label, or all of the entity, and add others."""
    changed, taken, ents = copy(doc), set(), []
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
    annotated = copy(doc)
    spans, _ = decode_tags(tags, closed=False)
    kept = [span for span in spans if posterior[span[0] : span[1]].min() >= certain]
    inside = {i for start, end, _ in spans for i in range(start, end)}
    outside = [i for i in range(len(doc)) if i not in inside and posterior[i] >= certain]
    ents = [Span(annotated, *span) for span in kept]
    annotated.set_ents(ents, outside=[annotated[i : i + 1] for i in outside], default="missing")
    return annotated


def score(gold: list[Doc], docs: list[Doc]) -> Scores:
    right = annotated = tokens = found = predicted = entities = 0
    for doc, other in zip(gold, docs):
        pairs = [(a, b) for a, b in zip(bio(doc), bio(other)) if b]
        right += sum(a == b for a, b in pairs)
        annotated += len(pairs)
        tokens += len(doc)
        ours, theirs = ({(e.start, e.end, e.label_) for e in each.ents} for each in (doc, other))
        found, predicted, entities = (
            found + len(ours & theirs), predicted + len(theirs), entities + len(ours)
        )  # fmt: skip
    precision, recall = found / predicted, found / entities
    f1 = 2 * precision * recall / (precision + recall)
    return Scores(right / annotated, annotated / tokens, precision, recall, f1)
