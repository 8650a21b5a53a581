"""The entities of docs by their probability: spans, where the model speaks of tags.

Axes: B docs, N tokens of the batch, one doc after the other, T tokens of a doc, C tags, S spans.
"""

from itertools import islice, pairwise, product
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..ml.potentials import Distribution, Potentials
from ..tags import MISSING, SpanOffsets, Spans, TagScheme
from .preset import Bounds


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
    """The distribution over the entities of each doc of a batch, given what the docs say of them.

    potentials: Of the docs.
    scheme: The tags they are of.
    limits: The bounds of the docs.
    temperature: Divides all scores.
    """

    def __init__(
        self,
        potentials: Potentials,
        scheme: TagScheme,
        limits: Bounds,
        temperature: float = 1.0,
    ) -> None:
        self._scheme, self._limits = scheme, limits
        self._tags = Distribution(potentials, scheme.constraints, limits.allowed, temperature)
        # Where docs begin, and where the last one ends: (B + 1,).
        self._begins = np.append(0, potentials.lengths.cumsum())
        # As `Bounds.breaks`; nothing goes on over the end of the last doc either: (N + 1,).
        self._breaks = np.append(limits.breaks, True)

    def best(self) -> List[List[SpanOffsets]]:
        """Read the entities off the most probable tag sequence of each doc."""
        return self._by_doc(self._spans(np.concatenate(self._tags.best()), 0))

    def nbest(self, n: int) -> List[List[Tuple[List[SpanOffsets], float]]]:
        """Find the n most probable sets of entities of each doc, with their probabilities.

        Raises ValueError for n below 1.
        """
        return [
            [(self._scheme.offsets(self._spans(tags, begin)), p) for tags, p in ranked]
            for ranked, begin in zip(self._tags.nbest(n), self._begins.tolist())
        ]

    def trellises(self) -> List[Trellis]:
        """Compute the trellis of each doc, in which what its bounds forbid cannot be reached."""
        return [Trellis(self._scheme.tags, *arrays) for arrays in self._tags.trellises()]

    def probabilities(self, spans: Sequence[Sequence[SpanOffsets]]) -> List[List[float]]:
        """Compute for spans of each doc the probability that exactly this is an entity.

        Raises KeyError for an unknown label.
        """
        numbers = self._scheme.numbers
        flat = [
            (begin + start, begin + end, numbers[label])
            for begin, found in zip(self._begins.tolist(), spans)
            for start, end, label in found
        ]
        columns = np.array(flat, dtype=np.int64).reshape(-1, 3).T
        p = iter(self._probabilities(Spans(*columns)).tolist())
        return [list(islice(p, len(found))) for found in spans]

    def candidates(self, least: float) -> List[List[Tuple[SpanOffsets, float]]]:
        """Find all spans that are entities with at least some probability; they may overlap.

        No entity is more probable than that its first tokens are those of a longer one: spans
        grow from each token for as long as this has the probability.

        least: The least probability, over 0.

        Returns the spans of each doc in order, each with its probability.
        """
        free, labels = np.flatnonzero(~self._limits.taken), np.arange(len(self._scheme.labels))
        starts = np.repeat(free, len(labels))
        spans = Spans(starts, starts + 1, np.tile(labels, len(free)))
        closed = self._breaks | np.append(self._limits.taken, True)
        found = []
        while len(spans.starts):
            p = self._probabilities(spans)
            found.append((*spans.where(p >= least), p[p >= least]))
            longer = spans.where(~closed[spans.ends])
            longer = longer._replace(ends=longer.ends + 1)
            opened = self._scheme.write(longer.labels, longer.ends - longer.starts)[:, :-1]
            spans = longer.where(self._tags.stretches(longer.starts, opened) >= least)
        if not found:
            return [[] for _ in self._begins[1:]]
        *columns, p = map(np.concatenate, zip(*found))
        order = np.argsort(columns[0], kind="stable")
        shares = iter(p[order].tolist())
        by_doc = self._by_doc(Spans(*columns).where(order))
        return [sorted(zip(offsets, shares)) for offsets in by_doc]

    def _spans(self, tags: NDArray[np.int64], begin: int) -> Spans:
        """Read the entities off tags, but for those that docs came with.

        tags: Of tokens in a row. begin: The first of these, among all N.
        """
        at = slice(begin, begin + len(tags))
        found = self._scheme.spans(tags, self._limits.breaks[at])
        return found.where(~self._limits.taken[at][found.starts])

    def _by_doc(self, spans: Spans) -> List[List[SpanOffsets]]:
        """Part spans, their starts in order, into those of each doc, and count from its begin."""
        parts = np.searchsorted(spans.starts, self._begins)
        begins = np.repeat(self._begins[:-1], np.diff(parts))
        offsets = self._scheme.offsets(
            Spans(spans.starts - begins, spans.ends - begins, spans.labels)
        )
        return [offsets[i:j] for i, j in pairwise(parts.tolist())]

    def _probabilities(self, spans: Spans) -> NDArray[np.float64]:
        """Compute the probability that exactly this is an entity, of spans over all N: (S,).

        What goes on is another entity. So of the probability of the tags, that with the tag which
        goes on to the left is taken off, and that to the right; that with both is taken off twice,
        and added again.
        """
        lengths, rows = spans.ends - spans.starts, np.arange(len(spans.starts))
        tags = self._scheme.write(spans.labels, lengths)  # (S, L)
        to_left, to_right = self._scheme.onward
        # (S, L + 3): with a tag on either side, and an end.
        longer = np.pad(tags, ((0, 0), (1, 2)), constant_values=MISSING)
        longer[:, 0] = to_left[tags[:, 0]]
        longer[rows, lengths + 1] = to_right[tags[rows, lengths - 1]]
        breaks = self._breaks.cumsum()
        whole = breaks[spans.ends - 1] == breaks[spans.starts]
        goes_left = (longer[:, 0] >= 0) & ~self._breaks[spans.starts]
        goes_right = (longer[rows, lengths + 1] >= 0) & ~self._breaks[spans.ends]
        p = np.zeros(len(tags))
        for left, right in product((0, 1), repeat=2):
            asked = np.flatnonzero(whole & (goes_left >= left) & (goes_right >= right))
            stretches = longer[asked, 1 - left :]
            stretches[np.arange(len(asked)), lengths[asked] + left + right] = MISSING
            share = self._tags.stretches(spans.starts[asked] - left, stretches)
            p[asked] += (-1) ** (left + right) * share
        return p.clip(0.0, 1.0)
