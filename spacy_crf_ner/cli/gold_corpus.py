"""Corpora with gold entities, annotated by a pipeline."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..input_error import InputError
from .console import tracked

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example


def read_examples(nlp: "Language", corpus: Path, component: str | None = None) -> "list[Example]":
    """Read gold docs, each with an unannotated predicted doc, as `spacy train` does.

    The corpus can be in any format of `convert`. Raises InputError if no label of it is one of the
    pipeline.
    """
    from spacy.training import Corpus

    from ..data import ConversionLog, read_gold
    from ..evaluation import check_shared_label
    from ..pipeline.lookup import find_entities_key

    log = ConversionLog(spans_key=find_entities_key(nlp, component))
    _, docs = read_gold(corpus, nlp, log)  # its errors include the place
    gold = [*docs]
    for kind, number in sorted(log.counts.items()):
        typer.echo(f"{corpus}: {kind.replace('.', ' ')} {number}", err=True)
    check_shared_label(gold, str(corpus), nlp, component)
    for i, doc in enumerate(gold, 1):
        # Without known spaces, the tokens are read, not the text.
        if len(doc.text) > nlp.max_length and not doc.has_unknown_spaces:
            raise InputError(
                f"{corpus}, doc {i}: expected at most {nlp.max_length:,} characters, the "
                f"max_length of the pipeline, got {len(doc.text):,}. Divide the document."
            )
    if empty := sum(not len(doc) for doc in gold):
        typer.echo(f"Left out, and not numbered: {empty} docs without tokens", err=True)
    return list(Corpus(corpus).make_examples(nlp, gold))


def warn_if_trained_on(nlp: "Language", model: str, examples: "list[Example]") -> None:
    """Warn of documents that a pipeline was trained on."""
    from ..evaluation.held_out import seen_in_training

    if seen := seen_in_training(nlp, examples):
        typer.echo(
            f"Warning: {model} was trained on {seen} of the {len(examples)} documents. Its scores "
            "on new documents are lower.",
            err=True,
        )


def predict_corpus(
    model: str, corpus: Path, component: str | None, gpu_id: int, dtype: str | None
) -> "tuple[Language, list[Example]]":
    """Load a pipeline and annotate the docs of a corpus that has gold entities.

    A component that the pipeline does not have is not an error: then its only one counts, if any.
    """
    from .. import evaluation
    from ..pipeline.load import load
    from ..pipeline.lookup import find_entities_key, recognizer_names

    nlp = load(model, gpu_id, dtype)
    named = component if component in recognizer_names(nlp) else None
    examples = read_examples(nlp, corpus, named)
    key = find_entities_key(nlp, named)
    evaluation.check_gold(examples, str(corpus), key)
    annotate_examples(nlp, examples)
    return nlp, examples


def annotate_examples(nlp: "Language", examples: "list[Example]") -> None:
    """Annotate the predicted docs of examples, with a progress bar.

    A doc that an error handler of the pipeline drops has no entities, and is counted in a warning.
    """
    # Annotate copies: a doc may fail after some components have changed it.
    pairs = nlp.pipe(((eg.predicted.copy(), eg) for eg in examples), as_tuples=True)
    failed = len(examples)
    for doc, eg in tracked(pairs, "Predicting", len(examples)):
        eg.predicted = doc
        failed -= 1
    if failed:
        typer.echo(f"Warning: {failed} docs failed and count as docs without entities", err=True)
