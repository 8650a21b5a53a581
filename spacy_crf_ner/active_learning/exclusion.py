"""Leave out what a corpus already answers: annotated texts, sentences and spans."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..annotate.runner import AnnotatedText
from ..data.offsets import INCORRECT
from ..docbin import read_docbin
from ..ml.zero_width import is_blank
from ..pipeline.annotated_labels import KEY, annotated_labels
from ..pipeline.lookup import recognizer
from .ranking import divide, identify, join_short, sentences
from .selection import Unit


def annotated_ids(
    path: Path, unit: str, nlp: Language, component: str | None = None
) -> Iterator[str]:
    """Yield the ids of what a corpus answers, for `Options.exclude`.

    A text has its id if it is annotated for all labels of the component: all of its tokens; if none
    is, spans under any key in `doc.spans`, or an empty group under the component's key. Of other
    texts, for questions: the ids of the first characters of annotated tokens, with each annotated
    label if these are not all and the token is outside; and of spans that are known to be
    incorrect. Texts have no whitespace at their ends.

    Args:
        path: A .spacy file or a folder of them.
        unit: "docs", or another of `UNITS` to compare the sentences of docs too.
        component: The name of its `crf_ner` component; None for the only one.
    """
    pipe = recognizer(nlp, component)
    negative = {INCORRECT, pipe.incorrect_spans_key}
    _, docs = read_docbin(path, nlp.vocab)
    for doc in docs:
        tokens = [token for token in doc if not token.is_space]
        groups = doc.spans.items()
        keys = {key for key, spans in groups if spans or key == pipe.entities_key}
        in_spans = keys - negative - {KEY} and not any(token.ent_iob for token in tokens)
        incorrect = [span for key, spans in groups if key in negative for span in spans]
        some = annotated_labels(doc)
        if some is not None and some.issuperset(pipe.labels):
            some = None
        whole = (doc[tokens[0].i : tokens[-1].i + 1] for _ in tokens[:1])
        for part in chain(whole, () if unit == "docs" else _all_sentences(doc, nlp)):
            text, at = part.text, part.start_char
            is_whole = in_spans or all(token.ent_iob or is_blank(token.text) for token in part)
            if is_whole and some is None:
                yield identify(text)
            elif unit == "spans":
                for token in (token for token in part if token.ent_iob):
                    if some is None or token.ent_type:
                        yield identify(text, [token.idx - at])
                    else:
                        yield from (identify(text, [token.idx - at, label]) for label in some)
                for span in incorrect:
                    yield identify(text, (span.start_char - at, span.end_char - at, span.label_))


def is_excluded(unit: Unit, known: frozenset[str]) -> bool:
    """Whether a corpus with these ids, of `annotated_ids`, answers all that a task asks."""
    if not known:
        return False
    ids = [identify(unit.text.strip())]
    if unit.question is not None:
        start, end, label = unit.question
        # No entity of any label overlaps an annotated one, or has a token that is outside.
        ids += [
            identify(unit.text, [at, *about])
            for at in range(start, end)
            for about in ((), (label,))
        ]
        ids += [unit.id, identify(unit.text, (start, end, ""))]
    return not known.isdisjoint(ids)


def _all_sentences(doc: Doc, nlp: Language) -> Iterator[Span]:
    """Yield the sentences of a doc, alone and joined, and those that `suggest` would ask about."""
    found = sentences(doc)
    yield from found
    yield from join_short(found)
    for start, text in divide(nlp, AnnotatedText(doc.text), "sentences"):
        if span := doc.char_span(start, start + len(text)):
            yield span
