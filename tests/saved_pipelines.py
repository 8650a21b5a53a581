"""Pipelines of each kind, to be saved, and what they predict."""

from collections.abc import Callable
from typing import Any

import numpy as np
import spacy
from spacy.language import Language

from overlapping import TEXT, make_overlapping
from pipelines import (
    LISTENER,
    OWN_TRANSFORMER,
    SENTENCES,
    TOK2VEC,
    add_shared,
    make_examples,
)
from spacy_crf_ner.export import export_pipeline

CHARACTERS = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1", "word_rows": 50}


def untrained(tok2vec: dict[str, Any], transformer: str | None = None) -> Language:
    """A pipeline with random weights; transformer: the folder of one that it listens to."""
    nlp = spacy.blank("en")
    if transformer is not None:
        add_shared(nlp, transformer)
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def with_vectors() -> Language:
    """A pipeline over characters and static vectors."""
    nlp = spacy.blank("en")
    for word in ("Tim", "Cook", "Hanoi"):
        nlp.vocab.set_vector(word, np.array([len(word), 1.0, -1.0], dtype="f"))
    tok2vec = {**CHARACTERS, "static_vectors": True}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


# Each is made with the folder of a small transformer.
PIPELINES: dict[str, Callable[[str], Language]] = {
    "words": lambda bert: untrained(TOK2VEC),
    "characters": lambda bert: with_vectors(),
    "overlapping": lambda bert: make_overlapping(),
    "shared transformer": lambda bert: untrained(LISTENER, bert),
    "own transformer": lambda bert: untrained({**OWN_TRANSFORMER, "name": bert}),
    "exported characters": lambda bert: export_pipeline(untrained(CHARACTERS)),
    "exported transformer": lambda bert: export_pipeline(untrained(LISTENER, bert)),
}


def predictions(nlp: Language) -> list[Any]:
    """What a pipeline finds in some texts, with probabilities."""
    found = []
    for doc in nlp.pipe([*(text for text, _ in SENTENCES), TEXT]):
        groups = sorted((str(key), [*group]) for key, group in doc.spans.items())
        spans = [*doc.ents, *(span for _, group in groups for span in group)]
        found.append(
            [
                [span.start_char, span.end_char, span.label_, round(span._.confidence or 0, 4)]
                for span in spans
            ]
        )
    return found
