"""Encodings: how the entities of a doc are written as tags of linear chains, and read from them.

There are two: `FlatEncoding` has one chain for all labels, `LabelEncoding` one or more for each
label, so that entities may overlap. A component chooses one by `overlap`.

Axes: B docs, N tokens of a batch, M chains of a doc, C tags of a chain.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example

from .. import crf
from ..crf import Chain, NegativeSpan
from ..tags import TagScheme
from .flat_encoding import FlatEncoding
from .interval_scheduling import Candidate
from .label_encoding import LabelEncoding
from .overlapping_posterior import OverlappingPosterior
from .platt_scaling import PlattScaling
from .posterior import Posterior

# Both have the same methods; `trellis` also takes the label of a chain if there are several.
EntityPosterior = Posterior | OverlappingPosterior


class Encoding(Protocol):
    """How entities are written as tags. `FlatEncoding` describes arguments and errors.

    Attributes:
        labels: The entity labels, in the order of the model's tags.
        key: Gold entities are in `doc.spans[key]`, if a doc has this key; else in `doc.ents`. None
            if entities cannot overlap.
        scheme: The tags of one chain.
        tags: The tags of the model, which are those of all chains.
        added_like: The tag whose weights those of an added label are copies of; None for zeros.
    """

    labels: tuple[str, ...]
    key: str | None
    scheme: TagScheme
    tags: TagScheme
    added_like: int | None

    def split(self, scores: Chain) -> tuple[Chain, Callable[[Chain], Chain]]:
        """Return the potentials of the B * M chains, and the callback for their gradient."""

    def gold(
        self, examples: Sequence[Example]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Return the gold tags (N * M,), and those that "O" may stand for, bool (N * M, C)."""

    def negatives(self, examples: Sequence[Example], key: str | None) -> list[NegativeSpan]:
        """Convert the negative spans in `doc.spans[key]` of gold docs; none without a key."""

    def is_annotated(self, eg: Example) -> bool:
        """Whether the gold doc says something about any token."""

    def match_candidates(
        self, eg: Example, candidates: Iterable[Candidate]
    ) -> list[tuple[float, bool]]:
        """Return the probability of each annotated candidate, and whether it is a gold entity."""

    def possible_tags(self, excluded: Collection[str]) -> NDArray[np.bool_] | None:
        """Find the tags that are not of excluded labels: bool (M, C); None for all."""

    def choose(self, candidates: Sequence[Candidate], threshold: float) -> list[Candidate]:
        """Choose compatible spans of a doc with the largest sum of probability minus threshold."""

    def posterior(
        self,
        docs: Sequence[Doc],
        scores: Chain,
        overwrite: bool,
        temperature: float,
        platt: PlattScaling,
        excluded: Collection[str] = (),
    ) -> EntityPosterior:
        """Return the posterior distribution over the entities of docs."""

    def select_chain(self, label: str | None) -> tuple[str, ...]:
        """Return what `trellis` needs to find the chain of a label."""

    def transitions(
        self, scores: Chain
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return the scores of transitions, start and end, and the legal transitions."""

    def warn_dropped(self, examples: Iterable[Example], count: bool = False) -> None:
        """Warn about gold entities that the encoding cannot write."""


@lru_cache(maxsize=64)
def make_encoding(
    scheme: str, labels: tuple[str, ...], max_nesting: int, key: str | None, name: str
) -> Encoding:
    """Choose the encoding.

    Args:
        scheme: "biluo", "bio" or "io".
        labels: The entity labels, in the order of the model's tags.
        max_nesting: The number of chains of each label, if entities may overlap.
        key: The key of overlapping entities in `doc.spans`; None if entities cannot overlap.
        name: The name of the component, for messages.

    Raises:
        InputError: For an unknown scheme, and for labels that look like the names of levels.
    """
    if key is None:
        return FlatEncoding(scheme, labels, name)
    return LabelEncoding(scheme, labels, max_nesting, key, name)


def forbid_labels(encoding: Encoding, potentials: Chain, excluded: Collection[str]) -> Chain:
    """Forbid the tags of excluded labels."""
    possible = encoding.possible_tags(excluded)
    if possible is None:
        return potentials
    of_chains = np.tile(possible, (len(potentials.lengths) // len(possible), 1))
    allowed = np.repeat(of_chains, potentials.lengths, axis=0)
    return potentials._replace(emissions=crf.clamp(potentials.emissions, allowed))
