"""Flat entities: one chain for all labels, with at most one entity at a token."""

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example

from ..ml.potentials import NegativeSpan, Potentials
from ..tags import TAG_OUTSIDE, TagScheme
from .gold import aligned_negatives, gold_tags, keep_edges
from .interval_scheduling import Candidate, best_disjoint
from .label_sets import hidden_tags, unannotated
from .platt_scaling import PlattScaling
from .posterior import Posterior
from .preset import preset_constraints


class FlatChain:
    """The chain of all labels, and how gold entities are written in it.

    scheme: The name of the tag scheme.
    labels: The labels.
    name: The name of the component, for messages.
    """

    def __init__(self, scheme: str, labels: tuple[str, ...], name: str) -> None:
        self.scheme = self.tags = TagScheme(scheme, labels)
        self.labels, self.name = labels, name
        self.key: str | None = None  # of gold entities in `doc.spans`: they are in `doc.ents`

    def split(self, scores: Potentials) -> tuple[Potentials, Callable[[Potentials], Potentials]]:
        """Return the potentials of the chain, and the callback for their gradient."""
        return scores, lambda d_scores: d_scores

    def gold(
        self, examples: Sequence[Example]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Return gold and hidden tags of all tokens, as for `nll_with_gradient`."""
        gold = [gold_tags(eg, self.scheme, self.name) for eg in examples]
        hidden = hidden_tags(examples, self.scheme)
        return keep_edges(np.concatenate(gold), hidden, [*map(len, gold)], self.scheme)

    def negatives(self, examples: Sequence[Example], key: str | None) -> list[NegativeSpan]:
        """Return the negative spans; key: As for `aligned_negatives`.

        A span of label "O" means that at least one of its tokens is in an entity.
        """
        scheme = self.scheme
        labels = *scheme.tags[:1], *scheme.labels
        return [
            NegativeSpan(
                doc, scheme.exclusion_mask(span.start, span.end, span.label_, len(eg.predicted))
            )
            for doc, eg in enumerate(examples)
            for span in aligned_negatives(eg, key, labels, self.name)
        ]

    def is_annotated(self, eg: Example) -> bool:
        """Whether gold says something of a token: "outside" says nothing if it may be any tag."""
        gold, hidden = self.gold([eg])
        known = gold >= 0
        if hidden is not None:
            known &= (gold != TAG_OUTSIDE) | ~hidden[:, 1:].all(1)
        return bool(known.any())

    def judge_spans(self, eg: Example, spans: Iterable[Candidate]) -> list[tuple[float, bool]]:
        """Find for each span with a probability whether it is a gold entity.

        Leaves out spans with tokens without annotation, or of a label that is not annotated there.
        """
        missing = gold_tags(eg, self.scheme, self.name) < 0
        hidden = unannotated(eg, self.scheme.labels)
        aligned = eg.get_aligned_spans_y2x(eg.reference.ents)
        gold = {(ent.start, ent.end, ent.label_) for ent in aligned}
        judged = []
        for (start, end, label), p in spans:
            unknown = missing[start:end].any()
            if hidden is not None:
                unknown |= hidden[start:end, self.scheme.numbers[label]].all()
            if not unknown:
                judged.append((p, (start, end, label) in gold))
        return judged

    def possible_tags(self, excluded: Collection[str]) -> NDArray[np.bool_] | None:
        """Find the tags that are not of excluded labels: (1, C) bool; None for all."""
        if not excluded:
            return None
        numbers = [self.scheme.numbers[label] for label in excluded]
        return ~np.isin(self.scheme.label_of, numbers)[None]

    def choose(self, candidates: Sequence[Candidate], threshold: float) -> list[Candidate]:
        """Choose the entities of a doc for "f_score": those of `best_disjoint`, in order."""
        return best_disjoint(candidates, threshold)

    def posterior(
        self,
        docs: Sequence[Doc],
        scores: Potentials,
        overwrite: bool,
        temperature: float,
        platt: PlattScaling,
        excluded: Collection[str] = (),
    ) -> Posterior:
        """Return the distribution over the entities of docs.

        overwrite: Whether to ignore their preset entities.
        excluded: Labels that no predicted entity has: the distribution given that.
        scores, temperature, platt: As for `Posterior`.
        """
        possible = self.possible_tags(excluded)
        constraints = preset_constraints(docs, self.scheme, overwrite, possible)
        return Posterior(scores, self.scheme, constraints, temperature, platt)
