"""The labels of a pipeline beside those of a gold corpus."""

from collections.abc import Iterable

from spacy.language import Language
from spacy.tokens import Doc

from ..input_error import InputError
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import entity_labels, find_entities_key

SHOWN = 10  # labels in a message


def check_shared_label(
    docs: Iterable[Doc], data: str, nlp: Language, component: str | None = None
) -> None:
    """Raise InputError if no label of gold entities is one that the pipeline can find.

    A corpus without entities, and a pipeline whose labels are unknown, are accepted.
    """
    key = find_entities_key(nlp, component)
    known = entity_labels(nlp, component)
    gold = {ent.label_ for doc in docs for ent in gold_entities(doc, key)}
    if gold and known is not None and gold.isdisjoint(known):
        raise InputError(
            f"{data}: none of its labels is one of the pipeline. The corpus has {_listed(gold)}; "
            f"the pipeline has {_listed(known)}. Use a corpus with the labels of the pipeline, or "
            "rename them."
        )


def _listed(labels: set[str]) -> str:
    shown = ", ".join(sorted(labels)[:SHOWN])
    return f"{len(labels)} ({shown}{', ...' if len(labels) > SHOWN else ''})"
