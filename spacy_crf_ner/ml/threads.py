"""The number of threads that compute predictions."""

import os
import sys

_process = os.getpid()


def use_one_thread_after_fork() -> None:
    """Set torch to one thread if this process was forked since this module was imported.

    A forked process, as in `nlp.pipe(n_process=2)`, has no copy of its parent's threads, and torch
    would wait for them forever. Call this before predictions and updates; only the first call in a
    process has an effect.
    """
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
