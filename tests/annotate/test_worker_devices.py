"""The device of each worker of the local engine."""

from multiprocessing import get_context

import pytest
from thinc.api import get_current_ops

from spacy_crf_ner.annotate import multiprocess
from spacy_crf_ner.annotate.multiprocess import processes, worker_devices


@pytest.mark.parametrize(
    "workers, gpu_ids, cores, expected",
    [
        (0, [], 4, [-1] * 4),
        (0, [], 64, [-1] * 8),
        (3, [], 1, [-1] * 3),
        (0, [0], 6, [0] * 6),
        (0, [0, 2], 7, [0, 2, 0, 2, 0, 2]),
        (0, [0, 1], 64, [0, 1] * 8),
        (0, [0, 1, 2, 3], 2, [0, 1, 2, 3]),
        (3, [0, 1], 64, [0, 1, 0]),
        (0, [1, 1], 4, [1] * 4),
    ],
)
def test_worker_devices_distributes_workers_over_gpus(workers, gpu_ids, cores, expected):
    """One for each core, at most eight for each device, and at least one."""
    assert worker_devices(workers, gpu_ids, cores) == expected


def multiplies_with_blis(item: None, device: int) -> bool:
    return get_current_ops().use_blis


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_workers_use_openblas(start, monkeypatch):
    """They have one thread, with which it is faster; the pipeline of this process keeps BLIS.

    They are spawned; those that are forked need not import everything again.
    """
    monkeypatch.setattr(multiprocess, "get_context", lambda method: get_context(start))
    with processes(2, []) as engine:
        assert [*engine.map(multiplies_with_blis, [None] * 2)] == [False, False]
    assert get_current_ops().use_blis
