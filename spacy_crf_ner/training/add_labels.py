"""New labels for a trained component in `spacy train`."""

from collections.abc import Callable
from typing import Any

from spacy.language import Language

from ..input_error import InputError


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
