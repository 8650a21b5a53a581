"""One-to-one matching of gold and predicted entities."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX, ORTH
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Corpus, Example

from ..input_error import InputError
from ..ml.zero_width import is_blank
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.annotation import CONFIDENCE, delete_confidence
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import later_names

if TYPE_CHECKING:
    from ..pipeline.crf_ner import CRFEntityRecognizer

BATCH = 128  # docs, as of spaCy's `TrainablePipe.pipe`


class Entity(NamedTuple):
    """A span of characters of a doc, with a label; the confidence is None for a gold entity."""

    start: int
    end: int  # the character after its last
    label: str
    confidence: float | None = None

    @property
    def span(self) -> tuple[int, int]:
        """The character offsets."""
        return self.start, self.end


class DocEntities(NamedTuple):
    """The entities of one doc, each list in text order. No two in a list are equal."""

    text: str
    gold: list[Entity]
    predicted: list[Entity]  # those that the gold annotation can confirm or refute
    left_out: list[Entity]  # those predicted where gold annotation is missing

    def correct(self) -> list[bool]:
        """Return for each predicted entity whether a gold one has the same span and label."""
        gold = {(ent.span, ent.label) for ent in self.gold}
        return [(ent.span, ent.label) in gold for ent in self.predicted]

    def judged(self) -> list[tuple[float, bool]]:
        """Return the confidence of each predicted entity that has one, and whether it is correct.

        Preset entities, and those of other components, have none.
        """
        both = zip(self.predicted, self.correct())
        return [(ent.confidence, right) for ent, right in both if ent.confidence is not None]


Match = tuple[Entity | None, Entity | None]  # gold, predicted


def annotated(pipe: "CRFEntityRecognizer", examples: Sequence[Example]) -> list[Example]:
    """Annotate copies of the predicted docs, which the earlier components have processed.

    Preset entities have no confidence, also if an earlier `crf_ner` has found them.
    """
    docs = [eg.predicted.copy() for eg in examples]
    presets = [() if pipe.overwrite else doc.ents for doc in docs]
    on_error = pipe.get_error_handler()
    for i in range(0, len(docs), BATCH):
        try:  # as `pipe` does, but for the given docs, whose scores can be at hand
            found = pipe.predict([eg.predicted for eg in examples[i : i + BATCH]])
            pipe.set_annotations(docs[i : i + BATCH], found)
        except Exception as error:
            on_error(pipe.name, pipe, docs[i : i + BATCH], error)
    for ents in presets:
        delete_confidence(ents)
    return [Example(doc, eg.reference) for doc, eg in zip(docs, examples)]


def without_disabled(pipe: "CRFEntityRecognizer", examples: Sequence[Example]) -> list[Example]:
    """Take entities of labels that a component does not predict out of copies of the gold docs."""
    off = {*pipe.labels} - {*pipe.enabled_labels}
    result = []
    for eg in examples:
        gold = eg.reference
        disabled = [ent for ent in gold.ents if ent.label_ in off]
        if disabled:
            gold = gold.copy()
            gold.set_ents([], outside=disabled, default="unmodified")
        result.append(Example(eg.predicted, gold))
    return result


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


def without_entities(doc: Doc) -> Doc:
    """Copy a doc without its entities, for a component to predict it again."""
    bare = doc.copy()
    bare.set_ents([], default="missing")
    return bare


def span_probabilities(
    pipe: "CRFEntityRecognizer", docs: Sequence[Doc], ents: Sequence[Sequence[Entity]]
) -> list[dict[Entity, float]]:
    """Compute the probability of each entity; 0 if the tokens or labels do not allow it."""
    possible: list[dict[Entity, Span]] = []
    for doc, of_doc in zip(docs, ents, strict=True):
        known = (ent for ent in of_doc if ent.label in pipe.labels)
        spans = ((ent, doc.char_span(*ent.span, ent.label)) for ent in known)
        possible.append({ent: span for ent, span in spans if span is not None})
    found = pipe.span_posteriors_of(docs, [of_doc.values() for of_doc in possible])
    return [
        dict.fromkeys(of_doc, 0.0) | dict(zip(spans, ps))
        for of_doc, spans, ps in zip(ents, possible, found)
    ]


def collect_entities(examples: Iterable[Example], key: str | None = None) -> list[DocEntities]:
    """Read the gold and the predicted entities of examples.

    Offsets are in characters, so the two docs may be tokenized differently. A predicted entity is
    left out if it overlaps a gold token, other than whitespace, without annotation, or if its label
    is not annotated and no gold entity overlaps it. All gold entities count. All numbers of an
    evaluation use this definition. Raises InputError if a predicted and a gold doc differ in text.

    Args:
        key: The key of overlapping entities in `doc.spans`; None for those in `doc.ents`. Gold
            entities are in `doc.ents` of docs without this key. Docs with it have annotation at all
            tokens. An entity whose label is not annotated is left out, whatever it overlaps.
    """
    return [_collect(i, eg.predicted, eg.reference, key) for i, eg in enumerate(examples)]


def match_entities(gold: Sequence[Entity], predicted: Sequence[Entity]) -> list[Match]:
    """Match the gold entities of a doc with the predicted ones, one to one.

    Pairs are chosen greedily: the same span first, then most common characters, then the same
    label, then text order. Entities that are left over are matched with None. So equal entities
    always match. The matches (gold, predicted) are in text order.
    """
    chosen: dict[Entity, Entity] = {}
    taken = set()
    for g, p in sorted(overlaps(gold, predicted), key=_rank):
        if g not in chosen and p not in taken:
            chosen[g] = p
            taken.add(p)
    matches: list[Match] = [(g, chosen.get(g)) for g in gold]
    matches += [(None, p) for p in predicted if p not in taken]
    return sorted(matches, key=lambda match: min(ent.span for ent in match if ent))


def overlaps(
    gold: Sequence[Entity], predicted: Sequence[Entity]
) -> Iterator[tuple[Entity, Entity]]:
    """Find the pairs that share a character, by a sweep over the starts of entities."""
    both = [(ent, side) for side, ents in enumerate((gold, predicted)) for ent in ents]
    active: tuple[list[Entity], list[Entity]] = ([], [])  # those that have not ended
    for ent, side in sorted(both, key=lambda each: each[0].start):
        others = active[1 - side]
        others[:] = [other for other in others if other.end > ent.start]
        active[side].append(ent)
        for other in others:
            yield (other, ent) if side else (ent, other)


def _collect(i: int, predicted: Doc, gold: Doc, key: str | None) -> DocEntities:
    predicted_text, text = predicted.text, gold.text  # each joins all tokens
    if predicted_text != text:
        raise InputError(
            f"doc {i}: expected a predicted and a gold doc with the same text, got "
            f"{predicted_text[:60]!r} and {text[:60]!r}. Use the same text for both."
        )
    missing = _missing_characters(gold, len(text), key)
    known: list[Entity] = []
    left_out: list[Entity] = []
    for found in _predicted(predicted, key):
        unknown = missing[found.start : found.end].any() or _is_unannotated(gold, found, key)
        (left_out if unknown else known).append(found)
    ents = sorted(set(map(entity, gold_entities(gold, key))))
    return DocEntities(text, ents, known, left_out)


def _predicted(doc: Doc, key: str | None) -> list[Entity]:
    # Only crf_ner registers the extension.
    has_confidence = Span.has_extension(CONFIDENCE)
    ents = [entity(ent, ent._.confidence if has_confidence else None) for ent in doc.ents]
    if key is None or key not in doc.spans:
        return ents if key is None else []
    group = doc.spans[key]
    scores = group.attrs.get("scores", ())
    if len(scores) != len(group):  # another component has replaced the spans
        scores = [None] * len(group)
    found: dict[Entity, float | None] = {}
    for span, p in zip(group, scores):
        same = entity(span)
        found[same] = None if p is None else max(float(p), found.get(same) or float(p))
    for ent in ents:  # preset entities have the score 1.0, but no confidence, or an earlier one
        same = ent._replace(confidence=None)
        if found.get(same) == 1.0:
            found[same] = ent.confidence
    return [ent._replace(confidence=p) for ent, p in sorted(found.items())]


def entity(span: Span, confidence: float | None = None) -> Entity:
    """Describe a span by its characters and its label."""
    return Entity(span.start_char, span.end_char, span.label_, confidence)


def _is_unannotated(gold: Doc, ent: Entity, key: str | None) -> bool:
    """Whether the label of an entity is not annotated, and no entity beside it excludes others."""
    labels = annotated_labels(gold)
    if labels is None or ent.label in labels:
        return False
    beside = gold.ents if key is None else ()
    return not any(g.start_char < ent.end and ent.start < g.end_char for g in beside)


def _missing_characters(gold: Doc, length: int, key: str | None) -> NDArray[np.bool_]:
    """Mark the characters of tokens without annotation, except whitespace."""
    missing = np.zeros(length, dtype=bool)
    if key is not None and key in gold.spans:
        return missing
    for i in np.flatnonzero(gold.to_array("ENT_IOB") == 0).tolist():
        token = gold[i]
        missing[token.idx : token.idx + len(token)] = not is_blank(token.text)
    return missing


def _rank(match: tuple[Entity, Entity]) -> tuple[object, ...]:
    """Sort key of a pair that shares a character: the best match first."""
    g, p = match
    common = min(g.end, p.end) - max(g.start, p.start)
    # All pairs of one span share as many characters, so the equal ones are first among them.
    return g.span != p.span, -common, g.label != p.label, g[:3], p[:3]
