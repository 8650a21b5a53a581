"""The local engine: this process, or worker processes on this machine."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from traceback import walk_stack
from typing import Any

from thinc.api import NumpyOps, get_current_ops, require_cpu, set_current_ops

from ..input_error import InputError
from .files import Source
from .run import Engine, OnProgress, Run, Summary
from .settings import Settings
from .shards import SHARD_CHARACTERS, cut_shards, load

# Each worker has a copy of the model.
MAX_WORKERS = 8
# Numerical libraries read these when they are imported. More threads would slow each other down.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def annotate(
    model: str,
    inputs: Sequence[str | Path],
    output: str | Path,
    settings: Settings = Settings(),  # noqa: B008
    *,
    workers: int = 0,
    gpu_ids: Sequence[int] = (),
    resume: bool = False,
    restart: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> Summary:
    """Annotate the documents of files, and write them in shards.

    The shards have each document once, in the order of the input. errors.jsonl has the documents
    that fail, with file, line and reason. Memory does not grow with the corpus.

    Args:
        model: Folder or package of a pipeline.
        inputs: Files, globs, folders or URIs: .txt, .jsonl, .csv, .tsv, also .gz and .zst;
            .parquet; .spacy.
        output: Folder for part-000000.jsonl and so on, errors.jsonl and summary.json.
        settings: How documents are read, annotated and written.
        workers: Processes, each with one thread and its own copy of the model; 0 for one per shard,
            but at most one per core, and at most 8, or 8 for each GPU. One worker on the CPU is
            this process, which starts no other.
        gpu_ids: The GPUs that the workers share; empty for none. Most of the time of a worker is
            spent on the CPU.
        resume: Continue an earlier, interrupted run and keep its finished shards.
        restart: Remove the output of an earlier run.
        on_progress: Called when a worker has loaded the model, and after each shard.

    Returns:
        The content of summary.json.

    Raises:
        InputError: For invalid settings, inputs and folders.
        OSError: If a file cannot be read or written.
        WorkerError: If a worker fails or dies.

    Finished shards are kept.
    """
    run = Run(inputs, output, settings, resume, restart)
    return run.annotate(
        model, processes(workers, gpu_ids, run.found.sources, settings), on_progress
    )


def processes(
    workers: int, gpu_ids: Sequence[int], sources: list[Source], settings: Settings
) -> AbstractContextManager[Engine]:
    """Return a context of workers on this machine; 0 chooses their number, see `annotate`."""
    if workers < 0:
        raise InputError(f"workers: expected 0 or more, got {workers}. Use 0 to choose a number.")
    affinity = getattr(os, "sched_getaffinity", None)  # cores that this process may use
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    devices = worker_devices(workers, gpu_ids, cores)
    most = len(devices)
    # A small corpus may have fewer shards; a large one is not read for this.
    if not workers and most > 1 and sum(each.size for each in sources) < most * SHARD_CHARACTERS:
        devices = devices[: max(1, sum(1 for _ in islice(cut_shards(sources, settings), most)))]
    if devices == [-1]:
        return _this_process(cores)
    _check_guard()
    return _processes(devices)


def worker_devices(workers: int, gpu_ids: Sequence[int], cores: int) -> list[int]:
    """Return the device of each worker: the GPUs in turn, or -1 for the CPU."""
    devices = [*dict.fromkeys(gpu_ids)] or [-1]
    workers = workers or len(devices) * max(1, min(cores // len(devices), MAX_WORKERS))
    return [*islice(cycle(devices), workers)]


def _check_guard() -> None:
    """Raise InputError in a script that would start workers again in each of its workers.

    A spawned process first imports the script, but not the `__main__` of a package or an archive.
    In such a process, this prints the error and exits.
    """
    error = InputError(
        "The script starts processes, and each of them runs the whole script again. Put its calls "
        'under `if __name__ == "__main__":`, or use workers=1.'
    )
    if any(frame.f_globals.get("__name__") == "__mp_main__" for frame, _ in walk_stack(None)):
        sys.exit(f"{error}")
    main = sys.modules["__main__"]
    if f".{getattr(main.__spec__, 'name', '')}".endswith(".__main__"):
        return
    script = getattr(main, "__file__", None)
    source = '"__main__"'
    with suppress(OSError, TypeError, UnicodeDecodeError):  # no script, or one in an archive
        source = Path(script).read_text("utf-8")  # type: ignore[arg-type]
    if "__main__" not in source:
        raise error


@contextmanager
def _this_process(cores: int) -> Iterator[Engine]:
    before = get_current_ops()
    require_cpu()  # as in a new process, also if the caller uses a GPU
    if cores == 1:
        _use_openblas()
    load.cache_clear()  # the pipeline may have changed since an earlier run
    try:
        yield Engine(1, lambda work, items: (work(item, -1) for item in items))
    finally:
        load.cache_clear()
        set_current_ops(before)


def _use_openblas() -> None:
    """Multiply with numpy's OpenBLAS, which is faster than BLIS with one thread."""
    if type(get_current_ops()) is NumpyOps:
        set_current_ops(NumpyOps(use_blis=False))


@contextmanager
def _processes(devices: list[int]) -> Iterator[Engine]:
    """Start worker processes, one for each device (a GPU, or -1); kill them at the end.

    They are spawned, not forked. They end with this process, even if it is killed: this closes the
    parent_pipe, a pipe whose other end only this process has.
    """
    context = get_context("spawn")
    parent_pipe, held = context.Pipe(duplex=False)
    queue = context.SimpleQueue()
    for device in devices:
        queue.put(device)
    executor = ProcessPoolExecutor(len(devices), context, _start, (parent_pipe, queue))

    def map_shards(work: Callable[[Any, int], Any], items: Iterable[Any]) -> Iterator[Any]:
        # One item more than workers, so that the next one is read while they work.
        pending: set[Future[Any]] = set()
        for item in items:
            if len(pending) > len(devices):
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            with _no_interrupts():  # this may start a process, which must not get Ctrl-C
                pending.add(executor.submit(_on_device, work, item))
        yield from (future.result() for future in as_completed(pending))

    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # workers start later and inherit it
    try:
        yield Engine(len(devices), map_shards)
    finally:
        held.close()
        executor.shutdown(cancel_futures=True)
        parent_pipe.close()
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Delay Ctrl-C; processes that start in this context never get it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker process

_device = -1  # the GPU of this process, or -1 for the CPU


def _start(parent_pipe: Connection, devices: "SimpleQueue[int]") -> None:
    global _device
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _use_openblas()
    threading.Thread(target=_end_with_parent, args=(parent_pipe,), daemon=True).start()
    _device = devices.get()


def _end_with_parent(parent_pipe: Connection) -> None:
    parent_pipe.poll(None)  # until the other end is closed
    os._exit(1)


def _on_device(work: Callable[[Any, int], Any], item: Any) -> Any:
    return work(item, _device)
