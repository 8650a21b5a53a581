"""One-to-one matching of gold and predicted entities."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.label_sets import annotated_labels

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer


class Entity(NamedTuple):
    """A span with a label.

    start, end: Character offsets in the doc.
    confidence: `ent._.confidence` of a predicted entity; None for a gold one, and if unknown.
    """

    start: int
    end: int
    label: str
    confidence: float | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The character offsets."""
        return self.start, self.end


class DocEntities(NamedTuple):
    """The entities of one doc, each list in text order and without overlaps.

    predicted: Predicted entities that the gold annotation can confirm or refute.
    left_out: Predicted entities where gold annotation is missing.
    """

    text: str
    gold: list[Entity]
    predicted: list[Entity]
    left_out: list[Entity]

    def correct(self) -> list[bool]:
        """Return for each predicted entity whether a gold one has the same span and label."""
        gold = {(ent.span, ent.label) for ent in self.gold}
        return [(ent.span, ent.label) in gold for ent in self.predicted]


Match = tuple[Entity | None, Entity | None]  # gold, predicted


def annotated(pipe: "CRFEntityRecognizer", examples: Sequence[Example]) -> list[Example]:
    """Annotate copies of the predicted docs, which the earlier components have processed."""
    docs = [eg.predicted.copy() for eg in examples]
    for _ in pipe.pipe(docs):  # sets the entities in place; error handlers may drop docs
        pass
    return [Example(doc, eg.reference) for doc, eg in zip(docs, examples)]


def collect_entities(examples: Iterable[Example]) -> list[DocEntities]:
    """Read the gold and the predicted entities of examples.

    Offsets are in characters, so the two docs may be tokenized differently. A predicted entity is
    left out if it overlaps a gold token, other than whitespace, without annotation, or if its label
    is not annotated and no gold entity overlaps it. All gold entities count. All numbers of an
    evaluation use this definition.

    Raises InputError if the predicted doc and the gold doc differ in their text.
    """
    return [_collect(i, eg.predicted, eg.reference) for i, eg in enumerate(examples)]


def is_complete(gold: Doc, labels: Iterable[str]) -> bool:
    """Whether all entities of these labels are annotated."""
    annotated = annotated_labels(gold)
    is_whole: bool = gold.has_annotation("ENT_IOB", require_complete=True)
    return is_whole and (annotated is None or annotated >= {*labels})


def match_entities(gold: Sequence[Entity], predicted: Sequence[Entity]) -> list[Match]:
    """Match the gold entities of a doc with the predicted ones, one to one.

    Pairs are chosen greedily: most common characters first, then the same label, then text order.
    Entities that are left over are matched with None. Equal entities always match, because the
    entities of one doc do not overlap.

    Returns the matches (gold, predicted) in text order; each entity is in exactly one of them.
    """
    ranked = sorted(
        _overlaps(gold, predicted),
        key=lambda match: (-_common(*match), match[0].label != match[1].label),
    )
    chosen: dict[Entity, Entity] = {}
    taken = set()
    for g, p in ranked:
        if g not in chosen and p not in taken:
            chosen[g] = p
            taken.add(p)
    matches: list[Match] = [(g, chosen.get(g)) for g in gold]
    matches += [(None, p) for p in predicted if p not in taken]
    return sorted(matches, key=lambda match: min(ent.span for ent in match if ent))


def _collect(i: int, predicted: Doc, gold: Doc) -> DocEntities:
    if predicted.text != gold.text:
        raise InputError(
            f"doc {i}: expected a predicted and a gold doc with the same text, got "
            f"{predicted.text[:60]!r} and {gold.text[:60]!r}. Use the same text for both."
        )
    missing = _missing_characters(gold)
    known: list[Entity] = []
    left_out: list[Entity] = []
    # Only crf_ner registers the extension.
    has_confidence = Span.has_extension("confidence")
    for ent in predicted.ents:
        confidence = ent._.confidence if has_confidence else None
        found = Entity(ent.start_char, ent.end_char, ent.label_, confidence)
        unknown = missing[found.start : found.end].any() or _is_unannotated(gold, found)
        (left_out if unknown else known).append(found)
    entities = [Entity(ent.start_char, ent.end_char, ent.label_) for ent in gold.ents]
    return DocEntities(gold.text, entities, known, left_out)


def _is_unannotated(gold: Doc, ent: Entity) -> bool:
    """Whether the label of an entity is not annotated, and no gold entity overlaps it."""
    labels = annotated_labels(gold)
    return not (
        labels is None
        or ent.label in labels
        or any(g.start_char < ent.end and ent.start < g.end_char for g in gold.ents)
    )


def _missing_characters(gold: Doc) -> NDArray[np.bool_]:
    """Mark the characters of tokens without annotation, except whitespace."""
    missing = np.zeros(len(gold.text), dtype=bool)
    for i in np.flatnonzero(gold.to_array("ENT_IOB") == 0).tolist():
        token = gold[i]
        missing[token.idx : token.idx + len(token)] = not token.is_space
    return missing


def _overlaps(
    gold: Sequence[Entity], predicted: Sequence[Entity]
) -> Iterator[tuple[Entity, Entity]]:
    """Yield the pairs that share a character, in text order."""
    g = p = 0
    while g < len(gold) and p < len(predicted):
        if _common(gold[g], predicted[p]) > 0:
            yield gold[g], predicted[p]
        if gold[g].end < predicted[p].end:
            g += 1
        else:
            p += 1


def _common(g: Entity, p: Entity) -> int:
    """Return the number of common characters; 0 or less if there are none."""
    return min(g.end, p.end) - max(g.start, p.start)
