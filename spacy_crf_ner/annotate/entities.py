"""The entities that a pipeline found in a doc, including overlapping ones."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..input_error import InputError
from ..pipeline.annotation import CONFIDENCE
from ..pipeline.character_spans import SCORES
from ..pipeline.lookup import FACTORY, recognizer, recognizer_names
from .chunking import FoundEntity

# The entities of `doc.ents`, with the key None, and of each `doc.spans[key]`.
Groups = dict[str | None, list[FoundEntity]]
# What spans of a doc could be, by their start and end in characters.
Alternatives = dict[tuple[int, int], list[dict[str, Any]]]


def overlapping_keys(nlp: Language) -> list[str]:
    """Find the keys in `doc.spans` of the overlapping entities of a pipeline; none if it is flat.

    Raises InputError if a later component merges tokens: entities within them would be lost.
    """
    keys: list[str] = []
    for name in nlp.pipe_names:
        meta = nlp.get_pipe_meta(name)
        if meta.factory == FACTORY and (key := recognizer(nlp, name).entities_key) is not None:
            keys.append(key)
        if keys and meta.retokenizes:
            raise InputError(
                f"[{name}] expected no component that merges tokens after overlapping entities, "
                f"got {name!r}: entities within merged tokens would be lost. Remove or disable it."
            )
    return keys


def component_with_alternatives(nlp: Language) -> str:
    """Return the only `crf_ner` component; InputError for none or several, and overlapping ones."""
    names = recognizer_names(nlp)
    if len(names) == 1 and recognizer(nlp, names[0]).entities_key is None:
        return names[0]
    got = "one whose entities may overlap" if len(names) == 1 else ", ".join(names) or "none"
    raise InputError(
        "Alternatives need one crf_ner component, whose entities cannot overlap. This pipeline has "
        f"{got}. Leave out --alternatives."
    )


def group_entities(
    doc: Doc, keys: Iterable[str], offset: int = 0, alternatives: Alternatives | None = None
) -> Groups:
    """Collect the entities of a doc, also overlapping ones under `keys`; add an offset to each."""
    has_confidence = Span.has_extension(CONFIDENCE)
    spans: dict[str | None, list[tuple[Span, float | None]]] = {
        None: [(ent, ent._.confidence if has_confidence else None) for ent in doc.ents]
    }
    for key in keys:
        group = doc.spans[key]
        scores = group.attrs[SCORES]
        if lost := getattr(group, "lost", 0):
            raise InputError(
                f"A component has merged tokens after the entities of doc.spans[{key!r}] were "
                f"predicted: {lost} begin or end within them. Remove or disable it."
            )
        spans[key] = [*zip(group, scores, strict=True)]
    return {
        key: [
            FoundEntity(
                span.start_char + offset,
                span.end_char + offset,
                span.label_,
                None if p is None else float(p),
                (alternatives or {}).get((span.start_char, span.end_char)),
            )
            for span, p in found
        ]
        for key, found in spans.items()
    }


def join_groups(groups: Mapping[str | None, Iterable[FoundEntity]]) -> list[FoundEntity]:
    """Return each entity once, sorted by start, end and label; later groups take precedence."""
    found = {(e.start, e.end, e.label): e for e in chain.from_iterable(groups.values())}
    return [found[span] for span in sorted(found)]
