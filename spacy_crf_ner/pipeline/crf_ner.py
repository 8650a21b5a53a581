"""The spaCy component: entities from the best legal tag sequence of a linear-chain CRF."""

from functools import lru_cache
from itertools import compress, islice
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
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
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example, validate_examples, validate_get_examples
from spacy.util import check_lexeme_norms
from spacy.vocab import Vocab
from thinc.api import Config, Model, Optimizer, set_dropout_rate
from thinc.types import Ints1d

from ..ml.architectures import grow
from ..ml.potentials import Potentials, distill, loss
from ..ml.threads import use_one_thread_after_fork
from ..tags import OUTSIDE, SpanOffsets, TagScheme
from .gold import collect_labels, gold_tags, wrong_spans
from .listeners import listens, require_features, require_upstream
from .posterior import Posterior, Trellis
from .preset import bounds
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

if not Span.has_extension("confidence"):
    Span.set_extension("confidence", default=None)


@Language.factory(
    "crf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type", "span._.confidence"],
    default_config={
        "model": Config().from_str(DEFAULT_CONFIG)["model"],
        "scheme": "biluo",
        "confidence": True,
        "threshold": 0.0,
        "thresholds": {},
        "temperature": 1.0,
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
    temperature: float,
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


class Prediction(NamedTuple):
    """What is predicted of one doc.

    spans: First token, last token + 1 and label of each entity, in order.
    confidences: The probability of each, or none of them where they are not asked for.
    candidates: Spans that may overlap, each with its probability.
    """

    spans: List[SpanOffsets]
    confidences: List[float]
    candidates: List[Tuple[SpanOffsets, float]]


class Transitions(NamedTuple):
    """How well each of C tags follows another, in the eyes of a model.

    tags: Their names, as in "B-PER".
    scores: (C, C), from the tag of the row to that of the column; what stands where it is not
        legal was never learned. All zeros where the decoder is "softmax".
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


class CRFEntityRecognizer(TrainablePipe):  # type: ignore[misc]  # a Cython class, untyped
    """Set `Doc.ents` by Viterbi decoding of a linear-chain CRF, and say how sure it is of each.

    Entities that a doc comes with are kept, and the others are predicted given them. No entity
    crosses a sentence start that is set, or begins or ends in whitespace.

    vocab: The shared vocabulary.
    model: From docs to the potentials of a CRF, as `spacy-crf-ner.BiLSTMCRF.v1` (default, over
        spaCy's HashEmbedCNN) builds it.
    name: Name of the component in the pipeline.
    scheme: How tags spell entities: "biluo" (default), "bio" or "io".
    confidence: Give each entity its probability, `ent._.confidence`: that of exactly this span
        with this label, given the doc. None for entities that the doc came with.
    threshold: Entities less probable than this are dropped.
    thresholds: The same by label, instead of `threshold`.
    temperature: Divides all scores before probabilities are taken, as `fit_temperature` finds it.
        It changes no entity but by the thresholds.
    spans_key: Where not None, `doc.spans[spans_key]` has all spans of at least
        `candidate_threshold`, overlapping ones too, their probabilities in `.attrs["scores"]`.
    candidate_threshold: The lowest probability there, over 0.
    incorrect_spans_key: Where not None, the spans in `doc.spans[incorrect_spans_key]` of gold docs
        are known to be wrong: with their label, or with any where it is empty. One of the label
        "O" is known not to be wholly outside of entities.
    overwrite: Ignore and replace the entities that a doc comes with.
    scorer: Scores examples; default `spacy.ner_scorer.v1`.

    Raises ValueError for an unknown scheme, and for numbers out of their range.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[List[Doc], Potentials],
        name: str = "crf_ner",
        *,
        scheme: str = "biluo",
        confidence: bool = True,
        threshold: float = 0.0,
        thresholds: Optional[Dict[str, float]] = None,
        temperature: float = 1.0,
        spans_key: Optional[str] = None,
        candidate_threshold: float = 0.05,
        incorrect_spans_key: Optional[str] = None,
        overwrite: bool = False,
        scorer: Optional[Callable[..., Any]] = ner_score,
    ) -> None:
        super().__init__(
            vocab,
            model,
            name,
            labels=[],
            scheme=scheme,
            confidence=confidence,
            threshold=threshold,
            thresholds=dict(thresholds or {}),
            temperature=temperature,
            spans_key=spans_key,
            candidate_threshold=candidate_threshold,
            incorrect_spans_key=incorrect_spans_key,
            overwrite=overwrite,
        )
        self.scorer = scorer
        self._rehearsal_model: Optional[Model[List[Doc], Potentials]] = None
        _tag_scheme(scheme, ())  # an unknown one is an error here, not at the first doc
        if not temperature > 0.0:
            raise ValueError(f"[{name}] temperature: expected a number over 0, got {temperature}.")
        shares = {"threshold": threshold, "candidate_threshold": candidate_threshold}
        shares.update((f"thresholds[{label!r}]", t) for label, t in (thresholds or {}).items())
        for setting, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"[{name}] {setting}: expected 0.0 to 1.0, got {share}.")
        if spans_key is not None and not candidate_threshold > 0.0:
            raise ValueError(
                f"[{name}] candidate_threshold: expected a number over 0.0, got "
                f"{candidate_threshold}. Every span of a doc has some probability."
            )

    @property
    def labels(self) -> Tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> List[str]:
        """What `spacy init labels` stores, and `initialize` takes: the labels."""
        return list(self.labels)

    @property
    def confidence(self) -> bool:
        """Whether entities get a confidence."""
        return bool(self.cfg["confidence"])

    @property
    def temperature(self) -> float:
        """What divides all scores before probabilities are taken."""
        return float(self.cfg["temperature"])

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.cfg["temperature"] = value

    @property
    def scheme(self) -> TagScheme:
        """The tags of the labels."""
        return _tag_scheme(self.cfg["scheme"], self.labels)

    def add_label(self, label: str) -> int:
        """Add a label. An initialized model gets more tags, and predicts what it did, for now.

        Returns 1, or 0 where the label is there already.
        Raises ValueError for an empty label, or one that is not a string.
        """
        if not isinstance(label, str) or not label:
            raise ValueError(f"[{self.name}] label: expected a non-empty string, got {label!r}.")
        if label in self.labels:
            return 0
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        if self.model.get_ref("output_layer").has_dim("nO"):
            grow(self.model, len(self.scheme.tags), like=OUTSIDE)
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

        Raises ValueError for examples without entities, for a gold entity that begins or ends in
        whitespace or has a label in "!", or where the component listens to one that is not in the
        pipeline.
        Warns of gold entities, and of spans known to be wrong, that do not align with the
        predicted tokens.
        """
        validate_get_examples(get_examples, "CRFEntityRecognizer.initialize")
        check_lexeme_norms(self.vocab, self.name)  # type: ignore[no-untyped-call]
        if nlp is not None:
            require_upstream(self, nlp)
        # New weights: an earlier number of tags does not bind.
        output_layer = self.model.get_ref("output_layer")
        for node in (self.model, output_layer):
            node.set_dim("nO", None, force=True)
        if labels is None:
            labels = collect_labels(get_examples(), self.name, self.cfg["incorrect_spans_key"])
        for label in labels:
            self.add_label(label)
        if not self.labels:
            raise ValueError(
                f"[{self.name}] expected examples with entities, got none with any: there is no "
                "label to learn. Check that the corpus has doc.ents, or give the labels."
            )
        output_layer.set_dim("nO", len(self.scheme.tags))
        self.model.initialize(X=[eg.x for eg in islice(get_examples(), 10)])

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate a stream of docs in batches; see spaCy's `TrainablePipe.pipe`."""
        use_one_thread_after_fork()  # before a transformer below computes
        yield from super().pipe(stream, batch_size=batch_size)

    def predict(self, docs: Iterable[Doc]) -> List[Prediction]:
        """Find the entities of the best legal tag sequence of each doc, and their probabilities.

        Raises ValueError for docs that lack the features of an upstream component, for features
        that are not finite, or where the model's tags are not those of the labels.
        """
        docs = list(docs)
        if not any(len(doc) for doc in docs):
            return [Prediction([], [], []) for _ in docs]
        posterior = self._posterior(docs)
        spans = posterior.best()
        confidences: List[List[float]] = [[] for _ in docs]
        least = {label: self._threshold(label) for label in self.labels}
        if self.cfg["confidence"] or any(least.values()):
            confidences = posterior.probabilities(spans)
            for found, ps in zip(spans, confidences):
                kept = [p >= least[label] for (_, _, label), p in zip(found, ps)]
                found[:] = compress(found, kept)
                ps[:] = compress(ps, kept)
        candidates: List[List[Tuple[SpanOffsets, float]]] = [[] for _ in docs]
        if self.cfg["spans_key"] is not None:
            candidates = posterior.candidates(self.cfg["candidate_threshold"])
        return [Prediction(*of_doc) for of_doc in zip(spans, confidences, candidates)]

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[Prediction]) -> None:
        """Set the predicted entities; tokens outside them that have no annotation are marked so.

        scores: What `predict` returns.
        """
        for doc, (spans, confidences, candidates) in zip(docs, scores):
            ents = [Span(doc, start, end, label) for start, end, label in spans]
            if self.cfg["overwrite"] or not doc.has_annotation("ENT_IOB"):
                for ent in doc.ents:
                    doc.user_data.pop(_confidence_key(ent), None)
                    for token in ent:  # set_ents keeps an id where the new entity has none
                        token.ent_id, token.ent_kb_id = 0, 0
                doc.set_ents(ents, default="outside")
            else:
                doc.set_ents(ents, default="unmodified")
                missing = [doc[i : i + 1] for i, token in enumerate(doc) if not token.ent_iob]
                doc.set_ents([], outside=missing, default="unmodified")
            if self.cfg["confidence"]:
                for ent, confidence in zip(ents, confidences):
                    doc.user_data[_confidence_key(ent)] = confidence
            if self.cfg["spans_key"] is not None:
                found = [Span(doc, start, end, label) for (start, end, label), _ in candidates]
                p = np.array([p for _, p in candidates], dtype=np.float32)
                group = SpanGroup(doc, name=self.cfg["spans_key"], spans=found, attrs={"scores": p})
                doc.spans[self.cfg["spans_key"]] = group

    def nbest(self, docs: Iterable[Doc], n: int) -> List[List[Tuple[List[Span], float]]]:
        """Find the n most probable analyses of each doc, fewer where there are fewer.

        Returns for each doc pairs of its entities, those it came with among them, and the
        probability of exactly these; the best first. Nothing is set on the docs.
        Raises ValueError for n below 1, and as `predict`.
        """
        docs = list(docs)
        if n < 1:
            raise ValueError(f"[{self.name}] n: expected 1 or more, got {n}.")
        if not any(len(doc) for doc in docs):
            return [[([], 1.0)] for _ in docs]
        result = []
        for doc, ranked in zip(docs, self._posterior(docs).nbest(n)):
            given = [] if self.cfg["overwrite"] else list(doc.ents)
            found = [([Span(doc, *span) for span in spans], p) for spans, p in ranked]
            result.append([(sorted([*given, *ents]), p) for ents, p in found])
        return result

    def span_posteriors(self, doc: Doc, spans: Iterable[Span]) -> List[float]:
        """Compute the probability that spans of a doc, any spans, are entities of their labels.

        Given what the doc has: the entities of a doc that the component has annotated are certain.

        Raises ValueError for an empty span or a label that the component does not know, and as
        `predict`.
        """
        asked = [(span.start, span.end, span.label_) for span in spans]
        for start, end, label in asked:
            if start == end or label not in self.labels:
                raise ValueError(
                    f"[{self.name}] tokens {start}:{end} ({label!r}) of the doc {doc.text[:60]!r}: "
                    f"expected a span with a token and one of the labels {list(self.labels)}."
                )
        if not asked:
            return []
        given = {(ent.start, ent.end, ent.label_) for ent in doc.ents}
        if self.cfg["overwrite"]:
            given = set()
        (found,) = self._posterior([doc]).probabilities([asked])
        return [1.0 if span in given else p for span, p in zip(asked, found)]

    def trellis(self, doc: Doc) -> Trellis:
        """Show the search of the best tag sequence of a doc: scores, back-pointers and path.

        Given what the doc has, as all that is predicted. The marginals, and only these, are taken
        at the temperature.

        Raises ValueError as `predict`.
        """
        if len(doc):
            posterior = self._posterior([doc])
        else:
            posterior = self._posterior_of([doc], self._without_tokens())
        (found,) = posterior.trellises()
        return found

    def transitions(self) -> Transitions:
        """Copy the transition scores of the model, as they are before any temperature.

        Raises ValueError where the model has no weights yet, or its tags are not the labels'.
        """
        found = self._without_tokens()
        scores, start, end = map(
            self.model.ops.to_numpy, (found.transitions, found.start, found.end)
        )
        legal, first, last = (allowed.copy() for allowed in self.scheme.constraints)
        return Transitions(self.scheme.tags, scores, start, end, legal, first, last)

    def fit_temperature(self, examples: Iterable[Example]) -> float:
        """Set the temperature to that under which the gold entities are most likely.

        With it, confidences say how often the component is right; it changes no entity but by the
        thresholds. The loss is convex in 1 / temperature where all tokens are annotated; tokens
        without annotation are summed over, and docs without any are left out.

        examples: Not those of the training; their `predicted` docs have been through the
            components before this one.

        Returns the temperature, 0.05 to 20. Source: Guo et al. (2017), ICML, of a softmax.
        Raises ValueError where no example has annotation, and as `get_loss`.
        Warns where the best temperature is out of its range.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.fit_temperature")
        pairs = [(eg.predicted, gold_tags(eg, self.scheme, self.name)) for eg in examples]
        annotated = [(doc, gold) for doc, gold in pairs if (gold >= 0).any()]
        if not annotated:
            raise ValueError(
                f"[{self.name}] expected examples with annotated entities, got {len(examples)} "
                "without: there is nothing to fit the temperature to. Check that the corpus has "
                "doc.ents."
            )
        batches = []
        for i in range(0, len(annotated), 64):
            batch = annotated[i : i + 64]
            docs = [doc for doc, _ in batch]
            require_features(self, docs)
            potentials = self.model.predict(docs)
            self._require_sound(docs, potentials)
            batches.append((potentials, np.concatenate([gold for _, gold in batch])))

        self.cfg["temperature"] = fit_temperature(batches, self.scheme.constraints, self.name)
        return float(self.cfg["temperature"])

    def _posterior(self, docs: Sequence[Doc]) -> Posterior:
        require_features(self, docs)
        potentials = self.model.predict(docs)
        self._require_sound(docs, potentials)
        return self._posterior_of(docs, potentials)

    def _posterior_of(self, docs: Sequence[Doc], potentials: Potentials) -> Posterior:
        limits = bounds(docs, self.scheme, self.cfg["overwrite"])
        return Posterior(potentials, self.scheme, limits, self.cfg["temperature"])

    def _without_tokens(self) -> Potentials:
        """The potentials of a doc without tokens: the transitions, for all docs the same."""
        head = self.model.get_ref("output_layer")
        # A model without weights has no width either: its error is the head's.
        potentials = head.predict([head.ops.alloc2f(0, head.maybe_get_dim("nI") or 0)])
        self._require_sound([], potentials)
        return cast(Potentials, potentials)

    def _threshold(self, label: str) -> float:
        return float(self.cfg["thresholds"].get(label, self.cfg["threshold"]))

    def get_loss(self, examples: Iterable[Example], scores: Potentials) -> Tuple[float, Potentials]:
        """Compute the negative log likelihood of the gold entities, summed over docs.

        Tokens without annotation, and those of a gold entity that does not align with them, may
        carry any tag: the loss sums over all.

        scores: The potentials of the predicted docs.

        Returns the loss and its gradient.
        Raises ValueError for a gold entity of an unknown label, that begins or ends in whitespace,
        or is known to be wrong, and for potentials that are not finite.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.get_loss")
        self._require_sound([eg.predicted for eg in examples], scores)
        gold = [gold_tags(eg, self.scheme, self.name) for eg in examples]
        key = self.cfg["incorrect_spans_key"]
        wrong = [
            (i, ways)
            for i, eg in enumerate(examples)
            for ways in wrong_spans(eg, key, self.scheme, self.name)
        ]
        losses, d_scores = loss(scores, np.concatenate(gold), self.scheme.constraints, wrong)
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

        What is learned is the whole distribution of then: the loss is the Kullback-Leibler
        divergence from it. Labels that were added since are left out of the comparison.

        examples: Their predicted docs are rehearsed; their gold ones are not looked at.
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
        head, tok2vec = self.model.get_ref("output_layer"), self.model.get_ref("tok2vec")
        if listens(self):
            # What listens learns only with what it listens to, which is not asked here.
            scores, backprop = head.begin_update(tok2vec.predict(docs))
        else:
            scores, backprop = self.model.begin_update(docs)
        divergence, d_scores = distill(scores, teacher, self.scheme.constraints)
        backprop(d_scores)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += divergence
        return losses

    def _require_sound(self, docs: Sequence[Doc], potentials: Potentials) -> None:
        """Refuse potentials of other tags than the labels', and such as are not finite."""
        expected = len(self.scheme.tags)
        C = potentials.emissions.shape[1]
        if C != expected:
            raise ValueError(
                f"[{self.name}] expected a model of {expected} tags for the labels "
                f"{list(self.labels)} in scheme {self.scheme.name!r}, got one of {C}. Labels and "
                "weights are of different pipelines: load both from the same one."
            )
        ops = self.model.ops
        if ops.xp.isfinite(potentials.emissions).all():
            return
        by_doc = ops.unflatten(potentials.emissions, cast(Ints1d, potentials.lengths))
        for i, (doc, rows) in enumerate(zip(docs, by_doc)):
            if not ops.xp.isfinite(rows).all():
                raise ValueError(
                    f"[{self.name}] doc {i} of the batch, {doc.text[:60]!r}: expected finite "
                    "scores, got NaN or infinity. The token vectors below hold such values, or "
                    "training diverged: check the vectors, or lower the learning rate."
                )


@lru_cache(maxsize=64)
def _tag_scheme(name: str, labels: Tuple[str, ...]) -> TagScheme:
    return TagScheme(name, labels)


def _confidence_key(ent: Span) -> Any:
    """Where spaCy keeps `ent._.confidence`; written directly, as its proxy takes longer."""
    return ("._.", "confidence", ent.start_char, ent.end_char)
