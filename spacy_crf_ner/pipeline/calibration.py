"""Calibration: what a component fits to held-out examples, so that confidences match accuracy.

The temperature is fitted to the likelihood of gold tags, Platt scaling to single spans, and the
threshold of "max_expected_f" to docs without gold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example, validate_examples

from .. import crf
from ..extras import required
from ..input_error import InputError
from ..tags import TAG_MISSING
from .annotation import label_thresholds
from .encoding import Encoding, forbid_labels
from .gold import count_entities, where_gold_is
from .interval_scheduling import Candidate, best_threshold
from .network import BATCH_SIZE
from .platt_scaling import FEW, UNCHANGED, PlattScaling, most_probable_scaling
from .settings import CALIBRATION

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer as Component

LOWEST = 0.02  # of the posteriors that Platt scaling is fitted to
BATCH_TOKENS = 10_000  # of annotations of one doc
TEMPERATURES = 0.05, 20.0  # the lowest, and the highest
# Of the normal prior of the temperature's logarithm, around no change. Chosen, as those of Platt
# scaling, by the likelihood on the test parts of five corpora: see docs/benchmarks.md.
TEMPERATURE_VARIANCE = 0.03

# Potentials of legal tag sequences, gold tags, and the tags that "O" may stand for.
Likelihood = tuple[crf.Chain, NDArray[np.int64], NDArray[np.bool_] | None]


def forget_calibration(pipe: Component) -> None:
    """Reset the calibration: the probabilities are those of the CRF."""
    for name in CALIBRATION:
        setattr(pipe, name, None)


def platt_scaling(pipe: Component) -> PlattScaling:
    """Return the calibration of the probabilities of spans."""
    return PlattScaling(pipe.platt_slope, pipe.platt_intercept, pipe.platt_ceiling)


def is_calibrated(pipe: Component) -> bool:
    """Whether probabilities of entities are not those of the CRF as they are."""
    return pipe.temperature != 1.0 or platt_scaling(pipe) != UNCHANGED


def calibration_of(pipe: Component) -> str:
    """Describe whether confidences are calibrated, and on how many entities."""
    if not is_calibrated(pipe):
        return "Confidences: not calibrated"
    n = pipe.calibrated_on
    on = "given numbers" if n is None else f"{n:,} entities{few_entities(n)}"
    return f"Confidences: calibrated on {on}"


def few_entities(number: int) -> str:
    """Say of fewer than 200 entities that they are too few; "" for others."""
    few = f", too few to trust them: {FEW} or more are better, see train --folds"
    return few if number < FEW else ""


class Scored(NamedTuple):
    """A batch of examples, and what the network of a pipeline computes for their predicted docs."""

    encoding: Encoding
    examples: Sequence[Example]
    potentials: crf.Chain  # not yet divided by a temperature
    overwrite: bool  # whether preset entities of the docs are ignored
    excluded: Collection[str]  # the labels that the pipeline does not predict

    def likelihood(self) -> Likelihood:
        """Return the potentials of legal tag sequences, and the gold and ambiguous tags."""
        chains, _ = self.encoding.split(self.potentials)
        possible = forbid_labels(self.encoding, chains, self.excluded)
        legal = crf.constrain(possible, *self.encoding.scheme.constraints)
        return legal, *self.encoding.gold(self.examples)

    def log_likelihoods(self, temperature: float) -> list[float]:
        """Return the log probability of the gold entities of each example."""
        chain, gold, ambiguous = self.likelihood()
        losses = crf.negative_log_likelihood(chain.divided_by(temperature), gold, ambiguous)
        return (-losses.reshape(len(self.examples), -1).sum(1)).tolist()  # type: ignore[no-any-return]

    def matched(self, temperature: float, lowest: float) -> list[tuple[float, bool]]:
        """Return the posterior of each annotated span over the lowest, and whether it is gold."""
        docs = [eg.predicted for eg in self.examples]
        settings = self.overwrite, temperature, UNCHANGED, self.excluded
        posterior = self.encoding.posterior(docs, self.potentials, *settings)
        found = posterior.candidates(np.full(len(self.encoding.labels), lowest))
        pairs = zip(self.examples, found)
        return [each for pair in pairs for each in self.encoding.match_candidates(*pair)]


def score_examples(pipe: Component, examples: Sequence[Example]) -> list[Scored]:
    """Compute the potentials of the predicted docs of examples, in batches."""
    found = []
    for i in range(0, len(examples), BATCH_SIZE):
        batch = examples[i : i + BATCH_SIZE]
        potentials = pipe.potentials([eg.predicted for eg in batch])
        found.append(Scored(pipe.encoding, batch, potentials, pipe.overwrite, pipe.excluded))
    return found


def fit_temperature(
    pipe: Component, examples: Iterable[Example], more: Sequence[Scored] = ()
) -> float:
    """Set the most probable temperature, given the gold entities and a prior.

    The prior keeps a few entities from changing much, and below 200 the temperature is at least 1.
    Docs without annotation are ignored. Source: Guo et al. (2017), ICML, for a softmax.

    Args:
        examples: Examples that were not used for training. The components before this one must have
            processed their `predicted` docs. Gold entities of disabled labels count as not
            annotated.
        more: Examples with what other pipelines have computed.

    Returns:
        The temperature, 0.05 to 20.

    Raises:
        InputError: If no example has annotation, or an entity of a label that is predicted, for
            gold entities that cannot be learned, and for docs that the component cannot read.
    """
    examples = list(examples)
    validate_examples(examples, "CRFEntityRecognizer.fit_temperature")
    annotated = [eg for eg in examples if pipe.encoding.is_annotated(eg)]
    if not annotated and not more:
        raise InputError(
            f"[{pipe.name}] expected examples with annotated entities, got {len(examples)} "
            f"without: the temperature cannot be fitted. {where_gold_is(pipe.encoding.key)}."
        )
    batches = [*score_examples(pipe, annotated), *more]
    entities = _check_entities(pipe, batches)
    likelihoods = (batch.likelihood() for batch in batches)
    learned = [(chain, _possible(gold, chain), also) for chain, gold, also in likelihoods]
    pipe.temperature = most_probable_temperature(learned, entities)
    pipe.calibrated_on = entities
    return pipe.temperature


def most_probable_temperature(batches: Sequence[Likelihood], entities: int) -> float:
    """Find the temperature with the highest posterior probability; its logarithm has the prior."""

    def slope(log_temperature: float) -> float:
        """Differentiate the negative log posterior by the temperature's logarithm."""
        temperature = math.exp(log_temperature)
        slopes = (
            crf.nll_slope(chain.divided_by(temperature), gold, ambiguous)
            for chain, gold, ambiguous in batches
        )
        return log_temperature / TEMPERATURE_VARIANCE - sum(slopes)

    with required("calibrate"):
        from scipy.optimize import brentq
    low, high = (math.log(limit) for limit in TEMPERATURES)
    low = 0.0 if entities < FEW else low
    if slope(low) >= 0:
        return math.exp(low)
    if slope(high) <= 0:
        return TEMPERATURES[1]
    return math.exp(brentq(slope, low, high, xtol=1e-6))


