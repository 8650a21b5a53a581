"""The spaCy component: entities from the best legal tag sequence of a linear-chain CRF."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, Span
from spacy.training import Example, validate_examples, validate_get_examples
from spacy.util import check_lexeme_norms
from thinc.api import Model, Optimizer, set_dropout_rate

from ..crf import Chain
from ..ml.checksummed import errors_of
from ..ml.onnx_network import check_trainable
from ..ml.threads import use_one_thread_after_fork
from ..tags import TagScheme
from . import calibration, checks, listeners, network, queries, settings, stored
from .annotation import SPANS_KEY, Prediction, add_confidence_extension, annotate, decode
from .distill_targets import distill_targets
from .encoding import Encoding, make_encoding
from .gold import collect_labels, learnable_labels
from .loss import gold_loss, rehearsal_loss
from .posterior import EntityPosterior
from .seen_texts import SeenTexts
from .transformer_config import set_optimizer

UPDATES_AT_ZERO = 20  # before a warning that nothing is learned


@Language.factory(
    "crf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type", "span._.confidence"],
    default_config=settings.DEFAULT_CONFIG,
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
class CRFEntityRecognizer(TrainablePipe):  # type: ignore[misc]  # a Cython class, untyped
    """Set `Doc.ents` by decoding a linear-chain CRF, each entity with its probability.

    Preset entities of a doc are kept, and the others are predicted given them. No predicted entity
    crosses a sentence start that is set, or begins or ends with whitespace. All settings except
    `scheme`, `overlap` and `max_nesting` are attributes that can be changed; changes are saved.

    Args:
        nlp: The pipeline.
        name: The name of the component in it.
        model: From docs to the potentials of a CRF, as `spacy-crf-ner.BiLSTMCRF.v1` builds it.
        scheme: The tag scheme: "biluo", "bio" or "io".
        overlap: False: at most one entity at a token. True: entities of different labels
            may overlap. All are in `doc.spans[spans_key]`, with their probabilities in
            `.attrs["scores"]`; `doc.ents` has disjoint ones, with the largest sum of probability.
            Gold entities are in `doc.spans[spans_key]`; in `doc.ents` of docs without this key.
        max_nesting: If entities overlap, how many of one label may be nested in each other.
        confidence: Set `ent._.confidence` of each predicted entity: the probability that exactly
            this span has this label, given the doc. It is None for preset entities, and once
            another label is set. Overlapping entities always have it.
        threshold: Entities with a lower probability are dropped.
        thresholds: Thresholds by label, which take precedence.
        decode: "viterbi" takes the entities of the most probable tag sequence, "max_expected_f" the
            disjoint spans with the largest sum of probability minus `f_score_threshold`; with the
            right threshold they have the highest expected F-score.
        f_score_threshold: This threshold, which `spacy-crf-ner calibrate --f-beta` finds.
        spans_key: If not None, `doc.spans[spans_key]` has all spans with a probability of at least
            `candidate_threshold`, including overlapping ones and preset entities, and
            `.attrs["scores"]` their probabilities. For overlapping entities, None is "sc".
        candidate_threshold: The lowest probability of these spans, above 0.
        candidate_thresholds: Those by label, which take precedence.
        disabled_labels: Labels that are not predicted. The probabilities of all others are those
            given that there is no entity of these labels. Training ignores this setting.
        incorrect_spans_key: If not None, `doc.spans[incorrect_spans_key]` of gold docs has negative
            spans: spans that are not entities of their label, or of any label if it is empty. The
            label "O" means that at least one token of the span is in an entity.
        overwrite: Ignore and replace preset entities.
        scorer: Scores examples.

    Attributes:
        temperature: Divides all scores before probabilities are computed; at least 1e-6.
        platt_slope: Multiplies the log odds of spans, to calibrate their probabilities.
        platt_intercept: Is added to these log odds.
        platt_ceiling: Multiplies the probabilities that result, up to 1.
        calibrated_on: The number of gold entities to which these were fitted; None for no fit.

    Raises:
        InputError: For an unknown scheme, and for settings out of their range.
    """

    name: str
    model: Model[list[Doc], Chain]
    cfg: dict[str, Any]  # what is saved

    def __init__(
        self,
        nlp: Language,
        name: str,
        model: Model[list[Doc], Chain],
        *,
        scheme: str = "biluo",
        overlap: bool = False,
        max_nesting: int = 1,
        confidence: bool = True,
        threshold: float = 0.0,
        thresholds: Mapping[str, float],
        decode: str = "viterbi",
        f_score_threshold: float = 0.4,
        spans_key: str | None = None,
        candidate_threshold: float = 0.05,
        candidate_thresholds: Mapping[str, float],
        disabled_labels: Sequence[str],
        incorrect_spans_key: str | None = None,
        overwrite: bool = False,
        scorer: Callable[..., Any] | None,
    ) -> None:
        # Nothing reads `thresholds`: spacy find-threshold fails for thresholds.LABEL without it.
        results: dict[str, Any] = {"labels": [], "untrained": [], "guarantees": {}}
        super().__init__(nlp.vocab, model, name, thresholds={}, **results)
        checks.check_encoding(name, overlap, max_nesting)
        TagScheme(scheme, ())  # fail now for an unknown scheme, not at the first doc
        self._scheme_name, self.overlap, self.max_nesting = scheme, overlap, max_nesting
        self.confidence, self.overwrite, self.decode = confidence, overwrite, decode
        self.threshold, self.thresholds = threshold, thresholds
        self.f_score_threshold, self.spans_key = f_score_threshold, spans_key
        self.candidate_threshold = candidate_threshold
        self.candidate_thresholds, self.disabled_labels = candidate_thresholds, disabled_labels
        self.incorrect_spans_key, self.scorer = incorrect_spans_key, scorer
        self._settings_of_config = settings.current_settings(self)
        self.temperature, self.platt_slope = 1.0, 1.0
        self.platt_intercept, self.platt_ceiling = 0.0, 1.0
        self.calibrated_on: int | None = None
        self.seen_texts = SeenTexts(self.cfg, name)
        self._rehearsal_model = None
        self.computed: network.ComputedPotentials | None = None
        self._updates_at_zero = 0  # in a row, with a learning rate of 0
        add_confidence_extension()
        set_optimizer(nlp, model)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, settings.checked(name, value, self.name))
        if name in settings.CALIBRATION:  # the functions that fit it set calibrated_on after it
            self.calibrated_on = None
        elif name == "_rehearsal_model":  # `nlp.resume_training` copies the model here
            self._not_rehearsed = tuple(self.cfg["untrained"])

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> list[str]:
        """The labels, as `spacy init labels` stores them and `initialize` takes them."""
        return list(self.labels)

    @property
    def excluded(self) -> set[str]:
        """The labels that are not predicted: disabled ones, and added ones before an update."""
        checks.check_known(self.name, "disabled_labels", self.disabled_labels, self.labels)
        return {*self.disabled_labels, *self.cfg["untrained"]}

    @property
    def enabled_labels(self) -> tuple[str, ...]:
        """The labels that are predicted; raises InputError for unknown disabled labels."""
        excluded = self.excluded
        return tuple(label for label in self.labels if label not in excluded)

    @property
    def entities_key(self) -> str | None:
        """The key of overlapping entities in `doc.spans`; None if they do not overlap."""
        return (self.spans_key or SPANS_KEY) if self.overlap else None

    @property
    def encoding(self) -> Encoding:
        """How entities are written as tags."""
        return self.encoding_of(self._scheme_name, self.labels)

    def encoding_of(self, scheme: str, labels: tuple[str, ...]) -> Encoding:
        """Return how entities are written as tags of another scheme, or of other labels."""
        return make_encoding(scheme, labels, self.max_nesting, self.entities_key, self.name)

    @property
    def scheme(self) -> TagScheme:
        """The tags of the model."""
        return self.encoding.tags

    def add_label(self, label: str) -> int:
        """Add a label; return 1, or 0 if it exists. An initialized model gets tags with low scores.

        Entities and confidences do not change before an update with a gold entity of the label.

        Raises:
            InputError: For an empty label, and for one that begins with "!".
        """
        checks.check_label(self.name, label)
        if label in self.labels:
            return 0
        check_trainable(self.model)
        encoding = self.encoding_of(self._scheme_name, (*self.labels, label))  # may refuse it
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        if self.model.get_ref("output_layer").has_dim("nI"):  # it has weights
            network.resize_output(self.model, len(encoding.tags.tags), encoding.added_like)
            self.cfg["untrained"] = [*self.cfg["untrained"], label]
        return 1

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Collect the labels, and give the model new weights.

        Warns about gold entities and negative spans that cannot be learned.

        Args:
            get_examples: Returns the training examples.
            nlp: The pipeline.
            labels: Labels as stored by `spacy init labels`; None takes those of the examples.

        Raises:
            InputError: For examples without entities or with impossible ones, for a threshold of an
                unknown label, if an upstream component is missing, if another component writes to
                the same key of `doc.spans`, and for weights that are too large to be saved.
        """
        check_trainable(self.model)
        validate_get_examples(get_examples, "CRFEntityRecognizer.initialize")
        check_lexeme_norms(self.vocab, self.name)  # type: ignore[no-untyped-call]
        if nlp is not None:
            listeners.check_upstream(self, nlp)
            checks.check_own_key(nlp, self, self.entities_key)
            checks.check_own_key(nlp, self, self.spans_key, TrainablePipe)  # a ruler adds to it
        keys = self.incorrect_spans_key, self.entities_key
        labels = collect_labels(get_examples(), self.name, *keys) if labels is None else labels
        known = tuple(dict.fromkeys([*self.labels, *labels]))
        checks.check_labels(self, known)
        encoding = self.encoding_of(self._scheme_name, known)
        # All checks have passed: reset what belongs to old weights.
        network.forget_weights(self.model)
        calibration.forget_calibration(self)
        self.f_score_threshold = self._settings_of_config["f_score_threshold"]
        self.seen_texts.restart()
        kind = [self.overlap, self.max_nesting]
        self.cfg |= {"untrained": [], "guarantees": {}, "encoding": kind}
        for label in labels:
            self.add_label(label)
        self.model.get_ref("output_layer").set_dim("nO", len(self.scheme.tags))
        encoding.warn_dropped(get_examples(), count=True)
        self.model.initialize(X=[eg.x for eg in islice(get_examples(), 10)])
        network.check_savable([(self.name, self), *(nlp.pipeline if nlp is not None else ())])

    def get_loss(self, examples: Iterable[Example], scores: Chain) -> tuple[float, Chain]:
        """Compute the negative log likelihood of the gold entities, in nats, summed over docs.

        It sums over all tags of tokens that are not annotated, or not aligned with the gold tokens;
        where a label is not annotated, also over its tags (see `annotated_labels`). With teachers
        (see `distill_targets`), it is the weighted sum of this and temperature^2 times
        KL(teachers || model). Labels and texts of the examples count as trained on from now on.

        Returns:
            The loss and its gradient for the potentials of the predicted docs, `scores`.

        Raises:
            InputError: For gold entities that cannot be learned or are also negative spans, for
                potentials that are not finite, and for teachers of other labels or some docs only.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.get_loss")
        targets = distill_targets(examples, self.name)
        loss, d_scores = gold_loss(self, examples, scores, targets)
        if self.cfg["untrained"]:  # teachers know all labels
            found = self.labels if targets else learnable_labels(examples, self.entities_key)
            self.cfg["untrained"] = [x for x in self.cfg["untrained"] if x not in found]
        self.seen_texts.learn(examples)
        return loss, d_scores

    def finish_update(self, sgd: Any) -> None:
        """Update the weights; warn about a learning rate that stays at 0."""
        if isinstance(sgd, Optimizer) and not hasattr(sgd, "groups"):  # GroupedAdam warns itself
            self._updates_at_zero = 0 if sgd.learn_rate else self._updates_at_zero + 1
            if self._updates_at_zero == UPDATES_AT_ZERO:
                warnings.warn(
                    f"[{self.name}] expected a learning rate above 0, got 0 in {UPDATES_AT_ZERO} "
                    "updates, in which nothing was learned. Call optimizer.step_schedules() after "
                    "each update, or set optimizer.learn_rate.",
                    stacklevel=2,
                )
        super().finish_update(sgd)

    def rehearse(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Train on predicted docs to repeat the predictions from before `nlp.resume_training`.

        The loss is the Kullback-Leibler divergence from the distribution of the model at that time,
        without the labels that it had not been trained on. The gold docs are not read.

        Args:
            examples: Their predicted docs are rehearsed.
            drop: The dropout rate.
            sgd: Updates the weights; None keeps the gradients for the next update.
            losses: The loss is added to the entry of the component, and the dict returned.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.rehearse")
        docs = [eg.predicted for eg in examples]
        if self._rehearsal_model is None or not any(len(doc) for doc in docs):
            return losses
        listeners.check_features(self, docs)
        self.seen_texts.learn(examples)
        teacher = self._rehearsal_model.predict(docs)
        set_dropout_rate(self.model, drop)
        scores, backprop = network.begin_rehearsal(self.model, docs)
        loss, d_scores = rehearsal_loss(self, teacher, scores, self._not_rehearsed)
        backprop(d_scores)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss
        return losses

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate a stream of docs in batches; see spaCy's `TrainablePipe.pipe`."""
        use_one_thread_after_fork()  # before an upstream transformer runs
        yield from super().pipe(stream, batch_size=batch_size)

    def predict(self, docs: Iterable[Doc]) -> list[Prediction]:
        """Find the entities of each doc, and their probabilities.

        Raises:
            InputError: For docs that the model cannot read, for scores that are not finite, and if
                thresholds, disabled labels or the model do not match the labels.
        """
        docs = list(docs)
        if not any(len(doc) for doc in docs):
            return [Prediction([], [], []) for _ in docs]
        checks.check_known_labels(self, self.labels)
        return decode(self, docs)

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[Prediction]) -> None:
        """Write the result of `predict`; other tokens without annotation become outside."""
        for doc, prediction in zip(docs, scores):
            annotate(self, doc, prediction)

    def score(self, examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
        """Score examples; see spaCy's `Pipe.score`. The scorer is given the `entities_key`."""
        examples = list(examples)
        self.seen_texts.score(examples)
        key = {} if self.entities_key is None else {"spans_key": self.entities_key}
        return super().score(examples, **{**key, **kwargs})  # type: ignore[no-any-return]

    def potentials(self, docs: Sequence[Doc]) -> Chain:
        """Run the network on docs; in `network.computed_once`, once for each doc."""
        return self.computed.of(docs) if self.computed else network.compute_potentials(self, docs)

    def posterior(self, docs: Sequence[Doc]) -> EntityPosterior:
        """Compute the posterior distribution over the entities of docs, given preset ones."""
        platt = calibration.platt_scaling(self)
        given = self.overwrite, self.temperature, platt, self.excluded
        return self.encoding.posterior(docs, self.potentials(docs), *given)

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Save the component, with a digest of each file; see spaCy's `TrainablePipe.to_disk`."""
        self._update_cfg()
        super().to_disk(path, exclude=exclude)
        stored.write_digests(Path(path))

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Self:
        """Load the component; raises InputError for files that are damaged or have changed."""
        path, exclude = Path(path), [*exclude]
        stored.check_digests(path, exclude)
        self.seen_texts.forget()
        with errors_of(path / stored.CFG):
            super().from_disk(path, exclude=[*exclude, stored.MODEL])
            self._read_cfg(exclude)
        with errors_of(path / stored.MODEL):
            super().from_disk(path, exclude=[*exclude, stored.CFG, "vocab"])
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Serialize the component; see spaCy's `TrainablePipe.to_bytes`."""
        self._update_cfg()
        return super().to_bytes(exclude=exclude)  # type: ignore[no-any-return]

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> Self:
        """Load the component; see spaCy's `TrainablePipe.from_bytes`."""
        self.seen_texts.forget()
        super().from_bytes(bytes_data, exclude=exclude)
        self._read_cfg(exclude)
        return self

    def _update_cfg(self) -> None:
        self.seen_texts.store()
        settings.save(self, self._settings_of_config)

    def _read_cfg(self, exclude: Iterable[str]) -> None:
        if stored.CFG not in exclude:
            checks.check_valid_cfg(self.cfg)
            self.seen_texts.saved()
            settings.restore(self, self._settings_of_config)

    fit_temperature = calibration.fit_temperature
    fit_platt_scaling = calibration.fit_platt_scaling
    fit_f_score_threshold = calibration.fit_f_score_threshold
    nbest = queries.nbest
    prediction_sets = queries.prediction_sets
    span_posteriors_of = queries.span_posteriors
    alternatives = queries.alternatives
    uncertainty = queries.uncertainty
    trellis = queries.trellis
    transitions = queries.transitions

    def span_posteriors(self, doc: Doc, spans: Iterable[Span]) -> list[float]:
        """Compute for each span of a doc the probability that it is an entity of its label."""
        return self.span_posteriors_of([doc], [spans])[0]
