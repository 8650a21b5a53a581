"""Checks that the components that a pipe listens to are in the pipeline and have run."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc

from ..input_error import InputError
from .spacy_internals import listened_to, listeners


def check_upstream(pipe: TrainablePipe, nlp: Language) -> None:
    """Raise InputError if a pipe listens to no component before it, or to one of another width."""
    before: list[tuple[str, Any]] = [*takewhile(lambda each: each[1] is not pipe, nlp.components)]
    sources = listened_to(before)
    for upstream, factory, expected in listeners(pipe.model):
        if not sources if upstream == "*" else upstream not in sources:
            name = factory if upstream == "*" else upstream
            raise InputError(
                f"[{pipe.name}] listens to {name!r}, which is not before it in the pipeline "
                f"{nlp.component_names}. Add it before this component: "
                f"nlp.add_pipe({factory!r}, before={pipe.name!r})."
            )
        for name, source in before:
            width = source.model.maybe_get_dim("nO") if name in sources else None
            if expected and width and upstream in ("*", name) and width != expected:
                raise InputError(
                    f"[{pipe.name}] listens to {name!r}, whose vectors have the width {width}, and "
                    f"expects {expected}. Set width = {width} in the config of the listener."
                )


def check_attributes(pipe: TrainablePipe, docs: Sequence[Doc]) -> None:
    """Raise InputError for docs of an empty vocab: to the model, all of their words look alike."""
    for doc in docs:
        vocab: Any = doc.vocab
        if vocab is not pipe.vocab and not vocab.lex_attr_getters:
            raise InputError(
                f"[{pipe.name}] the doc {doc.text[:60]!r} has a vocab without the norms and shapes "
                "of words, which the model reads. Make the doc with the vocab of the pipeline: "
                "Doc(nlp.vocab, ...), or DocBin.get_docs(nlp.vocab)."
            )


def check_features(pipe: TrainablePipe, docs: Sequence[Doc]) -> None:
    """Raise InputError for docs without the features of an upstream component.

    spaCy's listeners would read zeros instead, or the features of other tokens, or of another
    component.
    """
    for upstream, factory, expected in listeners(pipe.model):
        name = factory if upstream == "*" else upstream
        for doc in docs:
            tokens = _tokens_read(doc, factory)
            if tokens == len(doc):
                width = _width_read(doc, factory) if tokens else None
                if expected and width and width != expected:
                    raise InputError(
                        f"[{pipe.name}] listens to {name!r}, whose vectors have the width {width}, "
                        f"and was trained on another one, of {expected}. Before you source "
                        f"{pipe.name!r}, give it a copy of its own component: "
                        f"source.replace_listeners({name!r}, {pipe.name!r}, ['model.tok2vec'])."
                    )
                continue
            where = f"the doc {doc.text[:60]!r}"  # reads every token, so only for an error
            if not tokens:
                raise InputError(
                    f"[{pipe.name}] listens to {name!r}, which has not run on {where}. Add it to "
                    f"the pipeline before this component, or enable it: nlp.enable_pipe({name!r}). "
                    "If this one annotates docs in training, name both in "
                    "training.annotating_components. For nlp.rehearse, let it process the docs."
                )
            raise InputError(
                f"[{pipe.name}] listens to {name!r}, which has read {tokens} tokens of "
                f"{where}, and not these {len(doc)}. Move the component that merges or splits "
                "tokens behind this one."
            )


def _width_read(doc: Doc, factory: str) -> int | None:
    """Return the width of the features of a doc; None if it is not known."""
    width = doc.tensor.shape[1] if factory == "tok2vec" else getattr(doc._.trf_data, "width", None)
    return None if width is None else int(width)


def _tokens_read(doc: Doc, factory: str) -> int:
    """Count the tokens of a doc for which an upstream component has computed features."""
    if factory == "tok2vec":
        return len(doc.tensor)
    data = doc._.trf_data if doc.has_extension("trf_data") else None
    if data is None:
        return 0
    return len(data.align.lengths) if hasattr(data, "align") else len(doc)
