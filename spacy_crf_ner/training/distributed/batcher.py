"""Batches of ranks that go through their shares in step."""

from typing import Any, Callable, Iterable, Iterator, List

from .process_group import ranks

Batcher = Callable[[Iterable[Any]], Iterable[List[Any]]]


def rank_batcher(batcher: Batcher) -> Batcher:
    """Make `spacy-crf-ner.RankBatcher.v1`: ranks begin and end each epoch together.

    A rank whose share is through, while another's is not, gets empty batches: its gradients are
    zero, and it goes on with the others. So each example is seen once in an epoch, by one rank,
    and none waits for another that has ended. Before each batch, ranks exchange one number.

    batcher: Makes the batches of a rank of its share.
    """

    def batches(examples: Iterable[Any]) -> Iterator[List[Any]]:
        mine = iter(batcher(examples))
        while True:
            batch = next(mine, None)
            if not ranks().any(batch is not None):
                return
            yield [] if batch is None else batch

    return batches
