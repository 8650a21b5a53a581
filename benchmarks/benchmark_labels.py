"""Corpora with different labels: one model of two, and a label that is learned later."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import spacy
import typer
from spacy.language import Language
from spacy.scorer import PRFScore
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from spacy.vocab import Vocab
from thinc.api import Config

from spacy_crf_ner import data

CONFIG = Path(__file__).parent.parent / "configs" / "char.cfg"
LABELS = {
    "gmb": ["PER", "ORG", "LOC", "art", "eve", "gpe", "nat", "tim"],
    "wikigold": ["PER", "ORG", "LOC", "MISC"],
    "gmb_names": ["PER", "ORG", "LOC"],
    "gmb_others": ["art", "eve", "gpe", "nat", "tim"],
}
TESTED = ["gmb", "wikigold"]
RENAMED = {"per": "PER", "org": "ORG", "geo": "LOC"}
PARTS = ("dev", "test")


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
WEIGHTS = {"wikigold": 4.7}  # about as many words as gmb


def labels(
    folder: Annotated[Path, typer.Argument(help="Folder with gmb/ and wikigold/.")],
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0",
) -> None:
    """Measure dev and test F1, each on the labels of its corpus, with char.cfg.

    Predicted entities of other labels do not count.
    """
    out /= "labels"  # other commands have corpora of these names with all labels
    for corpus in TESTED:
        _prepare(folder / corpus, out / corpus)
    _halve(out / "gmb")
    print("| trained on | seed | gmb: dev, test | wikigold: dev, test |\n|---|---|---|---|")
    for name, mix in MIXES.items():
        for seed in seeds.split(","):
            nlp = _trained(mix, out, int(seed))
            scores = (
                ", ".join(f"{_f1(nlp, out / corpus, LABELS[corpus], of):.1f}" for of in PARTS)
                for corpus in TESTED
            )
            print(f"| {name} | {seed} | {' | '.join(scores)} |", flush=True)


def new_label(
    folder: Annotated[Path, typer.Argument(help="Folder with gmb/.")],
    out: Annotated[Path, typer.Argument(help="Output folder.")],
    label: Annotated[str, typer.Option(help="The label that is learned later.")] = "tim",
    seeds: Annotated[str, typer.Option(help="Seeds; a run for each.")] = "0",
) -> None:
    """Measure test F1 of a label that is learned later, and of the others, with char.cfg.

    Entities overlap, so each label has a chain of its own. The corpus of the new label annotates
    nothing else. With a frozen encoder, only the chain of the new label is trained; it reads the
    vectors of the words too (skip), as the encoder has learned nothing of the new label.
    """
    out /= "labels"
    corpus = out / "gmb"
    _prepare(folder / "gmb", corpus)
    old = [each for each in LABELS["gmb"] if each != label]
    print(f"| trained on | seed | F1 of {label} | F1 of the others |\n|---|---|---|---|")
    for seed in seeds.split(","):
        settings: dict[str, Any] = {
            "system.seed": int(seed),
            "training.eval_frequency": 1000,
            "components.ner.overlap": True,
            "components.ner.model.skip": True,
        }
        config = load_config(CONFIG, overrides=settings)
        config["training"]["before_to_disk"] = None
        joint, _ = train(init_nlp(_reading(config, corpus, LABELS["gmb"])))
        before, _ = train(init_nlp(_reading(config, corpus, old)))
        before.to_disk(out / "before")
        later = _reading(config, corpus, [label])
        later["components"] = {"ner": {"source": str(out / "before")}}
        callback = {"@callbacks": "spacy-crf-ner.add_labels.v1", "labels": [label]}
        later["initialize"]["after_init"] = callback
        frozen_encoder = later.copy()
        frozen_encoder["training"]["optimizer"]["groups"] = {
            "frozen": {"names": "^(?!projection|crf)", "learn_rate": 0.0},
            "new_label": {"names": "^(projection|crf)", "L2": 0.0},
        }
        frozen, _ = train(init_nlp(frozen_encoder))
        later["training"]["before_update"] = {
            "@callbacks": "spacy-crf-ner.rehearse.v1",
            "path": str(corpus / f"train_{label}.spacy"),
        }
        rehearsed, _ = train(init_nlp(later))
        rows = {
            "all labels": joint,
            f"all but {label}": before,
            f"then {label} alone, frozen encoder": frozen,
            f"then {label} alone, rehearsing": rehearsed,
        }
        for name, nlp in rows.items():
            shown = (f"{_f1(nlp, corpus, chosen, 'test'):.1f}" for chosen in ([label], old))
            print(f"| {name} | {seed} | {' | '.join(shown)} |", flush=True)


def _reading(config: Config, corpus: Path, labels: list[str]) -> Config:
    """Copy a config, to train on the entities of some labels."""
    config = config.copy()
    for part in ("train", "dev"):
        path = corpus / f"{part}_{'_'.join(labels)}.spacy"
        docs = list(DocBin().from_disk(corpus / f"{part}.spacy").get_docs(Vocab()))
        for doc in docs:
            doc.set_ents([ent for ent in doc.ents if ent.label_ in labels], default="outside")
        DocBin(docs=docs).to_disk(path)
        reader = {"@readers": "spacy-crf-ner.LabeledCorpora.v1"}
        config["corpora"][part] = {**reader, "paths": [str(path)], "labels": [labels]}
    return config


def _f1(nlp: Language, corpus: Path, labels: list[str], part: str) -> float:
    """Return the F1 of some labels, of all entities that overlap too."""
    gold = list(DocBin().from_disk(corpus / f"{part}.spacy").get_docs(nlp.vocab))
    found = list(nlp.pipe([Doc(nlp.vocab, words=[token.text for token in doc]) for doc in gold]))
    score = PRFScore()
    for doc, predicted in zip(gold, found):
        sides = (
            {(ent.start, ent.end, ent.label_) for ent in ents if ent.label_ in labels}
            for ents in (predicted.spans.get("sc", predicted.ents), doc.ents)
        )
        score.score_set(*sides)
    return 100 * float(score.fscore)


def _prepare(source: Path, folder: Path) -> None:
    """Convert a corpus, with common names for common labels."""
    if (folder / "test.spacy").exists():
        return
    nlp = spacy.blank("en")
    data.convert(source, folder, nlp=nlp, split=data.Split(by="sentences"))
    for path in folder.glob("*.spacy"):
        docs = list(DocBin().from_disk(path).get_docs(nlp.vocab))
        for doc in docs:
            ents = [Span(doc, e.start, e.end, RENAMED.get(e.label_, e.label_)) for e in doc.ents]
            doc.set_ents(ents, default="outside")
        DocBin(docs=docs).to_disk(path)


def _halve(gmb: Path) -> None:
    """Divide each part of gmb into two corpora, which annotate different labels."""
    for i, name in enumerate(["gmb_names", "gmb_others"]):
        folder = gmb.with_name(name)
        folder.mkdir(exist_ok=True)
        for part in ("train", "dev"):
            docs = list(DocBin().from_disk(gmb / f"{part}.spacy").get_docs(Vocab()))[i::2]
            for doc in docs:
                ents = [ent for ent in doc.ents if ent.label_ in LABELS[name]]
                doc.set_ents(ents, default="outside")
            DocBin(docs=docs).to_disk(folder / f"{part}.spacy")


def _trained(mix: Mix, out: Path, seed: int) -> Language:
    said: list[list[str] | None] = [
        LABELS[corpus] if mix.says_labels else None for corpus in mix.corpora
    ]
    reader = {"@readers": "spacy-crf-ner.LabeledCorpora.v1"}
    overrides = {
        "system.seed": seed,
        "training.max_steps": mix.steps,
        "training.eval_frequency": mix.steps,
        "training.optimizer.learn_rate.total_steps": mix.steps,
        "components.ner.overlap": mix.overlap,
    }
    config = load_config(CONFIG, overrides=overrides)
    for part, known in (("train", said), ("dev", [LABELS[c] for c in mix.corpora])):
        paths = [str(out / corpus / f"{part}.spacy") for corpus in mix.corpora]
        more = WEIGHTS if len(paths) > 1 and part == "train" else {}
        weights = [more.get(corpus, 1.0) for corpus in mix.corpora]
        config["corpora"][part] = {**reader, "paths": paths, "labels": known, "weights": weights}
    nlp, _ = train(init_nlp(config))
    return nlp
