"""Queries to a trained CRF: its n best analyses, posteriors, trellis and transitions."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, Span

from ..input_error import InputError
from ..ml.potentials import Potentials
from ..ml.sealed import errors_of
from ..tags import TAG_OUTSIDE, TagScheme
from .annotation import SPANS_KEY
from .flat import FlatChain
from .interval_scheduling import Candidate
from .listeners import require_attributes, require_features
from .overlapping import LabelChains
from .overlapping_posterior import OverlappingPosterior
from .platt_scaling import PlattScaling
from .posterior import Posterior, Trellis
from .seen_texts import SeenTexts
from .spacy_internals import expect_pipeline
from .stored import CFG, MODEL, require_digests, write_digests

BATCH_SIZE = 64  # docs, where all are at hand
PADDED_TOKENS = 16_384  # the most tokens of a batch, with padding


class Transitions(NamedTuple):
    """The transition scores of a model, between C tags.

    tags: Their names, as in "B-PER".
    scores: (C, C), indexed [from, to]; illegal ones are never trained.
        All zeros if the decoder is "softmax".
    start: (C,), of the first tag. end: (C,), of the last.
    legal, legal_start, legal_end: bool, of the same shapes: what both decoders allow.
    """

    tags: tuple[str, ...]
    scores: NDArray[np.float32]
    start: NDArray[np.float32]
    end: NDArray[np.float32]
    legal: NDArray[np.bool_]
    legal_start: NDArray[np.bool_]
    legal_end: NDArray[np.bool_]

    def to_dict(self) -> dict[str, list[object]]:
        """Convert to lists: "tags", "scores", "start" and "end", with None where illegal."""
        parts = zip(("scores", "start", "end"), self[1:4], self[4:])
        lists = {name: np.where(legal, x, np.array(None)).tolist() for name, x, legal in parts}
        return {"tags": list(self.tags), **lists}


class Analysis(NamedTuple):
    """One possible set of entities of a doc.

    ents: The entities, in order.
    probability: Of exactly these entities; 0.0 if it is too small for float64.
    log_probability: Its natural logarithm.
    """

    ents: list[Span]
    probability: float
    log_probability: float


class Uncertainty(NamedTuple):
    """How uncertain a model is of the entities of a doc.

    tokens: The number of tokens.
    entropy: The entropy of the distribution over all analyses, in nats.
    entities: The entities of the most probable analysis, each with its probability.
    candidates: All spans with at least the lowest probability, each with it; they may overlap.
    log_odds: The log of how much more probable the best analysis is than the second best; inf if
        there is only one; NaN if not asked for.
    """

    tokens: int
    entropy: float
    entities: list[Candidate]
    candidates: list[Candidate]
    log_odds: float


class CRFPipe(TrainablePipe):  # type: ignore[misc]  # a Cython class, untyped
    """A pipe whose model is a CRF. These methods do not change docs or weights.

    A subclass has the attributes of the config: `entities`, `layers`, `_scheme_name`, `spans_key`,
    `threshold`, `thresholds`, `disabled_labels`, `temperature`, `platt_slope`, `platt_intercept`,
    `platt_ceiling` and `overwrite`; and `_require_valid_cfg`.
    """

    seen_texts: SeenTexts

    # The potentials of docs, by the id and the tokens of each, in `computed_once`.
    _computed: dict[tuple[int, int], tuple[Doc, Potentials]] | None = None

    @property
    def name(self) -> str:
        """The name in the pipeline."""
        return cast(str, TrainablePipe.name.__get__(self))

    @name.setter
    def name(self, name: str) -> None:
        TrainablePipe.name.__set__(self, name)
        expect_pipeline(self)

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Save the component, with a digest of each file; see spaCy's `TrainablePipe.to_disk`."""
        self.seen_texts.store()
        super().to_disk(path, exclude=exclude)
        write_digests(Path(path))

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "CRFPipe":
        """Load the component; see spaCy's `TrainablePipe.from_disk`.

        Raises InputError for files that have changed since they were saved, or cannot be read.
        """
        path, exclude = Path(path), [*exclude]
        require_digests(path, exclude)
        self.seen_texts.forget()
        with errors_of(path / CFG):
            super().from_disk(path, exclude=[*exclude, MODEL])
            self._require_valid_cfg()
        with errors_of(path / MODEL):
            super().from_disk(path, exclude=[*exclude, CFG, "vocab"])
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """Serialize the component; see spaCy's `TrainablePipe.to_bytes`."""
        self.seen_texts.store()
        found: bytes = super().to_bytes(exclude=exclude)
        return found

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> "CRFPipe":
        """Load the component; see spaCy's `TrainablePipe.from_bytes`."""
        self.seen_texts.forget()
        super().from_bytes(bytes_data, exclude=exclude)
        self._require_valid_cfg()
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""
        return tuple(self.cfg["labels"])

    @property
    def enabled_labels(self) -> tuple[str, ...]:
        """The labels that are predicted: not those of `disabled_labels`, nor added ones.

        An added label is predicted once an example of it has been trained on.

        Raises InputError for an unknown label in `disabled_labels`.
        """
        excluded = self._excluded
        return tuple(label for label in self.labels if label not in excluded)

    @property
    def _excluded(self) -> set[str]:
        """The labels that are not predicted; raises InputError as `enabled_labels`."""
        self._require_known("disabled_labels", self.disabled_labels, self.labels)
        return {*self.disabled_labels, *self.cfg["untrained"]}

    @property
    def label_thresholds(self) -> dict[str, float]:
        """The lowest probability of an entity of each label."""
        return {label: self.thresholds.get(label, self.threshold) for label in self.labels}

    @property
    def scheme(self) -> TagScheme:
        """The tags of the model."""
        return self.chains.tags

    @property
    def chains(self) -> FlatChain | LabelChains:
        """How entities are written as tags."""
        return self.chains_of(self._scheme_name, self.labels)

    def chains_of(self, scheme: str, labels: tuple[str, ...]) -> FlatChain | LabelChains:
        """How entities are written as tags of another scheme, or of other labels."""
        return _chains(scheme, labels, self.layers, self.entities_key, self.name)

    @property
    def entities_key(self) -> str | None:
        """The key of overlapping entities in `doc.spans`; None if they do not overlap."""
        return (self.spans_key or SPANS_KEY) if self.entities == "overlapping" else None

    @property
    def platt_scaling(self) -> PlattScaling:
        """The calibration of the probabilities of entities."""
        return PlattScaling(self.platt_slope, self.platt_intercept, self.platt_ceiling)

    def nbest(self, docs: Iterable[Doc], n: int) -> list[list[Analysis]]:
        """Find the n most probable analyses of each doc, fewer where fewer are legal.

        Returns the analyses of each doc, the best first; all contain its preset entities.
        Raises InputError for n below 1, and as `predict`.
        """
        docs = list(docs)
        if not isinstance(n, int | np.integer) or n < 1:
            raise InputError(f"[{self.name}] n: expected 1 or more, a whole number, got {n!r}.")
        result = []
        for doc, ranked in zip(docs, self._posterior(docs).nbest(n) if docs else []):
            preset = () if self.overwrite else doc.ents
            analyses = []
            for spans, log_p in ranked:
                ents = sorted([*preset, *(Span(doc, *span) for span in spans)])
                analyses.append(Analysis(ents, math.exp(log_p), log_p))
            result.append(analyses)
        return result

    def analysis_sets(self, docs: Iterable[Doc]) -> list[list[Analysis]]:
        """Find the most probable analyses of each doc, among which the right one lies.

        How often it does in new docs is the promise of `spacy-crf-ner calibrate --analyses`, which
        sets the lowest probability of these analyses. `spacy_crf_ner.guarantees(nlp)` checks that
        the weights are those of the promise.

        Returns the analyses of each doc, the best first; at least one.
        Raises InputError without that promise, at another temperature, with other disabled labels,
        and as `predict`.
        """
        docs = list(docs)
        promise = self.cfg["guarantees"].get("analyses")
        if promise is None:
            raise InputError(
                f"[{self.name}] analysis_sets: expected a pipeline that promises to contain the "
                "right analysis, got one without. Calibrate it: spacy-crf-ner calibrate --analyses."
            )
        settings = promise["settings"]
        then, without = settings["temperature"], settings.get("disabled_labels", [])
        if not math.isclose(then, self.temperature, rel_tol=1e-8):
            raise InputError(
                f"[{self.name}] analysis_sets: expected the temperature of the promise, {then}, "
                f"got {self.temperature}. Set it back, or calibrate again."
            )
        if without != sorted(self.disabled_labels):
            raise InputError(
                f"[{self.name}] analysis_sets: expected the disabled labels of the promise, "
                f"{without}, got {[*self.disabled_labels]}. Set them back, or calibrate again."
            )
        lowest = math.log(promise["threshold"])
        batches = (docs[i : i + BATCH_SIZE] for i in range(0, len(docs), BATCH_SIZE))
        return [found for batch in batches for found in self._analyses_above(batch, lowest)]

    def _analyses_above(self, docs: list[Doc], lowest: float) -> list[list[Analysis]]:
        """Find the analyses of docs with at least this log probability; at least one of each."""
        sets: list[list[Analysis]] = [[] for _ in docs]
        left, n = [*range(len(docs))], 4
        while left:
            for i, ranked in zip(left, self.nbest([docs[i] for i in left], n)):
                kept = [each for each in ranked if each.log_probability >= lowest]
                sets[i] = kept or ranked[:1]
            # A set may have more of them if all that were asked for belong to it.
            left = [i for i in left if len(sets[i]) == n]
            n *= 2
        return sets

    def span_posteriors(self, doc: Doc, spans: Iterable[Span]) -> list[float]:
        """Compute for each span the probability that it is an entity of its label.

        Preset annotation is kept: preset entities of the doc have probability 1.0. A span of a doc
        with the same text and other tokens is the span of its characters.

        Raises InputError for an empty span or an unknown label, for a span of another text or of
        parts of tokens, and as `predict`.
        """
        (found,) = self.span_posteriors_of([doc], [spans])
        return found

    def span_posteriors_of(
        self, docs: Iterable[Doc], spans: Iterable[Iterable[Span]]
    ) -> list[list[float]]:
        """Compute the posteriors of the spans of several docs, in batches, as `span_posteriors`.

        A batch has docs of similar length, so that one long doc does not pad many short ones.
        """
        docs = list(docs)
        asked = [self._require_spans(doc, of_doc) for doc, of_doc in zip(docs, spans, strict=True)]
        left = sorted((i for i, of_doc in enumerate(asked) if of_doc), key=lambda i: -len(docs[i]))
        found: list[list[float]] = [[] for _ in docs]
        while left:
            size = min(BATCH_SIZE, max(1, PADDED_TOKENS // len(docs[left[0]])))
            batch, left = left[:size], left[size:]
            posterior = self._posterior([docs[i] for i in batch])
            for i, of_doc in zip(batch, posterior.probabilities([asked[i] for i in batch])):
                ents = () if self.overwrite else docs[i].ents
                preset = {(ent.start, ent.end, ent.label_) for ent in ents}
                found[i] = [1.0 if span in preset else p for span, p in zip(asked[i], of_doc)]
        return found

    def _require_spans(self, doc: Doc, spans: Iterable[Span]) -> list[tuple[int, int, str]]:
        """Return spans as first token, end and label; raise InputError as `span_posteriors`."""
        asked = []
        for span in spans:
            own: Span | None = span
            if span is not None and span.doc is not doc:
                same = span.doc.text.rstrip() == doc.text.rstrip()
                own = doc.char_span(span.start_char, span.end_char, span.label_) if same else None
            if own is None:
                raise InputError(
                    f"[{self.name}] span_posteriors: expected spans of the doc {doc.text[:60]!r}, "
                    f"got {span!r}. `char_span` returns None for characters that are not whole "
                    "tokens."
                )
            asked.append((own.start, own.end, own.label_))
        for start, end, label in asked:
            if start == end or label not in self.labels:
                raise InputError(
                    f"[{self.name}] tokens {start}:{end} ({label!r}) of the doc {doc.text[:60]!r}: "
                    f"expected a span with a token and one of the labels {list(self.labels)}."
                )
        return asked

    def uncertainty(
        self, docs: Iterable[Doc], lowest: float = 0.01, log_odds: bool = True
    ) -> list[Uncertainty]:
        """Measure how uncertain the model is of each doc; preset entities are not counted.

        docs: Docs that the components before this one have processed.
        lowest: The lowest probability of a candidate, above 0.
        log_odds: Whether to find the second best analyses, which takes as long as the rest.

        Raises InputError as `predict`.
        """
        docs = list(docs)
        if not docs:
            return []
        posterior = self._posterior(docs)
        best = posterior.decode()
        probabilities = posterior.probabilities(best)
        columns = (
            posterior.entropy().tolist(),
            [list(zip(*of_doc)) for of_doc in zip(best, probabilities)],
            posterior.candidates(np.full(len(self.labels), lowest)),
            [_log_odds([p for _, p in ranked]) for ranked in posterior.nbest(2)]
            if log_odds
            else [math.nan] * len(docs),
        )
        return [Uncertainty(len(doc), *of_doc) for doc, *of_doc in zip(docs, *columns)]

    def trellis(self, doc: Doc, label: str | None = None) -> Trellis:
        """Show how Viterbi decoding finds the tags of a doc: scores, back-pointers and path.

        Preset annotation of the doc is kept. Only the marginals depend on the temperature.

        label: If entities may overlap, the label whose chain to show, in the outermost layer.

        Raises InputError for a label where there are none, or none where there are, and as
        `predict`.
        """
        if self.entities_key is None and label is not None:
            raise InputError(
                f"[{self.name}] label: expected no label, got {label!r}. Leave it out: entities "
                "that cannot overlap have one chain for all labels."
            )
        if self.entities_key is not None and label not in self.labels:
            got = "no label" if label is None else repr(label)
            raise InputError(
                f"[{self.name}] label: expected one of {', '.join(self.labels)}, got {got}. Choose "
                "one (--label): entities that may overlap have a chain for each label."
            )
        posterior = self._posterior([doc])
        if isinstance(posterior, Posterior):
            return posterior.trellis(0)
        assert label is not None
        return posterior.trellis(0, label)

    def transitions(self) -> Transitions:
        """Copy the transition scores of the model, not divided by the temperature.

        Raises ValueError if the model has no weights yet, or its tags do not match the labels.
        """
        potentials = self._potentials([])
        _, scores, start, end = potentials.arrays()
        legal, first, last = (allowed.copy() for allowed in self.scheme.constraints)
        if self.entities_key is not None:  # entities of different labels do not follow each other
            label = self.scheme.label_of
            legal &= (label[:, None] == label) | (label[:, None] < 0) | (label < 0)
            scores[TAG_OUTSIDE, TAG_OUTSIDE] = start[TAG_OUTSIDE] = end[TAG_OUTSIDE] = 0.0
        return Transitions(self.scheme.tags, scores, start, end, legal, first, last)

    def _posterior(
        self, docs: Sequence[Doc], scaling: PlattScaling | None = None
    ) -> Posterior | OverlappingPosterior:
        fitted = self.overwrite, self.temperature, scaling or self.platt_scaling
        self._require_known("disabled_labels", self.disabled_labels, self.labels)
        return self.chains.posterior(docs, self._potentials(docs), *fitted, self._excluded)

    def _require_known(self, setting: str, given: Iterable[str], labels: Iterable[str]) -> None:
        """Raise InputError for a label in a setting that is not among these."""
        unknown = [label for label in given if label not in labels]
        if unknown:
            raise InputError(
                f"[{self.name}] {setting}: expected labels among {[*dict.fromkeys(labels)]}, got "
                f"{unknown}. Correct them, or add the label."
            )

    @contextmanager
    def computed_once(self) -> Iterator[None]:
        """Run the network once for each doc, whatever is asked of it in this context.

        Neither the docs, but for their entities, nor the weights may change meanwhile.
        """
        before = self._computed
        self._computed = {} if before is None else before
        try:
            yield
        finally:
            self._computed = before

    def _potentials(self, docs: Sequence[Doc]) -> Potentials:
        """Return the potentials of docs, those in memory or new ones."""
        if self._computed is None or not docs:
            return self._compute(docs)
        new = [
            *{id(doc): doc for doc in docs if (id(doc), len(doc)) not in self._computed}.values()
        ]
        if new:
            found = self._compute(new)
            rows = np.split(found.emissions, found.lengths.cumsum()[:-1])
            # The docs are kept too: others would get their ids.
            self._computed |= {
                (id(doc), len(doc)): (
                    doc,
                    found._replace(emissions=E, lengths=found.lengths[i : i + 1]),
                )
                for i, (doc, E) in enumerate(zip(new, rows))
            }
        parts = [self._computed[id(doc), len(doc)][1] for doc in docs]
        emissions = np.concatenate([part.emissions for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return parts[0]._replace(emissions=emissions, lengths=lengths)

    def _compute(self, docs: Sequence[Doc]) -> Potentials:
        """Compute the potentials of docs; if there is no token, only the transitions."""
        if any(len(doc) for doc in docs):
            require_attributes(self, docs)
            require_features(self, docs)
            potentials = self.model.predict(docs)
        else:
            head = self.model.get_ref("output_layer")
            # A model without weights has no width either: the head raises an error for it.
            nothing = head.ops.alloc2f(0, head.maybe_get_dim("nI") or 0)
            potentials = head.predict([nothing for _ in docs] or [nothing])
        self._require_valid(docs, potentials)
        return cast(Potentials, potentials)

    def _require_valid(self, docs: Sequence[Doc], potentials: Potentials) -> None:
        """Raise InputError for potentials that are not finite or do not match the labels."""
        trained = self.cfg.get("chains", ["flat", 1])
        if trained != [self.entities, self.layers]:
            raise InputError(
                f"[{self.name}] expected a model of {self.entities} entities in {self.layers} "
                f"layers, as in the config, got one of {trained[0]} entities in {trained[1]}. Set "
                "entities and layers to those of the training."
            )
        expected = len(self.scheme.tags)
        C = potentials.emissions.shape[1]
        if C != expected:
            raise InputError(
                f"[{self.name}] expected a model of {expected} tags for the labels "
                f"{list(self.labels)} in scheme {self.scheme.name!r}, got one of {C}. Labels, "
                "scheme and weights are from different pipelines: use those of one pipeline."
            )
        is_finite = np.isfinite(potentials.emissions).all(1)
        if not is_finite.all():
            token = int(is_finite.argmin())
            i = int(np.searchsorted(potentials.lengths.cumsum(), token, side="right"))
            raise InputError(
                f"[{self.name}] doc {i} of the batch, {docs[i].text[:60]!r}: expected finite "
                "scores, got NaN or infinity. The token vectors contain such values, or "
                "training diverged: check the vectors, or lower the learning rate."
            )


def _log_odds(log_p: Sequence[float]) -> float:
    """Compare the best analysis with the second best, if there is one."""
    return log_p[0] - log_p[1] if len(log_p) > 1 else math.inf


@lru_cache(maxsize=64)
def _chains(
    scheme: str, labels: tuple[str, ...], layers: int, key: str | None, name: str
) -> FlatChain | LabelChains:
    if key is None:
        return FlatChain(scheme, labels, name)
    return LabelChains(scheme, labels, layers, key, name)
