"""What the tests share: strategies that draw entities, and small corpora."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

Span = tuple[int, int, str]  # first token, last token + 1, label

# Spans and how they are written

SCHEMES = ("biluo", "bio", "io")
LABELS = ("PER", "creative-work", "A-B-C", "Tên người")

# The prefixes of an entity of n tokens.
PREFIXES: dict[str, Callable[[int], str]] = {
    "biluo": lambda n: "U" if n == 1 else "B" + "I" * (n - 2) + "L",
    "bio": lambda n: "B" + "I" * (n - 1),
    "io": lambda n: "I" * n,
}


def span_sets(T: int, labels: Sequence[str]) -> list[tuple[Span, ...]]:
    """Enumerate the sets of spans over T tokens that do not overlap."""
    if T == 0:
        return [()]
    sets = list(span_sets(T - 1, labels))  # the last token is outside
    for start, label in product(range(T), labels):  # or ends the span (start, T, label)
        sets += [(*before, (start, T, label)) for before in span_sets(start, labels)]
    return sets


def write(scheme: str, T: int, spans: Sequence[Span]) -> list[str]:
    """Write spans over T tokens as tags."""
    tags = ["O"] * T
    for start, end, label in spans:
        tags[start:end] = [f"{prefix}-{label}" for prefix in PREFIXES[scheme](end - start)]
    return tags


@st.composite
def annotations(
    draw: st.DrawFn, labels: Sequence[str], max_pieces: int = 5
) -> tuple[int, list[Span]]:
    """Draw a number of tokens, and spans over them."""
    piece = st.tuples(st.integers(1, 4), st.sampled_from([None, *labels]))
    T, spans = 0, []
    for length, label in draw(st.lists(piece, max_size=max_pieces)):
        if label is not None:
            spans.append((T, T + length, label))
        T += length
    return T, spans


# Corpora


def put(path: Path, text: str) -> Path:
    """Write a file, in UTF-8."""
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path, nlp: "Language") -> "list[Doc]":
    """Read a .spacy file as spaCy does."""
    from spacy.tokens import DocBin

    return list(DocBin(store_user_data=True).from_disk(path).get_docs(nlp.vocab))


def tags(doc: "Doc") -> str:
    """Return B and I, O for outside, and - for what is not annotated, of each token."""
    return "".join(token.ent_iob_ or "-" for token in doc)


Sentence = tuple[list[str], list[tuple[int, int, str]]]  # words; (start, end, label) in tokens

# What each of the files in tests/fixtures says.
GOLDEN: list[Sentence] = [
    (["Anna", "Schmidt", "visited", "Hanoi", "."], [(0, 2, "PER"), (3, 4, "LOC")]),
    (
        ["From", "Paris", "Berlin", "New", "York", "Bob", "rings", "."],
        [(1, 2, "LOC"), (2, 3, "LOC"), (3, 5, "LOC"), (5, 6, "PER")],
    ),
    (["He", "said", ",", '"', "null", "or", "NA", "[", "sic", "]", '"', "."], []),
]
# What a small pipeline learns, with offsets in characters.
LEARNED = [
    ("Anna saw Bonn", [(0, 4, "PER"), (9, 13, "LOC")]),
    ("Bonn saw it", [(0, 4, "LOC")]),
    ("it saw Anna", [(7, 11, "PER")]),
    ("it came", []),
]

# A sitecustomize.py, without the first line.
BLOCKED = """
import sys
from importlib import metadata

import catalogue


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
version = metadata.version


def installed(name):
    if name.replace("-", "_") in PACKAGES:
        raise metadata.PackageNotFoundError(name)
    return version(name)


metadata.version = installed
found = catalogue.AVAILABLE_ENTRY_POINTS
catalogue.AVAILABLE_ENTRY_POINTS = {
    group: [each for each in found.select(group=group) if "spacy_transformers" not in each.value]
    for group in found.groups
}
"""


def blocking(packages: Iterable[str]) -> str:
    """Return a sitecustomize.py, as of an environment without packages that need not be there."""
    return f"PACKAGES = {tuple(packages)}\n{BLOCKED}"
