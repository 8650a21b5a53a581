"""The engine for Ray: the machines of a cluster."""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..input_error import InputError
from .run import OnProgress, Result, Run, Summary, require_packages
from .settings import Settings

TIMEOUT = 10  # seconds, for a cluster to accept a connection
RETRIES = 3  # of a shard whose worker dies


def annotate_on_ray(
    model: str,
    inputs: Sequence[str],
    output: str,
    settings: Settings = Settings(),  # noqa: B008
    *,
    address: str | None = None,
    workers: int = 0,
    gpus: bool = False,
    resume: bool = False,
    restart: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> Summary:
    """Annotate the documents of files on a Ray cluster, and write them in shards.

    This process reads; workers annotate, and write the shards that `annotate` writes. Ray repeats
    what is lost with a machine.

    model, inputs, output: As for `annotate`. Every machine must find the model and the output.
    address: Address of the cluster: host:port, or "auto" on one of its machines; None for the
        environment variable RAY_ADDRESS, and without that to start Ray on this machine. If the
        program has initialized Ray already, that is used.
    workers: Actors, each with one CPU and its copy of the model; 0 for as many as the cluster has
        CPUs, or GPUs.
    gpus: Each worker also has a GPU.
    settings, resume, restart, on_progress: As for `annotate`.

    Returns what summary.json has. Raises InputError for invalid inputs, folders and clusters, and
    if Ray is not installed; OSError if the cluster or a storage cannot be reached; WorkerError if
    a worker fails in a way that Ray cannot repeat. Finished shards stay.
    """
    require_packages("ray", "ray")
    run = Run(model, inputs, output, settings, resume, restart, on_progress)
    with _connected(address):
        return run.execute(_actors(workers or _capacity("GPU" if gpus else "CPU"), gpus))


class _Worker:
    """An actor. Its process keeps the model."""

    def start(self) -> None:
        """Answer, when Ray has found a place for the actor."""

    def call(self, work: Callable[[Any, int], Result], item: Any, gpu_id: int) -> Result:
        return work(item, gpu_id)


@dataclass
class _Actors:
    """The engine: actors. Those that Ray has not started yet get no work."""

    actors: list[Any]
    size: int
    gpu_id: int  # 0 or -1; to an actor, Ray shows only the GPU that it has given

    def map(self, work: Callable[..., Result], items: Iterable[Any]) -> Iterator[Result]:
        import ray
        from ray.exceptions import RayTaskError

        # The actors, by what they will answer.
        free = {actor.start.remote(): actor for actor in self.actors}
        busy: dict[Any, Any] = {}
        try:
            for item in items:
                (answer,), _ = ray.wait([*free, *busy])
                answered = busy if answer in busy else free
                actor = answered.pop(answer)
                busy[actor.call.remote(work, item, self.gpu_id)] = actor
                if answered is busy:
                    yield ray.get(answer)
            while busy:
                (answer,), _ = ray.wait([*busy])
                del busy[answer]
                yield ray.get(answer)
        except RayTaskError as error:
            raise error.cause from error


@contextmanager
def _actors(workers: int, gpus: bool) -> Iterator[_Actors]:
    """Start workers. At the end they are killed.

    Ray starts one again that dies, and repeats its shard, under the same name.
    """
    import ray

    # With one CPU, Ray gives a worker one thread for arithmetic.
    start = ray.remote(num_cpus=1, num_gpus=int(gpus), max_restarts=-1, max_task_retries=RETRIES)(
        _Worker
    )
    actors: list[Any] = [start.remote() for _ in range(workers)]
    try:
        yield _Actors(actors, workers, 0 if gpus else -1)
    finally:
        for actor in actors:
            ray.kill(actor)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster, and disconnect at the end, unless the program is connected already."""
    import ray

    if ray.is_initialized():
        yield
        return
    # Without an address, Ray would look for a cluster on this machine, also for one that has died.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _require_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise OSError(
            f"expected a Ray cluster that takes this program, got: {str(error).splitlines()[0]} "
            "Start it with ray start --head, correct the address, or set up the token that the "
            "cluster asks for, as the documentation of Ray says."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Raise OSError if nobody answers at an address: Ray would wait for minutes, and exit."""
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        if place.hostname and place.port:
            socket.create_connection((place.hostname, place.port), TIMEOUT).close()
    except OSError as error:
        raise OSError(
            f"{address}: expected the address of a Ray cluster, got no answer ({error}). "
            "Start it with ray start --head, or correct the address."
        ) from error


def _capacity(resource: str) -> int:
    """Number of CPUs or GPUs of the cluster; one that grows with its work may have no CPU yet."""
    import ray

    number = int(ray.cluster_resources().get(resource, 0))  # type: ignore[no-untyped-call]
    if not number and resource == "GPU":
        raise InputError(
            "expected a cluster with GPUs, got none. Set the number of workers if the cluster "
            "grows, or leave the GPUs out."
        )
    return max(number, 1)
