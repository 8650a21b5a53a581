"""The entities of an example, gold and predicted, as spans of characters of one text."""

from typing import Iterable, List, NamedTuple, Optional, Tuple

import numpy as np
from spacy.tokens import Doc, Span
from spacy.training import Example


class Entity(NamedTuple):
    """A span with a label.

    start, end: Of its characters in the doc.
    confidence: `ent._.confidence` of a predicted one; None of a gold one, and where there is none.
    """

    start: int
    end: int
    label: str
    confidence: Optional[float] = None

    @property
    def span(self) -> Tuple[int, int]:
        """The characters."""
        return self.start, self.end


class Judged(NamedTuple):
    """A doc whose predicted entities are known to be right or wrong.

    gold, predicted: In order of the text, and without overlaps.
    left_out: How many more were predicted where the gold annotation is missing.
    """

    text: str
    gold: List[Entity]
    predicted: List[Entity]
    left_out: int


def judge(examples: Iterable[Example]) -> List[Judged]:
    """Read the entities of examples.

    Characters are compared, so that it does not matter whether both docs have the same tokens. A
    predicted entity is left out where a token of the gold doc that it touches is marked as missing
    (whitespace aside); a gold entity there still counts.

    Raises ValueError where the predicted doc has another text than the gold doc.
    """
    judged = []
    for i, eg in enumerate(examples):
        if eg.predicted.text != eg.reference.text:
            raise ValueError(
                f"doc {i}: expected a predicted and a gold doc of one text, got "
                f"{eg.predicted.text[:60]!r} and {eg.reference.text[:60]!r}. Give both the same."
            )
        missing = _missing(eg.reference)
        predicted = [_entity(ent) for ent in eg.predicted.ents]
        known = [
            ent
            for ent in predicted
            if not any(start < ent.end and ent.start < end for start, end in missing)
        ]
        gold = [Entity(ent.start_char, ent.end_char, ent.label_) for ent in eg.reference.ents]
        judged.append(Judged(eg.reference.text, gold, known, len(predicted) - len(known)))
    return judged


def _entity(ent: Span) -> Entity:
    # Pipelines of other components may come without the extension.
    confidence = ent._.confidence if Span.has_extension("confidence") else None
    return Entity(ent.start_char, ent.end_char, ent.label_, confidence)


def _missing(gold: Doc) -> List[Tuple[int, int]]:
    """The characters of the tokens without annotation."""
    tokens = [gold[int(i)] for i in np.flatnonzero(gold.to_array("ENT_IOB") == 0)]
    return [(token.idx, token.idx + len(token)) for token in tokens if not token.is_space]
