"""F1 of a label that is learned later, and of the others: docs/benchmarks.md."""

from pathlib import Path
from typing import Annotated, Any

import typer
from spacy.util import load_config
from thinc.api import Config

from benchmarks import common


def main(
    folder: common.Folder,
    out: common.Out,
    label: Annotated[str, typer.Option(help="The label that is learned later.")] = "tim",
    seeds: common.Seeds = "0",
) -> None:
    """Measure test F1 of a label of GMB that is learned later, and of the others, with char.cfg.

    Entities overlap, so each label has a chain of its own. The corpus of the new label annotates
    nothing else. With a frozen encoder, only the chain of the new label is trained; it reads the
    vectors of the words too (skip), as the encoder has learned nothing of the new label.
    """
    corpus = common.converted(folder / "gmb", out)
    test = common.read_docs(corpus / "test.spacy")
    everything = {
        ent.label_ for doc in common.read_docs(corpus / "train.spacy") for ent in doc.ents
    }
    old = sorted(everything - {label})
    common.print_header("trained on", "seed", f"F1 of {label}", "F1 of the others")
    for seed in common.numbers(seeds):
        settings: dict[str, Any] = {
            "system.seed": seed,
            "training.eval_frequency": 1000,
            "components.ner.overlap": True,
            "components.ner.model.skip": True,
        }
        config = load_config(common.CONFIGS / "char.cfg", overrides=settings)
        joint = common.trained(reading(config, corpus, sorted(everything)))
        before = common.trained(reading(config, corpus, old))
        before.to_disk(out / "before_new_label")
        later = reading(config, corpus, [label])
        later["components"] = {"ner": {"source": str(out / "before_new_label")}}
        callback = {"@callbacks": "spacy-crf-ner.add_labels.v1", "labels": [label]}
        later["initialize"]["after_init"] = callback
        frozen = later.copy()
        frozen["training"]["optimizer"]["groups"] = {
            "frozen": {"names": "^(?!projection|crf)", "learn_rate": 0.0},
            "new_label": {"names": "^(projection|crf)", "L2": 0.0},
        }
        later["training"]["before_update"] = {
            "@callbacks": "spacy-crf-ner.rehearse.v1",
            "path": str(corpus / f"train_{label}.spacy"),
        }
        rows = {
            "all labels": joint,
            f"all but {label}": before,
            f"then {label} alone, frozen encoder": common.trained(frozen),
            f"then {label} alone, rehearsing": common.trained(later),
        }
        for name, nlp in rows.items():
            common.print_row(
                name, seed, *(f"{common.f1(nlp, test, chosen):.1f}" for chosen in ([label], old))
            )


def reading(config: Config, corpus: Path, labels: list[str]) -> Config:
    """Copy a config, to train on the entities of some labels."""
    config = config.copy()
    for part in ("train", "dev"):
        path = corpus / f"{part}_{'_'.join(labels)}.spacy"
        docs = common.read_docs(corpus / f"{part}.spacy")
        for doc in docs:
            doc.set_ents([ent for ent in doc.ents if ent.label_ in labels], default="outside")
        common.write_docs(docs, path)
        reader = {"@readers": "spacy-crf-ner.LabeledCorpora.v1"}
        config["corpora"][part] = {**reader, "paths": [str(path)], "labels": [labels]}
    return config
