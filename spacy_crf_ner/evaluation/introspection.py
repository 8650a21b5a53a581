"""What a `crf_ner` component tells of itself, beside its entities."""

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc

from .entities import Entity
from .error_analysis import Posteriors


def transitions(pipe: Any) -> Optional[Dict[str, Any]]:
    """Give the transition scores of a component that has them.

    Returns its "tags", C of them; "scores", C rows of C, from the tag of the row to that of the
    column; "start" and "end", C each. None marks what is forbidden.
    """
    if not hasattr(pipe, "transitions"):
        return None
    found = pipe.transitions()
    return {
        "tags": list(found.tags),
        "scores": _where(found.legal, found.scores),
        "start": _where(found.legal_start, found.start),
        "end": _where(found.legal_end, found.end),
    }


def posteriors(
    nlp: Language, name: str, docs: Sequence[Doc], missed: Sequence[Sequence[Entity]]
) -> Optional[List[Posteriors]]:
    """Compute how probable the component found the entities that it missed.

    The docs are those that it annotated: copies of them lose their entities, and keep the features
    of what ran before it. That asks the model once more for each doc with a missed entity.

    missed: Of each doc.

    Returns of each doc the probability by (start, end, label), 0 where a token or the labels of
    the model do not allow the entity. None where another component sets entities too: then what
    this one was given is not known any more. It is taken to have been given none.
    """
    setters = [each for each in nlp.pipe_names if "doc.ents" in nlp.get_pipe_meta(each).assigns]
    if setters != [name]:
        return None
    pipe: Any = nlp.get_pipe(name)
    return [_of_doc(pipe, doc, ents) for doc, ents in zip(docs, missed)]


def _of_doc(pipe: Any, doc: Doc, ents: Sequence[Entity]) -> Posteriors:
    if not ents:
        return {}
    bare = doc.copy()
    bare.set_ents([], default="missing")
    known = [ent for ent in ents if ent.label in pipe.labels]
    spans = [bare.char_span(*ent.span, ent.label) for ent in known]
    p = iter(pipe.span_posteriors(bare, [span for span in spans if span is not None]))
    found = {(*ent.span, ent.label): 0.0 for ent in ents}
    for ent, span in zip(known, spans):
        if span is not None:
            found[*ent.span, ent.label] = next(p)
    return found


def _where(legal: Any, scores: Any) -> Any:
    """As nested lists, None where it is not legal."""
    cells = np.array(scores, dtype=object)
    cells[~legal] = None
    return cells.tolist()