def fit_platt_scaling(
    pipe: Component, examples: Iterable[Example], more: Sequence[Scored] = ()
) -> PlattScaling:
    """Set the most probable Platt scaling: are probable spans entities?

    It is fitted to all spans with a posterior of at least 0.02, at the temperature, whose tokens
    and label are annotated; so fit the temperature first. A prior keeps a few spans from changing
    much, and below 200 entities the slope is at most 1. Warns if spans with a higher posterior are
    less often entities. Arguments and errors are those of `fit_temperature`.
    """
    examples = list(examples)
    validate_examples(examples, "CRFEntityRecognizer.fit_platt_scaling")
    batches = [*score_examples(pipe, examples), *more]
    entities = _check_entities(pipe, batches)
    matched = [each for batch in batches for each in batch.matched(pipe.temperature, LOWEST)]
    posteriors, correct = np.array(matched, dtype=np.float64).reshape(-1, 2).T
    scaling = most_probable_scaling(posteriors, correct, entities, pipe.name)
    pipe.platt_slope, pipe.platt_intercept, pipe.platt_ceiling = scaling
    pipe.calibrated_on = entities
    return scaling


def fit_f_score_threshold(pipe: Component, docs: Iterable[Doc], beta: float = 1.0) -> float:
    """Set the `f_score_threshold` with the best expected F-score on docs, without gold.

    The expected numbers of entities, and of right ones among those chosen, are sums of
    probabilities: so fit the temperature and Platt scaling first. Preset entities that are kept
    count as right, and spans below the thresholds of their labels are not chosen.

    Args:
        docs: Docs such as those to annotate, which the components before this one have processed.
        beta: Recall is beta times as important as precision.

    Raises:
        InputError: If beta is not over 0, if no span of the docs has a probability of at least
            0.01, and for docs that the component cannot read.
    """
    if not 0 < beta < math.inf:
        raise InputError(f"[{pipe.name}] beta: expected a number over 0, got {beta}.")
    lowest, thresholds = np.full(len(pipe.labels), 0.01), label_thresholds(pipe)
    found: list[list[Candidate]] = []
    left, gold, kept = iter(docs), 0.0, 0
    while batch := [*islice(left, BATCH_SIZE)]:
        kept += 0 if pipe.overwrite else sum(len(doc.ents) for doc in batch)
        for of_doc in pipe.posterior(batch).candidates(lowest):
            gold += sum(p for _, p in of_doc)
            found.append([(span, p) for span, p in of_doc if p >= thresholds[span[2]]])
    if not any(found):
        raise InputError(
            f"[{pipe.name}] expected docs with probable entities that are not preset, got none "
            f"in {len(found)}: f_score_threshold cannot be fitted. Take other docs."
        )
    threshold = best_threshold(found, pipe.encoding.choose, gold + kept, kept, beta)
    pipe.f_score_threshold = min(max(threshold, 0.01), 0.99)
    return pipe.f_score_threshold


