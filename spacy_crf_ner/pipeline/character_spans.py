"""A span group whose spans keep their characters if a later component merges or splits tokens."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX
from spacy.tokens import Doc, Span, SpanGroup

SCORES = "scores"


def _following(name: str) -> Any:
    method: Callable[..., Any] = getattr(SpanGroup, name)

    @wraps(method)
    def after_following(self: "FollowingSpans", *args: Any, **kwargs: Any) -> Any:
        self.follow()
        return method(self, *args, **kwargs)

    return after_following


class FollowingSpans(SpanGroup):
    """A span group with scores. Its spans have the same characters, whatever becomes of the tokens.

    spaCy's groups keep the numbers of tokens, which are those of other tokens after a merge. A span
    that begins or ends within a merged token is no span of the doc any more: it is left out, with
    its score and a warning. `lost` is the number of these.
    """

    def __init__(
        self,
        doc: Doc,
        *,
        name: str = "",
        attrs: dict[str, Any] | None = None,
        spans: Iterable[Span] = (),
    ) -> None:
        self.lost = 0
        self._of, self._tokens = ref(doc), _starts(doc)
        super().__init__(doc, name=name, attrs=attrs or {}, spans=[*spans])

    def follow(self) -> None:
        """Update the spans if the doc has other tokens now."""
        doc = self._of()
        if doc is None:  # the scores can still be read
            return
        starts = _starts(doc)
        if np.array_equal(starts, self._tokens):
            return
        # A doc of as many tokens as before, in which the spans can still be read.
        as_long = Doc(doc.vocab, ["-"] * len(self._tokens))
        earlier = SpanGroup(as_long).from_bytes(SpanGroup.to_bytes(self))
        self._tokens = starts
        spans = [
            doc.char_span(s.start_char, s.end_char, s.label, kb_id=s.kb_id, span_id=s.id)
            for s in earlier
        ]
        kept = [i for i, span in enumerate(spans) if span is not None]
        attrs = earlier.attrs
        if len(attrs.get(SCORES, ())) == len(spans):
            attrs[SCORES] = np.asarray(attrs[SCORES])[kept]
        if len(kept) < len(spans):
            self.lost += len(spans) - len(kept)
            warnings.warn(
                f"A component has merged tokens: spans of doc.spans[{self.name!r}] that begin or "
                "end within them are left out. Merge tokens before the entities are predicted.",
                stacklevel=3,
            )
        found = [span for span in spans if span is not None]
        self.from_bytes(SpanGroup(doc, name=self.name, attrs=attrs, spans=found).to_bytes())

    def __iter__(self) -> Iterator[Span]:
        """Yield the spans; spaCy's own method would call `follow` for each of them."""
        self.follow()
        return (SpanGroup.__getitem__(self, i) for i in range(SpanGroup.__len__(self)))

    def copy(self, doc: Doc | None = None) -> "FollowingSpans":
        """Copy the group, for another doc if it is given, which has the same text."""
        self.follow()
        same = super().copy(doc)
        return FollowingSpans(same.doc, name=same.name, attrs=same.attrs, spans=same)

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes; "scores" has the probability of each span."""
        self.follow()
        found: dict[str, Any] = SpanGroup.attrs.__get__(self)  # type: ignore[attr-defined]
        return found

    @attrs.setter
    def attrs(self, attrs: dict[str, Any]) -> None:
        SpanGroup.attrs.__set__(self, attrs)  # type: ignore[attr-defined]

    __len__ = _following("__len__")
    __getitem__ = _following("__getitem__")
    __setitem__ = _following("__setitem__")
    __delitem__ = _following("__delitem__")
    append = _following("append")
    _concat = _following("_concat")
    to_bytes = _following("to_bytes")


def _starts(doc: Doc) -> NDArray[np.uint32]:
    """Return the first characters of the tokens, which differ if tokens do."""
    return doc.to_array(IDX).astype(np.uint32)
