"""The spaCy component: entities from the best legal tag sequence of a linear-chain CRF."""

from functools import lru_cache
from itertools import compress, islice
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    cast,
)

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.pipeline.ner import ner_score
from spacy.tokens import Doc, Span
from spacy.training import Example, validate_examples, validate_get_examples
from spacy.vocab import Vocab
from thinc.api import Config, Model, Optimizer, set_dropout_rate
from thinc.types import Ints1d

from ..input_error import InputError
from ..ml.architectures import grow
from ..ml.potentials import Potentials, distill, nll_with_gradient
from ..tags import TAG_OUTSIDE, SpanOffsets, TagScheme
from .annotation import Prediction, add_confidence_extension, annotate
from .gold import collect_labels, gold_tags, negative_spans
from .listeners import has_listener, require_features, require_upstream
from .posterior import Posterior, Trellis
from .preset import preset_constraints
from .settings import FittedSetting, Setting, is_share
from .spacy_internals import check_lexeme_norms
from .temperature_scaling import fit_temperature

DEFAULT_CONFIG = """
[model]
@architectures = "spacy-crf-ner.BiLSTMCRF.v1"
rnn = "lstm"
hidden_width = 100
depth = 1
bidirectional = true
dense_width = 0
dropout = null
decoder = "crf"
learn_rate_multiplier = 1.0
mixed_precision = false

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
        "model": Config().from_str(DEFAULT_CONFIG)["model"],
        "scheme": "biluo",
        "confidence": True,
        "threshold": 0.0,
        "thresholds": {},
        "temperature": None,
        "spans_key": None,
        "candidate_threshold": 0.05,
        "incorrect_spans_key": None,
        "overwrite": False,
        "scorer": {"@scorers": "spacy.ner_scorer.v1"},
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
def make_crf_ner(
    nlp: Language,
    name: str,
    model: Model[List[Doc], Potentials],
    scheme: str,
    confidence: bool,
    threshold: float,
    thresholds: Dict[str, float],
    temperature: Optional[float],
    spans_key: Optional[str],
    candidate_threshold: float,
    incorrect_spans_key: Optional[str],
    overwrite: bool,
    scorer: Optional[Callable[..., Any]],
) -> "CRFEntityRecognizer":
    """Make the component for a pipeline; its settings are those of `CRFEntityRecognizer`."""
    return CRFEntityRecognizer(
        nlp.vocab,
        model,
        name,
        scheme=scheme,
        confidence=confidence,
        threshold=threshold,
        thresholds=thresholds,
        temperature=temperature,
        spans_key=spans_key,
        candidate_threshold=candidate_threshold,
        incorrect_spans_key=incorrect_spans_key,
        overwrite=overwrite,
        scorer=scorer,
    )


class Transitions(NamedTuple):
    """The transition scores of a model, between C tags.

    tags: Their names, as in "B-PER".
    scores: (C, C), from the tag of the row to that of the column; illegal ones are never learned.
        All zeros where the decoder is "softmax".
    start: (C,), of the first tag. end: (C,), of the last.
    legal: (C, C), (C,), (C,) bool: what decoding allows, whatever the decoder.
    """

    tags: Tuple[str, ...]
    scores: NDArray[np.float32]
    start: NDArray[np.float32]
    end: NDArray[np.float32]
    legal: NDArray[np.bool_]
    legal_start: NDArray[np.bool_]
    legal_end: NDArray[np.bool_]


class Analysis(NamedTuple):
    """One set of entities that a doc may have.

    ents: The entities, in order.
    probability: That the doc has exactly these; 0.0 where float64 has no smaller number.
    log_probability: Its natural logarithm.
    """

    ents: List[Span]
    probability: float
    log_probability: float


class CRFEntityRecognizer(TrainablePipe):  # type: ignore[misc]  # a Cython class, untyped
    """Set `Doc.ents` by Viterbi decoding of a linear-chain CRF, each entity with its probability.

    Entities that a doc comes with are kept, and the others are predicted given them. No predicted
    entity crosses a sentence start that is set, or begins or ends in whitespace.

    All settings but `scheme` may be changed at run time, as attributes; that changes `nlp.config`
    too. Labels and the fitted temperature are stored with the weights; the other settings are what
    the config says.

    vocab: The shared vocabulary.
    model: From docs to the potentials of a CRF, as `spacy-crf-ner.BiLSTMCRF.v1` (default, over
        spaCy's HashEmbedCNN) builds it.
    name: Name of the component in the pipeline.
    scheme: The tag scheme: "biluo" (default), "bio" or "io".
    confidence: Give each predicted entity its probability, `ent._.confidence`: that exactly this
        span has this label, given the doc. None for entities that the doc came with.
    threshold: Entities less probable than this are dropped.
    thresholds: The same by label, instead of `threshold`.
    temperature: Divides all scores before probabilities are taken. It changes no entity but by the
        thresholds. None for the one that `fit_temperature` found, or 1.0.
    spans_key: Where not None, `doc.spans[spans_key]` has all spans of at least
        `candidate_threshold`, overlapping ones too, their probabilities in `.attrs["scores"]`.
    candidate_threshold: The lowest probability there, over 0.
    incorrect_spans_key: Where not None, `doc.spans[incorrect_spans_key]` of gold docs has negative
        spans: no entities of their label, or of any where it is empty. The label "O" says that
        some token of the span is in an entity.
    overwrite: Ignore and replace the entities that a doc comes with.
    scorer: Scores examples; default `spacy.ner_scorer.v1`.

    Raises InputError for an unknown scheme, and for numbers out of their range.
    """

    confidence = Setting[bool]()
    threshold = Setting[float](is_share, "0.0 to 1.0")
    thresholds = Setting[Mapping[str, float]](
        lambda shares: all(map(is_share, shares.values())), "numbers from 0.0 to 1.0"
    )
    spans_key = Setting[Optional[str]]()
    candidate_threshold = Setting[float](lambda p: 0.0 < p <= 1.0, "a number over 0.0, up to 1.0")
    incorrect_spans_key = Setting[Optional[str]]()
    overwrite = Setting[bool]()
    temperature = FittedSetting(lambda t: t is None or t > 0.0, "a number over 0")

    def __init__(
        self,
        vocab: Vocab,
        model: Model[List[Doc], Potentials],
        name: str = "crf_ner",
        *,
        scheme: str = "biluo",
        confidence: bool = True,
        threshold: float = 0.0,
        thresholds: Optional[Mapping[str, float]] = None,
        temperature: Optional[float] = None,
        spans_key: Optional[str] = None,
        candidate_threshold: float = 0.05,
        incorrect_spans_key: Optional[str] = None,
        overwrite: bool = False,
        scorer: Optional[Callable[..., Any]] = ner_score,
    ) -> None:
        # What training fixed. `thresholds` is not read: spacy find-threshold writes to it.
        super().__init__(vocab, model, name, labels=[], temperature=None, thresholds={})
        self.settings: Dict[str, Any] = {}
        self.confidence, self.overwrite = confidence, overwrite
        self.threshold, self.thresholds = threshold, thresholds or {}
        self.temperature = temperature
        self.spans_key, self.candidate_threshold = spans_key, candidate_threshold
        self.incorrect_spans_key = incorrect_spans_key
        self._scheme_name = scheme
        _tag_scheme(scheme, ())  # an unknown one is an error here, not at the first doc
        self.scorer = scorer
        # nlp.resume_training() copies the model to this attribute of components that have it.
        self._rehearsal_model: Optional[Model[List[Doc], Potentials]] = None
        add_confidence_extension()

    @property
    def labels(self) -> Tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> List[str]:
        """The labels, as `spacy init labels` stores them and `initialize` takes them."""
        return list(self.labels)

    @property
    def scheme(self) -> TagScheme:
        """The tags of the labels."""
        return _tag_scheme(self._scheme_name, self.labels)

    def add_label(self, label: str) -> int:
        """Add a label. An initialized model gets more tags; its predictions do not change yet.

        Returns 1, or 0 where the label is there already.
        Raises InputError for an empty label, or one that is not a string.
        """
        if not isinstance(label, str) or not label:
            raise InputError(f"[{self.name}] label: expected a non-empty string, got {label!r}.")
        if label in self.labels:
            return 0
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        if self.model.get_ref("output_layer").has_dim("nI"):  # known once there are weights
            grow(self.model, len(self.scheme.tags), like=TAG_OUTSIDE)
        return 1

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        labels: Optional[Sequence[str]] = None,
    ) -> None:
        """Collect the labels, and give the model new weights.

        get_examples: Yields the training examples.
        nlp: The pipeline.
        labels: The labels, as `spacy init labels` stores them; None takes those of the examples,
            in alphabetical order, which reads all of them once.

        Raises InputError for examples without entities, for a gold entity that begins or ends in
        whitespace or whose label begins in "!", for a threshold of an unknown label, and where the
        component listens to one that is not in the pipeline.
        Warns of gold entities and negative spans that do not align with the predicted tokens.
        """
        validate_get_examples(get_examples, "CRFEntityRecognizer.initialize")
        check_lexeme_norms(self.vocab, self.name)
        if nlp is not None:
            require_upstream(self, nlp)
        # New weights: forget the number of tags, and the width of the input, of old ones.
        output_layer = self.model.get_ref("output_layer")
        for node, dim in ((self.model, "nO"), (output_layer, "nO"), (output_layer, "nI")):
            node.set_dim(dim, None, force=True)
        if labels is None:
            labels = collect_labels(get_examples(), self.name, self.incorrect_spans_key)
        for label in labels:
            self.add_label(label)
        if not self.labels:
            raise InputError(
                f"[{self.name}] expected examples with entities, got none with any: there is no "
                "label to learn. Check that the corpus has doc.ents, or give the labels."
            )
        self._threshold_by_label()
        output_layer.set_dim("nO", len(self.scheme.tags))
        self.model.initialize(X=[eg.x for eg in islice(get_examples(), 10)])

    def predict(self, docs: Iterable[Doc]) -> List[Prediction]:
        """Find the entities of the best legal tag sequence of each doc, and their probabilities.

        Raises InputError for docs that lack the features of an upstream component, for features
        that are not finite, for a threshold of an unknown label, and where the model's tags are not
        those of the labels.
        """
        docs = list(docs)
        if not any(len(doc) for doc in docs):
            return [Prediction([], [], []) for _ in docs]
        posterior = self._posterior(docs)
        spans = posterior.decode()
        confidences: List[List[float]] = [[] for _ in docs]
        thresholds = self._threshold_by_label()
        if self.confidence or any(thresholds.values()):
            confidences = posterior.probabilities(spans)
            for of_doc, ps in zip(spans, confidences):
                kept = [p >= thresholds[label] for (_, _, label), p in zip(of_doc, ps)]
                of_doc[:] = compress(of_doc, kept)
                ps[:] = compress(ps, kept)
        candidates: List[List[Tuple[SpanOffsets, float]]] = [[] for _ in docs]
        if self.spans_key is not None:
            candidates = posterior.candidates(self.candidate_threshold)
        return [Prediction(*of_doc) for of_doc in zip(spans, confidences, candidates)]

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[Prediction]) -> None:
        """Set the predicted entities; tokens outside them that have no annotation become outside.

        scores: What `predict` returns.
        """
        for doc, prediction in zip(docs, scores):
            annotate(doc, prediction, self.overwrite, self.confidence, self.spans_key)

    def nbest(self, docs: Iterable[Doc], n: int) -> List[List[Analysis]]:
        """Find the n most probable analyses of each doc, fewer where fewer are legal.

        Nothing is set on the docs.

        n: 1 or more.

        Returns the analyses of each doc, the best first; the preset entities of the doc are in all.
        Raises InputError for n below 1, and as `predict`.
        """
        docs = list(docs)
        if n < 1:
            raise InputError(f"[{self.name}] n: expected 1 or more, got {n}.")
        result = []
        for doc, ranked in zip(docs, self._posterior(docs).nbest(n) if docs else []):
            preset = [] if self.overwrite else list(doc.ents)
            ents = [sorted([*preset, *(Span(doc, *span) for span in spans)]) for spans, _ in ranked]
            log_ps = [log_p for _, log_p in ranked]
            result.append([Analysis(e, float(np.exp(p)), p) for e, p in zip(ents, log_ps)])
        return result

    def span_posteriors(self, doc: Doc, spans: Iterable[Span]) -> List[float]:
        """Compute the probability that spans of a doc, any spans, are entities of their labels.

        The annotation of the doc is taken as given: the entities that it has are certain.

        Raises InputError for an empty span or a label that the component does not know, and as
        `predict`.
        """
        asked = [(span.start, span.end, span.label_) for span in spans]
        for start, end, label in asked:
            if start == end or label not in self.labels:
                raise InputError(
                    f"[{self.name}] tokens {start}:{end} ({label!r}) of the doc {doc.text[:60]!r}: "
                    f"expected a span with a token and one of the labels {list(self.labels)}."
                )
        if not asked:
            return []
        ents = () if self.overwrite else doc.ents
        preset = {(ent.start, ent.end, ent.label_) for ent in ents}
        (found,) = self._posterior([doc]).probabilities([asked])
        return [1.0 if span in preset else p for span, p in zip(asked, found)]

    def trellis(self, doc: Doc) -> Trellis:
        """Show how Viterbi decoding finds the tags of a doc: scores, back-pointers and path.

        The annotation of the doc is taken as given. The marginals, and only these, are taken at the
        temperature.

        Raises InputError as `predict`.
        """
        return self._posterior([doc]).trellis(0)

    def transitions(self) -> Transitions:
        """Copy the transition scores of the model, before any temperature.

        Raises ValueError where the model has no weights yet, or its tags are not the labels'.
        """
        potentials = self._potentials([])
        scores, start, end = map(
            self.model.ops.to_numpy, (potentials.transitions, potentials.start, potentials.end)
        )
        legal, first, last = (allowed.copy() for allowed in self.scheme.constraints)
        return Transitions(self.scheme.tags, scores, start, end, legal, first, last)

    def fit_temperature(self, examples: Iterable[Example]) -> float:
        """Set the temperature to the one under which the gold entities are most likely.

        It makes confidences agree with how often the component is right, and changes no entity but
        by the thresholds. The loss is convex in 1 / temperature where all tokens are annotated; it
        sums over all tags of tokens without annotation, and leaves out docs without any.

        examples: Not those of the training; their `predicted` docs have been through the
            components before this one.

        Returns the temperature, 0.05 to 20. Source: Guo et al. (2017), ICML, of a softmax.
        Raises InputError where no example has annotation, and as `get_loss`.
        Warns where the best temperature is out of its range.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.fit_temperature")
        pairs = [(eg.predicted, gold_tags(eg, self.scheme, self.name)) for eg in examples]
        annotated = [(doc, gold) for doc, gold in pairs if (gold >= 0).any()]
        if not annotated:
            raise InputError(
                f"[{self.name}] expected examples with annotated entities, got {len(examples)} "
                "without: there is nothing to fit the temperature to. Check that the corpus has "
                "doc.ents."
            )
        batches = []
        for i in range(0, len(annotated), 64):
            docs, gold = zip(*annotated[i : i + 64])
            batches.append((self._potentials(docs), np.concatenate(gold)))
        self.temperature = fit_temperature(batches, self.scheme.constraints, self.name)
        return self.temperature

    def get_loss(self, examples: Iterable[Example], scores: Potentials) -> Tuple[float, Potentials]:
        """Compute the negative log likelihood of the gold entities, in nats, summed over docs.

        Tokens without annotation, and those of a gold entity that does not align with them, may
        carry any tag: the loss sums over all.

        scores: The potentials of the predicted docs.

        Returns the loss and its gradient.
        Raises InputError for a gold entity of an unknown label, that begins or ends in whitespace,
        or is a negative span too, and for potentials that are not finite.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.get_loss")
        self._require_valid([eg.predicted for eg in examples], scores)
        gold = [gold_tags(eg, self.scheme, self.name) for eg in examples]
        negatives = [
            negative
            for doc, eg in enumerate(examples)
            for negative in negative_spans(
                eg, doc, self.incorrect_spans_key, self.scheme, self.name
            )
        ]
        losses, d_scores = nll_with_gradient(
            scores, np.concatenate(gold), self.scheme.constraints, negatives
        )
        return float(losses.sum()), d_scores

    def rehearse(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[Dict[str, float]] = None,
    ) -> Dict[str, float]:
        """Learn to predict docs as the model did when `nlp.resume_training` was called.

        The loss is the Kullback-Leibler divergence from the distribution of that model. Labels that
        were added since are left out of the comparison.

        examples: Their predicted docs are rehearsed; their gold docs are not read.
        drop: The dropout rate.
        sgd: Updates the weights; None leaves the gradients to the next update.
        losses: The loss is added to that of the component; a new dict where None.

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
        if has_listener(self):
            # A listener learns only with its upstream component, which is not updated here.
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

    def _posterior(self, docs: Sequence[Doc]) -> Posterior:
        potentials = self._potentials(docs)
        constraints = preset_constraints(docs, self.scheme, self.overwrite)
        return Posterior(potentials, self.scheme, constraints, self.temperature)

    def _potentials(self, docs: Sequence[Doc]) -> Potentials:
        """Compute the potentials of docs; without any token, these are the transitions alone."""
        if any(len(doc) for doc in docs):
            require_features(self, docs)
            potentials = self.model.predict(docs)
        else:
            head = self.model.get_ref("output_layer")
            # A model without weights has no width either: the head raises an error for it.
            nothing = head.ops.alloc2f(0, head.maybe_get_dim("nI") or 0)
            potentials = head.predict([nothing for _ in docs] or [nothing])
        self._require_valid(docs, potentials)
        return cast(Potentials, potentials)

    def _threshold_by_label(self) -> Dict[str, float]:
        """The threshold of each label. Raises InputError for one of an unknown label."""
        thresholds, labels = self.thresholds, self.labels
        unknown = [label for label in thresholds if label not in labels]
        if unknown:
            raise InputError(
                f"[{self.name}] thresholds: expected labels among {list(labels)}, got {unknown}. "
                "Correct them, or add the label."
            )
        return {label: float(thresholds.get(label, self.threshold)) for label in labels}

    def _require_valid(self, docs: Sequence[Doc], potentials: Potentials) -> None:
        """Raise InputError for potentials that are not finite, or not of the tags of the labels."""
        expected = len(self.scheme.tags)
        C = potentials.emissions.shape[1]
        if C != expected:
            raise InputError(
                f"[{self.name}] expected a model of {expected} tags for the labels "
                f"{list(self.labels)} in scheme {self.scheme.name!r}, got one of {C}. Labels, "
                "scheme and weights are of different pipelines: take all from the same one."
            )
        ops = self.model.ops
        if ops.xp.isfinite(potentials.emissions).all():
            return
        by_doc = ops.unflatten(potentials.emissions, cast(Ints1d, potentials.lengths))
        for i, (doc, rows) in enumerate(zip(docs, by_doc)):
            if not ops.xp.isfinite(rows).all():
                raise InputError(
                    f"[{self.name}] doc {i} of the batch, {doc.text[:60]!r}: expected finite "
                    "scores, got NaN or infinity. The token vectors below hold such values, or "
                    "training diverged: check the vectors, or lower the learning rate."
                )


@lru_cache(maxsize=64)
def _tag_scheme(name: str, labels: Tuple[str, ...]) -> TagScheme:
    return TagScheme(name, labels)
