"""The page of the documents: gold entities beside those of one pipeline, or of two."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape
from spacy import displacy
from spacy.tokens import Doc
from spacy.training import Example

from ..evaluation.matching import Entity, collect_entities
from ..templates import render
from . import tables
from .segments import colors_of, segments

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

    Entities under a key in `doc.spans` may overlap: they are lines under the text. Of more
    documents than a page can have, those with errors come first.

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
    colors = colors_of(labels)
    gold, docs = found[0], []
    for i in _shown([len(doc.text) for doc in gold], [all(each) for each in right]):
        sides = [("Gold", examples[0][i].reference, gold[i].gold, keys[0])]
        for name, own, entities, key in zip(names, examples, found, keys):
            ents = sorted(entities[i].predicted + entities[i].left_out, key=lambda ent: ent.start)
            sides.append((name, own[i].predicted, ents, key))
        docs.append(
            {
                "number": i,
                "text": gold[i].text,
                "kind": KINDS[right[i]],
                "is_wrong": not all(right[i]),
                "labels": sorted({ent.label for _, _, ents, _ in sides for ent in ents}),
                "sides": [
                    (name, segments(doc.text, ents), None)
                    if key is None
                    else (name, [], _lines(doc, ents, colors))
                    for name, doc, ents, key in sides
                ],
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
        colors=colors,
        # Lines have the number without the color.
        has_confidence=results["reliability"] is not None and keys[0] is None,
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


def _lines(doc: Doc, ents: Iterable[Entity], colors: Mapping[str, str]) -> Markup:
    """Draw entities as lines under the text, with displaCy."""
    spans, shown = [], {}
    for ent in ents:
        span = doc.char_span(*ent.span)
        if span is None:  # a span without tokens
            continue
        p = "" if ent.confidence is None else f" {ent.confidence:.3f}"
        label = str(escape(ent.label + p))  # displaCy escapes the text alone
        shown[label] = colors[ent.label]
        spans.append({"start_token": span.start, "end_token": span.end, "label": label})
    parsed = {"tokens": [token.text for token in doc], "spans": spans}
    drawn = displacy.render(
        parsed, style="span", manual=True, jupyter=False, options={"colors": shown}
    )
    return Markup(drawn)
