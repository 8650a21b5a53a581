"""Queries to a trained component: its n best labelings, posteriors, trellis and transitions.

They change neither docs nor weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ..input_error import InputError
from ..tags import SpanOffsets
from .distill_targets import Teacher
from .interval_scheduling import Candidate
from .network import BATCH_SIZE
from .posterior import EntityPosterior, Posterior, Trellis

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer

PADDED_TOKENS = 16_384  # the most tokens of a batch, with padding


class Transitions(NamedTuple):
    """The transition scores of a model, between C tags.

    Attributes:
        tags: The names of the tags, as in "B-PER".
        scores: (C, C), indexed [from, to]; illegal ones are never trained. All zeros if the decoder
            is "softmax".
        start: (C,), of the first tag.
        end: (C,), of the last tag.
        legal: bool (C, C), the transitions that both decoders allow.
        legal_start: bool (C,), the first tags that they allow.
        legal_end: bool (C,), the last ones.
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


class Labeling(NamedTuple):
    """One possible set of entities of a doc.

    Attributes:
        ents: The entities, in order.
        probability: The probability of exactly these entities; 0.0 if it is too small for float64.
        log_probability: Its natural logarithm.
    """

    ents: list[Span]
    probability: float
    log_probability: float


class Alternative(NamedTuple):
    """What a span could be.

    Attributes:
        label: A label; None: no token of the span is in an entity.
        confidence: The probability of this.
    """

    label: str | None
    confidence: float


class Uncertainty(NamedTuple):
    """How uncertain a model is about the entities of a doc.

    Attributes:
        tokens: The number of tokens.
        entropy: The entropy of the distribution over all labelings, in nats.
        entities: The entities of the most probable labeling, each with its probability.
        candidates: All spans with at least the lowest probability, each with its probability; they
            may overlap.
        log_odds: The log of how much more probable the best labeling is than the second best; inf
            if there is only one; NaN if it was not asked for.
    """

    tokens: int
    entropy: float
    entities: list[Candidate]
    candidates: list[Candidate]
    log_odds: float


def nbest(pipe: CRFEntityRecognizer, docs: Iterable[Doc], n: int) -> list[list[Labeling]]:
    """Find the n most probable labelings of each doc, fewer where fewer are legal.

    Returns:
        The labelings of each doc, the best first; all contain its preset entities.

    Raises:
        InputError: For n below 1, and for docs that the component cannot read.
    """
    docs = list(docs)
    if not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"[{pipe.name}] n: expected 1 or more, a whole number, got {n!r}.")
    result = []
    for doc, ranked in zip(docs, pipe.posterior(docs).nbest(n) if docs else []):
        preset = () if pipe.overwrite else doc.ents
        entities = (sorted([*preset, *(Span(doc, *span) for span in spans)]) for spans, _ in ranked)
        result.append([Labeling(e, math.exp(p), p) for e, (_, p) in zip(entities, ranked)])
    return result


def prediction_sets(pipe: CRFEntityRecognizer, docs: Iterable[Doc]) -> list[list[Labeling]]:
    """Find the most probable labelings of each doc, among which the right one lies.

    Returns:
        The labelings of each doc, the best first; at least one.

    Raises:
        InputError: Without a guarantee of `spacy-crf-ner promise fit --set-coverage`, at another
            temperature or with other disabled labels than those of the guarantee, and for docs that
            the component cannot read.
    """
    docs = list(docs)
    guarantee = pipe.cfg["guarantees"].get("set_coverage")
    if guarantee is None:
        raise InputError(
            f"[{pipe.name}] The pipeline has no promise of a set coverage, which prediction sets "
            "need. Fit one: spacy-crf-ner promise fit --set-coverage 0.9."
        )
    settings = guarantee["settings"]
    then, without = settings["temperature"], settings.get("disabled_labels", [])
    if not math.isclose(then, pipe.temperature, rel_tol=1e-8):
        raise InputError(
            f"[{pipe.name}] prediction_sets: expected the temperature of the guarantee, {then}, "
            f"got {pipe.temperature}. Set it back, or promise again."
        )
    if without != sorted(pipe.disabled_labels):
        raise InputError(
            f"[{pipe.name}] prediction_sets: expected the disabled labels of the guarantee, "
            f"{without}, got {[*pipe.disabled_labels]}. Set them back, or promise again."
        )
    lowest = math.log(guarantee["threshold"])
    batches = (docs[i : i + BATCH_SIZE] for i in range(0, len(docs), BATCH_SIZE))
    return [found for batch in batches for found in _labelings_above(pipe, batch, lowest)]