def log_likelihoods(pipe: Component, examples: Iterable[Example]) -> list[float]:
    """Compute the log probability of the gold entities of each example, at the temperature.

    It sums over all tags of tokens without annotation, given that there is no entity of a label
    that is not predicted. With a gold entity of such a label it is below -1e20.
    """
    batches = score_examples(pipe, list(examples))
    return [p for batch in batches for p in batch.log_likelihoods(pipe.temperature)]


def log_likelihoods_of(pipe: Component, doc: Doc, golds: Iterable[Doc]) -> Iterator[float]:
    """Compute the log probability of each of several annotations of one doc.

    The model runs once, and memory is needed for a few annotations at a time.
    """
    scores = pipe.potentials([doc])
    left = (Example(doc, gold) for gold in golds)
    while batch := [*islice(left, max(1, BATCH_TOKENS // max(1, len(doc))))]:
        repeated = scores.select(np.zeros(len(batch), dtype=np.int64))
        scored = Scored(pipe.encoding, batch, repeated, pipe.overwrite, pipe.excluded)
        yield from scored.log_likelihoods(pipe.temperature)


def _possible(gold: NDArray[np.int64], scores: crf.Chain) -> NDArray[np.int64]:
    """Replace the gold tags of N tokens that cannot be predicted by missing ones."""
    is_forbidden = scores.emissions[np.arange(len(gold)), gold] == np.float32(crf.FORBIDDEN)
    return np.where(is_forbidden, TAG_MISSING, gold)


def _check_entities(pipe: Component, batches: Sequence[Scored]) -> int:
    """Count the entities to fit to; raise InputError if there are none."""
    entities = sum(count_entities(x.examples, x.encoding.key, x.excluded) for x in batches)
    if not entities:
        docs = sum(len(batch.examples) for batch in batches)
        raise InputError(
            f"[{pipe.name}] expected examples with entities of {[*pipe.enabled_labels]}, got "
            f"{docs} without: confidences cannot be calibrated. {where_gold_is(pipe.encoding.key)}."
        )
    return entities
