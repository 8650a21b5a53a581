"""Checks that the components that a pipe listens to are in the pipeline and have run."""

from collections.abc import Sequence

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc

from ..input_error import InputError
from .spacy_internals import listened_to, listeners


def require_upstream(pipe: TrainablePipe, nlp: Language) -> None:
    """Raise InputError if a component that the pipe listens to is not in the pipeline."""
    sources = listened_to(nlp)
    for upstream, factory in listeners(pipe.model):
        if not sources if upstream == "*" else upstream not in sources:
            name = factory if upstream == "*" else upstream
            raise InputError(
                f"[{pipe.name}] listens to {name!r}, which is not in the pipeline "
                f"{nlp.component_names}. Add it before this component: "
                f"nlp.add_pipe({factory!r}, before={pipe.name!r})."
            )


def require_features(pipe: TrainablePipe, docs: Sequence[Doc]) -> None:
    """Raise InputError for docs without the features of an upstream component.

    spaCy's listeners would read zeros instead.
    """
    for upstream, factory in listeners(pipe.model):
        name = factory if upstream == "*" else upstream
        for doc in docs:
            if factory == "tok2vec":
                absent = doc.tensor.size == 0
            else:
                absent = not doc.has_extension("trf_data") or doc._.trf_data is None
            if absent and len(doc):
                raise InputError(
                    f"[{pipe.name}] listens to {name!r}, which has not run on the doc "
                    f"{doc.text[:60]!r}. Add it to the pipeline before this component, or "
                    f"enable it: nlp.enable_pipe({name!r})."
                )
