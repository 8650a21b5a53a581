"""Encodings: how the entities of a doc are written as tags of linear chains, and read from them.

There are two: `FlatEncoding` has one chain for all labels, `LabelEncoding` one or more for each
label, so that entities may overlap. A component chooses one, and nothing else needs to know which.

Both have the same methods, and so have their posteriors; only `trellis` also takes the label of a
chain if there are several.
"""

from collections.abc import Collection
from functools import lru_cache

import numpy as np

from .. import crf
from ..crf import Chain
from .flat_encoding import FlatEncoding
from .label_encoding import LabelEncoding
from .overlapping_posterior import OverlappingPosterior
from .posterior import Posterior

Encoding = FlatEncoding | LabelEncoding
EntityPosterior = Posterior | OverlappingPosterior


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
