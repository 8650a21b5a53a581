"""Calibration in `spacy train`: the confidences of saved pipelines match their precision on dev."""

import random
import warnings
from collections.abc import Callable, Iterable
from itertools import count

from spacy.language import Language
from spacy.training import Example
from spacy.util import resolve_dot_names

from ..pipeline.calibrated_pipe import read_by_earlier
from ..pipeline.lookup import FACTORY, recognizer


def calibrate_on_dev(max_docs: int = 1000) -> Callable[[Language], Language]:
    """Make `spacy-crf-ner.calibrate_on_dev.v1`, for `[training.before_to_disk]`.

    Each time that the pipeline is saved, temperature and Platt scaling of its `crf_ner` components
    are fitted to `training.dev_corpus`. Entities stay the same, unless they depend on confidences:
    with a threshold, or with `decode = "f_score"`. Frozen components, and those with a temperature
    in the config, are left as they are.

    max_docs: The number of docs, chosen at random from a larger corpus; 0 for all.

    The callback raises InputError if no doc has annotated entities. It warns as `fit_temperature`
    and `fit_platt_scaling`, but for the first time, when the pipeline has learned nothing yet.
    """
    saves = count()

    def before_to_disk(nlp: Language) -> Language:
        config = nlp.config.interpolate()
        frozen = config["training"]["frozen_components"]
        (dev,) = resolve_dot_names(config, [config["training"]["dev_corpus"]])
        examples = list(dev(nlp))
        if 0 < max_docs < len(examples):
            examples = random.Random(0).sample(examples, max_docs)
        with warnings.catch_warnings():
            if next(saves) == 0:
                warnings.simplefilter("ignore")
            for name in nlp.pipe_names:
                if nlp.get_pipe_meta(name).factory == FACTORY and name not in frozen:
                    _calibrate(nlp, name, examples)
        return nlp

    return before_to_disk


def _calibrate(nlp: Language, name: str, examples: Iterable[Example]) -> None:
    pipe = recognizer(nlp, name)
    if pipe.settings["temperature"] is None:
        read = read_by_earlier(nlp, name, examples)
        pipe.fit_temperature(read)
        pipe.fit_platt_scaling(read)
