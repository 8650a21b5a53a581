"""Find the `crf_ner` component of a pipeline, and what runs before and after it."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from spacy.language import DisabledPipes, Language
from spacy.training import Example
from thinc.api import Model

from ..input_error import InputError
from .calibration import calibration_of
from .crf_ner import CRFEntityRecognizer

FACTORY = "crf_ner"


def recognizer_names(nlp: Language) -> list[str]:
    """Return the names of all of these components."""
    return [each for each in nlp.pipe_names if nlp.get_pipe_meta(each).factory == FACTORY]


def recognizer_name_or_none(nlp: Language, name: str | None = None) -> str | None:
    """Return the name of the component; None if there is none and no name is given.

    Raises InputError if there are several and no name is given, or none has this name.
    """
    found = recognizer_names(nlp)
    if name is None and len(found) <= 1:
        return found[0] if found else None
    if name not in found:
        raise InputError(
            f"component: expected one of {found}, got {name or 'none'}. Name a {FACTORY} component "
            "of the pipeline."
        )
    return name


def recognizer_name(nlp: Language, name: str | None = None) -> str:
    """Return the name of the component, as `recognizer_name_or_none`; InputError without one."""
    found = recognizer_name_or_none(nlp, name)
    if found is None:
        raise InputError(
            f"component: expected a pipeline with a {FACTORY} component, got one with "
            f"{nlp.pipe_names}. Use a pipeline that has this component."
        )
    return found


def recognizer(nlp: Language, name: str | None = None) -> CRFEntityRecognizer:
    """Return the component; raises InputError as `recognizer_name`."""
    return cast(CRFEntityRecognizer, nlp.get_pipe(recognizer_name(nlp, name)))


def find_entities_key(nlp: Language, component: str | None = None) -> str | None:
    """Find the key of overlapping entities in `doc.spans`; None if they do not overlap."""
    name = recognizer_name_or_none(nlp, component)
    return None if name is None else recognizer(nlp, name).entities_key


def sets_entities_alone(nlp: Language, name: str) -> bool:
    """Whether no other component of the pipeline sets entities."""
    return [each for each, pipe in nlp.pipeline if _sets_entities(nlp, each, pipe)] == [name]


def _sets_entities(nlp: Language, name: str, pipe: Any) -> bool:
    of_span_ruler = bool(getattr(pipe, "annotate_ents", False))
    return "doc.ents" in nlp.get_pipe_meta(name).assigns or of_span_ruler


def later_names(nlp: Language, name: str) -> list[str]:
    """Return the names of the components after one: they may change its tokens and its spans."""
    return nlp.pipe_names[nlp.pipe_names.index(name) + 1 :]


def entity_labels(nlp: Language, component: str | None = None) -> set[str] | None:
    """Return the labels of the entities that a pipeline can find; None if they are unknown.

    They are, if a component does not say what it assigns, or which labels it has. Overlapping
    entities of a `crf_ner` are in `doc.spans` alone.
    """
    if find_entities_key(nlp, component) is not None:
        return {*recognizer(nlp, component).labels}
    found: set[str] = set()
    pipe: Any
    for name, pipe in nlp.pipeline:
        labels = getattr(pipe, "labels", None) if _sets_entities(nlp, name, pipe) else ()
        if not nlp.get_pipe_meta(name).assigns or labels is None:
            return None
        found.update(labels)
    return found or None


def upstream_only(nlp: Language, name: str) -> DisabledPipes:
    """Let only the components before one run, as a context manager."""
    return nlp.select_pipes(disable=nlp.pipe_names[nlp.pipe_names.index(name) :])


def read_components(nlp: Language, name: str) -> dict[str, Any]:
    """Return the components that run before one, and itself, by name."""
    names = nlp.component_names[: nlp.component_names.index(name)]
    return {each: nlp.get_pipe(each) for each in (*names, name) if each not in nlp.disabled}


def model_layers(pipe: Any) -> Iterator[Model[Any, Any]]:
    """Yield the layers of a component's model; none if it has no model."""
    model = getattr(pipe, "model", None)
    if isinstance(model, Model):
        yield from model.walk()


def run_upstream(nlp: Language, name: str, examples: Iterable[Example]) -> list[Example]:
    """Let the components before one process copies of the predicted docs."""
    pairs = ((eg.predicted.copy(), eg.reference) for eg in examples)
    with upstream_only(nlp, name):
        return [Example(doc, gold) for doc, gold in nlp.pipe(pairs, as_tuples=True)]


def calibrations(nlp: Language) -> list[str]:
    """Describe for each `crf_ner` component whether its confidences are calibrated."""
    names = recognizer_names(nlp)
    return [
        f"{f'[{name}] ' if len(names) > 1 else ''}{calibration_of(recognizer(nlp, name))}"
        for name in names
    ]
