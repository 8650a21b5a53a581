"""The entities of docs by their probability: spans, where the model speaks of tags."""

from itertools import compress
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from .bounds import Bounds
from .potentials import Distribution, Potentials
from .tags import SpanOffsets, TagScheme

# A doc of the batch, its first token, and tags from there on.
Stretch = Tuple[int, int, List[int]]


class DocSpan(NamedTuple):
    """A span of a doc of the batch: first token, last token + 1, and label."""

    doc: int
    start: int
    end: int
    label: str


class Trellis(NamedTuple):
    """The search of the best path through T tokens and C tags, and how probable each tag is.

    tags: Their names, as in "B-PER".
    emissions: (T, C), the scores of the tags at the tokens.
    best: (T, C), the score of the best legal path that ends in this tag at this token, its
        emission included and without the score of an end; -inf where there is none.
    came_from: (T, C), the tag before on that path, the back-pointer; -1 where there is none.
    path: (T,), the tags of the best path of the doc.
    marginals: (T, C), the posterior probability of each tag at each token.
    """

    tags: Tuple[str, ...]
    emissions: NDArray[np.float32]
    best: NDArray[np.float32]
    came_from: NDArray[np.int64]
    path: NDArray[np.int64]
    marginals: NDArray[np.float32]


class Posterior:
    """The distribution over the entities of each doc of a batch, given the bounds of the doc.

    potentials: Of the docs.
    scheme: The tags they are of.
    limits: The bounds of each doc.
    temperature: Divides all scores.
    """

    def __init__(
        self,
        potentials: Potentials,
        scheme: TagScheme,
        limits: Sequence[Bounds],
        temperature: float = 1.0,
    ) -> None:
        self._scheme, self._limits = scheme, limits
        allowed = _allowed(limits, len(scheme.tags))
        self._tags = Distribution(potentials, scheme.constraints, allowed, temperature)

    def best(self) -> List[List[SpanOffsets]]:
        """Read the entities off the most probable tag sequence of each doc."""
        return [self._spans(tags, limit) for tags, limit in zip(self._tags.best(), self._limits)]

    def nbest(self, n: int) -> List[List[Tuple[List[SpanOffsets], float]]]:
        """Find the n most probable sets of entities of each doc, with their probabilities.

        Raises ValueError for n below 1.
        """
        return [
            [(self._spans(tags, limit), p) for tags, p in ranked]
            for ranked, limit in zip(self._tags.nbest(n), self._limits)
        ]

    def trellises(self) -> List[Trellis]:
        """Compute the trellis of each doc, in which what its bounds forbid cannot be reached."""
        return [Trellis(self._scheme.tags, *arrays) for arrays in self._tags.trellises()]

    def probabilities(self, spans: Sequence[Sequence[SpanOffsets]]) -> List[List[float]]:
        """Compute for spans of each doc the probability that exactly this is an entity.

        Raises KeyError for an unknown label.
        """
        flat = [DocSpan(doc, *span) for doc, found in enumerate(spans) for span in found]
        ends = np.cumsum([len(found) for found in spans])
        return [part.tolist() for part in np.split(self._probabilities(flat), ends[:-1])]

    def candidates(self, least: float) -> List[List[Tuple[SpanOffsets, float]]]:
        """Find all spans that are entities with at least some probability; they may overlap.

        No entity is more probable than that its first tokens are those of a longer one: spans
        grow from each token for as long as this has the probability.

        least: The least probability, over 0.

        Returns the spans of each doc in order, each with its probability.
        """
        found: List[List[Tuple[SpanOffsets, float]]] = [[] for _ in self._limits]
        spans = [
            DocSpan(doc, t, t + 1, label)
            for doc, limit in enumerate(self._limits)
            for t in np.flatnonzero(~limit.taken).tolist()
            for label in self._scheme.labels
        ]
        while spans:
            for span, p in zip(spans, self._probabilities(spans).tolist()):
                if p >= least:
                    found[span.doc].append(((span.start, span.end, span.label), p))
            longer = [span._replace(end=span.end + 1) for span in spans if self._goes_on(span)]
            opened = [self._scheme.write(span.label, span.end - span.start)[:-1] for span in longer]
            shares = self._stretches([(s.doc, s.start, tags) for s, tags in zip(longer, opened)])
            spans = list(compress(longer, shares >= least))
        return [sorted(of_doc) for of_doc in found]

    def _spans(self, tags: NDArray[np.int64], limit: Bounds) -> List[SpanOffsets]:
        """Read the entities off tags, but for those that the doc came with."""
        found = self._scheme.spans(tags, limit.breaks)
        return [span for span in found if not limit.taken[span[0]]]

    def _goes_on(self, span: DocSpan) -> bool:
        """Whether the next token may be part of the entity."""
        limit = self._limits[span.doc]
        return span.end < len(limit.taken) and not (limit.taken | limit.breaks)[span.end]

    def _probabilities(self, spans: Sequence[DocSpan]) -> NDArray[np.float64]:
        """The probability of each of S spans: (S,)."""
        terms = [(i, *term) for i, span in enumerate(spans) for term in self._terms(span)]
        owners = np.array([i for i, *_ in terms], dtype=np.int64)
        signs = np.array([sign for _, sign, _ in terms])
        each = self._stretches([stretch for *_, stretch in terms])
        p: NDArray[np.float64] = np.bincount(owners, each * signs, len(spans)).clip(0.0, 1.0)
        return p

    def _terms(self, span: DocSpan) -> Iterator[Tuple[int, Stretch]]:
        """Yield signed stretches whose probabilities sum to that of the span."""
        doc, start, end, label = span
        breaks = self._limits[doc].breaks
        if breaks[start + 1 : end].any():
            return
        for sign, before, tags in self._scheme.spellings(label, end - start):
            first, last = start - before, start - before + len(tags)
            # Over a sentence start, or the end of the doc, nothing goes on.
            if first >= 0 and last <= len(breaks) and not breaks[first + 1 : last].any():
                yield sign, (doc, first, tags)

    def _stretches(self, stretches: Sequence[Stretch]) -> NDArray[np.float64]:
        """The probability that tokens carry these tags: (S,)."""
        if not stretches:
            return np.zeros(0)
        docs, starts, tags = zip(*stretches)
        padded = np.full((len(tags), max(map(len, tags))), -1)
        for row, ids in zip(padded, tags):
            row[: len(ids)] = ids
        return self._tags.stretches(np.array(docs), np.array(starts), padded)


def _allowed(limits: Sequence[Bounds], C: int) -> Optional[NDArray[np.bool_]]:
    """Which of C tags may stand at the tokens of all docs: (N, C); None for all."""
    if all(limit.allowed is None for limit in limits):
        return None
    everything = (np.ones((len(limit.taken), C), dtype=bool) for limit in limits)
    parts = (limit.allowed for limit in limits)
    return np.concatenate([all_ if part is None else part for part, all_ in zip(parts, everything)])
