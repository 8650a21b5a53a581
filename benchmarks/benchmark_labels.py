"""One model of two corpora with different labels, against a model of each and naive mixing."""

from pathlib import Path
from typing import Annotated, Dict, List, NamedTuple, Optional

import spacy
import typer
from spacy.language import Language
from spacy.tokens import DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config

from spacy_crf_ner import data
from spacy_crf_ner.training.labelled_corpora import labelled_corpora

CONFIG = Path(__file__).parent.parent / "configs" / "char.cfg"
LABELS = {
    "gmb": ["PER", "ORG", "LOC", "art", "eve", "gpe", "nat", "tim"],
    "wikigold": ["PER", "ORG", "LOC", "MISC"],
}
RENAMED = {"per": "PER", "org": "ORG", "geo": "LOC"}


class Mix(NamedTuple):
    """What a model is trained on."""

    corpora: List[str]
    says_labels: bool
    steps: int


MIXES = {
    "gmb alone": Mix(["gmb"], False, 1000),
    "wikigold alone": Mix(["wikigold"], False, 1000),
    "both, with their labels": Mix(["gmb", "wikigold"], True, 2000),
    "both, as if all labels were annotated": Mix(["gmb", "wikigold"], False, 2000),
}
WEIGHTS = {"gmb": 1.0, "wikigold": 4.7}  # about as many words of each


def labels(
    folder: Annotated[Path, typer.Argument(help="Folder with gmb/ and wikigold/.")],
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0",
) -> None:
    """Measure dev and test F1, each on the labels of its corpus, with char.cfg."""
    for corpus in LABELS:
        _prepare(folder / corpus, out / corpus)
    print("| trained on | seed | gmb: dev, test | wikigold: dev, test |\n|---|---|---|---|")
    for name, mix in MIXES.items():
        for seed in seeds.split(","):
            nlp = _trained(mix, out, int(seed))
            scores = (
                ", ".join(f"{_f1(nlp, out, corpus, part):.1f}" for part in ("dev", "test"))
                for corpus in LABELS
            )
            print(f"| {name} | {seed} | {' | '.join(scores)} |", flush=True)


def _prepare(source: Path, folder: Path) -> None:
    """Convert a corpus, with common names for common labels."""
    if (folder / "test.spacy").exists():
        return
    nlp = spacy.blank("en")
    data.convert(source, folder, nlp=nlp)
    for path in folder.glob("*.spacy"):
        docs = list(DocBin().from_disk(path).get_docs(nlp.vocab))
        for doc in docs:
            ents = [Span(doc, e.start, e.end, RENAMED.get(e.label_, e.label_)) for e in doc.ents]
            doc.set_ents(ents, default="outside")
        DocBin(docs=docs).to_disk(path)


def _trained(mix: Mix, out: Path, seed: int) -> Language:
    said: List[Optional[List[str]]] = [
        LABELS[corpus] if mix.says_labels else None for corpus in mix.corpora
    ]
    reader = {"@readers": "spacy-crf-ner.LabelledCorpora.v1"}
    overrides = {
        "system.seed": seed,
        "training.max_steps": mix.steps,
        "training.eval_frequency": mix.steps,
        "training.optimizer.learn_rate.total_steps": mix.steps,
    }
    config = load_config(CONFIG, overrides=overrides)
    for part, known in (("train", said), ("dev", [LABELS[c] for c in mix.corpora])):
        paths = [str(out / corpus / f"{part}.spacy") for corpus in mix.corpora]
        weights = [WEIGHTS[c] if len(paths) > 1 and part == "train" else 1.0 for c in mix.corpora]
        config["corpora"][part] = {**reader, "paths": paths, "labels": known, "weights": weights}
    nlp, _ = train(init_nlp(config))
    return nlp


def _f1(nlp: Language, out: Path, corpus: str, part: str) -> float:
    read = labelled_corpora([str(out / corpus / f"{part}.spacy")], [LABELS[corpus]])
    scores: Dict[str, float] = nlp.evaluate(list(read(nlp)))
    return 100 * scores["ents_f"]
