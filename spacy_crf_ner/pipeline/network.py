"""Run the network of a component on docs, and check the potentials that it returns.

Axes: N tokens of a batch, C tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model

from ..crf import Chain
from ..extras import required
from ..input_error import InputError
from .listeners import check_attributes, check_features
from .spacy_internals import listeners

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer

# Chain, and the callback for their gradient.
Started = tuple[Chain, Callable[[Chain], Any]]

BATCH_SIZE = 64  # docs per batch, if all are in memory


def compute_potentials(pipe: CRFEntityRecognizer, docs: Sequence[Doc]) -> Chain:
    """Compute the potentials of docs; if there is no token, only the transitions."""
    if any(len(doc) for doc in docs):
        check_attributes(pipe, docs)
        check_features(pipe, docs)
        potentials = pipe.model.predict([*docs])
    else:
        head = pipe.model.get_ref("output_layer")
        # A model without weights has no width either: the head raises an error for it.
        nothing = head.ops.alloc2f(0, head.maybe_get_dim("nI") or 0)
        potentials = head.predict([nothing for _ in docs] or [nothing])
    check_potentials(pipe, docs, potentials)
    return potentials


class ComputedPotentials:
    """The potentials of docs in memory, see `computed_once`."""

    def __init__(self, pipe: CRFEntityRecognizer) -> None:
        self._pipe = pipe
        # By the id and the tokens of each doc. The docs are kept too: others would get their ids.
        self._found: dict[tuple[int, int], tuple[Doc, Chain]] = {}

    def of(self, docs: Sequence[Doc]) -> Chain:
        """Return the potentials of docs, those in memory or new ones."""
        if not docs:
            return compute_potentials(self._pipe, docs)
        new = [*{id(doc): doc for doc in docs if (id(doc), len(doc)) not in self._found}.values()]
        if new:
            self.add(new, compute_potentials(self._pipe, new))
        parts = [self._found[id(doc), len(doc)][1] for doc in docs]
        emissions = np.concatenate([part.emissions for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return parts[0]._replace(emissions=emissions, lengths=lengths)

    def add(self, docs: Sequence[Doc], potentials: Chain) -> None:
        """Keep the potentials of docs in memory, also those that another pipeline computed."""
        for i, doc in enumerate(docs):
            self._found[id(doc), len(doc)] = doc, potentials.select(np.array([i]))


@contextmanager
def computed_once(pipe: CRFEntityRecognizer) -> Iterator[ComputedPotentials]:
    """Run the network of a component once for each doc, whatever is asked about it.

    Neither the docs, except for their entities, nor the weights may change meanwhile.
    """
    before = pipe.computed
    pipe.computed = before or ComputedPotentials(pipe)
    try:
        yield pipe.computed
    finally:
        pipe.computed = before


def begin_rehearsal(model: Model[list[Doc], Chain], docs: list[Doc]) -> Started:
    """Run a model on docs to train it, but not the upstream component that it listens to."""
    if any(listeners(model)):
        # A listener trains only with its upstream component, which is not updated here.
        features = model.get_ref("tok2vec").predict(docs)
        return cast(Started, model.get_ref("output_layer").begin_update(features))
    return model.begin_update(docs)


def is_constrained(model: Model[Any, Any]) -> bool:
    """Whether a model gives illegal tag sequences no probability: a CRF, and not a softmax."""
    return bool(model.get_ref("output_layer").attrs.get("constrained", True))


def forget_weights(model: Model[Any, Any]) -> None:
    """Let the next initialization give a model new weights, of any number of tags."""
    output_layer = model.get_ref("output_layer")
    for node, dim in ((model, "nO"), (output_layer, "nO"), (output_layer, "nI")):
        node.set_dim(dim, cast(Any, None), force=True)


def resize_output(model: Model[Any, Any], tags: int, like: int | None) -> None:
    """Give a model more tags, which are improbable; their weights are copies of a tag's, or 0."""
    with required("train"):
        from ..ml.network import resize_output
    resize_output(model, tags, like)


def check_savable(pipes: Iterable[tuple[str, Any]]) -> None:
    """Raise InputError for components whose weights are too large to be saved."""
    with required("train"):
        from ..ml.network import check_savable
    for name, pipe in pipes:
        if isinstance(getattr(pipe, "model", None), Model):
            check_savable(name, pipe.model)


def check_potentials(pipe: CRFEntityRecognizer, docs: Sequence[Doc], potentials: Chain) -> None:
    """Raise InputError for potentials that are not finite or do not match the labels."""
    trained = pipe.cfg.get("encoding", [False, 1])
    if trained != [pipe.overlap, pipe.max_nesting]:
        raise InputError(
            f"[{pipe.name}] expected a model with overlap {pipe.overlap} and max_nesting "
            f"{pipe.max_nesting}, as in the config, got one with overlap {trained[0]} and "
            f"max_nesting {trained[1]}. Set both to the values of the training."
        )
    tags = pipe.encoding.tags
    expected, C = len(tags.tags), potentials.emissions.shape[1]
    if C != expected:
        raise InputError(
            f"[{pipe.name}] expected a model of {expected} tags for the labels "
            f"{list(pipe.labels)} in scheme {tags.name!r}, got one of {C}. Labels, "
            "scheme and weights are from different pipelines: use those of one pipeline."
        )
    is_finite = np.isfinite(potentials.emissions).all(1)
    if not is_finite.all():
        token = int(is_finite.argmin())
        i = int(np.searchsorted(potentials.lengths.cumsum(), token, side="right"))
        raise InputError(
            f"[{pipe.name}] doc {i} of the batch, {docs[i].text[:60]!r}: expected finite "
            "scores, got NaN or infinity. The token vectors contain such values, or "
            "training diverged: check the vectors, or lower the learning rate."
        )
