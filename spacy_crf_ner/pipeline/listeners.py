"""The components that a pipe listens to: whether they are there, and have run."""

from typing import Any, Iterator, Sequence

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc
from thinc.api import Model


def listens(pipe: TrainablePipe) -> bool:
    """Tell whether a pipe listens to another component."""
    return any(True for _ in _listeners(pipe))


def require_upstream(pipe: TrainablePipe, nlp: Language) -> None:
    """Refuse a pipeline that lacks a component the pipe listens to: raises ValueError."""
    for listener in _listeners(pipe):
        upstream = listener.upstream_name  # type: ignore[attr-defined]
        sources = [name for name, other in nlp.components if hasattr(other, "listener_map")]
        if not sources if upstream == "*" else upstream not in sources:
            raise ValueError(
                f"[{pipe.name}] listens to {_name(listener)!r}, which is not in the "
                f"pipeline {nlp.component_names}. Add it before this component: "
                f"nlp.add_pipe({_factory(listener)!r}, before={pipe.name!r})."
            )


def require_features(pipe: TrainablePipe, docs: Sequence[Doc]) -> None:
    """Refuse docs without the features that a listener reads, which would give zeros.

    Raises ValueError.
    """
    for listener in _listeners(pipe):
        factory = _factory(listener)
        for doc in docs:
            if factory == "tok2vec":
                absent = doc.tensor.size == 0
            else:
                absent = not doc.has_extension("trf_data") or doc._.trf_data is None
            if absent and len(doc):
                wanted = _name(listener)
                raise ValueError(
                    f"[{pipe.name}] listens to {wanted!r}, which has not run on the doc "
                    f"{doc.text[:60]!r}. Add it to the pipeline before this component, or "
                    f"enable it: nlp.enable_pipe({wanted!r})."
                )


def _listeners(pipe: TrainablePipe) -> Iterator[Model[Any, Any]]:
    return (node for node in pipe.model.walk() if hasattr(node, "upstream_name"))


def _factory(listener: Model[Any, Any]) -> str:
    """The factory of the component that a listener listens to."""
    return "transformer" if "transformer" in listener.name else "tok2vec"


def _name(listener: Model[Any, Any]) -> str:
    """The component that a listener listens to: its name, or its factory where any will do."""
    upstream = str(listener.upstream_name)  # type: ignore[attr-defined]
    return _factory(listener) if upstream == "*" else upstream
