"""The share of the examples that one rank trains on."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spacy.language import Language
from spacy.training import Example

from ...input_error import InputError
from .process_group import ProcessGroup

Corpus = Callable[[Language], Iterable[Example]]
Batcher = Callable[[Iterable[Example]], Iterable[list[Example]]]


def shard(corpus: Corpus, group: ProcessGroup) -> Corpus:
    """Wrap a corpus: rank r of N gets the examples whose number is r modulo N.

    The wrapped corpus raises InputError, in all ranks, if there are fewer examples than ranks.
    """

    def read(nlp: Language) -> Iterator[Example]:
        total = 0
        for eg in corpus(nlp):
            if total % group.size == group.rank:
                yield eg
            total += 1
        if total < group.size:
            raise InputError(
                f"[corpora.train] expected at least one example for each of {group.size} "
                f"processes, got {total}. Start fewer processes."
            )

    return read


def lockstep(batcher: Batcher, group: ProcessGroup) -> Batcher:
    """Wrap a batcher: all ranks begin and end each epoch together.

    A rank that has used its share before the others gets empty batches, and adds zeros to the
    gradients. So an epoch has each example once. Before each batch, ranks exchange one number.
    """

    def batches(examples: Iterable[Any]) -> Iterator[list[Example]]:
        own = iter(batcher(examples))
        batch = next(own, None)
        while group.any(batch is not None):
            yield batch or []
            batch = next(own, None)

    return batches
