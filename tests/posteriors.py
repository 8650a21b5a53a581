"""Strategies that draw posteriors over entities, and the enumeration of their labelings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import enumeration
from enumeration import array
from helpers import PREFIXES, SCHEMES, Span
from spacy_crf_ner.crf import Chain
from spacy_crf_ner.pipeline.platt_scaling import PlattScaling
from spacy_crf_ner.pipeline.posterior import Posterior
from spacy_crf_ner.pipeline.preset import DecodingConstraints
from spacy_crf_ner.tags import TagScheme

LABELS = ("PER", "LOC")
NEAR_ZERO = st.floats(-1, 1, width=32)
TEMPERATURES = st.sampled_from([0.25, 1.0, 1.7, 8.0])


def random_potentials(lengths: Sequence[int], C: int, seed: int = 0) -> Chain:
    """Potentials of docs of these lengths for C tags, in float64."""
    rng = np.random.default_rng(seed)
    shapes = (sum(lengths), C), (C, C), (C,), (C,)
    E, A, start, end = (rng.normal(0, 1.5, shape) for shape in shapes)
    return Chain(E, np.array(lengths), A, start, end)


def read(scheme: str, tags: Sequence[str], boundaries: Sequence[bool]) -> list[Span]:
    """Read the entities off legal tags, token by token; at a break an entity of IO ends."""
    spans: list[Span] = []
    begin = 0
    for t, tag in enumerate(tags):
        if tag == "O":
            continue
        prefix, label = tag.split("-", 1)
        after = tags[t + 1] if t + 1 < len(tags) else "O"
        if scheme == "biluo":
            begins, ends = prefix in "BU", prefix in "LU"
        elif scheme == "bio":
            begins, ends = prefix == "B", after != f"I-{label}"
        else:
            begins = t == 0 or tags[t - 1] != tag or boundaries[t]
            ends = after != tag or boundaries[t + 1]
        if begins:
            begin = t
        if ends:
            spans.append((begin, t + 1, label))
    return spans


def joined(limits: Sequence[DecodingConstraints], scheme: TagScheme) -> DecodingConstraints:
    """The bounds of a batch of what is known of each doc; all of them begin at a break."""
    first = [np.arange(len(limit.boundaries)) == 0 for limit in limits]
    boundaries = np.concatenate([limit.boundaries | begin for limit, begin in zip(limits, first)])
    preset = np.concatenate([limit.preset for limit in limits])
    if all(limit.allowed is None for limit in limits):
        return DecodingConstraints(None, boundaries, preset)
    anything = [np.ones((len(limit.preset), len(scheme.tags)), dtype=bool) for limit in limits]
    parts = [a if limit.allowed is None else limit.allowed for limit, a in zip(limits, anything)]
    return DecodingConstraints(np.concatenate(parts), boundaries, preset)


class Batch(NamedTuple):
    """Docs of up to 4 tokens, and what is known of them."""

    scheme: TagScheme
    potentials: Chain
    limits: list[DecodingConstraints]

    @property
    def rows(self) -> list[slice]:
        """The tokens of each doc."""
        ends = np.cumsum(self.potentials.lengths).tolist()
        return [slice(end - T, end) for end, T in zip(ends, self.potentials.lengths.tolist())]

    def posterior(
        self,
        temperature: float = 1.0,
        platt: PlattScaling = PlattScaling(),  # noqa: B008
    ) -> Posterior:
        known = joined(self.limits, self.scheme)
        return Posterior(self.potentials, self.scheme, known, temperature, platt)

    def spans(self, doc: int) -> list[Span]:
        """All spans of a doc."""
        T = int(self.potentials.lengths[doc])
        return [
            (start, end, label)
            for start in range(T)
            for end in range(start + 1, T + 1)
            for label in self.scheme.labels
        ]

    def labelings(self, doc: int, temperature: float = 1.0) -> list[tuple[list[Span], float]]:
        """Enumerate the legal tag sequences of a doc: their entities and probabilities."""
        arrays = (self.potentials.emissions[self.rows[doc]], *self.potentials[2:5])
        paths, scores = enumeration.scored_paths(*map(torch.from_numpy, arrays))
        limit = self.limits[doc]
        legal = self.is_legal(paths, limit.allowed)
        p = (scores[legal] / temperature).softmax(0)
        return [
            (read(self.scheme.name, [self.scheme.tags[i] for i in path], limit.boundaries), share)
            for path, share in zip(paths[legal].tolist(), p.tolist())
        ]

    def is_legal(self, paths: Tensor, allowed: np.ndarray | None) -> Tensor:
        legal = enumeration.is_legal(paths, *map(torch.from_numpy, self.scheme.constraints))
        if allowed is not None:
            legal &= torch.from_numpy(allowed)[torch.arange(paths.shape[1]), paths].all(1)
        return legal

    def predicted(self, doc: int, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Those that the doc did not come with."""
        return tuple(span for span in spans if not self.limits[doc].preset[span[0]])

    def probabilities(self, doc: int, temperature: float = 1.0) -> dict[Span, float]:
        """The probability of each span of a doc: a sum over the labelings that have it."""
        p = dict.fromkeys(self.spans(doc), 0.0)
        for spans, share in self.labelings(doc, temperature):
            for span in spans:
                p[span] += share
        return p


