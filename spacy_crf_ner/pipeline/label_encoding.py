"""Overlapping entities: each label has a chain of its own, and one more for each level of nesting.

The same span is in one level only. Chains are independent: an entity of one of them says nothing
about the others. Their product, restricted to at most one entity at a token, is the chain of all
tags. So all are read from the same potentials. In a chain of its own, tags are scored against "O",
which scores 0.

Axes: B docs, N tokens of a batch, T tokens of a doc, L labels, K levels, M = L * K chains, all
levels of a label, then those of the next one; n tags of a chain, "O" first.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..crf import Chain, NegativeSpan
from ..crf.chain import ranges
from ..input_error import InputError
from ..tags import TAG_MISSING, TAG_OUTSIDE, Spans, TagScheme
from .annotated_labels import check_annotated, unannotated
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
from .overlapping_posterior import ANY, OverlappingPosterior
from .platt_scaling import PlattScaling
from .posterior import Posterior
from .preset import Preset, preset_constraints


class LabelEncoding:
    """K chains for each label: entities of different labels may overlap.

    The attributes and methods are those of `FlatEncoding`.

    Args:
        scheme: The name of the tag scheme.
        labels: The L labels.
        max_nesting: The number K of chains of each label.
        key: Gold entities are in `doc.spans[key]`; in `doc.ents` of docs without this key.
        name: The name of the component, for messages.

    Raises:
        InputError: For an unknown scheme, and for labels that look like the names of levels.
    """

    def __init__(
        self, scheme: str, labels: tuple[str, ...], max_nesting: int, key: str, name: str
    ) -> None:
        self.labels, self.max_nesting, self.name = labels, max_nesting, name
        self.key: str | None = key
        self.added_like: int | None = None
        self.scheme = TagScheme(scheme, (ANY,))  # of each chain
        # Of the model, with the tags of all chains.
        names = (label if not k else f"{label} (level {k + 1})" for label, k in self._chains())
        self.tags = TagScheme(scheme, tuple(names))
        if len({*self.tags.tags}) < len(self.tags.tags):
            raise InputError(
                f"[{name}] labels: expected labels other than the names of levels, such as "
                f"'A (level 2)' of 'A', got {[*labels]}. Rename the label."
            )

    def _chains(self) -> Iterable[tuple[str, int]]:
        """Return label and level of each of the M chains."""
        return product(self.labels, range(self.max_nesting))

    def gold_tags(self, eg: Example) -> NDArray[np.int64]:
        """Convert the gold entities to tag ids of the predicted tokens: (M, T), -1 where missing.

        Entities that need more levels are left out.

        Raises:
            InputError: For an entity whose label is unknown or not annotated, or that begins or
                ends with whitespace.
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
        return tags.reshape(len(self.labels) * self.max_nesting, T)

    def split(self, scores: Chain) -> tuple[Chain, Callable[[Chain], Chain]]:
        """Make each chain of each doc a doc with transitions of its own.

        Args:
            scores: Of the C = 1 + M * (n - 1) tags of the model.

        Returns:
            Potentials of B * M docs, all chains of a doc, then those of the next one: emissions
            (N * M, n), transitions (B * M, n, n), start and end (B * M, n); and a callback that
            takes the gradient for them and returns that for the given ones, if docs share
            transitions.
        """
        E, lengths, A, start, end = scores
        B, M, n = len(lengths), len(self.labels) * self.max_nesting, len(self.scheme.tags)
        of_chains = np.repeat(lengths, M)
        # For each row its token among all N, and its tags: (N * M, 1) and (N * M, n).
        token = ranges(np.repeat(scores.begins, M), of_chains)[:, None]
        tags = np.insert(np.arange(1, 1 + M * (n - 1)).reshape(M, n - 1), 0, TAG_OUTSIDE, axis=1)
        own_tags = np.repeat(np.tile(tags, (B, 1)), of_chains, axis=0)
        pairs = tags[:, :, None], tags[:, None, :]  # of tags: (M, n, n)

        own_E, own_A = E[token, own_tags], A[..., *pairs]
        first, last = start[..., tags], end[..., tags]
        own_E[:, 0] = own_A[..., 0, 0] = first[..., 0] = last[..., 0] = 0.0
        if not scores.per_doc:
            own_A, first, last = (np.repeat(each[None], B, axis=0) for each in (own_A, first, last))
        kinds = own_A.reshape(B * M, n, n), first.reshape(B * M, n), last.reshape(B * M, n)

        def backprop(gradient: Chain) -> Chain:
            d_E, d_A, d_start, d_end = (np.zeros_like(scores) for scores in (E, A, start, end))
            d_E[token, own_tags] = gradient.emissions
            d_A[pairs] = gradient.transitions.reshape(B, M, n, n).sum(0)
            d_start[tags] = gradient.start.reshape(B, M, n).sum(0)
            d_end[tags] = gradient.end.reshape(B, M, n).sum(0)
            d_E[:, 0] = d_A[0, 0] = d_start[0] = d_end[0] = 0.0
            return Chain(d_E, lengths, d_A, d_start, d_end)

        return Chain(own_E, of_chains, *kinds), backprop

    def gold(
        self, examples: Sequence[Example]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Return the gold tags (N * M,), and the tags that "O" may stand for; None for none."""
        gold = [chain for eg in examples for chain in self.gold_tags(eg)]
        return fix_boundaries(np.concatenate(gold), None, [*map(len, gold)], self.scheme)

    def negatives(self, examples: Sequence[Example], key: str | None) -> list[NegativeSpan]:
        """Return the negative spans in `doc.spans[key]` of gold docs, for each chain.

        A span without a label is not an entity of any label.
        """
        M = len(self.labels) * self.max_nesting
        return [
            NegativeSpan(
                doc * M + chain,
                *self.scheme.exclusion_mask(span.start, span.end, ANY, len(eg.predicted)),
            )
            for doc, eg in enumerate(examples)
            for span in aligned_negatives(eg, key, self.labels, self.name, self.key)
            for chain, (label, _) in enumerate(self._chains())
            if span.label_ in ("", label)
        ]

    def is_annotated(self, eg: Example) -> bool:
        """Whether gold says something about a token, for any label."""
        return bool((self.gold_tags(eg) != TAG_MISSING).any())

    def presets(self, doc: Doc) -> list[Preset]:
        """Return the preset entities of each chain: those of its label, in the outermost level."""
        return [
            [(ent, ANY) for ent in doc.ents if ent.label_ == label and k == 0]
            for label, k in self._chains()
        ]

    def match_candidates(
        self, eg: Example, candidates: Iterable[Candidate]
    ) -> list[tuple[float, bool]]:
        """Return the probability of each candidate, and whether it is a gold entity.

        Leaves out spans with tokens where entities of their label are not annotated.
        """
        # outermost levels
        missing = dict(zip(self.labels, self.gold_tags(eg)[:: self.max_nesting] < 0))
        aligned = eg.get_aligned_spans_y2x(gold_entities(eg.reference, self.key), True)
        gold = {(ent.start, ent.end, ent.label_) for ent in aligned}
        return [
            (p, span in gold)
            for span, p in candidates
            if not missing[span[2]][span[0] : span[1]].any()
        ]

    def possible_tags(self, excluded: Collection[str]) -> NDArray[np.bool_] | None:
        """Find the tags of each chain, "O" alone for excluded labels: (M, C) bool; None for all."""
        if not excluded:
            return None
        is_kept = np.array([[label not in excluded] for label, _ in self._chains()])
        possible: NDArray[np.bool_] = is_kept | (np.arange(len(self.scheme.tags)) == TAG_OUTSIDE)
        return possible

    def choose(self, candidates: Sequence[Candidate], threshold: float) -> list[Candidate]:
        """Choose disjoint spans of each label, then of those left, for each level of the label."""
        chosen = list[Candidate]()
        for label in self.labels:
            left = {span: p for span, p in candidates if span[2] == label}
            for _ in range(self.max_nesting):
                best = best_disjoint(left.items(), threshold)
                chosen += best
                taken = dict(best)
                left = {span: p for span, p in left.items() if span not in taken}
        return sorted(chosen)

    def posterior(
        self,
        docs: Sequence[Doc],
        scores: Chain,
        overwrite: bool,
        temperature: float,
        platt: PlattScaling,
        excluded: Collection[str] = (),
    ) -> OverlappingPosterior:
        """Return the posterior distribution over the entities of docs."""
        possible = self.possible_tags(excluded)
        constraints = preset_constraints(docs, self.scheme, overwrite, possible, self.presets)
        chains, _ = self.split(scores)
        posterior = Posterior(chains, self.scheme, constraints, temperature)
        presets = [() if overwrite else doc.ents for doc in docs]
        return OverlappingPosterior(posterior, self.labels, self.max_nesting, platt, presets)

    def select_chain(self, label: str | None) -> tuple[str, ...]:
        """Return the label, for its outermost chain; raise InputError for none or another one."""
        if label not in self.labels:
            got = "no label" if label is None else repr(label)
            raise InputError(
                f"[{self.name}] label: expected one of {', '.join(self.labels)}, got {got}. Choose "
                "one (--label): entities that may overlap have a chain for each label."
            )
        return (label,)

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
        """Warn about gold entities that need more levels.

        Args:
            examples: The examples of an update, or all of them.
            count: Whether to give their number, and the recall of all others. Otherwise the message
                is always the same, so that Python shows it once.
        """
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
