"""The posterior distribution over the entities of a batch of docs, flat or overlapping.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of a doc, C tags, S spans,
L tokens of the longest segment, M chains of a doc, K levels of a label.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import islice, pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Span

from .. import crf
from ..tags import TAG_MISSING, TAG_OUTSIDE, SpanOffsets, Spans, TagScheme
from .interval_scheduling import Candidate
from .platt_scaling import UNCHANGED, PlattScaling
from .preset import DecodingConstraints

ANY = ""  # the label of the chain of one label

# Entities and their log probability.
Labeling = tuple[tuple[SpanOffsets, ...], float]


class Trellis(NamedTuple):
    """Viterbi decoding of a doc of T tokens and C tags, and the marginals of its tags.

    Attributes:
        tags: Their names, as in "B-PER".
        emissions: The scores of the tags at the tokens: (T, C).
        best: The score of the best legal path that ends in this tag at this token, with its
            emission and without an end score; -inf if there is none: (T, C).
        backpointers: The previous tag on that path; -1 if there is none: (T, C).
        path: The tags of the best path of the doc: (T,).
        marginals: The posterior probability of each tag at each token: (T, C).
    """

    tags: tuple[str, ...]
    emissions: NDArray[np.float32]
    best: NDArray[np.float32]
    backpointers: NDArray[np.int64]
    path: NDArray[np.int64]
    marginals: NDArray[np.float32]


class Posterior:
    """The posterior distribution over the entities of each doc of a batch.

    The temperature divides all scores: it changes probabilities, but not the ranking of sequences.
    `platt` calibrates the probabilities of entities.
    """

    def __init__(
        self,
        potentials: crf.Chain,
        scheme: TagScheme,
        constraints: DecodingConstraints,
        temperature: float = 1.0,
        platt: PlattScaling = UNCHANGED,
    ) -> None:
        self._potentials, self._scheme, self._constraints = potentials, scheme, constraints
        self._temperature, self._platt = temperature, platt
        # The first token of each doc, and the end of the last doc: (B + 1,).
        self._begins = np.append(0, potentials.lengths.cumsum())
        # The boundaries of the constraints, and the end of the last doc: (N + 1,).
        self._boundaries = np.append(constraints.boundaries, True)

    def decode(self) -> list[list[SpanOffsets]]:
        """Find the entities of the most probable tag sequence of each doc, with Viterbi."""
        return self._by_doc(self._new_spans(crf.viterbi(self._chain), 0))

    def nbest(self, n: int) -> list[list[tuple[list[SpanOffsets], float]]]:
        """Find the n most probable sets of entities of each doc, fewer where fewer are legal.

        Each has its log probability, in float64, the best first. Raises ValueError for n below 1.
        """
        tags, scores = crf.nbest(self._passes.chain, n)
        log_p = np.minimum(scores - self._passes.log_z[:, None], 0.0)
        return [
            [
                (self._scheme.offsets(self._new_spans(path[begin:end], begin)), p)
                for path, p in zip(tags, ps)
                if p > -np.inf
            ]
            for (begin, end), ps in zip(pairwise(self._begins.tolist()), log_p.tolist())
        ]

    def entropy(self) -> NDArray[np.float64]:
        """Compute the entropy of the distribution over all labelings of each doc: (B,), in nats."""
        return self._passes.entropy()

    def trellis(self, doc: int) -> Trellis:
        """Compute the trellis of a doc, 0 to B - 1, under the constraints."""
        rows = slice(self._begins[doc], self._begins[doc + 1])
        chain = self._chain.select(np.array([doc]))
        best, backpointers = crf.trellis(chain)
        return Trellis(
            tags=self._scheme.tags,
            emissions=self._potentials.emissions[rows],
            best=best.astype(np.float32),
            backpointers=backpointers,
            path=crf.viterbi(chain),
            marginals=self._passes.marginals()[rows].astype(np.float32),
        )

    def probabilities(self, spans: Sequence[Sequence[SpanOffsets]]) -> list[list[float]]:
        """Compute for each span of each doc the calibrated probability that it is an entity."""
        flat = self._joined(spans)
        return _split(self._platt.apply(self._probabilities(flat)), spans)

    def uncalibrated(self, spans: Sequence[Sequence[SpanOffsets]]) -> list[list[float]]:
        """Compute these probabilities without Platt scaling."""
        return _split(self._probabilities(self._joined(spans)), spans)

    def outside_probabilities(self, spans: Sequence[Sequence[SpanOffsets]]) -> list[list[float]]:
        """Compute for each span of each doc the probability that no token of it is in an entity.

        The label of a span does not matter. Platt scaling, which is about entities, is left out.
        """
        flat = self._joined(spans)
        lengths = flat.ends - flat.starts
        steps = np.arange(lengths.max(initial=0))
        tags = np.where(steps < lengths[:, None], TAG_OUTSIDE, TAG_MISSING)
        return _split(self._segments(flat.starts, tags), spans)

    def candidates(self, thresholds: NDArray[np.float64]) -> list[list[Candidate]]:
        """Find all spans with at least the calibrated probability of their label, (L,), above 0.

        They are in order, each with its probability, and may overlap. An entity is at most as
        probable as the tags of its first tokens. So spans grow to the right from each token while
        these tags are probable enough.
        """
        # Posteriors to look for, a little below the thresholds: those are compared at the end.
        lowest = self._platt.invert(thresholds) * (1 - 1e-9)
        preset = self._constraints.preset
        free, labels = np.flatnonzero(~preset), np.arange(len(self._scheme.labels))
        starts = np.repeat(free, len(labels))
        spans = Spans(starts, starts + 1, np.tile(labels, len(free)))
        closed = self._boundaries | np.append(preset, True)
        found = []
        while len(spans.starts):
            p = self._platt.apply(self._probabilities(spans))
            kept = p >= thresholds[spans.labels]
            found.append((*spans.select(kept), p[kept]))
            longer = spans.select(~closed[spans.ends])
            longer = longer._replace(ends=longer.ends + 1)
            opened = self._scheme.encode(longer.labels, longer.ends - longer.starts)[:, :-1]
            p = self._segments(longer.starts, opened)
            spans = longer.select(p >= lowest[longer.labels])
        if not found:
            return [[] for _ in self._potentials.lengths]
        *columns, p = map(np.concatenate, zip(*found))
        order = np.argsort(columns[0], kind="stable")
        ordered = iter(p[order].tolist())
        by_doc = self._by_doc(Spans(*columns).select(order))
        return [sorted(zip(offsets, ordered)) for offsets in by_doc]

    @cached_property
    def _passes(self) -> crf.ForwardBackward:
        """The forward-backward pass at the temperature, for all probabilities."""
        chain = self._chain
        if self._temperature != 1.0:
            chain = chain.divided_by(self._temperature)
        return crf.forward_backward(chain)

    @cached_property
    def _chain(self) -> crf.Chain:
        """The constrained potentials, not divided by the temperature."""
        chain = self._potentials
        if self._constraints.allowed is not None:
            emissions = crf.clamp(chain.emissions, self._constraints.allowed)
            chain = chain._replace(emissions=emissions)
        return crf.constrain(chain, *self._scheme.constraints)

    def _new_spans(self, tags: NDArray[np.int64], begin: int) -> Spans:
        """Decode the entities of consecutive tokens from `begin` on, without the preset ones."""
        at = slice(begin, begin + len(tags))
        spans = self._scheme.decode(tags, self._constraints.boundaries[at])
        return spans.select(~self._constraints.preset[at][spans.starts])

    def _by_doc(self, spans: Spans) -> list[list[SpanOffsets]]:
        """Split spans, sorted by start, by doc, with offsets in the doc."""
        parts = np.searchsorted(spans.starts, self._begins)
        begins = np.repeat(self._begins[:-1], np.diff(parts))
        offsets = self._scheme.offsets(
            Spans(spans.starts - begins, spans.ends - begins, spans.labels)
        )
        return [offsets[i:j] for i, j in pairwise(parts.tolist())]

    def _joined(self, spans: Sequence[Sequence[SpanOffsets]]) -> Spans:
        """Return the spans of all docs, with offsets among all N tokens."""
        numbers = self._scheme.numbers
        flat = [
            (begin + start, begin + end, numbers[label])
            for begin, of_doc in zip(self._begins.tolist(), spans)
            for start, end, label in of_doc
        ]
        return Spans(*np.array(flat, dtype=np.int64).reshape(-1, 3).T)

    def _segments(self, starts: NDArray[np.int64], tags: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the probability that S segments, within a doc each, have given tags: (S,).

        Their first tokens (S,) are among all N; tags (S, L) are negative beyond the end of a
        segment.
        """
        if not len(starts):
            return np.zeros(0)
        p: NDArray[np.float64] = np.exp(self._passes.log_segments(starts, tags))
        return p

    def _probabilities(self, spans: Spans) -> NDArray[np.float64]:
        """Compute the probability that exactly each span, over all N, is an entity: (S,).

        The tags of an entity may also be part of a longer entity (see `TagScheme.extensions`), so
        by inclusion and exclusion: P(tags) - P(extended to the left) - P(extended to the right)
        + P(extended to both sides).
        """
        lengths, rows = spans.ends - spans.starts, np.arange(len(spans.starts))
        tags = self._scheme.encode(spans.labels, lengths)  # (S, L)
        to_left, to_right = self._scheme.extensions
        # (S, L + 3): with a tag on either side, and an end.
        longer = np.pad(tags, ((0, 0), (1, 2)), constant_values=TAG_MISSING)
        longer[:, 0] = to_left[tags[:, 0]]
        longer[rows, lengths + 1] = to_right[tags[rows, lengths - 1]]
        boundaries = self._boundaries.cumsum()
        whole = boundaries[spans.ends - 1] == boundaries[spans.starts]
        extends_left = (longer[:, 0] >= 0) & ~self._boundaries[spans.starts]
        extends_right = (longer[rows, lengths + 1] >= 0) & ~self._boundaries[spans.ends]
        p = np.zeros(len(tags))
        for left, right in product((0, 1), repeat=2):
            asked = np.flatnonzero(whole & (extends_left >= left) & (extends_right >= right))
            segments = longer[asked, 1 - left :]
            segments[np.arange(len(asked)), lengths[asked] + left + right] = TAG_MISSING
            p[asked] += (-1) ** (left + right) * self._segments(
                spans.starts[asked] - left, segments
            )
        return p.clip(0.0, 1.0)


