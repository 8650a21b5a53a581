"""Docs as a component left them, before later ones merged or split their tokens."""

from collections.abc import Sequence

import numpy as np
from spacy.attrs import IDX, ORTH
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example

from ..pipeline.lookup import later_names


def as_left_by(nlp: Language, name: str, examples: Sequence[Example]) -> list[Example]:
    """Return annotated examples with the predicted docs as a component left them.

    Probabilities of a component are those of the tokens that it read. Where later components may
    have changed them, a doc whose tokens are not those of the tokenizer is predicted again, without
    these components.
    """
    found, later = [*examples], later_names(nlp, name)
    changed: list[tuple[Doc, int]] = []
    for i, eg in enumerate(examples if later else ()):
        for fresh in Corpus("").make_examples(nlp, [eg.reference]):  # none of an empty doc
            now, then = (doc.to_array([ORTH, IDX]) for doc in (eg.predicted, fresh.predicted))
            if not np.array_equal(now, then):
                changed.append((fresh.predicted, i))
    for doc, i in nlp.pipe(changed, as_tuples=True, disable=later):  # handlers may drop docs
        found[i] = Example(doc, examples[i].reference)
    return found
