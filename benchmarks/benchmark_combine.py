"""What agreement of noisy annotations is worth: agreed only, majority, and Dawid-Skene.

python benchmarks/benchmark_combine.py data

Three sources are copies of the gold entities of a corpus, of which 10, 20 and 30 % have another
boundary, another label, or are missing. What `spacy-crf-ner combine` makes of them is compared with
the gold entities, and with the model of Dawid and Skene (1979) over the BIO tags of the tokens,
where each source has a confusion matrix, fitted by EM.
"""

import random
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Annotated, List, NamedTuple

import numpy as np
import spacy
import typer
from numpy.typing import NDArray
from spacy.tokens import Doc, DocBin, Span

from spacy_crf_ner import data
from spacy_crf_ner.data.iob import decode_tags

SHARES: dict[str, tuple[tuple[float, ...], bool]] = {
    "10, 20, 30 %": ((0.1, 0.2, 0.3), False),
    "10, 20, 30 %, and spurious ones": ((0.1, 0.2, 0.3), True),
    "20, 20, 20 %, and spurious ones": ((0.2, 0.2, 0.2), True),
}
CERTAIN = 0.95  # posterior from which a tag of Dawid-Skene is annotated


class Scores(NamedTuple):
    """Shares: of the annotated tokens that are right, and so on."""

    token_precision: float
    token_coverage: float
    precision: float
    recall: float
    f1: float


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with wikigold/ and gmb/.")],
    seeds: int = 5,
) -> None:
    nlp = spacy.blank("en")
    files = {"wikigold": folder / "wikigold" / "wikigold.conll", "gmb": folder / "gmb"}
    print("| corpus | changed | method | token precision | token coverage | P | R | F1 |")
    print("|---|---|---|---|---|---|---|---|")
    for corpus, path in files.items():
        (path,) = path.glob("*.csv") if path.is_dir() else [path]
        read = data.FORMATS[data.detect_format(path)]
        gold = [doc for doc in read(path, nlp, None)]
        random.Random(0).shuffle(gold)
        gold = gold[:1700]
        for changed, (shares, spurious) in SHARES.items():
            runs = [measure(gold, shares, spurious, seed) for seed in range(seeds)]
            for method in runs[0]:
                cells = zip(*(run[method] for run in runs))
                shown = " | ".join(f"{100 * mean(c):.1f} ± {100 * stdev(c):.1f}" for c in cells)
                print(f"| {corpus} | {changed} | {method} | {shown} |", flush=True)


def measure(
    gold: List[Doc], shares: tuple[float, ...], spurious: bool, seed: int
) -> dict[str, Scores]:
    rng = random.Random(seed)
    labels = sorted({ent.label_ for doc in gold for ent in doc.ents})
    sources = [[corrupt(doc, share, labels, rng, spurious) for doc in gold] for share in shares]
    with TemporaryDirectory() as scratch:
        paths = [Path(scratch, f"{i}.spacy") for i in range(len(sources))]
        for path, docs in zip(paths, sources):
            DocBin(docs=docs).to_disk(path)
        combined = {}
        for needed in range(len(sources), 1, -1):
            target = Path(scratch, f"combined-{needed}.spacy")
            data.combine(paths, target, nlp=spacy.blank("en"), min_agree=needed)
            docs = list(DocBin().from_disk(target).get_docs(gold[0].vocab))
            combined[f"{needed} of {len(sources)} agree"] = docs
    tags = dawid_skene(sources, labels)
    combined["Dawid-Skene"] = [annotate(doc, *each, 0.0) for doc, each in zip(gold, tags)]
    name = f"Dawid-Skene, posterior at least {CERTAIN}"
    combined[name] = [annotate(doc, *each, CERTAIN) for doc, each in zip(gold, tags)]
    best = min(range(len(shares)), key=lambda i: shares[i])
    return {"the best source": score(gold, sources[best])} | {
        name: score(gold, docs) for name, docs in combined.items()
    }


def copy(doc: Doc) -> Doc:
    return Doc(doc.vocab, [token.text for token in doc])


def corrupt(doc: Doc, share: float, labels: List[str], rng: random.Random, spurious: bool) -> Doc:
    """Change some entities: a boundary, the label, or all of the entity; add some if `spurious`."""
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
    for _ in range(sum(rng.random() < share / 3 for _ in doc.ents) if spurious else 0):
        at = rng.randrange(len(doc))
        if at not in taken:
            taken.add(at)
            ents.append(Span(changed, at, at + 1, rng.choice(labels)))
    changed.set_ents(ents, default="outside")
    return changed


def bio(doc: Doc) -> List[str]:
    return [f"{t.ent_iob_}-{t.ent_type_}" if t.ent_type_ else t.ent_iob_ for t in doc]


def dawid_skene(
    sources: List[List[Doc]], labels: List[str], steps: int = 50
) -> List[tuple[List[str], NDArray[np.float64]]]:
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


def annotate(doc: Doc, tags: List[str], posterior: NDArray[np.float64], certain: float) -> Doc:
    annotated = copy(doc)
    spans, _ = decode_tags(tags, closed=False)
    kept = [span for span in spans if posterior[span[0] : span[1]].min() >= certain]
    inside = {i for start, end, _ in spans for i in range(start, end)}
    outside = [i for i in range(len(doc)) if i not in inside and posterior[i] >= certain]
    ents = [Span(annotated, *span) for span in kept]
    annotated.set_ents(ents, outside=[annotated[i : i + 1] for i in outside], default="missing")
    return annotated


def score(gold: List[Doc], docs: List[Doc]) -> Scores:
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


if __name__ == "__main__":
    typer.run(main)
