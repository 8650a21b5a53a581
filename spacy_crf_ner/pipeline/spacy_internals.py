"""Undocumented parts of spaCy that this package uses."""

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Span
from thinc.api import Model

# Extension attributes: `Underscore` keeps their values in doc.user_data. `Span.as_doc` and
# `Doc.from_docs` move those with keys of this form.


def extension_key(span: Span, name: str) -> Any:
    """Return the key of an extension attribute of a span."""
    return ("._.", name, span.start_char, span.end_char)


# Listeners: layers that read what an earlier component computes.


def listeners(model: Model[Any, Any]) -> Iterator[tuple[str, str, int | None]]:
    """Find the listeners in a model.

    Each has the name of the component that it reads, "*" for any, its factory, and the width of the
    vectors that it was trained on, None if it is not known yet.
    """
    for node in model.walk():
        upstream = getattr(node, "upstream_name", None)
        if upstream is not None:
            factory = "tok2vec" if isinstance(node, Tok2VecListener) else "transformer"
            yield str(upstream), factory, node.maybe_get_dim("nO") or None


def listened_to(components: Iterable[tuple[str, Any]]) -> set[str]:
    """Find the names of the components that listeners can read."""
    return {name for name, pipe in components if hasattr(pipe, "listener_map")}
