"""The Ray engine: workers on the machines of a cluster."""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ..extras import require
from ..input_error import InputError
from .run import Engine, OnProgress, Run, Summary
from .settings import Settings

TIMEOUT = 10  # seconds to wait for a cluster to accept a connection
RETRIES = 3  # of a shard if its worker dies


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

    This process reads the input; workers annotate, and write the same shards as `annotate`. If a
    machine fails, Ray repeats its work.

    Args:
        model: Folder or package of a pipeline, which every machine can read.
        inputs: Files, globs, folders or URIs, as for `annotate`.
        output: Folder, as for `annotate`, which every machine can write to.
        settings: How documents are read, annotated and written.
        address: Address of the cluster: host:port, or "auto" on one of its machines. None uses the
            environment variable RAY_ADDRESS or, if it is not set, starts Ray on this machine. If
            Ray is already initialized in this program, the address is not used.
        workers: Actors, each with one CPU and its own copy of the model; 0 for one per CPU, or GPU,
            of the cluster.
        gpus: Each worker also has a GPU.
        resume: As for `annotate`, also restart and on_progress.

    Returns:
        The content of summary.json.

    Raises:
        InputError: For invalid inputs, folders and clusters, and if Ray is not installed.
        OSError: If the cluster or a storage cannot be reached.
        WorkerError: If a worker fails and Ray cannot repeat its work.
    """
    require("ray")
    run = Run(inputs, output, settings, resume, restart)
    with _connected(address):
        engine = _actors(workers or _capacity("GPU" if gpus else "CPU"), gpus)
        return run.annotate(model, engine, on_progress)


class _Worker:
    """An actor, whose process keeps the model in memory."""

    def call(self, work: Callable[[Any, int], Any], item: Any, gpu_id: int) -> Any:
        return work(item, gpu_id)


@contextmanager
def _actors(workers: int, gpus: bool) -> Iterator[Engine]:
    """Start workers; kill them at the end. If one dies, Ray restarts it and repeats its shard."""
    import ray
    from ray.exceptions import RayTaskError

    # With one CPU, Ray limits numerical libraries in a worker to one thread.
    start = ray.remote(num_cpus=1, num_gpus=int(gpus), max_restarts=-1, max_task_retries=RETRIES)(
        _Worker
    )
    actors: list[Any] = [start.remote() for _ in range(workers)]
    gpu_id = 0 if gpus else -1  # an actor sees only the GPU that Ray assigned to it

    def map_shards(work: Callable[[Any, int], Any], items: Iterable[Any]) -> Iterator[Any]:
        starts = {actor.__ray_ready__.remote(): actor for actor in actors}
        pending = {**starts}  # the actors, by what they will answer
        try:
            for item in items:
                (answer,), _ = ray.wait([*pending])
                actor = pending.pop(answer)
                pending[actor.call.remote(work, item, gpu_id)] = actor
                if answer not in starts:
                    yield ray.get(answer)
            while left := [*(pending.keys() - starts)]:  # some actors may never start
                (answer,), _ = ray.wait(left)
                del pending[answer]
                yield ray.get(answer)
        except RayTaskError as error:
            raise error.cause from error

    try:
        yield Engine(workers, map_shards)
    finally:
        for actor in actors:
            ray.kill(actor)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster and disconnect at the end, unless Ray is already initialized."""
    import ray

    if ray.is_initialized():
        yield
        return
    # Without an address, Ray would search this machine for a cluster, even for one that has died.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise OSError(
            f"expected a Ray cluster that accepts this program, got: {str(error).splitlines()[0]} "
            "Start it with ray start --head, correct the address, or set up the token that the "
            "cluster requires, as Ray's documentation explains."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if an address does not answer: Ray would wait for minutes, and exit."""
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
    """Return the number of CPUs or GPUs of the cluster; an autoscaling one may have none yet."""
    import ray

    number = int(ray.cluster_resources().get(resource, 0))  # type: ignore[no-untyped-call]
    if not number and resource == "GPU":
        raise InputError(
            "expected a cluster with GPUs, got none. Set the number of workers if the cluster "
            "grows, or do not use GPUs."
        )
    return max(number, 1)
