"""Encodings: how the entities of a doc are written as tags of linear chains, and read from them.

`Encoding` has one chain for all labels. `LabelEncoding` has a chain for each label, and one
more for each level of nesting, so that entities may overlap. The same span is in one level only.
Chains are independent: an entity of one of them says nothing about the others. Their product,
restricted to at most one entity at a token, is the chain of all tags. So all are read from the same
potentials. In a chain of its own, tags are scored against "O", which scores 0.

Axes: B docs, N tokens of a batch, T tokens of a doc, L labels, K levels, M chains of a doc: 1, or
L * K, all levels of a label, then those of the next one; C tags of a chain, "O" first.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example

from .. import crf
from ..crf import Chain, NegativeSpan
from ..crf.chain import ranges
from ..input_error import InputError
from ..tags import TAG_MISSING, TAG_OUTSIDE, Spans, TagScheme
from .annotated_labels import ambiguous_tags, check_annotated, unannotated
from .gold import (
    aligned_negatives,
    check_known,
    check_text,
    fix_boundaries,
    gold_entities,
    gold_tags,
    warn_of_misaligned,
    write_tags,
)
from .interval_scheduling import Candidate, best_disjoint, nesting_levels
from .platt_scaling import PlattScaling
from .posterior import ANY, EntityPosterior, OverlappingPosterior, Posterior
from .preset import Preset, preset_constraints


class Encoding:
    """One chain for all labels: at most one entity at a token; `LabelEncoding` has more chains.

    Attributes:
        labels: In the order of the model's tags.
        key: Gold entities are in `doc.spans[key]`, if a doc has this key; else in `doc.ents`. None
            if entities cannot overlap.
        scheme: The tags of one chain.
        tags: The tags of the model, which are those of all chains.
        levels: The label and the level of each label of these tags.
        chains: The number M of chains.
        added_like: The tag whose weights those of an added label are copies of; None for zeros.
    """

    key: str | None = None
    added_like: int | None = TAG_OUTSIDE
    max_nesting = 1
    chains = 1

    def __init__(self, scheme: str, labels: tuple[str, ...], name: str) -> None:
        self.scheme = self.tags = TagScheme(scheme, labels)
        self.labels, self.name = labels, name
        self.levels = [*product(labels, range(self.max_nesting))]

    def split(self, scores: Chain) -> tuple[Chain, Callable[[Chain], Chain]]:
        """Return the potentials of the B * M chains, and the callback for their gradient."""
        return scores, lambda d_scores: d_scores

    def gold(
        self, examples: Sequence[Example]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Convert gold entities to tag ids of the predicted tokens: (N * M,), -1 where missing.

        Return also the tags that "O" may stand for, bool (N * M, C), or None. Raises InputError for
        an entity of an unknown label, or with whitespace at an edge.
        """
        rows = [row for eg in examples for row in self.gold_tags(eg)]
        ambiguous = None if self.key else ambiguous_tags(examples, self.scheme)
        return fix_boundaries(np.concatenate(rows), ambiguous, [*map(len, rows)], self.scheme)

    def gold_tags(self, eg: Example) -> NDArray[np.int64]:
        """Convert the gold entities to tag ids of the predicted tokens: (M, T), -1 where missing.

        Raises InputError as `gold`.
        """
        return gold_tags(eg, self.scheme, self.name)[None]

    def negatives(self, examples: Sequence[Example], key: str | None) -> list[NegativeSpan]:
        """Convert the negative spans in `doc.spans[key]` of gold docs; none without a key.

        A span without a label is not an entity of any label. One of label "O", with one chain,
        means that at least one of its tokens is in an entity. Raises InputError for an unknown
        label, and for a span that is a gold entity.
        """
        labels = self.labels if self.key else ("O", *self.labels)
        return [
            NegativeSpan(
                doc * self.chains + chain,
                *self.scheme.exclusion_mask(span.start, span.end, label, len(eg.predicted)),
            )
            for doc, eg in enumerate(examples)
            for span in aligned_negatives(eg, key, labels, self.name, self.key)
            for chain, label in self._chains_of(span.label_)
        ]

    def _chains_of(self, label: str) -> list[tuple[int, str]]:
        """Return the chains of a label, with its name in each."""
        return [(0, label)]

    def is_annotated(self, eg: Example) -> bool:
        """Whether gold says something about a token: "O" says nothing if it may be any tag."""
        gold, ambiguous = self.gold([eg])
        known = gold >= 0
        if ambiguous is not None:
            known &= (gold != TAG_OUTSIDE) | ~ambiguous[:, 1:].all(1)
        return bool(known.any())

    def match_candidates(
        self, eg: Example, candidates: Iterable[Candidate]
    ) -> list[tuple[float, bool]]:
        """Return the probability of each candidate, and whether it is a gold entity.

        Leaves out spans with tokens without annotation, or of a label that is not annotated there.
        """
        missing = self.gold_tags(eg) < 0
        ambiguous = unannotated(eg, self.labels, overlapping=self.key is not None)
        ents = eg.get_aligned_spans_y2x(gold_entities(eg.reference, self.key), allow_overlap=True)
        gold = {(ent.start, ent.end, ent.label_) for ent in ents}
        matched = []
        for (start, end, label), p in candidates:
            chain, _ = self._chains_of(label)[0]  # of the outermost level
            is_ambiguous = ambiguous[start:end, self.labels.index(label)].all()
            if not (missing[chain, start:end].any() or is_ambiguous):
                matched.append((p, (start, end, label) in gold))
        return matched

    def possible_tags(self, excluded: Collection[str]) -> NDArray[np.bool_] | None:
        """Find the tags that are not of excluded labels: (M, C) bool; None for all."""
        if not excluded:
            return None
        is_kept = np.array([label not in excluded for label, _ in self.levels])
        possible = is_kept[self.tags.label_of[1:].reshape(self.chains, -1)]
        return np.insert(possible, TAG_OUTSIDE, True, axis=1)

    def presets(self, doc: Doc) -> list[Preset]:
        """Return the preset entities of each chain."""
        return [[(ent, ent.label_) for ent in doc.ents]]

    def choose(self, candidates: Sequence[Candidate], threshold: float) -> list[Candidate]:
        """Choose compatible spans of a doc with the largest sum of probability minus threshold."""
        return best_disjoint(candidates, threshold)

    def posterior(
        self,
        docs: Sequence[Doc],
        scores: Chain,
        overwrite: bool,
        temperature: float,
        platt: PlattScaling,
        excluded: Collection[str] = (),
    ) -> EntityPosterior:
        """Return the posterior distribution over the entities of docs with these potentials.

        Preset entities are ignored with `overwrite`. `platt` calibrates the probabilities of spans.
        No predicted entity has an excluded label; the distribution is conditional on that.
        """
        possible = self.possible_tags(excluded)
        constraints = preset_constraints(docs, self.scheme, overwrite, self.presets, possible)
        chains, _ = self.split(scores)
        if self.key is None:
            return Posterior(chains, self.scheme, constraints, temperature, platt)
        posterior = Posterior(chains, self.scheme, constraints, temperature)
        presets = [() if overwrite else doc.ents for doc in docs]
        return OverlappingPosterior(posterior, self.labels, self.max_nesting, platt, presets)

    def transitions(
        self, scores: Chain
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return the scores of transitions, start and end, and the legal transitions."""
        return scores.transitions, scores.start, scores.end, self.scheme.constraints.transitions

    def warn_dropped(self, examples: Iterable[Example], count: bool = False) -> None:
        """Warn about gold entities that the encoding cannot write.

        With `count`, give their number, and the recall of all others. Without, the message is
        always the same, so that Python shows it once.
        """


class LabelEncoding(Encoding):
    """K chains for each label: entities of different labels may overlap.

    Raises InputError for labels that look like the names of levels.
    """

    added_like = None

    def __init__(
        self, scheme: str, labels: tuple[str, ...], max_nesting: int, key: str, name: str
    ) -> None:
        self.labels, self.max_nesting, self.key, self.name = labels, max_nesting, key, name
        self.scheme = TagScheme(scheme, (ANY,))
        self.levels = [*product(labels, range(max_nesting))]  # of the chains, in order
        self.chains = len(self.levels)
        names = (label if not k else f"{label} (level {k + 1})" for label, k in self.levels)
        self.tags = TagScheme(scheme, tuple(names))
        if len({*self.tags.tags}) < len(self.tags.tags):
            raise InputError(
                f"[{name}] labels: expected labels other than the names of levels, such as "
                f"'A (level 2)' of 'A', got {[*labels]}. Rename the label."
            )

    def gold_tags(self, eg: Example) -> NDArray[np.int64]:
        """Convert the gold entities to tag ids of the predicted tokens: (M, T), -1 where missing.

        Entities that need more levels are left out. Raises InputError as `Encoding.gold`, and for a
        label that is not annotated.
        """
        gold, T = eg.reference, len(eg.predicted)
        ents = check_text(gold_entities(gold, self.key), self.name)
        check_known(ents, self.labels, self.name)
        check_annotated(gold, ents)
        tags = np.full((len(self.labels), self.max_nesting, T), TAG_OUTSIDE)
        token, label = unannotated(eg, self.labels, overlapping=True).nonzero()
        tags[label, :, token] = TAG_MISSING
        same = np.array_equal(eg.predicted.to_array(ORTH), gold.to_array(ORTH))
        if self.key not in gold.spans:
            tags[:, :, gold_tags(eg, self.tags, self.name) < 0] = TAG_MISSING
        found = []
        for ent in ents:
            aligned = [ent] if same else eg.get_aligned_spans_y2x([ent])
            found += aligned
            if not aligned:
                warn_of_misaligned(self.name)
                tokens = np.unique(eg.alignment.y2x[ent.start : ent.end])
                tags[self.labels.index(ent.label_), :, tokens] = TAG_MISSING
        for of_label, spans in _by_label(found).items():
            for (start, end), k in zip(spans, nesting_levels(spans)):
                if k < self.max_nesting:
                    span = Spans(*np.array([[start], [end], [0]]))
                    write_tags(tags[self.labels.index(of_label), k], span, self.scheme)
        return tags.reshape(self.chains, T)

    def split(self, scores: Chain) -> tuple[Chain, Callable[[Chain], Chain]]:
        """Make each chain of each doc a doc with transitions of its own.

        The scores are of the 1 + M * (C - 1) tags of the model. The potentials are of B * M docs,
        all chains of a doc, then those of the next one: transitions (B * M, C, C), start and end
        (B * M, C), emissions (N * M, C). The callback for their gradient is for docs that share
        transitions.
        """
        E, lengths, A, start, end = scores
        B, M, C = len(lengths), self.chains, len(self.scheme.tags)
        of_chains = np.repeat(lengths, M)
        # For each row its token among all N, and its tags: (N * M, 1) and (N * M, C).
        token = ranges(np.repeat(scores.begins, M), of_chains)[:, None]
        tags = np.insert(np.arange(1, 1 + M * (C - 1)).reshape(M, C - 1), 0, TAG_OUTSIDE, axis=1)
        own_tags = np.repeat(np.tile(tags, (B, 1)), of_chains, axis=0)
        pairs = tags[:, :, None], tags[:, None, :]  # of tags: (M, C, C)

        own_E, own_A = E[token, own_tags], A[..., *pairs]
        first, last = start[..., tags], end[..., tags]
        own_E[:, 0] = own_A[..., 0, 0] = first[..., 0] = last[..., 0] = 0.0
        if not scores.per_doc:
            own_A, first, last = (np.repeat(each[None], B, axis=0) for each in (own_A, first, last))
        kinds = own_A.reshape(B * M, C, C), first.reshape(B * M, C), last.reshape(B * M, C)

        def backprop(gradient: Chain) -> Chain:
            d_E, d_A, d_start, d_end = (np.zeros_like(scores) for scores in (E, A, start, end))
            d_E[token, own_tags] = gradient.emissions
            d_A[pairs] = gradient.transitions.reshape(B, M, C, C).sum(0)
            d_start[tags] = gradient.start.reshape(B, M, C).sum(0)
            d_end[tags] = gradient.end.reshape(B, M, C).sum(0)
            d_E[:, 0] = d_A[0, 0] = d_start[0] = d_end[0] = 0.0
            return Chain(d_E, lengths, d_A, d_start, d_end)

        return Chain(own_E, of_chains, *kinds), backprop

    def _chains_of(self, label: str) -> list[tuple[int, str]]:
        return [(i, ANY) for i, (each, _) in enumerate(self.levels) if label in ("", each)]

    def presets(self, doc: Doc) -> list[Preset]:
        """Return the preset entities of each chain: those of its label, in the outermost level."""
        return [
            [(ent, ANY) for ent in doc.ents if ent.label_ == label and k == 0]
            for label, k in self.levels
        ]

    def choose(self, candidates: Sequence[Candidate], threshold: float) -> list[Candidate]:
        """Choose disjoint spans of each label, then of those left, for each level of the label."""
        left, chosen = dict(candidates), list[Candidate]()
        for label, _ in self.levels:
            best = best_disjoint((each for each in left.items() if each[0][2] == label), threshold)
            chosen += best
            for span, _ in best:
                del left[span]
        return sorted(chosen)

    def transitions(
        self, scores: Chain
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return the scores of transitions, start and end, and the legal transitions."""
        A, start, end = (array.copy() for array in scores.transition_scores)
        A[TAG_OUTSIDE, TAG_OUTSIDE] = start[TAG_OUTSIDE] = end[TAG_OUTSIDE] = 0.0
        label = self.tags.label_of
        # Entities of different labels do not follow each other in a chain.
        in_a_chain = (label[:, None] == label) | (label[:, None] < 0) | (label < 0)
        return A, start, end, self.tags.constraints.transitions & in_a_chain

    def warn_dropped(self, examples: Iterable[Example], count: bool = False) -> None:
        """Warn about gold entities that need more levels; see `Encoding.warn_dropped`."""
        by_label = (_by_label(gold_entities(eg.reference, self.key)) for eg in examples)
        levels = [k for each in by_label for spans in each.values() for k in nesting_levels(spans)]
        lost = sum(k >= self.max_nesting for k in levels)
        if not lost:
            return
        some, meaning = "some", "are left out; nlp.initialize() counts them"
        if count:
            some, recall = f"{lost} of {len(levels)}", 1 - lost / len(levels)
            meaning = f"are left out: a model that learns all others has a recall of {recall:.1%}"
        warnings.warn(
            f"[{self.name}] {some} gold entities are nested in more than {self.max_nesting} "
            f"levels of their label, and {meaning}. Set a larger max_nesting.",
            stacklevel=3,
        )


def _by_label(ents: Iterable[Span]) -> dict[str, set[tuple[int, int]]]:
    """Collect the token offsets of the different entities of each label."""
    by_label = defaultdict[str, set[tuple[int, int]]](set)
    for ent in ents:
        by_label[ent.label_].add((ent.start, ent.end))
    return by_label


@lru_cache(maxsize=64)
def make_encoding(
    scheme: str, labels: tuple[str, ...], max_nesting: int, key: str | None, name: str
) -> Encoding:
    """Choose the encoding: `Encoding` without a key of overlapping entities."""
    if key is None:
        return Encoding(scheme, labels, name)
    return LabelEncoding(scheme, labels, max_nesting, key, name)


def forbid_labels(encoding: Encoding, potentials: Chain, excluded: Collection[str]) -> Chain:
    """Forbid the tags of excluded labels in the potentials of B * M chains."""
    possible = encoding.possible_tags(excluded)
    if possible is None:
        return potentials
    of_chains = np.tile(possible, (len(potentials.lengths) // len(possible), 1))
    allowed = np.repeat(of_chains, potentials.lengths, axis=0)
    return potentials._replace(emissions=crf.clamp(potentials.emissions, allowed))
