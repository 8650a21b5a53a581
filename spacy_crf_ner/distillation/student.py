"""The student: its pipeline without weights, and what trains it, the config and a dev corpus."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.util import get_sourced_components, load_model_from_config
from thinc.api import Config

from ..atomic import atomic_write
from ..input_error import InputError
from ..pipeline.distill_targets import DistillTarget, Teacher, probable_entities
from ..pipeline.lookup import recognizer
from ..training.calibration import without_calibration
from ..training.config_file import find_config, given_labels, read_config
from ..training.distill_corpus import READER
from ..training.teacher_shard import as_example, count_docs, find_shards, read_shard

COPY = "spacy.copy_from_base_model.v1"
MAX_DOCS, LEAST = 1000, 10  # of the docs that are held out: their number, and every n-th at most


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
    """Return the complete config that trains the student on the teachers' scores in a folder.

    It predicts `labels`, unless it has others; `reader` are settings of the corpus of the scores.
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


def interval(docs: int) -> int:
    """Return n, where every n-th doc is held out: a tenth of the docs, but about 1000 at most."""
    return max(LEAST, docs // MAX_DOCS)


def write_held_out(nlp: Language, shards: Path, file: Path) -> int:
    """Write the held-out docs of shards with their teachers' entities; return `hold_out`.

    That is the setting of `spacy-crf-ner.DistillCorpus.v1`. An entity is a span with a mean
    posterior above 0.5. The student need not be trained.
    """
    hold_out = interval(sum(map(count_docs, find_shards(shards))))
    with atomic_write(file) as unfinished:
        DocBin(docs=_held_out(nlp, shards, hold_out)).to_disk(unfinished)
    return hold_out


def _held_out(nlp: Language, shards: Path, hold_out: int) -> Iterator[Doc]:
    ner = recognizer(nlp)
    number = 0
    for path in find_shards(shards):
        shard = read_shard(path, nlp.vocab)
        held = slice(-number % hold_out, None, hold_out)
        number += len(shard.docs)
        for gold, emissions in zip(shard.docs[held], shard.emissions[held]):
            doc = as_example(nlp, gold).predicted
            target = DistillTarget(shard.teachers, emissions, 1.0, 1.0)
            spans = [Span(doc, *span) for span in probable_entities(doc, target, ner.encoding_of)]
            if ner.entities_key is None:
                doc.set_ents(spans)
            else:
                doc.spans[ner.entities_key] = spans
            yield doc
