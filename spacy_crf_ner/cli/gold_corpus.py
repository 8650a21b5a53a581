"""Corpora with gold entities, and what a pipeline predicts in them."""

from pathlib import Path
from typing import List, Optional, Tuple

from rich.progress import (
    track,
)
from spacy.language import Language
from spacy.training import Corpus, Example

from .. import evaluation
from ..docbin import SUFFIX, read_docbin
from ..pipeline.load import load


def read_examples(nlp: Language, corpus: Path) -> List[Example]:
    """Read gold docs, each beside one without annotation, as `spacy train` does."""
    if corpus.is_file() and corpus.suffix != SUFFIX:
        raise ValueError(
            f"{corpus}: expected a file {SUFFIX}, or a folder of such, got another. "
            "Convert the corpus with spacy-crf-ner convert."
        )
    read_docbin(corpus, nlp.vocab)  # its errors are one sentence
    return list(Corpus(corpus)(nlp))


def predict_corpus(
    model: str, corpus: Path, gpu_id: int, precision: Optional[str]
) -> Tuple[Language, List[Example]]:
    """Load a pipeline, and let it annotate the docs of a corpus that has gold entities."""
    nlp = load(model, gpu_id, precision)
    examples = read_examples(nlp, corpus)
    evaluation.require_gold(examples, str(corpus))
    annotate_examples(nlp, examples)
    return nlp, examples


def annotate_examples(nlp: Language, examples: List[Example]) -> None:
    """Let a pipeline predict, and show how far it is."""
    docs = nlp.pipe(eg.predicted for eg in examples)
    for doc, eg in zip(track(docs, "Predicting", total=len(examples)), examples):
        eg.predicted = doc
