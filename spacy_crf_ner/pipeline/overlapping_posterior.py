"""The posterior distribution over overlapping entities: each label has chains of its own.

Axes: B docs, M chains of a doc, K levels of a label.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Span

from ..tags import SpanOffsets
from .interval_scheduling import Candidate
from .platt_scaling import PlattScaling
from .posterior import Posterior, Trellis

ANY = ""  # the label of the chain of one label

# Entities and their log probability.
Labeling = tuple[tuple[SpanOffsets, ...], float]


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
                    of_label = _joined(of_label, named, ways)
                best = _joined(best, of_label, n)
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


def _joined(first: Sequence[Labeling], second: Sequence[Labeling], n: int) -> list[Labeling]:
    """Join labelings of independent chains, sorted by probability: the n best, each once."""
    found: dict[tuple[SpanOffsets, ...], float] = {}
    for i, (spans, p) in enumerate(first):
        # No pair is among the n best if (i + 1) * (j + 1) pairs are at least as good.
        for more, q in second[: n // (i + 1)]:
            joined = spans if not more else tuple(sorted({*spans, *more}))
            found[joined] = float(np.logaddexp(found.get(joined, -np.inf), p + q))
    return sorted(found.items(), key=lambda labeling: -labeling[1])[:n]
