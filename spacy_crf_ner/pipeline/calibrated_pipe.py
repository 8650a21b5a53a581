"""A CRF pipe whose probabilities are calibrated on examples."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example, validate_examples

from .. import crf
from ..input_error import InputError
from ..ml.potentials import Potentials, nll
from ..tags import TAG_MISSING
from .crf_pipe import BATCH_SIZE, CRFPipe
from .flat import FlatChain
from .gold import gold_entities
from .interval_scheduling import Candidate, best_threshold
from .lookup import only_before, recognizer, recognizers
from .overlapping import LabelChains
from .platt_scaling import UNCHANGED, PlattScaling, fit_platt_scaling
from .temperature_scaling import Batch, fit_temperature

LOWEST = 0.02  # of the posteriors that Platt scaling is fitted to
CALIBRATION = ("temperature", "platt_slope", "platt_intercept", "platt_ceiling")
BATCH_TOKENS = 10_000  # of annotations of one doc


class Scored(NamedTuple):
    """A batch of examples, with what the network of a pipeline computes for their predicted docs.

    chains: How the pipeline writes entities as tags.
    potentials: Of the docs, not yet divided by a temperature.
    overwrite: Whether preset entities of the docs are ignored.
    excluded: The labels that the pipeline does not predict.
    """

    chains: FlatChain | LabelChains
    examples: Sequence[Example]
    potentials: Potentials
    overwrite: bool
    excluded: Collection[str]

    def entities(self) -> int:
        """Count the gold entities of labels that are predicted."""
        return _count(self.examples, self.chains.key, self.excluded)

    def likelihood(self) -> Batch:
        """Return what the likelihood of the gold tags depends on."""
        potentials, _ = self.chains.split(self.potentials)
        gold, hidden = self.chains.gold(self.examples)
        possible = restricted(self.chains, potentials, self.excluded)
        return possible, gold, hidden, self.chains.scheme.constraints

    def judged(self, temperature: float, lowest: float) -> Iterator[tuple[float, bool]]:
        """Yield the posterior of each annotated span over the lowest, and whether it is gold."""
        docs = [eg.predicted for eg in self.examples]
        settings = self.overwrite, temperature, UNCHANGED
        posterior = self.chains.posterior(docs, self.potentials, *settings, self.excluded)
        found = posterior.candidates(np.full(len(self.chains.labels), lowest))
        for eg, candidates in zip(self.examples, found):
            yield from self.chains.judge_spans(eg, candidates)


class CalibratedPipe(CRFPipe):
    """A CRF pipe that fits its temperature and its Platt scaling."""

    @property
    def calibrated_on(self) -> int | None:
        """The number of gold entities that the calibration was fitted to; None for no fit.

        It is None too if one of the numbers is given in the config, or was set by hand.
        """
        if any(self.settings[name] is not None for name in CALIBRATION):
            return None
        return cast(int | None, self.cfg.get("calibrated_on"))

    @calibrated_on.setter
    def calibrated_on(self, entities: int | None) -> None:
        self.cfg["calibrated_on"] = entities

    @property
    def is_calibrated(self) -> bool:
        """Whether probabilities of entities are not those of the CRF as they are."""
        return self.temperature != 1.0 or self.platt_scaling != UNCHANGED

    def forget_calibration(self) -> None:
        """Give back the probabilities of the CRF as they are."""
        for name in (*CALIBRATION, "calibrated_on"):
            setattr(self, name, None)

    def fit_temperature(self, examples: Iterable[Example], more: Sequence[Scored] = ()) -> float:
        """Set the most probable temperature, given the gold entities and a prior.

        This calibrates the confidences. With decode = "viterbi", it affects entities only through
        the thresholds, and of overlapping ones the choice in `doc.ents`. The prior keeps a few
        entities from changing much, and below 200 the temperature is at least 1. Docs without
        annotation are ignored.

        examples: Examples that were not used for training. The components before this one must
            have processed their `predicted` docs. Gold entities of disabled labels count as not
            annotated.
        more: Examples with what other pipelines have computed, as `scored`.

        Returns the temperature, 0.05 to 20. Source: Guo et al. (2017), ICML, for a softmax.
        Raises InputError if no example has annotation, or an entity of a label that is predicted,
        and as `get_loss`.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.fit_temperature")
        annotated = [eg for eg in examples if self.chains.is_annotated(eg)]
        if not annotated:
            raise InputError(
                f"[{self.name}] expected examples with annotated entities, got {len(examples)} "
                f"without: the temperature cannot be fitted. {self._where_gold_is}."
            )
        batches = [*self.scored(annotated), *more]
        entities = self._require_entities(batches)
        learned = []
        for scores, gold, hidden, constraints in (batch.likelihood() for batch in batches):
            learned.append((scores, _possible(gold, scores), hidden, constraints))
        self.temperature = fit_temperature(learned, entities)
        self.calibrated_on = entities
        return self.temperature

    def fit_platt_scaling(
        self, examples: Iterable[Example], more: Sequence[Scored] = ()
    ) -> PlattScaling:
        """Set the most probable slope and intercept: are probable spans entities?

        They are fitted to all spans with a posterior of at least 0.02, at the temperature, whose
        tokens and label are annotated; so fit the temperature first. A prior keeps a few spans from
        changing much, and below 200 entities the slope is at most 1.

        examples, more: As for `fit_temperature`.

        Raises InputError if no example has an entity of a label that is predicted, and as
        `get_loss`. Warns if spans with a higher posterior are less often entities.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.fit_platt_scaling")
        batches = [*self.scored(examples), *more]
        entities = self._require_entities(batches)
        judged = [each for batch in batches for each in batch.judged(self.temperature, LOWEST)]
        posteriors, correct = np.array(judged, dtype=np.float64).reshape(-1, 2).T
        scaling = fit_platt_scaling(posteriors, correct, entities, self.name)
        self.platt_slope, self.platt_intercept, self.platt_ceiling = scaling
        self.calibrated_on = entities
        return scaling

    def count_entities(self, examples: Iterable[Example]) -> int:
        """Count the gold entities of labels that are predicted."""
        return _count(examples, self.entities_key, self._excluded)

    def _require_entities(self, batches: Sequence[Scored]) -> int:
        """Count the entities to fit to; raise InputError if there are none."""
        entities = sum(batch.entities() for batch in batches)
        if not entities:
            docs = sum(len(batch.examples) for batch in batches)
            raise InputError(
                f"[{self.name}] expected examples with entities of {[*self.enabled_labels]}, got "
                f"{docs} without: confidences cannot be calibrated. {self._where_gold_is}."
            )
        return entities

    def scored(self, examples: Sequence[Example]) -> list[Scored]:
        """Compute the potentials of the predicted docs of examples, in batches.

        Raises InputError as `predict`.
        """
        batches = (examples[i : i + BATCH_SIZE] for i in range(0, len(examples), BATCH_SIZE))
        found = ((batch, self._potentials([eg.predicted for eg in batch])) for batch in batches)
        settings = self.overwrite, self._excluded
        return [Scored(self.chains, batch, potentials, *settings) for batch, potentials in found]

    def fit_span_threshold(self, docs: Iterable[Doc], beta: float = 1.0) -> float:
        """Set the threshold of "f_score" that has the best expected F-score on docs, without gold.

        The expected numbers of entities, and of right ones among those chosen, are sums of
        probabilities: so fit the temperature and Platt scaling first. Preset entities that are kept
        count as right, and those below the thresholds of their labels are not chosen.

        docs: Docs such as those to annotate, which the components before this one have processed.
        beta: Recall is beta times as important as precision.

        Returns the threshold, 0.01 to 0.99, see `best_threshold`. Set `decode` to use it.
        Raises InputError if beta is not over 0, if no span of the docs has a probability of at
        least 0.01, and as `predict`.
        """
        if not 0 < beta < inf:
            raise InputError(f"[{self.name}] beta: expected a number over 0, got {beta}.")
        lowest, thresholds = np.full(len(self.labels), 0.01), self.label_thresholds
        found: list[list[Candidate]] = []
        left, gold, kept = iter(docs), 0.0, 0
        while batch := [*islice(left, BATCH_SIZE)]:
            kept += 0 if self.overwrite else sum(len(doc.ents) for doc in batch)
            for of_doc in self._posterior(batch).candidates(lowest):
                gold += sum(p for _, p in of_doc)
                found.append([(span, p) for span, p in of_doc if p >= thresholds[span[2]]])
        if not any(found):
            raise InputError(
                f"[{self.name}] expected docs with probable entities that are not preset, got none "
                f"in {len(found)}: the threshold of f_score cannot be fitted. Take other docs."
            )
        threshold = best_threshold(found, self.chains.choose, gold + kept, kept, beta)
        self.span_threshold = min(max(threshold, 0.01), 0.99)
        return self.span_threshold

    def log_likelihoods(self, examples: Iterable[Example]) -> list[float]:
        """Compute the log probability of the gold entities of each example, at the temperature.

        It sums over all tags of tokens without annotation, given that there is no entity of a
        disabled label. With a gold entity of such a label it is below -1e20. The components before
        this one must have processed the `predicted` docs.

        Raises InputError as `get_loss`.
        """
        examples = list(examples)
        batches = self.scored(examples)
        losses = [nll(*batch.likelihood(), self.temperature) for batch in batches]
        by_doc = np.concatenate(losses).reshape(len(examples), -1) if losses else np.zeros((0, 1))
        return (-by_doc.sum(1)).tolist()  # type: ignore[no-any-return]

    def log_likelihoods_of(self, doc: Doc, golds: Iterable[Doc]) -> Iterator[float]:
        """Compute them for several annotations of one doc, as `log_likelihoods`.

        The model runs once, and memory is needed for a few annotations at a time.
        """
        constraints, temperature = self.chains.scheme.constraints, self.temperature
        scores = self._potentials([doc])
        left = (Example(doc, gold) for gold in golds)
        while batch := [*islice(left, max(1, BATCH_TOKENS // max(1, len(doc))))]:
            n = len(batch)
            emissions, lengths = np.tile(scores.emissions, (n, 1)), np.tile(scores.lengths, n)
            repeated = scores._replace(emissions=emissions, lengths=lengths)
            potentials, _ = self.chains.split(repeated)
            own = restricted(self.chains, potentials, self._excluded)
            gold = self.chains.gold(batch)
            losses = nll(own, *gold, constraints, temperature)
            yield from (-losses.reshape(n, -1).sum(1)).tolist()

    @property
    def _where_gold_is(self) -> str:
        key = self.entities_key
        return f"Check that the corpus has doc.ents{f' or doc.spans[{key!r}]' if key else ''}"


def calibration_of(pipe: CalibratedPipe) -> str:
    """Say whether confidences are calibrated, and on how many entities."""
    if not pipe.is_calibrated:
        return "Confidences: not calibrated"
    n = pipe.calibrated_on
    return f"Confidences: calibrated on {'given numbers' if n is None else f'{n:,} entities'}"


def calibrations(nlp: Language) -> list[str]:
    """Say it of each `crf_ner` component of a pipeline."""
    names = recognizers(nlp)
    return [
        f"{f'[{name}] ' if len(names) > 1 else ''}{calibration_of(recognizer(nlp, name))}"
        for name in names
    ]


def _count(examples: Iterable[Example], key: str | None, excluded: Collection[str]) -> int:
    golds = (gold_entities(eg.reference, key) for eg in examples)
    return sum(ent.label_ not in excluded for ents in golds for ent in ents)


def restricted(
    chains: FlatChain | LabelChains, potentials: Potentials, excluded: Collection[str]
) -> Potentials:
    """Forbid the tags of excluded labels, in the potentials of chains or of their first tags."""
    possible = chains.possible_tags(excluded)
    if possible is None:
        return potentials
    of_chains = np.tile(possible, (len(potentials.lengths) // len(possible), 1))
    allowed = np.repeat(of_chains, potentials.lengths, axis=0)[:, : potentials.emissions.shape[1]]
    return potentials._replace(emissions=crf.clamp(potentials.emissions, allowed))


def _possible(gold: NDArray[np.int64], scores: Potentials) -> NDArray[np.int64]:
    """Replace the gold tags of N tokens that cannot be predicted by missing ones."""
    is_forbidden = scores.emissions[np.arange(len(gold)), gold] == np.float32(crf.FORBIDDEN)
    return np.where(is_forbidden, TAG_MISSING, gold)


def read_by_earlier(nlp: Language, name: str, examples: Iterable[Example]) -> list[Example]:
    """Let the components before one process copies of the predicted docs."""
    pairs = ((eg.predicted.copy(), eg.reference) for eg in examples)
    with only_before(nlp, name):
        return [Example(doc, gold) for doc, gold in nlp.pipe(pairs, as_tuples=True)]
