"""The spaCy component: entities from the best legal tag sequence of a linear-chain CRF."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress, islice
from math import isfinite
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example, validate_examples, validate_get_examples
from thinc.api import Config, Model, Optimizer, set_dropout_rate

from ..input_error import InputError
from ..ml.architectures import grow
from ..ml.potentials import NegativeSpan, Potentials, distill, nll, nll_with_gradient
from ..ml.threads import use_one_thread_after_fork
from ..tags import TAG_OUTSIDE, SpanOffsets, TagScheme
from .annotation import Prediction, add_confidence_extension, annotate
from .crf_pipe import BATCH_SIZE, CRFPipe
from .gold import collect_labels, gold_tags, is_annotated, judge_spans, negative_spans
from .interval_scheduling import best_disjoint
from .label_sets import hidden_tags
from .listeners import require_features, require_upstream
from .platt_scaling import UNCHANGED, PlattScaling, fit_platt_scaling
from .settings import FittedSetting, Setting
from .spacy_internals import check_lexeme_norms, listeners, remember_pipeline
from .temperature_scaling import Batch, fit_temperature

DECODINGS = ("viterbi", "f_score")
FITTED = ("temperature", "platt_slope", "platt_intercept", "span_threshold")

DEFAULT_MODEL = """
[model]
@architectures = "spacy-crf-ner.BiLSTMCRF.v1"
hidden_width = 100

