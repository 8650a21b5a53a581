"""Calibration in `spacy train`: the confidences of saved pipelines match their precision on dev."""

import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from spacy.language import Language
from spacy.training import Example
from spacy.util import logger, resolve_dot_names
from thinc.api import Config, Model

from ..input_error import InputError
from ..ml.digest import weights_digest
from ..ml.random_state import kept_numpy_state, kept_random_state
from ..pipeline.calibration import few_entities, forget_calibration
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import read_components, recognizer, recognizer_names, run_upstream
from ..pipeline.network import computed_once
from ..pipeline.settings import FITS

CALLBACK = "spacy-crf-ner.calibrate_on_dev.v1"

# The digest of the weights, and what was fitted to them.
Fitted = tuple[str, dict[str, float | None]]


def calibrate_on_dev(max_words: int = 10_000) -> Callable[[Language], Language]:
    """Make `spacy-crf-ner.calibrate_on_dev.v1`, for `[training.before_to_disk]`.

    Each time that the pipeline is saved with other weights, temperature and Platt scaling of its
    `crf_ner` components are fitted to `training.dev_corpus`. Some are left as they are: frozen
    ones; and those whose entities depend on confidences, by a threshold or `decode =
    "max_expected_f"`, as the scores of the training would be of other entities.

    Args:
        max_words: The number of tokens in random dev docs, about; 0 for all docs.

    Writes to spaCy's log, between the rows of the training: that it is fitted to few entities; dev
    docs whose entities the component cannot learn, which are left out; and that no dev doc has
    entities of a label that is predicted, or scores are not finite, so that nothing is calibrated.
    Warns as `fit_platt_scaling` does, but for the first time, when a pipeline has mostly learned
    nothing yet.
    """
    chosen: dict[str, list[Example]] | None = None
    fitted: dict[str, Fitted] = {}

    def before_to_disk(nlp: Language) -> Language:
        nonlocal chosen
        is_first = chosen is None
        if chosen is None:
            names = [*_calibrated(nlp)]
            examples = _read_dev(nlp) if names else []
            for name in names:  # the best pipeline may be that of the first evaluation
                recognizer(nlp, name).seen_texts.remember("dev", (eg.text for eg in examples))
            chosen = {name: _choose(nlp, name, examples, max_words) for name in names}
        for name, kept in chosen.items():
            if kept:
                fitted[name] = _fit(nlp, name, kept, fitted.get(name, ("", {})), is_first)
        return nlp

    return before_to_disk


def is_calibrated_when_saved(config: Config) -> bool:
    """Return whether a config has this callback."""
    return (config["training"].get("before_to_disk") or {}).get("@callbacks") == CALLBACK


def without_calibration(config: Config) -> None:
    """Remove the callback from a config, such as one whose dev corpus is not gold."""
    if is_calibrated_when_saved(config):
        config["training"]["before_to_disk"] = None


def _read_dev(nlp: Language) -> list[Example]:
    """Read the dev corpus; a reader that shuffles must not change the random numbers of others."""
    config = nlp.config.interpolate()
    with kept_random_state(), kept_numpy_state():
        (dev,) = resolve_dot_names(config, [config["training"]["dev_corpus"]])
        return list(dev(nlp))


def _calibrated(nlp: Language) -> Iterator[str]:
    """Yield the names of the components to calibrate."""
    frozen = nlp.config.interpolate()["training"]["frozen_components"]
    for name in recognizer_names(nlp):
        if name not in frozen:
            pipe = recognizer(nlp, name)
            cut = pipe.threshold or any(pipe.thresholds.values()) or pipe.decode == "max_expected_f"
            if not cut:
                yield name


def _choose(nlp: Language, name: str, examples: Sequence[Example], words: int) -> list[Example]:
    """Choose random docs, of about these words, that are annotated with what can be learned."""
    pipe = recognizer(nlp, name)
    found: list[Example] = []
    problems: list[InputError] = []
    for eg in examples:
        try:
            if pipe.encoding.is_annotated(eg):
                found.append(eg)
        except InputError as problem:
            problems.append(problem)
    if problems:
        logger.warning(
            f"[{name}] calibration leaves out {len(problems)} of {len(examples)} docs of the dev "
            f"corpus, for an entity that cannot be learned. The first: {problems[0]}"
        )
    random.Random(0).shuffle(found)
    ends = accumulate(len(eg.predicted) for eg in found)
    chosen = [eg for eg, end in zip(found, ends) if not words or end - len(eg.predicted) < words]
    golds = (gold_entities(eg.reference, pipe.entities_key) for eg in chosen)
    if any(ent.label_ not in pipe.disabled_labels for ents in golds for ent in ents):
        return chosen
    logger.warning(
        f"[{name}] calibration: expected entities in the dev corpus, got none in {len(chosen)} "
        "docs. The confidences are not calibrated. Annotate some docs, or turn the calibration "
        "off: train --no-calibrate."
    )
    return []


def _fit(
    nlp: Language, name: str, examples: Sequence[Example], last: Fitted, is_first: bool
) -> Fitted:
    """Calibrate a component, unless its weights are those of the last time; return what was fitted.

    The first time, warnings are not shown, and problems are not in the log.
    """
    pipe = recognizer(nlp, name)
    models = [getattr(each, "model", None) for each in read_components(nlp, name).values()]
    digest = weights_digest(each for each in models if isinstance(each, Model))
    then, found = last
    forget_calibration(pipe)  # it was fitted to the weights of an earlier save
    if then == digest:
        for each, value in found.items():
            setattr(pipe, each, value)
        return last
    try:
        with warnings.catch_warnings():
            if is_first:
                warnings.simplefilter("ignore")
            read = run_upstream(nlp, name, examples)
            with computed_once(pipe):
                pipe.fit_temperature(read)
                pipe.fit_platt_scaling(read)
        if pipe.calibrated_on != found.get("calibrated_on"):
            n = pipe.calibrated_on or 0
            few = few_entities(n)
            level = logging.WARNING if few else logging.INFO
            text = f"[{name}] Confidences are calibrated on {n} entities of the dev corpus{few}."
            logger.log(level, text)
        # The same weights may be saved again after the first time: then with the warnings.
        last = "" if is_first else digest, {each: getattr(pipe, each) for each in FITS}
    except InputError as problem:  # a training that diverged is saved too
        if not is_first:
            logger.warning(f"[{name}] calibration failed: {problem}")
    return last