def _labelings_above(
    pipe: CRFEntityRecognizer, docs: Sequence[Doc], lowest: float
) -> list[list[Labeling]]:
    """Find the labelings of docs with at least this log probability; at least one of each."""
    sets: list[list[Labeling]] = [[] for _ in docs]
    left, n = [*range(len(docs))], 4
    while left:
        for i, ranked in zip(left, nbest(pipe, [docs[i] for i in left], n)):
            kept = [labeling for labeling in ranked if labeling.log_probability >= lowest]
            sets[i] = kept or ranked[:1]
        # A set may have more of them if all that were asked for belong to it.
        left = [i for i in left if len(sets[i]) == n]
        n *= 2
    return sets


def span_posteriors(
    pipe: CRFEntityRecognizer, docs: Iterable[Doc], spans: Iterable[Iterable[Span]]
) -> list[list[float]]:
    """Compute for each span of each doc the probability that it is an entity of its label.

    Docs are read in batches of similar length, so that one long doc does not pad many short ones.

    Args:
        docs: The docs; their preset entities are kept, and have probability 1.0.
        spans: The spans of each doc. A span of a doc with the same text and other tokens is the
            span of its characters.

    Raises:
        InputError: For an empty span or an unknown label, for a span of another text or of parts of
            tokens, and for docs that the component cannot read.
    """
    docs = list(docs)
    asked = [_offsets(pipe, doc, of_doc) for doc, of_doc in zip(docs, spans, strict=True)]
    found: list[list[float]] = [[] for _ in docs]
    for batch, posterior in _posteriors(pipe, docs, asked):
        for i, of_doc in zip(batch, posterior.probabilities([asked[i] for i in batch])):
            ents = () if pipe.overwrite else docs[i].ents
            preset = {(ent.start, ent.end, ent.label_) for ent in ents}
            found[i] = [1.0 if span in preset else p for span, p in zip(asked[i], of_doc)]
    return found


def alternatives(
    pipe: CRFEntityRecognizer, docs: Iterable[Doc], spans: Iterable[Iterable[Span]]
) -> list[list[list[Alternative]]]:
    """Compute for each span of each doc what it could be: each label, or no entity at all.

    The probability of the label of the span is its confidence. Platt scaling is about one span with
    one label, so the others are not calibrated alone: they share what the confidence leaves, in
    proportion to their posteriors. The rest, up to 1, is for entities with other boundaries.

    Args:
        docs: The docs before this component has annotated them.
        spans: The spans of each doc, without preset entities; see `span_posteriors`.

    Returns:
        For each span, its alternatives, the most probable first.

    Raises:
        InputError: If entities may overlap, and as `span_posteriors`.
    """
    if pipe.overlap:
        raise InputError(
            f"[{pipe.name}] The entities of this component may overlap, so a span can have several "
            "labels. Use span_posteriors."
        )
    docs, labels = list(docs), pipe.enabled_labels
    asked = [_offsets(pipe, doc, of_doc) for doc, of_doc in zip(docs, spans, strict=True)]
    found: list[list[list[Alternative]]] = [[] for _ in docs]
    for batch, posterior in _posteriors(pipe, docs, asked):
        assert isinstance(posterior, Posterior)
        labeled = [[(*span[:2], label) for span in asked[i] for label in labels] for i in batch]
        of_batch = [asked[i] for i in batch]
        of_labels = posterior.uncalibrated(labeled)
        outside = posterior.outside_probabilities(of_batch)
        confidences = posterior.probabilities(of_batch)
        for i, p, *of_doc in zip(batch, of_labels, outside, confidences):
            rows = np.reshape(p, (-1, len(labels))).tolist()
            for (*_, own), row, out, confidence in zip(asked[i], rows, *of_doc):
                others = dict(zip((*labels, None), (*row, out)))
                left = 1 - others.pop(own, 0.0)
                share = (1 - confidence) / left if left > 0 else 0.0
                rest = [Alternative(each, share * p) for each, p in others.items()]
                ranked = [Alternative(own, confidence), *rest]
                found[i].append(sorted(ranked, key=lambda each: -each.confidence))
    return found


