"""Flat entities: one chain for all labels, with at most one entity at a token.

Axes: B docs, N tokens of a batch, C tags.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example

from ..crf import Chain, NegativeSpan
from ..input_error import InputError
from ..tags import TAG_OUTSIDE, TagScheme
from .annotated_labels import ambiguous_tags, unannotated
from .gold import aligned_negatives, fix_boundaries, gold_tags
from .interval_scheduling import Candidate, best_disjoint
from .platt_scaling import PlattScaling
from .posterior import Posterior
from .preset import preset_constraints


class FlatEncoding:
    """One chain for all labels: at most one entity at a token.

    Args:
        scheme: The name of the tag scheme.
        labels: The labels.
        name: The name of the component, for messages.

    Attributes:
        labels: The entity labels, in the order of the model's tags.
        key: Gold entities are in `doc.spans[key]`, if a doc has this key; else in `doc.ents`. None
            if entities cannot overlap.
        scheme: The tags of one chain.
        tags: The tags of the model, which are those of all chains.
        added_like: The tag whose weights those of an added label are copies of; None for zeros.

    Raises:
        InputError: For an unknown scheme.
    """

    def __init__(self, scheme: str, labels: tuple[str, ...], name: str) -> None:
        self.scheme = self.tags = TagScheme(scheme, labels)
        self.labels, self.name = labels, name
        self.key: str | None = None  # gold entities are in `doc.ents`
        self.added_like: int | None = TAG_OUTSIDE

    def split(self, scores: Chain) -> tuple[Chain, Callable[[Chain], Chain]]:
        """Return the potentials as they are, and the callback for their gradient."""
        return scores, lambda d_scores: d_scores

    def gold(
        self, examples: Sequence[Example]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Convert gold entities to the tags of the predicted tokens.

        Returns:
            The tag ids (N,), -1 where annotation is missing; and the tags that "O" may stand for,
            bool (N, C), or None.

        Raises:
            InputError: For an entity of an unknown label, or with whitespace at an edge.
        """
        gold = [gold_tags(eg, self.scheme, self.name) for eg in examples]
        ambiguous = ambiguous_tags(examples, self.scheme)
        return fix_boundaries(np.concatenate(gold), ambiguous, [*map(len, gold)], self.scheme)

    def negatives(self, examples: Sequence[Example], key: str | None) -> list[NegativeSpan]:
        """Convert the negative spans in `doc.spans[key]` of gold docs; none without a key.

        A span of label "O" means that at least one of its tokens is in an entity.

        Raises:
            InputError: For an unknown label, and for a span that is a gold entity.
        """
        scheme = self.scheme
        labels = *scheme.tags[:1], *scheme.labels
        return [
            NegativeSpan(
                doc, *scheme.exclusion_mask(span.start, span.end, span.label_, len(eg.predicted))
            )
            for doc, eg in enumerate(examples)
            for span in aligned_negatives(eg, key, labels, self.name)
        ]

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
        missing = gold_tags(eg, self.scheme, self.name) < 0
        ambiguous = unannotated(eg, self.scheme.labels)
        aligned = eg.get_aligned_spans_y2x(eg.reference.ents)
        gold = {(ent.start, ent.end, ent.label_) for ent in aligned}
        matched = []
        for (start, end, label), p in candidates:
            is_ambiguous = ambiguous[start:end, self.scheme.numbers[label]].all()
            if not (missing[start:end].any() or is_ambiguous):
                matched.append((p, (start, end, label) in gold))
        return matched

    def possible_tags(self, excluded: Collection[str]) -> NDArray[np.bool_] | None:
        """Find the tags that are not of excluded labels: (1, C) bool; None for all."""
        if not excluded:
            return None
        numbers = [self.scheme.numbers[label] for label in excluded]
        return ~np.isin(self.scheme.label_of, numbers)[None]

    def choose(self, candidates: Sequence[Candidate], threshold: float) -> list[Candidate]:
        """Choose disjoint spans with the largest sum of probability minus threshold, in order."""
        return best_disjoint(candidates, threshold)

    def posterior(
        self,
        docs: Sequence[Doc],
        scores: Chain,
        overwrite: bool,
        temperature: float,
        platt: PlattScaling,
        excluded: Collection[str] = (),
    ) -> Posterior:
        """Return the posterior distribution over the entities of docs.

        Args:
            docs: B docs.
            scores: Their potentials.
            overwrite: Whether to ignore their preset entities.
            temperature: Divides all scores.
            platt: Calibrates the probabilities of spans.
            excluded: Labels that no predicted entity has; the distribution is conditional on that.
        """
        possible = self.possible_tags(excluded)
        constraints = preset_constraints(docs, self.scheme, overwrite, possible)
        return Posterior(scores, self.scheme, constraints, temperature, platt)

    def warn_dropped(self, examples: Iterable[Example], count: bool = False) -> None:
        """Do nothing: `doc.ents` cannot have entities that this encoding lacks."""

    def select_chain(self, label: str | None) -> tuple[str, ...]:
        """Return what `trellis` takes for the chain of a label, nothing; InputError for a label."""
        if label is not None:
            raise InputError(
                f"[{self.name}] label: expected no label, got {label!r}. Leave it out: entities "
                "that cannot overlap have one chain for all labels."
            )
        return ()

    def transitions(
        self, scores: Chain
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return the scores of transitions (C, C), start and end (C,), and the legal ones."""
        return scores.transitions, scores.start, scores.end, self.scheme.constraints.transitions
