"""Padded batches of sequences of similar length.

Axes: N items of all sequences, one sequence after the other, B sequences of a batch, T items of the
longest one.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# Sequences share a padded batch while its size is at most this multiple of its items.
MAX_PADDING_RATIO = 1.25


def bucket_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Group sequences by length, the longest first, with padding within MAX_PADDING_RATIO.

    A group has the indices of its sequences; those without items are in none.
    """
    buckets: list[list[int]] = []
    room = 0.0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if not lengths[i]:
            break
        if buckets:
            # The padding that still fits: each one adds its allowance and uses its own padding.
            room += MAX_PADDING_RATIO * lengths[i] - lengths[buckets[-1][0]]
        if not buckets or room < 0:
            buckets.append([])
            room = (MAX_PADDING_RATIO - 1) * lengths[i]
        buckets[-1].append(i)
    return buckets


def padded_buckets(
    lengths: NDArray[np.int64],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield for each bucket its sequences (B,), and the items (T, B) of each with their mask.

    After the end of a sequence, its last item is repeated, and the mask is False.
    """
    starts = lengths.cumsum() - lengths
    for bucket in map(np.array, bucket_by_length(lengths.tolist())):
        steps = np.arange(lengths[bucket[0]])[:, None]
        items = starts[bucket] + np.minimum(steps, lengths[bucket] - 1)
        yield bucket, items, steps < lengths[bucket]