@st.composite
def limits(draw: st.DrawFn, scheme: TagScheme, T: int) -> DecodingConstraints:
    """Draw what is known of T tokens: at least all outside is left of what is not preset."""
    boundaries = np.array([t > 0 and draw(st.integers(0, 3)) == 0 for t in range(T)], dtype=bool)
    preset = np.zeros(T, dtype=bool)
    if not boundaries.any() and draw(st.booleans()):
        return DecodingConstraints(None, boundaries, preset)
    C = len(scheme.tags)
    allowed = array(draw, st.integers(0, 3).map(float), T, C) > 0
    allowed[:, 0] = True
    prefixes = np.array([tag[0] for tag in scheme.tags])
    if scheme.name != "io":
        allowed[np.ix_(boundaries, np.isin(prefixes, list("IL")))] = False
    if scheme.name == "biluo":
        allowed[np.ix_(np.append(boundaries[1:], False), np.isin(prefixes, list("BI")))] = False
    t = 0
    while t < T:
        end = t + draw(st.integers(1, T - t))
        label = draw(st.sampled_from([None, None, None, "O", *scheme.labels]))
        if label is not None and not boundaries[t + 1 : end].any():
            preset[t:end] = True
            allowed[t:end] = False
            if label == "O":
                allowed[t:end, 0] = True
            else:
                tags = [f"{p}-{label}" for p in PREFIXES[scheme.name](end - t)]
                allowed[range(t, end), [scheme.tags.index(tag) for tag in tags]] = True
                # Nothing goes on with it.
                inside = scheme.tags.index(f"I-{label}")
                if scheme.name != "biluo" and end < T:
                    allowed[end, inside] = False
                if scheme.name == "io" and t > 0 and not preset[t - 1]:
                    allowed[t - 1, inside] = False
                end += 1  # a token between one and the next
        t = end
    return DecodingConstraints(allowed, boundaries, preset)


@st.composite
def batches(
    draw: st.DrawFn,
    scores: st.SearchStrategy[float] = enumeration.SMALL_SCORES,
    scheme: str | None = None,
    bounded: bool = True,
) -> Batch:
    """Draw 1 to 3 docs of 0 to 4 tokens."""
    labels = LABELS[: draw(st.integers(1, 2))]
    tags = TagScheme(scheme or draw(st.sampled_from(SCHEMES)), labels)
    C = len(tags.tags)
    longest = 3 if C == 9 else 4
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=3))
    shapes = [(sum(lengths), C), (C, C), (C,), (C,)]
    emissions, transitions, start, end = (array(draw, scores, *shape) for shape in shapes)
    potentials = Chain(emissions, np.array(lengths, dtype=np.int64), transitions, start, end)
    free = [
        DecodingConstraints(None, np.zeros(T, dtype=bool), np.zeros(T, dtype=bool)) for T in lengths
    ]
    return Batch(tags, potentials, [draw(limits(tags, T)) for T in lengths] if bounded else free)
