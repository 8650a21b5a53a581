"""Accuracy, speed and size of one trained pipeline."""

import statistics
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import spacy
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Corpus
from spacy.training.loop import create_train_batches
from spacy.util import registry
from thinc.api import require_gpu

from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.pipeline.network import is_constrained

COMPONENT = "ner"  # its name in the configs
TIMED_BATCHES = 10
TIMED_ROUNDS = 3


def measure(model: Path, test: Path, gpu_id: int = -1) -> dict[str, Any]:
    """Measure a trained pipeline.

    model: Folder of the pipeline. If it decodes for the F-score, its threshold is fitted on the
        dev part beside the test part.
    test: Corpus with gold entities, a .spacy file.
    gpu_id: GPU to use, -1 for the CPU.

    Returns p, r, f and per_type: precision, recall and F1, overall and by label, from 0 to 1;
    invalid: the share of docs for which the best tag of each token alone gives an illegal sequence
    (None for a CRF decoder, which does not score tokens alone); train_speed and predict_speed:
    words per second, medians; parameters: their number in the pipeline.
    """
    if gpu_id >= 0:
        require_gpu(gpu_id)
    nlp = spacy.load(model)
    if nlp.get_pipe(COMPONENT).decode == "max_expected_f":
        dev = Corpus(test.with_name("dev.spacy"))
        calibrate(nlp, list(dev(nlp)), COMPONENT, f_beta=1.0)
    examples = list(Corpus(test)(nlp))
    scores = nlp.evaluate(examples, batch_size=nlp.batch_size)
    docs = [eg.reference for eg in examples]
    return {
        **{name: scores[f"ents_{name}"] for name in "prf"},
        "per_type": scores["ents_per_type"],
        "invalid": invalid_share(nlp, [doc.text for doc in docs]),
        "predict_speed": _predict_speed(nlp, [doc.text for doc in docs]),
        "train_speed": _train_speed(nlp),
        "parameters": _count_parameters(nlp),
    }


def invalid_share(nlp: Language, texts: Sequence[str]) -> float | None:
    """Return the share of docs in which the best tags of single tokens are an illegal sequence."""
    ner: Any = nlp.get_pipe(COMPONENT)
    if is_constrained(ner.model):
        return None
    invalid = total = 0
    docs = [doc for doc in nlp.pipe(texts, disable=[COMPONENT]) if len(doc)]
    follows, start, end = ner.scheme.constraints
    for i in range(0, len(docs), nlp.batch_size):
        batch = docs[i : i + nlp.batch_size]
        potentials = ner.model.predict(batch)
        best = np.asarray(potentials.emissions.argmax(1).tolist())
        for tags in np.split(best, np.cumsum(potentials.lengths)[:-1]):
            legal = not len(tags) or (
                start[tags[0]] and end[tags[-1]] and follows[tags[:-1], tags[1:]].all()
            )
            invalid += not legal
        total += len(batch)
    return invalid / total


def _predict_speed(nlp: Language, texts: Sequence[str]) -> float:
    times = []
    words = 0
    for _ in range(TIMED_ROUNDS):
        start = perf_counter()
        words = sum(len(doc) for doc in nlp.pipe(texts))
        times.append(perf_counter() - start)
    return words / statistics.median(times)


def _train_speed(nlp: Language) -> float:
    """Update the pipeline on some batches, as `spacy train` does."""
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    corpus = registry.resolve({"corpus": config["corpora"]["train"]})["corpus"]
    optimizer = nlp.resume_training(sgd=training["optimizer"])
    batches = create_train_batches(nlp, corpus, training["batcher"], max_epochs=0)
    speeds = []
    # The first batch is not timed.
    for i, (_, batch) in enumerate(islice(batches, TIMED_BATCHES + 1)):
        start = perf_counter()
        nlp.update(
            batch,
            sgd=optimizer,
            drop=training["dropout"],
            exclude=training["frozen_components"],
            annotates=training["annotating_components"],
        )
        if i:
            speeds.append(sum(len(eg.x) for eg in batch) / (perf_counter() - start))
    return statistics.median(speeds)


def _count_parameters(nlp: Language) -> int:
    count = 0
    for _, pipe in nlp.pipeline:
        for node in pipe.model.walk() if hasattr(pipe, "model") else ():
            count += sum(node.get_param(p).size for p in node.param_names if node.has_param(p))
            for shim in node.shims:
                count += sum(weight.numel() for weight in shim._model.parameters())
    return count
