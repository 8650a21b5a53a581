"""The number of threads that compute predictions."""

import os
import sys

_process = os.getpid()
_forked = False


def use_one_thread_after_fork() -> None:
    """Set torch to one thread if this process was forked since this module was imported.

    A forked process, as in `nlp.pipe(n_process=2)`, has no copy of its parent's threads, and torch
    would wait for them forever. Call this before predictions and updates; only the first call in a
    process has an effect.
    """
    global _process, _forked
    if _process != os.getpid():
        _process, _forked = os.getpid(), True
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)


def number_of_threads() -> int:
    """Return the number of threads for a network that does not run in torch.

    It is torch's, if torch is imported; 1 in a forked process; else OMP_NUM_THREADS, or one
    for each core that this process may use.
    """
    use_one_thread_after_fork()
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    given = os.environ.get("OMP_NUM_THREADS", "")
    if _forked or given.isdecimal():
        return 1 if _forked else max(1, int(given))
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
