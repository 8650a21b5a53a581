"""The page of the documents: gold entities beside those of one pipeline, or of two."""

from collections.abc import Sequence
from typing import Any

from spacy.training import Example

from ..evaluation.matching import collect_entities
from ..templates import render
from . import tables
from .segments import colors_of, draw

MAX_CHARACTERS = 1_000_000  # of the documents in the page
MARKUP = 200  # characters that a document counts beside its text
# Kinds of documents, by whether each pipeline has found the gold entities and no others.
KINDS = {
    (False,): "with errors",
    (True,): "without errors",
    (False, True): "right in new only",
    (True, False): "right in old only",
    (False, False): "errors in both",
    (True, True): "right in both",
}


def documents_page(results: dict[str, Any], *examples: Sequence[Example]) -> str:
    """Render the gold entities of each document beside the predicted ones, as one page.

    Of more documents than a page can have, those with errors come first.

    Args:
        results: The result of `evaluation.evaluate`, or of `compare` for two pipelines.
        examples: Those of the pipeline; of both, the old one first, for two.
    """
    names, keys = ["Predicted"], [results["entities_key"]]
    if (comparison := results["comparison"]) is not None:
        names, keys = ["Old", "New"], [*keys, comparison["other"]["entities_key"]]
    found = [collect_entities(own, key) for own, key in zip(examples, keys)]
    right = [
        tuple(len(doc.gold) == len(doc.predicted) == sum(doc.correct()) for doc in of_doc)
        for of_doc in zip(*found)
    ]
    labels = {ent.label for docs in found for doc in docs for ents in doc[1:] for ent in ents}
    gold, docs = found[0], []
    for i in _shown([len(doc.text) for doc in gold], [all(each) for each in right]):
        sides = {"Gold": gold[i].gold}
        sides |= {name: own[i].predicted + own[i].left_out for name, own in zip(names, found)}
        docs.append(
            {
                "number": i,
                "text": gold[i].text,
                "kind": KINDS[right[i]],
                "is_wrong": not all(right[i]),
                "labels": sorted({ent.label for ents in sides.values() for ent in ents}),
                "sides": {name: draw(gold[i].text, ents) for name, ents in sides.items()},
            }
        )
    kinds = [kind for each, kind in KINDS.items() if len(each) == len(names)]
    return render(
        "documents.html.j2",
        "articles.js",
        title="Documents",
        facts=tables.facts(results),
        docs=docs,
        left_out=len(gold) - len(docs),
        colors=colors_of(labels),
        has_confidence=results["reliability"] is not None,
        filters={"Kind": kinds, "Label": sorted(labels)},
    )


def _shown(sizes: Sequence[int], is_right: Sequence[bool]) -> list[int]:
    """Return the numbers of the documents in the page: all, if they fit, else the wrong first."""
    shown: list[int] = []
    size = 0
    for i in sorted(range(len(sizes)), key=lambda i: is_right[i]):
        size += sizes[i] + MARKUP
        if shown and size > MAX_CHARACTERS:
            return shown
        shown.append(i)
    return sorted(shown)
