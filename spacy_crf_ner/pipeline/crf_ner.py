"""The spaCy component: entities from the best legal tag sequence of a linear-chain CRF."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from math import inf, isfinite
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc
from spacy.training import Example, validate_examples, validate_get_examples
from thinc.api import Config, Model

from ..extras import required
from ..input_error import InputError
from ..ml.onnx_shim import require_trainable
from ..ml.potentials import Potentials
from ..ml.threads import use_one_thread_after_fork
from ..tags import TAG_OUTSIDE, TagScheme
from .annotation import Prediction, add_confidence_extension, annotate
from .calibrated_pipe import CALIBRATION
from .gold import collect_labels, gold_entities
from .interval_scheduling import Candidate, best_beside
from .label_sets import KEY as ANNOTATED
from .learning_rates import LearningRateCheck
from .listeners import require_upstream
from .lookup import require_own_key
from .overlapping import LabelChains
from .seen_texts import SeenTexts
from .settings import CalibrationSetting, FittedSetting, Setting
from .spacy_internals import check_lexeme_norms, remember_pipeline, trains_transformer
from .teachable_pipe import TeachablePipe
from .teaching import find_lessons

DECODINGS = ("viterbi", "f_score")
ENTITIES = ("flat", "overlapping")
SWITCH = lambda value: isinstance(value, bool), "true or false"
FITTED = (*CALIBRATION, "span_threshold", "calibrated_on")

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
        "disabled_labels": [],
        "scorer": {"@scorers": "spacy-crf-ner.ner_scorer.v1"},
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
class CRFEntityRecognizer(TeachablePipe):
    """Set `Doc.ents` by decoding a linear-chain CRF, each entity with its probability.

    Preset entities of a doc are kept, and the others are predicted given them. No predicted entity
    crosses a sentence start that is set, or begins or ends with whitespace.

    All settings except `scheme`, `entities` and `layers` are attributes that can be changed at run
    time; this changes `nlp.config` too. Labels, and what was fitted to held-out documents,
    are stored with the weights.

    nlp, name: The pipeline, and the name of the component in it.
    model: From docs to the potentials of a CRF, as `spacy-crf-ner.BiLSTMCRF.v1` (default, over
        spaCy's HashEmbedCNN) builds it.
    scheme: The tag scheme: "biluo" (default), "bio" or "io".
    entities: "flat" (default): at most one entity at a token. "overlapping": entities of different
        labels may overlap, as each label has a chain of its own. All are in `doc.spans[spans_key]`,
        with their probabilities in `.attrs["scores"]`; `doc.ents` has disjoint ones, those with the
        largest sum of probability. Gold entities are in `doc.spans[spans_key]`; in `doc.ents` of
        docs without this key.
    layers: The number of chains of each label if entities overlap, for entities nested in others of
        their label; outermost entities are in the first.
    confidence: Set `ent._.confidence` of each predicted entity: the probability that exactly this
        span has this label, given the doc. It is None for preset entities, and once another label
        is set. Overlapping entities always have it.
    threshold: Entities with a lower probability are dropped.
    thresholds: Thresholds by label, which take precedence over `threshold`.
    temperature: Divides all scores before probabilities are computed. With "viterbi", it affects
        entities only through the thresholds, and of overlapping ones the choice in `doc.ents`.
        At least 1e-6: divided by less, scores are too large for exact sums. None for the one that
        `fit_temperature` found, or 1.0.
    platt_slope, platt_intercept: Multiply the log odds of entities and are added to them, which
        gives their probabilities, for confidences, thresholds and candidates. None for those that
        training or `spacy-crf-ner calibrate` found, or 1.0 and 0.0.
    platt_ceiling: Multiplies these probabilities, up to 1: the highest one. None as for these.
    decode: "viterbi" takes the entities of the most probable tag sequence. "f_score" takes the
        disjoint spans with the largest sum of probability minus `span_threshold`; with the right
        threshold they have the highest expected F-score.
    span_threshold: The threshold of "f_score". None for the one that
        `spacy-crf-ner calibrate --f-beta` found, or 0.4.
    spans_key: If not None, `doc.spans[spans_key]` has all spans with a probability of at least
        `candidate_threshold`, including overlapping ones and preset entities, and
        `.attrs["scores"]` their probabilities. With overlapping entities it has these instead, and
        None is "sc".
    candidate_threshold: The lowest probability of these spans, above 0.
    candidate_thresholds: The same by label, which take precedence over `candidate_threshold`.
    disabled_labels: Labels that are not predicted. The probabilities of all others are those given
        that there is no entity of these labels. Training ignores this setting.
    incorrect_spans_key: If not None, `doc.spans[incorrect_spans_key]` of gold docs has negative
        spans: spans that are not entities of their label, or of any label if it is empty. The label
        "O" means that at least one token of the span is in an entity.
    overwrite: Ignore and replace preset entities.
    scorer: Scores examples; default `spacy-crf-ner.ner_scorer.v1`.

    Raises InputError for an unknown scheme, and for numbers out of their range.
    """

    confidence = Setting[bool](*SWITCH)
    threshold = Setting[float](lambda p: 0.0 <= p <= 1.0, "0.0 to 1.0")
    thresholds = Setting[Mapping[str, float]](
        lambda each: all(0.0 <= p <= 1.0 for p in each.values()), "numbers from 0.0 to 1.0"
    )
    spans_key = Setting[str | None](
        lambda key: _is_key(key) and key != ANNOTATED, f"a string or None, not {ANNOTATED!r}"
    )
    candidate_threshold = Setting[float](lambda p: 0.0 < p <= 1.0, "a number over 0.0, up to 1.0")
    candidate_thresholds = Setting[Mapping[str, float]](
        lambda each: all(0.0 < p <= 1.0 for p in each.values()), "numbers over 0.0, up to 1.0"
    )
    disabled_labels = Setting[Sequence[str]](
        lambda labels: isinstance(labels, list | tuple) and all(isinstance(x, str) for x in labels),
        "a list of labels",
    )
    incorrect_spans_key = Setting[str | None](lambda key: _is_key(key), "a string or None")
    overwrite = Setting[bool](*SWITCH)
    temperature = CalibrationSetting(
        1.0, lambda t: t is None or 1e-6 <= t < inf, "a finite number from 1e-6"
    )
    platt_slope = CalibrationSetting(
        1.0, lambda a: a is None or 0.0 < a < inf, "a finite number over 0"
    )
    platt_intercept = CalibrationSetting(0.0, lambda b: b is None or isfinite(b), "a finite number")
    platt_ceiling = CalibrationSetting(
        1.0, lambda c: c is None or 0.0 < c <= 1.0, "a number over 0.0, up to 1.0"
    )
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
        entities: str = "flat",
        layers: int = 1,
        confidence: bool = True,
        threshold: float = 0.0,
        thresholds: dict[str, float],
        temperature: float | None = None,
        platt_slope: float | None = None,
        platt_intercept: float | None = None,
        platt_ceiling: float | None = None,
        decode: str = "viterbi",
        span_threshold: float | None = None,
        spans_key: str | None = None,
        candidate_threshold: float = 0.05,
        candidate_thresholds: dict[str, float],
        disabled_labels: Sequence[str],
        incorrect_spans_key: str | None = None,
        overwrite: bool = False,
        scorer: Callable[..., Any] | None,
    ) -> None:
        # The results of training. `thresholds` is not read: spacy find-threshold writes to it.
        super().__init__(nlp.vocab, model, name, labels=[], untrained=[], thresholds={})
        if entities not in ENTITIES:
            raise InputError(
                f"[{name}] entities: expected {' or '.join(ENTITIES)}, got {entities!r}."
            )
        if layers < 1 or (layers > 1 and entities == "flat"):
            raise InputError(
                f"[{name}] layers: expected 1 or more, and 1 for flat entities, got {layers} for "
                f'{entities} ones. Set entities to "overlapping" for more.'
            )
        self.entities, self.layers = entities, layers
        self._forget_fits()
        self.seen_texts = SeenTexts(self.cfg, name)
        self.settings: dict[str, Any] = {}
        self.confidence, self.overwrite = confidence, overwrite
        self.threshold, self.thresholds = threshold, thresholds
        self.temperature = temperature
        self.platt_slope, self.platt_intercept = platt_slope, platt_intercept
        self.platt_ceiling = platt_ceiling
        self.decode, self.span_threshold = decode, span_threshold
        self.spans_key, self.candidate_threshold = spans_key, candidate_threshold
        self.candidate_thresholds, self.disabled_labels = candidate_thresholds, disabled_labels
        self.incorrect_spans_key = incorrect_spans_key
        self._scheme_name = scheme
        TagScheme(scheme, ())  # fail now for an unknown scheme, not at the first doc
        self.scorer = scorer
        self._rehearsal_model = None
        self._check_learning_rate = LearningRateCheck(name)
        self._trains_transformer = False
        add_confidence_extension()
        remember_pipeline(self, nlp)

    @property
    def label_data(self) -> list[str]:
        """The labels, as `spacy init labels` stores them and `initialize` takes them."""
        return list(self.labels)

    def add_label(self, label: str) -> int:
        """Add a label. An initialized model gets more tags, with low scores.

        Entities and confidences do not change before an update with a gold entity of the label:
        until then it is not predicted.

        Returns 1, or 0 if the label already exists. Raises InputError for an empty label, and for
        one that begins with "!".
        """
        if not isinstance(label, str) or not label:
            raise InputError(f"[{self.name}] label: expected a non-empty string, got {label!r}.")
        if label.startswith("!"):  # spaCy's mark of negative spans
            raise InputError(
                f'[{self.name}] label: expected one that does not begin with "!", got {label!r}. '
                "Rename it."
            )
        if label in self.labels:
            return 0
        require_trainable(self.model)
        self.chains_of(self._scheme_name, (*self.labels, label))  # which may refuse it
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        if self.model.get_ref("output_layer").has_dim("nI"):  # set once there are weights
            with required("train"):
                from ..ml.architectures import grow
            like = TAG_OUTSIDE if self.entities_key is None else None
            grow(self.model, len(self.scheme.tags), like)
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

        get_examples: Returns the training examples.
        nlp: The pipeline.
        labels: Labels as stored by `spacy init labels`; None takes those of the examples, in
            alphabetical order, which reads all of them once. With overlapping entities, they are
            read once more, to count the layers.

        Raises InputError for examples without entities, for a gold entity that begins or ends with
        whitespace or whose label begins with "!", for a threshold of an unknown label, if the
        component listens to one that is not in the pipeline, if another one writes to its key in
        `doc.spans`, and for weights that are too large to be saved.
        Warns about gold entities and negative spans that do not align with the predicted tokens,
        and about entities of more layers than there are.
        """
        require_trainable(self.model)
        validate_get_examples(get_examples, "CRFEntityRecognizer.initialize")
        check_lexeme_norms(self.vocab, self.name)
        if nlp is not None:
            require_upstream(self, nlp)
            require_own_key(nlp, self, self.entities_key)
            require_own_key(nlp, self, self.spans_key, TrainablePipe)  # a ruler adds to it
        if labels is None:
            keys = self.incorrect_spans_key, self.entities_key
            labels = collect_labels(get_examples(), self.name, *keys)
        if not labels and not self.labels:
            raise InputError(
                f"[{self.name}] expected examples with entities, got none: there is no label to "
                f"learn. {self._where_gold_is}, or give the labels."
            )
        self._require_known_labels([*self.labels, *labels])
        self.chains_of(self._scheme_name, tuple(dict.fromkeys([*self.labels, *labels])))
        # All checks have passed: reset what belongs to old weights.
        output_layer = self.model.get_ref("output_layer")
        for node, dim in ((self.model, "nO"), (output_layer, "nO"), (output_layer, "nI")):
            node.set_dim(dim, None, force=True)
        self._forget_fits()
        self.cfg["untrained"] = []
        self.seen_texts.restart()
        self.cfg["chains"] = [self.entities, self.layers]
        for label in labels:
            self.add_label(label)
        output_layer.set_dim("nO", len(self.scheme.tags))
        if isinstance(self.chains, LabelChains):
            self.chains.warn_of_lost(get_examples(), count=True)
        self.model.initialize(X=[eg.x for eg in islice(get_examples(), 10)])
        with required("train"):
            from ..ml.architectures import require_savable
        for each, pipe in [(self.name, self), *(nlp.pipeline if nlp is not None else ())]:
            if isinstance(getattr(pipe, "model", None), Model):
                require_savable(each, pipe.model)

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
        thresholds = self.label_thresholds
        posterior = self._posterior(docs)
        if self.decode == "f_score":
            found = posterior.candidates(np.array([*thresholds.values()]).clip(self.span_threshold))
            chains, threshold = self.chains, self.span_threshold
            spans = [[span for span, _ in chains.choose(of_doc, threshold)] for of_doc in found]
        else:
            spans = posterior.decode()
        confidences: list[list[float]] = [[] for _ in docs]
        if self.confidence or any(thresholds.values()) or self.entities_key is not None:
            confidences = posterior.probabilities(spans)
        if any(thresholds.values()):
            for of_doc, ps in zip(spans, confidences):
                kept = [p >= thresholds[label] for (_, _, label), p in zip(of_doc, ps)]
                of_doc[:] = compress(of_doc, kept)
                ps[:] = compress(ps, kept)
        candidates: list[list[Candidate]] = [[] for _ in docs]
        if self.entities_key is not None:
            candidates = [list(zip(*of_doc)) for of_doc in zip(spans, confidences)]
            preset = [() if self.overwrite else doc.ents for doc in docs]
            disjoint = [best_beside(*of_doc) for of_doc in zip(candidates, preset)]
            spans = [[span for span, _ in of_doc] for of_doc in disjoint]
            confidences = [[p for _, p in of_doc] for of_doc in disjoint]
        elif self.spans_key is not None:
            lowest = self.candidate_threshold
            by_label = [self.candidate_thresholds.get(label, lowest) for label in self.labels]
            candidates = posterior.candidates(np.array(by_label))
        return [Prediction(*of_doc) for of_doc in zip(spans, confidences, candidates)]

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[Prediction]) -> None:
        """Write the result of `predict`; other tokens without annotation become outside."""
        for doc, prediction in zip(docs, scores):
            key = self.entities_key or self.spans_key
            labels = None if self.entities_key is None else self.labels
            has_confidence = self.confidence or self.entities_key is not None
            annotate(doc, prediction, self.overwrite, has_confidence, key, labels)

    def score(self, examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
        """Score examples; see spaCy's `Pipe.score`. The scorer is given the `entities_key`."""
        examples = list(examples)
        self.seen_texts.score(examples)
        if self.entities_key is not None:
            kwargs = {"spans_key": self.entities_key, **kwargs}
        scores: dict[str, Any] = super().score(examples, **kwargs)
        return scores

    def finish_update(self, sgd: Any) -> None:
        """Update the weights; see spaCy's `TrainablePipe.finish_update`.

        Warns of a learning rate that is too high for a transformer, and of one that stays at 0.
        """
        self._check_learning_rate(sgd, self._trains_transformer)
        super().finish_update(sgd)

    def get_loss(self, examples: Iterable[Example], scores: Potentials) -> tuple[float, Potentials]:
        """Compute the negative log likelihood of the gold entities, in nats, summed over docs.

        The loss sums over all tags of tokens without annotation, and of tokens whose gold entity
        does not align with them; and over the tags of labels that are not annotated where gold says
        "outside" (see `label_sets`).

        If the gold docs have teachers (see `spacy-crf-ner.TaughtCorpus.v1`), it is the weighted sum
        of this loss and temperature^2 * KL(teachers || model), at their weight and temperature.
        Each doc may have teachers of its own, of the same kind.

        scores: The potentials of the predicted docs.

        Labels that were added are predicted from now on if these examples have them, and the texts
        count as trained on (see `SeenTexts`).

        Returns the loss and its gradient for the potentials.
        Raises InputError for a gold entity that has an unknown label, begins or ends with
        whitespace, or is also a negative span, for potentials that are not finite, and for teachers
        of other labels, or only of some docs.
        """
        with required("train"):
            from ..ml.losses import nll_with_gradient
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.get_loss")
        self._require_valid([eg.predicted for eg in examples], scores)
        if isinstance(self.chains, LabelChains):
            self.chains.warn_of_lost(examples)
        gold, hidden = self.chains.gold(examples)
        negatives = self.chains.negatives(examples, self.incorrect_spans_key)
        self._enable_trained(examples)
        self.seen_texts.learn(examples)
        self._trains_transformer = trains_transformer(self.model)
        scores, backprop = self.chains.split(scores)
        losses, d_scores = nll_with_gradient(
            scores, gold, self.chains.scheme.constraints, negatives, hidden
        )
        loss = float(losses.sum())
        lessons = find_lessons(examples, self.name)
        if lessons:
            self.cfg["untrained"] = []  # teachers know all labels
            loss, d_scores = self._mix(loss, d_scores, scores, lessons)
        return loss, backprop(d_scores)

    def _require_valid_cfg(self) -> None:
        """Raise InputError for stored results of training that no training writes."""
        labels = self.cfg["labels"]
        are_labels = isinstance(labels, list) and all(
            isinstance(label, str) and label and not label.startswith("!") for label in labels
        )
        if not are_labels or len({*labels}) < len(labels):
            raise InputError(f"labels: expected a list of different labels, got {labels!r}.")
        untrained = self.cfg["untrained"]
        if not isinstance(untrained, list) or any(label not in labels for label in untrained):
            raise InputError(f"untrained: expected a list of labels, got {untrained!r}.")
        self.seen_texts.saved()
        if not isinstance(self.cfg["guarantees"], dict):
            raise InputError(f"guarantees: expected a dict, got {self.cfg['guarantees']!r}.")
        chains = self.cfg.get("chains", ["flat", 1])
        if not isinstance(chains, list) or [*map(type, chains)] != [str, int]:
            raise InputError(f"chains: expected the kind and the layers, got {chains!r}.")
        for name in FITTED:
            getattr(self, name)
        n = self.cfg.get("calibrated_on")
        if n is not None and (type(n) is not int or n < 0):
            raise InputError(
                f"[{self.name}] calibrated_on: expected a number of entities, got {n!r}."
            )

    def _enable_trained(self, examples: Sequence[Example]) -> None:
        """Let added labels be predicted that are among the gold entities which can be learned."""
        untrained = self.cfg["untrained"]
        if untrained:
            found = {
                ent.label_
                for eg in examples
                for ent in gold_entities(eg.reference, self.entities_key)
                if ent.label_ in untrained and eg.get_aligned_spans_y2x([ent])
            }
            self.cfg["untrained"] = [label for label in untrained if label not in found]

    def _forget_fits(self) -> None:
        """Drop what was fitted to other weights."""
        for name in FITTED:
            self.cfg[name] = None
        self.cfg["guarantees"] = {}

    def _require_known_labels(self, labels: Sequence[str]) -> None:
        """Raise InputError for a threshold or a disabled label that is not among these."""
        given = [*self.thresholds, *self.candidate_thresholds]
        self._require_known("thresholds", given, labels)
        self._require_known("disabled_labels", self.disabled_labels, labels)


def _is_key(key: Any) -> bool:
    return key is None or isinstance(key, str)
