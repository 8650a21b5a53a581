"""Train a trained component on: with new labels, and with rehearsal of its predictions."""

from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.training import Corpus, Example

from ..input_error import InputError

CALLBACK = "spacy-crf-ner.rehearse.v1"
BeforeUpdate = Callable[[Language, dict[str, Any]], None]


def rehearse(
    path: Path, component: str = "ner", labels: list[str] | None = None, batch_size: int = 16
) -> BeforeUpdate:
    """Make `spacy-crf-ner.rehearse.v1`, for `[training.before_update]`.

    Before each update, the component trains on a batch of docs to repeat the predictions it made
    when training began. Its gradients are added to the update. The component must be sourced from a
    trained pipeline.

    The callback raises InputError for a file without docs, and if the component is missing, cannot
    rehearse or is not trained.

    Args:
        path: A .spacy file of docs; their annotation is not read.
        component: The component to rehearse.
        labels: Labels to add to it before the first update; the old ones are kept.
        batch_size: Docs per batch.
    """
    corpus = Corpus(path)
    raw: Iterator[Example] | None = None
    following = 0  # the step whose docs are next

    def before_update(nlp: Language, info: dict[str, Any]) -> None:
        nonlocal raw, following
        if raw is None:
            _begin(nlp, component, labels or [])
            if next(corpus(nlp), None) is None:
                raise InputError(f"{path}: expected docs to rehearse, got none with a token.")
        step = info.get("step", following)
        if raw is None or step < following:
            # Read the file again each time: upstream components annotate the docs.
            raw, following = chain.from_iterable(corpus(nlp) for _ in count()), 0
        skipped = (step - following) * batch_size  # of steps before a training was resumed
        if skipped:
            skipped %= sum(1 for _ in corpus(nlp))
        docs = [eg.predicted for eg in islice(raw, skipped, skipped + batch_size)]
        following = step + 1
        pipes: Any = nlp.pipeline
        for name, pipe in pipes:
            if name == component:
                pipe.rehearse([Example(doc, doc) for doc in docs])
                break
            docs = list(pipe.pipe(docs))

    return before_update


def _begin(nlp: Language, component: str, labels: list[str]) -> None:
    """Check the component, and add labels to it."""
    pipe: Any = nlp.get_pipe(component) if component in nlp.pipe_names else None
    if getattr(pipe, "_rehearsal_model", None) is None:
        raise InputError(
            f"rehearse: expected a trained {component!r}, one of the components {nlp.pipe_names}, "
            f'got none. Source it from a pipeline: [components.{component}] source = "path/to/it".'
        )
    for label in labels:
        pipe.add_label(label)


def add_labels(labels: list[str], component: str = "ner") -> Callable[[Language], Language]:
    """Make `spacy-crf-ner.add_labels.v1`, for `[initialize.after_init]`.

    A component that is sourced from a trained pipeline gets more labels, before it is trained on.

    The callback raises InputError if the component is missing or not trained, and for a label that
    is empty or begins with "!".

    Args:
        labels: The labels; those that it has already remain as they are.
        component: Name of the component.
    """

    def after_init(nlp: Language) -> Language:
        # Sourced components are disabled meanwhile.
        pipe: Any = nlp.get_pipe(component) if component in nlp.component_names else None
        if not getattr(pipe, "labels", ()):
            raise InputError(
                f"add_labels: expected a trained {component!r}, got {nlp.component_names} without "
                f'one. Source it: [components.{component}] source = "path/to/pipeline".'
            )
        for label in labels:
            pipe.add_label(label)
        return nlp

    return after_init
