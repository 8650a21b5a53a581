"""The number of torch's threads in forked processes."""

import os

import torch

_process = os.getpid()


def use_one_thread_after_fork() -> None:
    """Set torch to one thread if this process was forked since this module was imported.

    Such a process, as `nlp.pipe(n_process=2)` starts them, has no copy of the threads of its
    parent, and torch would wait for them forever. This is done once in a process, before its
    first prediction or update: other forked processes keep their threads.
    """
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        torch.set_num_threads(1)
