"""Rehearsal in `spacy train`: what a trained component knew is practised beside what is new."""

from itertools import cycle, islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..docbin import read_docbin

BeforeUpdate = Callable[[Language, Dict[str, Any]], None]


def rehearse(
    path: Path, component: str = "ner", labels: Optional[List[str]] = None, batch_size: int = 16
) -> BeforeUpdate:
    """Make `spacy-crf-ner.rehearse.v1`, for `[training.before_update]`.

    Before each update a batch of docs is practised with what the component predicted for them
    when training began; the gradients go into the update. For a component that is sourced from a
    trained pipeline.

    path: A .spacy file of docs; whether they are annotated does not matter.
    component: The component that practises.
    labels: Labels to add to it before the first update; the old ones are kept.
    batch_size: Docs a batch.

    The callback raises ValueError for a file without docs, and where the component is not there,
    cannot rehearse or was not trained before.
    """
    batches: List[Iterator[Doc]] = []

    def before_update(nlp: Language, info: Dict[str, Any]) -> None:
        if not batches:
            _begin(nlp, component, labels or [])
            docs = list(read_docbin(Path(path), nlp.vocab)[1])
            if not any(len(doc) for doc in docs):
                raise ValueError(f"{path}: expected docs to rehearse, got none with a token.")
            batches.append(cycle(docs))
        practised = [_fresh(doc) for doc in islice(batches[0], batch_size)]
        pipes: Any = nlp.pipeline
        for name, pipe in pipes:
            if name == component:
                pipe.rehearse([Example(doc, doc) for doc in practised])
                break
            practised = list(pipe.pipe(practised))

    return before_update


def _begin(nlp: Language, component: str, labels: List[str]) -> None:
    """Check the component, and add labels to it."""
    if component not in nlp.pipe_names:
        raise ValueError(
            f"rehearse: expected one of the components {nlp.pipe_names}, got {component!r}. "
            "Name the one to rehearse in [training.before_update]."
        )
    pipe: Any = nlp.get_pipe(component)
    if getattr(pipe, "_rehearsal_model", None) is None:
        raise ValueError(
            f"rehearse: expected a trained {component!r}, got one that training begins with. "
            f'Take it from a pipeline: [components.{component}] source = "path/to/pipeline".'
        )
    for label in labels:
        pipe.add_label(label)


def _fresh(doc: Doc) -> Doc:
    """The words of a doc, without annotation."""
    words = [token.text for token in doc]
    return Doc(doc.vocab, words=words, spaces=[bool(token.whitespace_) for token in doc])
