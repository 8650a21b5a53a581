"""The student: its pipeline without weights, and the config that trains it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.util import get_sourced_components, load_model_from_config
from thinc.api import Config

from ..input_error import InputError
from ..pipeline.distill_targets import Teacher
from ..pipeline.lookup import recognizer
from ..training.calibration import without_calibration
from ..training.config_file import find_config, given_labels, read_config
from ..training.distill_corpus import READER

COPY = "spacy.copy_from_base_model.v1"


def load_student(config: str | Path) -> Language:
    """Build the pipeline of a config, which may be a shipped one, by its name.

    Raises InputError if there is no such file, and for a pipeline without a `crf_ner`, or several,
    for a sourced component, for a tokenizer that is changed in `[initialize]`, and for a training
    that ends after some epochs, or never.
    """
    given = read_config(find_config(config))
    if sourced := [*get_sourced_components(given)]:
        raise InputError(
            f"{config}: expected components with a factory, got {sourced} with a source, whose "
            "weights would be lost. Load weights in [initialize] instead."
        )
    nlp = load_model_from_config(given, auto_fill=True)
    recognizer(nlp)
    initialize, default = (each["initialize"] for each in (nlp.config, type(nlp)().config))
    before = initialize["before_init"] or {}
    copies = before.get("@callbacks") == COPY and before.get("tokenizer")
    if copies or initialize["tokenizer"] != default["tokenizer"]:
        raise InputError(
            f"{config}: expected a tokenizer that [nlp] describes, got a tokenizer or {COPY} "
            "in [initialize], which the teachers do not have. Set nlp.tokenizer."
        )
    training = nlp.config.interpolate()["training"]
    if training["max_epochs"] > 0 or not (training["max_steps"] or training["patience"]):
        raise InputError(
            f"{config}: expected max_steps or patience in [training], and max_epochs 0, as the "
            f"corpus is a stream, got max_epochs {training['max_epochs']}. Set max_steps."
        )
    return nlp


def check_teachers(nlp: Language, teachers: Sequence[Teacher], names: Sequence[str]) -> None:
    """Raise InputError for teachers of other labels than the first, or than the student has.

    They must also have entities of the kind of the student.
    """
    ner = recognizer(nlp)
    labels = given_labels(nlp) or teachers[0].labels
    for teacher, name in zip(teachers, names):
        teacher.check_tag_spec(labels, ner.overlap, ner.max_nesting, name)


def student_config(
    nlp: Language, labels: Sequence[str], train: Path, dev: Path, **reader: Any
) -> Config:
    """Return the complete config that trains the student on what its teachers say.

    Args:
        labels: Those to predict, unless the config has them.
        train: The folder of the teachers' scores.
        dev: A .spacy file.
        **reader: Settings of `spacy-crf-ner.DistillCorpus.v1`.
    """
    config = nlp.config.copy()
    config["paths"].update(train=str(train), dev=str(dev))
    seed = 0 if config.interpolate()["training"]["seed"] is None else "${training.seed}"
    train_corpus = {"@readers": READER, "path": "${paths.train}", **reader, "seed": seed}
    dev_corpus = {"@readers": "spacy.Corpus.v1", "path": "${paths.dev}"}
    config["corpora"].update(train=train_corpus, dev=dev_corpus)
    config["training"].update(train_corpus="corpora.train", dev_corpus="corpora.dev", max_epochs=-1)
    if reader["hold_out"]:  # the dev corpus is not gold
        without_calibration(config)
    key, scores = recognizer(nlp).entities_key, config["training"]["score_weights"]
    if (
        key
        and reader["hold_out"]
        and not any(scores[name] for name in scores if not name.startswith("ents_"))
    ):
        scores.update(dict.fromkeys(scores), **{f"spans_{key}_f": 1.0})
    if not given_labels(nlp):
        of_component = config["initialize"]["components"].setdefault(recognizer(nlp).name, {})
        of_component["labels"] = [*labels]
    return load_model_from_config(config, auto_fill=True).config
