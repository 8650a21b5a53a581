"""A random sample of raw texts."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc

from ..extras import require
from ..input_error import InputError
from ..pipeline.lookup import upstream_only
from .readers import read_texts
from .runner import errors_raised
from .settings import Settings


def read_sample(
    nlp: Language, name: str, inputs: Sequence[str], settings: Settings, size: int
) -> Iterator[Doc]:
    """Read random documents, all if there are fewer; components before one process them."""
    require("annotate")
    found: list[tuple[Any, Any]] = []
    rng = random.Random(0)
    for i, item in enumerate(read_texts(inputs, settings)):  # which may not fit in memory
        if i < size:
            found.append(item)
        elif (at := rng.randrange(i + 1)) < size:
            found[at] = item
    for text, key in found:
        if isinstance(text, str) and len(text) > nlp.max_length:
            raise InputError(
                f"{key}: expected at most {nlp.max_length:,} characters, got {len(text):,}. "
                "Split the text, or leave it out."
            )
    return _processed(nlp, name, [text for text, _ in found])


def _processed(nlp: Language, name: str, texts: list[Any]) -> Iterator[Doc]:
    with errors_raised(nlp), upstream_only(nlp, name):
        yield from nlp.pipe(texts)