[model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"
pretrained_vectors = null
width = 96
depth = 4
embed_size = 2000
window_size = 1
maxout_pieces = 3
subword_features = true
"""


@Language.factory(
    "crf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type", "span._.confidence"],
    default_config={
        "model": Config().from_str(DEFAULT_MODEL)["model"],
        "thresholds": {},
        "candidate_thresholds": {},
        "scorer": {"@scorers": "spacy-crf-ner.ner_scorer.v1"},
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
class CRFEntityRecognizer(CRFPipe):
    """Set `Doc.ents` by decoding a linear-chain CRF, each entity with its probability.

    Preset entities of a doc are kept, and the others are predicted given them. No predicted entity
    crosses a sentence start that is set, or begins or ends with whitespace.

    All settings except `scheme` are attributes that can be changed at run time; this changes
    `nlp.config` too. Labels and the fitted temperature are stored with the weights.

    nlp, name: The pipeline, and the name of the component in it.
    model: From docs to the potentials of a CRF, as `spacy-crf-ner.BiLSTMCRF.v1` (default, over
        spaCy's HashEmbedCNN) builds it.
    scheme: The tag scheme: "biluo" (default), "bio" or "io".
    confidence: Set `ent._.confidence` of each predicted entity: the probability that exactly this
        span has this label, given the doc. It is None for preset entities.
    threshold: Entities with a lower probability are dropped.
    thresholds: Thresholds by label, which take precedence over `threshold`.
    temperature: Divides all scores before probabilities are computed. With "viterbi", it affects
        entities only through the thresholds. None for the one that `fit_temperature` found, or 1.0.
    platt_slope, platt_intercept: Multiply the log odds of entities and are added to them, which
        gives their probabilities, for confidences, thresholds and candidates. None for those that
        `spacy-crf-ner calibrate` found, or 1.0 and 0.0.
    decode: "viterbi" takes the entities of the most probable tag sequence. "f_score" takes the
        disjoint spans with the largest sum of probability minus `span_threshold`; with the right
        threshold they have the highest expected F-score.
    span_threshold: The threshold of "f_score". None for the one that
        `spacy-crf-ner calibrate --f-beta` found, or 0.4.
    spans_key: If not None, `doc.spans[spans_key]` has all spans with a probability of at least
        `candidate_threshold`, including overlapping ones and preset entities, and
        `.attrs["scores"]` their probabilities.
    candidate_threshold: The lowest probability of these spans, above 0.
    candidate_thresholds: The same by label, which take precedence over `candidate_threshold`.
    incorrect_spans_key: If not None, `doc.spans[incorrect_spans_key]` of gold docs has negative
        spans: spans that are not entities of their label, or of any label if it is empty. The label
        "O" means that at least one token of the span is in an entity.
    overwrite: Ignore and replace preset entities.
    scorer: Scores examples; default `spacy-crf-ner.ner_scorer.v1`.

    Raises InputError for an unknown scheme, and for numbers out of their range.
    """

    confidence = Setting[bool]()
    threshold = Setting[float](lambda p: 0.0 <= p <= 1.0, "0.0 to 1.0")
    thresholds = Setting[Mapping[str, float]](
        lambda each: all(0.0 <= p <= 1.0 for p in each.values()), "numbers from 0.0 to 1.0"
    )
    spans_key = Setting[str | None]()
    candidate_threshold = Setting[float](lambda p: 0.0 < p <= 1.0, "a number over 0.0, up to 1.0")
    candidate_thresholds = Setting[Mapping[str, float]](
        lambda each: all(0.0 < p <= 1.0 for p in each.values()), "numbers over 0.0, up to 1.0"
    )
    incorrect_spans_key = Setting[str | None]()
    overwrite = Setting[bool]()
    temperature = FittedSetting(1.0, lambda t: t is None or t > 0.0, "a number over 0")
    platt_slope = FittedSetting(1.0, lambda a: a is None or a > 0.0, "a number over 0")
    platt_intercept = FittedSetting(0.0, lambda b: b is None or isfinite(b), "a finite number")
    decode = Setting[str](lambda name: name in DECODINGS, " or ".join(DECODINGS))
    span_threshold = FittedSetting(
        0.4, lambda p: p is None or 0.0 < p < 1.0, "a number between 0.0 and 1.0"
    )

    def __init__(
        self,
        nlp: Language,
        name: str,
        model: Model[list[Doc], Potentials],
        *,
        scheme: str = "biluo",
        confidence: bool = True,
        threshold: float = 0.0,
        thresholds: dict[str, float],
        temperature: float | None = None,
        platt_slope: float | None = None,
        platt_intercept: float | None = None,
        decode: str = "viterbi",
        span_threshold: float | None = None,
        spans_key: str | None = None,
        candidate_threshold: float = 0.05,
        candidate_thresholds: dict[str, float],
        incorrect_spans_key: str | None = None,
        overwrite: bool = False,
        scorer: Callable[..., Any] | None,
    ) -> None:
        # The results of training. `thresholds` is not read: spacy find-threshold writes to it.
        super().__init__(nlp.vocab, model, name, labels=[], thresholds={})
        self._forget_fits()
        self.settings: dict[str, Any] = {}
        self.confidence, self.overwrite = confidence, overwrite
        self.threshold, self.thresholds = threshold, thresholds
        self.temperature = temperature
        self.platt_slope, self.platt_intercept = platt_slope, platt_intercept
        self.decode, self.span_threshold = decode, span_threshold
        self.spans_key, self.candidate_threshold = spans_key, candidate_threshold
        self.candidate_thresholds = candidate_thresholds
        self.incorrect_spans_key = incorrect_spans_key
        self._scheme_name = scheme
        _tag_scheme(scheme, ())  # fail now for an unknown scheme, not at the first doc
        self.scorer = scorer
        # nlp.resume_training() copies the model to this attribute of components that have it.
        self._rehearsal_model: Model[list[Doc], Potentials] | None = None
        add_confidence_extension()
        remember_pipeline(self, nlp)

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> list[str]:
        """The labels, as `spacy init labels` stores them and `initialize` takes them."""
        return list(self.labels)

    @property
    def scheme(self) -> TagScheme:
        """The tags of the labels."""
        return _tag_scheme(self._scheme_name, self.labels)

    def add_label(self, label: str) -> int:
        """Add a label. An initialized model gets more tags; its predictions do not change yet.

        Returns 1, or 0 if the label already exists. Raises InputError for an empty label.
        """
        if not isinstance(label, str) or not label:
            raise InputError(f"[{self.name}] label: expected a non-empty string, got {label!r}.")
        if label in self.labels:
            return 0
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        if self.model.get_ref("output_layer").has_dim("nI"):  # set once there are weights
            grow(self.model, len(self.scheme.tags), like=TAG_OUTSIDE)
        return 1

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        """Collect the labels, and give the model new weights.

        get_examples: Returns the training examples.
        nlp: The pipeline.
        labels: Labels as stored by `spacy init labels`; None takes those of the examples, in
            alphabetical order, which reads all of them once.

        Raises InputError for examples without entities, for a gold entity that begins or ends with
        whitespace or whose label begins with "!", for a threshold of an unknown label, and if the
        component listens to one that is not in the pipeline.
        Warns about gold entities and negative spans that do not align with the predicted tokens.
        """
        validate_get_examples(get_examples, "CRFEntityRecognizer.initialize")
        check_lexeme_norms(self.vocab, self.name)
        if nlp is not None:
            require_upstream(self, nlp)
        if labels is None:
            labels = collect_labels(get_examples(), self.name, self.incorrect_spans_key)
        if not labels and not self.labels:
            raise InputError(
                f"[{self.name}] expected examples with entities, got none: there is no label to "
                "learn. Check that the corpus has doc.ents, or give the labels."
            )
        self._require_known_labels([*self.labels, *labels])
        # All checks have passed: reset what belongs to old weights.
        output_layer = self.model.get_ref("output_layer")
        for node, dim in ((self.model, "nO"), (output_layer, "nO"), (output_layer, "nI")):
            node.set_dim(dim, None, force=True)
        self._forget_fits()
        for label in labels:
            self.add_label(label)
        output_layer.set_dim("nO", len(self.scheme.tags))
        self.model.initialize(X=[eg.x for eg in islice(get_examples(), 10)])

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate a stream of docs in batches; see spaCy's `TrainablePipe.pipe`."""
        use_one_thread_after_fork()  # before a transformer below computes
        yield from super().pipe(stream, batch_size=batch_size)

    def predict(self, docs: Iterable[Doc]) -> list[Prediction]:
        """Find the entities of each doc, and their probabilities.

        Raises InputError for docs that lack the features of an upstream component, for features
        that are not finite, for a threshold of an unknown label, and if the model's tags do not
        match the labels.
        """
        docs = list(docs)
        if not any(len(doc) for doc in docs):
            return [Prediction([], [], []) for _ in docs]
        self._require_known_labels(self.labels)
        candidates: list[list[tuple[SpanOffsets, float]]]
        thresholds = {label: self.thresholds.get(label, self.threshold) for label in self.labels}
        posterior = self._posterior(docs)
        if self.decode == "f_score":
            threshold = self.span_threshold
            everywhere = np.full(len(self.labels), threshold)
            candidates = posterior.candidates(everywhere)
            found = [best_disjoint(of_doc, threshold) for of_doc in candidates]
            spans = [[span for span, _ in of_doc] for of_doc in found]
            confidences = [[p for _, p in of_doc] for of_doc in found]
        else:
            spans = posterior.decode()
            confidences = [[] for _ in docs]
            if self.confidence or any(thresholds.values()):
                confidences = posterior.probabilities(spans)
        if any(thresholds.values()):
            for of_doc, ps in zip(spans, confidences):
                kept = [p >= thresholds[label] for (_, _, label), p in zip(of_doc, ps)]
                of_doc[:] = compress(of_doc, kept)
                ps[:] = compress(ps, kept)
        candidates = [[] for _ in docs]
        if self.spans_key is not None:
            lowest = self.candidate_threshold
            by_label = [self.candidate_thresholds.get(label, lowest) for label in self.labels]
            candidates = posterior.candidates(np.array(by_label))
        return [Prediction(*of_doc) for of_doc in zip(spans, confidences, candidates)]

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[Prediction]) -> None:
        """Write the result of `predict`; other tokens without annotation become outside."""
        for doc, prediction in zip(docs, scores):
            annotate(doc, prediction, self.overwrite, self.confidence, self.spans_key)

    def fit_temperature(self, examples: Iterable[Example]) -> float:
        """Set the temperature that maximizes the likelihood of the gold entities.

        This calibrates the confidences. With decode = "viterbi", it affects entities only through
        the thresholds. The loss is convex in 1 / temperature if all tokens are annotated. Docs
        without annotation are ignored.

        examples: Examples that were not used for training. The components before this one must
            have processed their `predicted` docs.

        Returns the temperature, 0.05 to 20. Source: Guo et al. (2017), ICML, for a softmax.
        Raises InputError if no example has annotation, and as `get_loss`.
        Warns if the best temperature is outside this range.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.fit_temperature")
        annotated = [eg for eg in examples if is_annotated(eg, self.scheme, self.name)]
        if not annotated:
            raise InputError(
                f"[{self.name}] expected examples with annotated entities, got {len(examples)} "
                "without: the temperature cannot be fitted. Check that the corpus has "
                "doc.ents."
            )
        batches = self._batches(annotated)
        self.temperature = fit_temperature(batches, self.scheme.constraints, self.name)
        return self.temperature

    def fit_platt_scaling(self, examples: Iterable[Example]) -> PlattScaling:
        """Set the slope and the intercept by maximum likelihood: are probable spans entities?

        They are fitted to all spans with a posterior of at least 0.02, at the temperature, whose
        tokens and label are annotated; so fit the temperature first.

        examples: As for `fit_temperature`.

        Warns if spans with a higher posterior are less often entities.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.fit_platt_scaling")
        self.platt_slope, self.platt_intercept = UNCHANGED
        lowest = np.full(len(self.labels), 0.02)
        judged: list[tuple[float, bool]] = []
        for i in range(0, len(examples), BATCH_SIZE):
            batch = examples[i : i + BATCH_SIZE]
            found = self._posterior([eg.predicted for eg in batch]).candidates(lowest)
            for eg, candidates in zip(batch, found):
                judged += judge_spans(eg, candidates, self.scheme, self.name)
        posteriors, correct = np.array(judged, dtype=np.float64).reshape(-1, 2).T
        scaling = fit_platt_scaling(posteriors, correct, self.name)
        self.platt_slope, self.platt_intercept = scaling
        return scaling

    def log_likelihoods(self, examples: Iterable[Example]) -> list[float]:
        """Compute the log probability of the gold entities of each example, at the temperature.

        It sums over all tags of tokens without annotation. The components before this one must have
        processed the `predicted` docs.

        Raises InputError as `get_loss`.
        """
        constraints, temperature = self.scheme.constraints, self.temperature
        batches = self._batches(list(examples))
        losses = [nll(*batch, constraints, temperature) for batch in batches]
        return [-float(loss) for of_batch in losses for loss in of_batch]

    def get_loss(self, examples: Iterable[Example], scores: Potentials) -> tuple[float, Potentials]:
        """Compute the negative log likelihood of the gold entities, in nats, summed over docs.

        The loss sums over all tags of tokens without annotation, and of tokens whose gold entity
        does not align with them; and over the tags of labels that are not annotated where gold says
        "outside" (see `label_sets`).

        scores: The potentials of the predicted docs.

        Returns the loss and its gradient for the potentials.
        Raises InputError for a gold entity that has an unknown label, begins or ends with
        whitespace, or is also a negative span, and for potentials that are not finite.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.get_loss")
        self._require_valid([eg.predicted for eg in examples], scores)
        gold = [gold_tags(eg, self.scheme, self.name) for eg in examples]
        key = self.incorrect_spans_key
        negatives = [
            NegativeSpan(doc, exclusion)
            for doc, eg in enumerate(examples)
            for exclusion in negative_spans(eg, key, self.scheme, self.name)
        ]
        constraints, hidden = self.scheme.constraints, hidden_tags(examples, self.scheme)
        losses, d_scores = nll_with_gradient(
            scores, np.concatenate(gold), constraints, negatives, hidden
        )
        return float(losses.sum()), d_scores

    def rehearse(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Train on docs to repeat the predictions from when `nlp.resume_training` was called.

        The loss is the Kullback-Leibler divergence from the distribution of the model at that time.
        Labels that were added since are left out of the comparison.

        examples: Their predicted docs are rehearsed; their gold docs are not read.
        drop: The dropout rate.
        sgd: Updates the weights; None keeps the gradients for the next update.
        losses: The loss is added to the entry of the component; None for a new dict.

        Returns the losses.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.rehearse")
        docs = [eg.predicted for eg in examples]
        if self._rehearsal_model is None or not any(len(doc) for doc in docs):
            return losses
        require_features(self, docs)
        teacher = self._rehearsal_model.predict(docs)
        set_dropout_rate(self.model, drop)
        if any(listeners(self.model)):
            # A listener trains only with its upstream component, which is not updated here.
            features = self.model.get_ref("tok2vec").predict(docs)
            scores, backprop = self.model.get_ref("output_layer").begin_update(features)
        else:
            scores, backprop = self.model.begin_update(docs)
        divergence, d_scores = distill(scores, teacher, self.scheme.constraints)
        backprop(d_scores)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += divergence
        return losses

    def _batches(self, examples: Sequence[Example]) -> list[Batch]:
        """Compute the potentials of predicted docs, with their gold tags, in batches."""
        batches = []
        for i in range(0, len(examples), BATCH_SIZE):
            batch = examples[i : i + BATCH_SIZE]
            gold = np.concatenate([gold_tags(eg, self.scheme, self.name) for eg in batch])
            potentials = self._potentials([eg.predicted for eg in batch])
            batches.append((potentials, gold, hidden_tags(batch, self.scheme)))
        return batches

    def _forget_fits(self) -> None:
        """Drop what was fitted to other weights."""
        for name in FITTED:
            self.cfg[name] = None
        self.cfg["guarantees"] = {}

    def _require_known_labels(self, labels: Sequence[str]) -> None:
        """Raise InputError for a threshold of a label that is not among these."""
        given = [*self.thresholds, *self.candidate_thresholds]
        unknown = [label for label in given if label not in labels]
        if unknown:
            raise InputError(
                f"[{self.name}] thresholds: expected labels among {[*dict.fromkeys(labels)]}, got "
                f"{unknown}. Correct them, or add the label."
            )


@lru_cache(maxsize=64)
def _tag_scheme(name: str, labels: tuple[str, ...]) -> TagScheme:
    return TagScheme(name, labels)