class OverlappingPosterior:
    """The posterior distribution over the entities of each doc, with chains for each label.

    Args:
        posterior: Of the B * M chains, which have one label, ANY, and are not calibrated.
        max_nesting: The number K of chains that each label has.
        platt: Calibrates the probabilities of entities.
        presets: Preset entities of each doc. They are not predicted in any level.
    """

    def __init__(
        self,
        posterior: Posterior,
        labels: Sequence[str],
        max_nesting: int,
        platt: PlattScaling,
        presets: Sequence[Sequence[Span]],
    ) -> None:
        self._presets = [{(e.start, e.end, e.label_) for e in of_doc} for of_doc in presets]
        self._posterior, self._max_nesting, self._platt = posterior, max_nesting, platt
        self._labels = [label for label in labels for _ in range(max_nesting)]  # of the chains
        self._chains = {
            label: slice(i * max_nesting, (i + 1) * max_nesting) for i, label in enumerate(labels)
        }

    def decode(self) -> list[list[SpanOffsets]]:
        """Find the entities of the most probable tag sequence of each chain."""
        return [sorted(set(found)) for found in self._by_doc(self._posterior.decode())]

    def nbest(self, n: int) -> list[list[tuple[list[SpanOffsets], float]]]:
        """Find the n most probable labelings of each doc, with their log probabilities.

        With several levels, the same entities can be in other levels. Their probability is the sum
        over the most probable ways, so too low; where a model is unsure, the order may be wrong.
        """
        K, M = self._max_nesting, len(self._labels)
        ways = n if K == 1 else 4 * n * K  # of a label
        rows = self._posterior.nbest(ways)
        result = []
        for i, preset in zip(range(0, len(rows), M), self._presets):
            best: list[Labeling] = [((), 0.0)]
            for j in range(0, M, K):
                label = self._labels[j]
                of_label: list[Labeling] = [((), 0.0)]
                for ranked in rows[i + j : i + j + K]:
                    named = [
                        (tuple(new for s, e, _ in spans if (new := (s, e, label)) not in preset), p)
                        for spans, p in ranked
                    ]
                    of_label = _best_joined(of_label, named, ways)
                best = _best_joined(best, of_label, n)
            result.append([(sorted(spans), p) for spans, p in best])
        return result

    def entropy(self) -> NDArray[np.float64]:
        """Compute the entropy of the distribution over all labelings of each doc: (B,), in nats.

        With several levels, it also counts which level has an entity, so it is slightly too high.
        """
        return np.asarray(self._posterior.entropy().reshape(-1, len(self._labels)).sum(1))

    def trellis(self, doc: int, label: str) -> Trellis:
        """Compute the trellis of the outermost chain of a label."""
        found = self._posterior.trellis(doc * len(self._labels) + self._chains[label].start)
        return found._replace(
            tags=tuple(f"{tag}{label}" if tag != "O" else tag for tag in found.tags)
        )

    def probabilities(self, spans: Sequence[Sequence[SpanOffsets]]) -> list[list[float]]:
        """Compute for each span of each doc the probability that a level of its label has it."""
        asked = [
            [(start, end, ANY) for start, end, label in of_doc if label == of_chain]
            for of_doc in spans
            for of_chain in self._labels
        ]
        found = map(iter, self._posterior.probabilities(asked))
        result = []
        for of_doc in spans:
            chains = [next(found) for _ in self._labels]
            p = [
                1 - math.prod(1 - next(p) for p in chains[self._chains[label]])
                for _, _, label in of_doc
            ]
            result.append(self._platt.apply(np.array(p)).tolist())
        return result

    def candidates(self, thresholds: NDArray[np.float64]) -> list[list[Candidate]]:
        """Find all spans with at least the probability of their label, (L,); they may overlap."""
        # A span may have it from several levels together. Those found are compared at the end.
        lowest = self._platt.invert(thresholds.min(keepdims=True)) * (1 - 1e-9)
        lowest = 1 - (1 - lowest) ** (1 / self._max_nesting)
        rows = self._posterior.candidates(lowest)
        spans = [sorted(set(of_doc)) for of_doc in self._by_doc([[s for s, _ in r] for r in rows])]
        of_label = dict(zip(self._chains, thresholds.tolist()))
        return [
            [(span, p) for span, p in zip(of_doc, ps) if p >= of_label[span[2]]]
            for of_doc, ps in zip(spans, self.probabilities(spans))
        ]

    def _by_doc(self, rows: Sequence[Sequence[SpanOffsets]]) -> list[list[SpanOffsets]]:
        """Join the spans of the chains of each doc, with their labels."""
        M = len(self._labels)
        return [
            [
                (start, end, label)
                for label, row in zip(self._labels, rows[i : i + M])
                for start, end, _ in row
                if (start, end, label) not in preset
            ]
            for i, preset in zip(range(0, len(rows), M), self._presets)
        ]


# Both have the same methods; `trellis` also takes the label of a chain if there are several.
EntityPosterior = Posterior | OverlappingPosterior


def _split(p: NDArray[np.float64], spans: Sequence[Sequence[SpanOffsets]]) -> list[list[float]]:
    """Split the probabilities of all spans by doc."""
    values = iter(p.tolist())
    return [list(islice(values, len(of_doc))) for of_doc in spans]


def _best_joined(first: Sequence[Labeling], second: Sequence[Labeling], n: int) -> list[Labeling]:
    """Join labelings of independent chains, sorted by probability: the n best, each once."""
    found: dict[tuple[SpanOffsets, ...], float] = {}
    for i, (spans, p) in enumerate(first):
        # No pair is among the n best if (i + 1) * (j + 1) pairs are at least as good.
        for more, q in second[: n // (i + 1)]:
            joined = spans if not more else tuple(sorted({*spans, *more}))
            found[joined] = float(np.logaddexp(found.get(joined, -np.inf), p + q))
    return sorted(found.items(), key=lambda labeling: -labeling[1])[:n]
