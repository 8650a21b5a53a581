"""Undocumented parts of spaCy that this package uses, with a public fallback where possible."""

import gc
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from spacy import util
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Span
from spacy.vocab import Vocab
from thinc.api import Model


def check_lexeme_norms(vocab: Vocab, component_name: str) -> None:
    """Log if the language has no table of norms; do nothing if spaCy lacks this check."""
    check = getattr(util, "check_lexeme_norms", None)
    if check is not None:
        check(vocab, component_name)


# Extension attributes: `Underscore` keeps their values in doc.user_data. `Span.as_doc` and
# `Doc.from_docs` move those with keys of this form.


def extension_key(span: Span, name: str) -> Any:
    """Return the key of an extension attribute of a span."""
    return ("._.", name, span.start_char, span.end_char)


# Configs: `Language.config` is built from the dict that `get_pipe_config` returns.


# An object for the last time that spaCy named a component; and the pipelines that may hold it, with
# the object of the time when they were searched for, or None until all are known.
_NAMED: "WeakKeyDictionary[TrainablePipe, object]" = WeakKeyDictionary()
_PIPELINES: "WeakKeyDictionary[TrainablePipe, tuple[object, list[ReferenceType[Language]]]]"
_PIPELINES = WeakKeyDictionary()
# Objects that `gc.freeze` has hidden from the start: Python 3.12 hides some of its own.
_FROZEN = gc.get_freeze_count()


def remember_pipeline(pipe: TrainablePipe, nlp: Language) -> None:
    """Remember the pipeline that a component is made for."""
    _PIPELINES[pipe] = None, [ref(nlp)]


def expect_pipeline(pipe: TrainablePipe) -> None:
    """Search again for the pipelines of a component: spaCy names it when it adds it to one."""
    _NAMED[pipe] = object()


def write_setting(pipe: TrainablePipe, name: str, value: Any) -> None:
    """Set a setting of a component in the config of each pipeline that holds it.

    A sourced component belongs to several pipelines and has no references to them. So this searches
    all objects, once, which takes a tenth of a second and misses objects that `gc.freeze` has
    hidden. It always finds the pipeline that the component was made for.
    """
    named = _NAMED.get(pipe)
    searched, known = _PIPELINES.get(pipe, (None, []))
    pipelines = [nlp for nlp in (each() for each in known) if nlp is not None]
    if named is None or searched is not named:
        found = [nlp for nlp in gc.get_objects() if issubclass(type(nlp), Language)]
        by_id = {id(nlp): nlp for nlp in pipelines + found if hasattr(nlp, "components")}
        pipelines = [*by_id.values()]
        is_frozen = gc.get_freeze_count() > _FROZEN
        _PIPELINES[pipe] = None if is_frozen else named, [ref(nlp) for nlp in pipelines]
    for nlp in pipelines:
        for component_name, component in nlp.components:
            if component is pipe:
                nlp.get_pipe_config(component_name)[name] = copy(value)


# Listeners: layers that read what an earlier component computes.


def listeners(model: Model[Any, Any]) -> Iterator[tuple[str, str]]:
    """Find the listeners in a model.

    Yields the name of the component that each reads, "*" for any, and its factory.
    """
    return ((upstream, factory) for upstream, factory, _ in listeners_with_widths(model))


def listeners_with_widths(model: Model[Any, Any]) -> Iterator[tuple[str, str, int | None]]:
    """Find the listeners as `listeners`, each with the width of the vectors that it was trained on.

    The width is None if it is not known yet.
    """
    for node in model.walk():
        upstream = getattr(node, "upstream_name", None)
        if upstream is not None:
            factory = "tok2vec" if isinstance(node, Tok2VecListener) else "transformer"
            yield str(upstream), factory, node.maybe_get_dim("nO") or None


def trains_transformer(model: Model[Any, Any]) -> bool:
    """Whether an update of a model that begins now changes a transformer, its own or a shared one.

    An upstream component that is updated, not frozen, has sent a batch to the listeners.
    """
    return any(
        getattr(node, "_batch_id", None) is not None
        if isinstance(getattr(node, "upstream_name", None), str)
        else node.name == "transformer"
        for node in model.walk()
        if not isinstance(node, Tok2VecListener)
    )


def listened_to(components: Iterable[tuple[str, Any]]) -> set[str]:
    """Find the names of the components that listeners can read."""
    return {name for name, pipe in components if hasattr(pipe, "listener_map")}
