"""F1 of one model of corpora that annotate different labels: docs/benchmarks.md."""

from pathlib import Path
from typing import Any, NamedTuple

from spacy.tokens import Span
from spacy.util import load_config

from benchmarks import common
from spacy_crf_ner.data import SPLITS

LABELS = {
    "gmb": ["PER", "ORG", "LOC", "art", "eve", "gpe", "nat", "tim"],
    "wikigold": ["PER", "ORG", "LOC", "MISC"],
    "gmb_names": ["PER", "ORG", "LOC"],
    "gmb_others": ["art", "eve", "gpe", "nat", "tim"],
}
RENAMED = {"per": "PER", "org": "ORG", "geo": "LOC"}
WEIGHTS = {"wikigold": 4.7}  # about as many words as gmb


class Mix(NamedTuple):
    """What a model is trained on.

    corpora: Keys of `LABELS`; "gmb_names" and "gmb_others" are the even and the odd docs of gmb.
    says_labels: Whether the reader knows which labels each of them annotates.
    steps: Of training.
    overlap: As for `crf_ner`.
    """

    corpora: list[str]
    says_labels: bool
    steps: int
    overlap: bool = False


MIXES = {
    "gmb alone": Mix(["gmb"], False, 1000),
    "wikigold alone": Mix(["wikigold"], False, 1000),
    "both, with their labels": Mix(["gmb", "wikigold"], True, 2000),
    "both, with their labels, overlapping": Mix(["gmb", "wikigold"], True, 2000, True),
    "both, as if all labels were annotated": Mix(["gmb", "wikigold"], False, 2000),
    "halves of gmb, with their labels": Mix(["gmb_names", "gmb_others"], True, 1000),
    "halves of gmb, with their labels, overlapping": Mix(
        ["gmb_names", "gmb_others"], True, 1000, True
    ),
    "halves of gmb, as if all labels were annotated": Mix(["gmb_names", "gmb_others"], False, 1000),
}


def main(folder: common.Folder, out: common.Out, seeds: common.Seeds = "0") -> None:
    """Measure dev and test F1, each on the labels of its corpus, with char.cfg.

    Predicted entities of other labels do not count. The corpora are gmb and wikigold.
    """
    for name in ("gmb", "wikigold"):
        rename(common.converted(folder / name, out), out / "labels" / name)
    halve(out / "labels" / "gmb")
    common.print_header("trained on", "seed", "gmb: dev, test", "wikigold: dev, test")
    for name, mix in MIXES.items():
        for seed in common.numbers(seeds):
            nlp = common.trained(config(mix, out / "labels", seed))
            cells = []
            for corpus in ("gmb", "wikigold"):
                parts = (out / "labels" / corpus / f"{part}.spacy" for part in ("dev", "test"))
                found = (common.f1(nlp, common.read_docs(path), LABELS[corpus]) for path in parts)
                cells.append(", ".join(f"{each:.1f}" for each in found))
            common.print_row(name, seed, *cells)


def rename(source: Path, folder: Path) -> None:
    """Copy a corpus, with common names for common labels."""
    for part in SPLITS:
        docs = common.read_docs(source / f"{part}.spacy")
        for doc in docs:
            ents = [Span(doc, e.start, e.end, RENAMED.get(e.label_, e.label_)) for e in doc.ents]
            doc.set_ents(ents, default="outside")
        common.write_docs(docs, folder / f"{part}.spacy")


def halve(gmb: Path) -> None:
    """Divide each part of gmb into two corpora, which annotate different labels."""
    for i, name in enumerate(["gmb_names", "gmb_others"]):
        for part in ("train", "dev"):
            docs = common.read_docs(gmb / f"{part}.spacy")[i::2]
            for doc in docs:
                ents = [ent for ent in doc.ents if ent.label_ in LABELS[name]]
                doc.set_ents(ents, default="outside")
            common.write_docs(docs, gmb.with_name(name) / f"{part}.spacy")


def config(mix: Mix, corpora: Path, seed: int) -> Any:
    overrides = {**common.schedule(mix.steps, seed), "components.ner.overlap": mix.overlap}
    config = load_config(common.CONFIGS / "char.cfg", overrides=overrides)
    labels = [LABELS[corpus] for corpus in mix.corpora]
    weighted = len(mix.corpora) > 1
    for part, known in (
        ("train", labels if mix.says_labels else [None] * len(labels)),
        ("dev", labels),
    ):
        more = WEIGHTS if weighted and part == "train" else {}
        config["corpora"][part] = {
            "@readers": "spacy-crf-ner.LabeledCorpora.v1",
            "paths": [str(corpora / corpus / f"{part}.spacy") for corpus in mix.corpora],
            "labels": known,
            "weights": [more.get(corpus, 1.0) for corpus in mix.corpora],
        }
    return config