def _posteriors(
    pipe: CRFEntityRecognizer, docs: Sequence[Doc], asked: Sequence[Sequence[SpanOffsets]]
) -> Iterator[tuple[list[int], EntityPosterior]]:
    """Yield the posterior of batches of docs that have spans, with the numbers of these docs."""
    left = sorted((i for i, of_doc in enumerate(asked) if of_doc), key=lambda i: -len(docs[i]))
    while left:
        size = min(BATCH_SIZE, max(1, PADDED_TOKENS // len(docs[left[0]])))
        batch, left = left[:size], left[size:]
        yield batch, pipe.posterior([docs[i] for i in batch])


def _offsets(pipe: CRFEntityRecognizer, doc: Doc, spans: Iterable[Span]) -> list[SpanOffsets]:
    """Return spans as offsets in a doc; raise InputError for impossible ones."""
    asked = []
    for span in spans:
        own: Span | None = span
        if span is not None and span.doc is not doc:
            same = span.doc.text.rstrip() == doc.text.rstrip()
            own = doc.char_span(span.start_char, span.end_char, span.label_) if same else None
        if own is None:
            raise InputError(
                f"[{pipe.name}] span_posteriors: expected spans of the doc {doc.text[:60]!r}, "
                f"got {span!r}. `char_span` returns None for characters that are not whole "
                "tokens."
            )
        start, end, label = own.start, own.end, own.label_
        if start == end or label not in pipe.labels:
            raise InputError(
                f"[{pipe.name}] tokens {start}:{end} ({label!r}) of the doc {doc.text[:60]!r}: "
                f"expected a span with a token and one of the labels {list(pipe.labels)}."
            )
        asked.append((start, end, label))
    return asked


def uncertainty(
    pipe: CRFEntityRecognizer, docs: Iterable[Doc], lowest: float = 0.01, log_odds: bool = True
) -> list[Uncertainty]:
    """Measure how uncertain the model is about each doc; preset entities are not counted.

    Args:
        docs: Docs that the components before it have processed.
        lowest: The lowest probability of a candidate, above 0.
        log_odds: Whether to find the second best labelings, which takes as long as the rest.

    Raises:
        InputError: For docs that the component cannot read.
    """
    docs = list(docs)
    if not docs:
        return []
    posterior = pipe.posterior(docs)
    best = posterior.decode()
    entities = [list(zip(*of_doc)) for of_doc in zip(best, posterior.probabilities(best))]
    candidates = posterior.candidates(np.full(len(pipe.labels), lowest))
    odds = [math.nan] * len(docs)
    if log_odds:
        # The best labeling against the second best, if there is one.
        best_two = ([p for _, p in ranked] for ranked in posterior.nbest(2))
        odds = [log_p[0] - log_p[1] if len(log_p) > 1 else math.inf for log_p in best_two]
    columns = zip(posterior.entropy().tolist(), entities, candidates, odds)
    return [Uncertainty(len(doc), *of_doc) for doc, of_doc in zip(docs, columns)]


def trellis(pipe: CRFEntityRecognizer, doc: Doc, label: str | None = None) -> Trellis:
    """Show how Viterbi decoding finds the tags of a doc: scores, back-pointers and path.

    Args:
        doc: A doc; its preset annotation is kept. Only the marginals depend on the temperature.
        label: If entities may overlap, the label whose chain to show, at the outermost level.

    Raises:
        InputError: For a label where there is one chain, for none or an unknown one where there are
            more, and for a doc that the component cannot read.
    """
    if label is not None and not pipe.overlap:
        raise InputError(
            f"[{pipe.name}] label: expected no label, got {label!r}. Leave it out: entities that "
            "cannot overlap have one chain for all labels."
        )
    if pipe.overlap and label not in pipe.labels:
        got = "no label" if label is None else repr(label)
        raise InputError(
            f"[{pipe.name}] label: expected one of {', '.join(pipe.labels)}, got {got}. Choose one "
            "(--label): entities that may overlap have a chain for each label."
        )
    return pipe.posterior([doc]).trellis(0, *([] if label is None else [label]))


def transitions(pipe: CRFEntityRecognizer) -> Transitions:
    """Copy the transition scores of the model, not divided by the temperature.

    Raises:
        InputError: If the model has no weights yet, or its tags do not match the labels.
    """
    tags = pipe.encoding.tags
    scores, start, end, legal = pipe.encoding.transitions(pipe.potentials([]))
    _, first, last = tags.constraints
    return Transitions(tags.tags, scores, start, end, legal.copy(), first.copy(), last.copy())


def teacher_scores(
    pipe: CRFEntityRecognizer, docs: Sequence[Doc]
) -> tuple[Teacher, list[NDArray[np.float32]]]:
    """Compute what a student learns from: the scores of the tags, at the fitted temperature.

    Some scores are shared by all docs; those of the tags at the tokens are (T, C) for each doc. The
    components before this one have processed the docs; preset entities are ignored.
    """
    potentials = pipe.potentials(docs)
    E, _, A, start, end = potentials.divided_by(pipe.temperature).astype_of(potentials)
    kind = pipe.encoding.tags.name, pipe.labels, pipe.overlap, pipe.max_nesting
    return Teacher(*kind, A, start, end), np.split(E, potentials.lengths.cumsum()[:-1])
