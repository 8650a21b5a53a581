"""Worker processes: each holds what it has made once, and is given one task after another."""

import os
import signal
import threading
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type, cast

# Makes the result of a task; both can be pickled.
Work = Callable[[Any], Any]

# What libraries of arithmetic read when they are imported.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class WorkerError(RuntimeError):
    """A worker that could not begin, or has died."""


class Workers:
    """Processes that work on tasks. They are spawned, never forked, and die with their parent.

    Use it as a context: at its end they are stopped, at once. Each has one thread for its
    arithmetic: more would only wait for each other.

    make: Makes of its arguments, in the process, what does the work; both can be pickled.
    arguments: Those of `make` for each worker.

    Raises WorkerError where a worker dies, and what `make` or the work raised, as its message.
    """

    def __init__(self, make: Callable[..., Work], arguments: Sequence[Tuple[Any, ...]]) -> None:
        context = get_context("spawn")
        self._processes = []
        self._connections: List[Connection] = []
        for each in arguments:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, each), daemon=True)
            self._processes.append(process)
            self._connections.append(ours)
            with _environment(ONE_THREAD):
                process.start()
            theirs.close()  # so that its end is seen here
        # Which has what worker; at first all are busy with beginning.
        self._busy = {connection: i for i, connection in enumerate(self._connections)}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    @property
    def idle(self) -> int:
        """Number of workers that have begun and have no task."""
        return len(self._connections) - len(self._busy)

    def send(self, task: Any) -> None:
        """Give a task to a worker that has none."""
        i, connection = next(
            (i, each) for i, each in enumerate(self._connections) if each not in self._busy
        )
        self._busy[connection] = i
        try:
            connection.send(task)
        except OSError:
            raise self._dead(i) from None

    def receive(self) -> Any:
        """Wait until one has done its task, and return the result; None of one that has begun."""
        connection = cast(Connection, wait([*self._busy])[0])
        i = self._busy.pop(connection)
        try:
            kind, content = connection.recv()
        except (EOFError, OSError):
            raise self._dead(i) from None
        if kind is not None:
            raise kind(content)
        return content

    def _dead(self, i: int) -> WorkerError:
        process = self._processes[i]
        process.join(timeout=5)
        return WorkerError(f"worker {i} has died, exit code {process.exitcode}")


@contextmanager
def _environment(variables: Dict[str, str]) -> Iterator[None]:
    """Set variables of the environment, which processes that are started inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, make: Callable[..., Work], arguments: Tuple[Any, ...]) -> None:
    """Work on tasks until there are no more."""
    # Ctrl-C is for the parent, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        work = make(*arguments)
        connection.send((None, None))
        while True:
            connection.send((None, work(connection.recv())))
    except EOFError:
        return
    except Exception as error:
        # As a message: not every exception can be sent.
        kind = next((k for k in (ValueError, OSError) if isinstance(error, k)), WorkerError)
        said = str(error) if kind is not WorkerError else f"{type(error).__name__}: {error}"
        connection.send((kind, said))


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
