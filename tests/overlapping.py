"""A small pipeline of overlapping entities, and those that it learns by heart."""

from functools import lru_cache

import spacy
from spacy.language import Language
from spacy.tokens import Span
from spacy.training import Example

from pipelines import TOK2VEC, train

TEXT = "The king of France met the University of Oslo president in Oslo."
# Of each text in characters, sorted by start, end and label.
LEARNED = {
    TEXT: [
        (0, 8, "PER"),  # The king, in the PER of the next line
        (0, 18, "PER"),
        (12, 18, "LOC"),
        (23, 55, "PER"),
        (27, 45, "ORG"),
        (41, 45, "LOC"),
        (59, 63, "LOC"),
    ],
    "Oslo won": [(0, 4, "LOC"), (0, 4, "ORG")],
    "It rains.": [],
}


@lru_cache
def make_overlapping() -> Language:
    """Train a pipeline whose `crf_ner` component has overlapping entities; not to be changed."""
    nlp = spacy.blank("en")
    settings = {"overlap": True, "max_nesting": 2}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": TOK2VEC}, **settings})
    examples = []
    for text, entities in LEARNED.items():
        gold = nlp.make_doc(text)
        tokens = [gold.char_span(start, end, label) for start, end, label in entities]
        gold.spans["sc"] = [Span(gold, span.start, span.end, span.label_) for span in tokens]
        examples.append(Example(nlp.make_doc(text), gold))
    train(nlp, examples, steps=60)
    return nlp
