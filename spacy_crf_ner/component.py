"""The spaCy component: entities from the best legal tag sequence of a linear-chain CRF."""

import warnings
from functools import lru_cache
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, cast

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.pipeline.ner import ner_score
from spacy.tokens import Doc, Span
from spacy.training import Example, validate_examples, validate_get_examples
from spacy.vocab import Vocab
from thinc.api import Config, Model
from thinc.types import Ints1d

from .model import Potentials, decode, loss
from .tags import TagScheme

DEFAULT_CONFIG = """
[model]
@architectures = "spacy-crf-ner.BiLSTMCRF.v1"
rnn = "lstm"
hidden_width = 100
depth = 1
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
    assigns=["doc.ents", "token.ent_iob", "token.ent_type"],
    default_config={
        "model": Config().from_str(DEFAULT_CONFIG)["model"],
        "scheme": "biluo",
        "scorer": {"@scorers": "spacy.ner_scorer.v1"},
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
)
def make_crf_ner(
    nlp: Language,
    name: str,
    model: Model[List[Doc], Potentials],
    scheme: str,
    scorer: Optional[Callable[..., Any]],
) -> "CRFEntityRecognizer":
    """Make the component for a pipeline; its settings are those of `CRFEntityRecognizer`."""
    return CRFEntityRecognizer(nlp.vocab, model, name, scheme=scheme, scorer=scorer)


class CRFEntityRecognizer(TrainablePipe):  # type: ignore[misc]  # a Cython class, untyped
    """Set `Doc.ents` by Viterbi decoding of a linear-chain CRF.

    vocab: The shared vocabulary.
    model: From docs to the potentials of a CRF, as `spacy-crf-ner.BiLSTMCRF.v1` (default, over
        spaCy's HashEmbedCNN) builds it.
    name: Name of the component in the pipeline.
    scheme: How tags spell entities: "biluo" (default), "bio" or "io".
    scorer: Scores examples; default `spacy.ner_scorer.v1`.

    Raises ValueError for an unknown scheme.
    """

    def __init__(
        self,
        vocab: Vocab,
        model: Model[List[Doc], Potentials],
        name: str = "crf_ner",
        *,
        scheme: str = "biluo",
        scorer: Optional[Callable[..., Any]] = ner_score,
    ) -> None:
        super().__init__(vocab, model, name, labels=[], scheme=scheme)
        self.scorer = scorer
        _tag_scheme(scheme, ())  # an unknown one is an error here, not at the first doc

    @property
    def labels(self) -> Tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> List[str]:
        """What `spacy init labels` stores, and `initialize` takes: the labels."""
        return list(self.labels)

    @property
    def scheme(self) -> TagScheme:
        """The tags of the labels."""
        return _tag_scheme(self.cfg["scheme"], self.labels)

    def add_label(self, label: str) -> int:
        """Add a label, before the model is initialized.

        Returns 1, or 0 where the label is there already.
        Raises ValueError for an empty label, one that is not a string, or an initialized model.
        """
        if not isinstance(label, str) or not label:
            raise ValueError(f"[{self.name}] label: expected a non-empty string, got {label!r}.")
        if label in self.labels:
            return 0
        self._allow_extra_label()
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
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
        whitespace, or where the component listens to one that is not in the pipeline.
        Warns of gold entities that do not align with the predicted tokens.
        """
        validate_get_examples(get_examples, "CRFEntityRecognizer.initialize")
        if nlp is not None:
            self._require_upstream(nlp)
        # New weights: an earlier number of tags does not bind.
        output_layer = self.model.get_ref("output_layer")
        for node in (self.model, output_layer):
            node.set_dim("nO", None, force=True)
        for label in self._collect_labels(get_examples()) if labels is None else labels:
            self.add_label(label)
        if not self.labels:
            raise ValueError(
                f"[{self.name}] expected examples with entities, got none with any: there is no "
                "label to learn. Check that the corpus has doc.ents, or give the labels."
            )
        output_layer.set_dim("nO", len(self.scheme.tags))
        self.model.initialize(X=[eg.x for eg in islice(get_examples(), 10)])

    def predict(self, docs: Iterable[Doc]) -> List[NDArray[np.int64]]:
        """Find the best legal tag sequence of each doc.

        Returns one array of tag ids a doc, (T,).
        Raises ValueError for docs that lack the features of an upstream component, for features
        that are not finite, or where the model's tags are not those of the labels.
        """
        docs = list(docs)
        if not any(len(doc) for doc in docs):
            return [np.zeros(0, dtype=np.int64) for _ in docs]
        self._require_features(docs)
        potentials = self.model.predict(docs)
        self._require_sound(docs, potentials)
        return decode(potentials, self.scheme.constraints)

    def set_annotations(self, docs: Iterable[Doc], scores: Sequence[NDArray[np.int64]]) -> None:
        """Set the entities that the tags spell; tokens outside them are marked so.

        scores: One array of tag ids a doc, as `predict` returns them.
        """
        for doc, tags in zip(docs, scores):
            ents = [Span(doc, start, end, label) for start, end, label in self.scheme.spans(tags)]
            doc.set_ents(ents, default="outside")

    def get_loss(self, examples: Iterable[Example], scores: Potentials) -> Tuple[float, Potentials]:
        """Compute the negative log likelihood of the gold entities, summed over docs.

        Tokens without annotation, and those of a gold entity that does not align with them, may
        carry any tag: the loss sums over all.

        scores: The potentials of the predicted docs.

        Returns the loss and its gradient.
        Raises ValueError for a gold entity of an unknown label, or that begins or ends in
        whitespace, and for potentials that are not finite.
        """
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.get_loss")
        self._require_sound([eg.predicted for eg in examples], scores)
        gold = [self._gold_tags(eg) for eg in examples]
        losses, d_scores = loss(scores, np.concatenate(gold), self.scheme.constraints)
        return float(losses.sum()), d_scores

    def _allow_extra_label(self) -> None:
        """Refuse a label that an initialized model has no tags for."""
        if self.model.get_ref("output_layer").has_dim("nO"):
            raise ValueError(
                f"[{self.name}] the model is initialized for the labels {list(self.labels)} and "
                "cannot take another: add labels before nlp.initialize(), or initialize again."
            )

    def _collect_labels(self, examples: Iterable[Example]) -> List[str]:
        """Read all examples once: their labels, and whether their entities can be learned."""
        labels: Set[str] = set()
        total = 0
        misaligned: List[Span] = []
        for eg in examples:
            total += len(eg.reference.ents)
            labels.update(ent.label_ for ent in eg.reference.ents)
            self._require_text(eg.reference)
            misaligned.extend(_misaligned(eg))
        if misaligned:
            shown = "; ".join(_where(ent) for ent in misaligned[:5])
            warnings.warn(
                f"[{self.name}] {len(misaligned)} of {total} gold entities do not align with the "
                f"predicted tokens, which count as not annotated: {shown}"
                f"{'; ...' if len(misaligned) > 5 else ''}. Use the tokenizer of the corpus, or "
                "correct the offsets.",
                stacklevel=3,
            )
        return sorted(labels)

    def _gold_tags(self, eg: Example) -> NDArray[np.int64]:
        """The gold tag ids of the predicted tokens, (T,)."""
        self._require_text(eg.reference)
        biluo = eg.get_aligned_ner()
        if sum(tag is not None and tag[0] in "BU" for tag in biluo) < len(eg.reference.ents):
            # The same words each time, so that Python shows it once.
            warnings.warn(
                f"[{self.name}] some gold entities do not align with the predicted tokens, which "
                "count as not annotated; nlp.initialize() lists them.",
                stacklevel=3,
            )
        try:
            return self.scheme.ids(biluo)
        except KeyError:
            ent = next(ent for ent in eg.reference.ents if ent.label_ not in self.labels)
            raise ValueError(
                f"[{self.name}] {_where(ent)}: expected one of the labels {list(self.labels)}, "
                f"got {ent.label_!r}. Initialize the pipeline with that label, or rename it."
            ) from None

    def _require_text(self, doc: Doc) -> None:
        """Refuse entities that begin or end in whitespace."""
        for ent in doc.ents:
            if ent[0].is_space or ent[-1].is_space:
                raise ValueError(
                    f"[{self.name}] {_where(ent)}: expected an entity that begins and ends in a "
                    f"word, got {ent.text!r}. Trim the whitespace off its ends."
                )

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

    def _listeners(self) -> Iterator[Model[Any, Any]]:
        return (node for node in self.model.walk() if hasattr(node, "upstream_name"))

    def _require_upstream(self, nlp: Language) -> None:
        """Refuse a pipeline that lacks a component this one listens to."""
        for listener in self._listeners():
            upstream = listener.upstream_name  # type: ignore[attr-defined]
            sources = [name for name, pipe in nlp.components if hasattr(pipe, "listener_map")]
            if not sources if upstream == "*" else upstream not in sources:
                raise ValueError(
                    f"[{self.name}] listens to {_upstream_name(listener)!r}, which is not in the "
                    f"pipeline {nlp.component_names}. Add it before this component: "
                    f"nlp.add_pipe({_upstream_factory(listener)!r}, before={self.name!r})."
                )

    def _require_features(self, docs: Sequence[Doc]) -> None:
        """Refuse docs without the features that a listener reads: it would give zeros."""
        for listener in self._listeners():
            factory = _upstream_factory(listener)
            for doc in docs:
                if factory == "tok2vec":
                    absent = doc.tensor.size == 0
                else:
                    absent = not doc.has_extension("trf_data") or doc._.trf_data is None
                if absent and len(doc):
                    wanted = _upstream_name(listener)
                    raise ValueError(
                        f"[{self.name}] listens to {wanted!r}, which has not run on the doc "
                        f"{doc.text[:60]!r}. Add it to the pipeline before this component, or "
                        f"enable it: nlp.enable_pipe({wanted!r})."
                    )


@lru_cache(maxsize=64)
def _tag_scheme(name: str, labels: Tuple[str, ...]) -> TagScheme:
    return TagScheme(name, labels)


def _where(ent: Span) -> str:
    """Name an entity in a message."""
    return (
        f"entity {ent.text[:60]!r} ({ent.label_}, characters {ent.start_char}:{ent.end_char}) "
        f"in the doc {ent.doc.text[:60]!r}"
    )


def _misaligned(eg: Example) -> List[Span]:
    """The gold entities that have no counterpart in the predicted tokens."""
    ents = eg.reference.ents
    return [ent for ent in ents if not eg.get_aligned_spans_y2x([ent])]


def _upstream_factory(listener: Model[Any, Any]) -> str:
    """The factory of the component that a listener listens to."""
    return "transformer" if "transformer" in listener.name else "tok2vec"


def _upstream_name(listener: Model[Any, Any]) -> str:
    """The component that a listener listens to: its name, or its factory where any will do."""
    upstream = str(listener.upstream_name)  # type: ignore[attr-defined]
    return _upstream_factory(listener) if upstream == "*" else upstream
