"""The engine for Ray: the machines of a cluster."""

import json
import logging
import os
import socket
from contextlib import contextmanager, nullcontext
from itertools import groupby
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)
from urllib.parse import urlsplit

from ..input_error import InputError
from .dataframes import load
from .inputs import Source
from .output_folder import ShardFolder, ShardReport
from .run import OnProgress, Run, Summary
from .settings import Settings, require_packages
from .shards import cut_shards
from .storage import Location
from .worker import annotate_shard, resolve_precision

if TYPE_CHECKING:
    from pyarrow import Schema

    # Consecutive files of one kind, that one task reads; and the types of their columns, if they
    # are those of the first documents of the corpus.
    Portion = Tuple[List[Source], Optional[Schema]]

PORTION_SIZE = 64 * 2**20  # bytes of the files that a task reads; it reads a larger file whole
TIMEOUT = 10  # seconds, for a cluster to accept a connection


def annotate_on_ray(
    model: str,
    inputs: Sequence[str],
    output: str,
    settings: Settings = Settings(),  # noqa: B008
    *,
    address: Optional[str] = None,
    workers: int = 0,
    gpus: bool = False,
    resume: bool = False,
    restart: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> Summary:
    """Annotate the documents of files on a Ray cluster, and write them in shards.

    Every document is in the output once, or in errors.jsonl with file, line and reason; the names
    of the shards have the order of the input. Ray repeats what is lost with a machine.

    model, inputs, output: As for `annotate`. Every machine must find the model, and read and write
        the paths.
    address: Address of the cluster: host:port, or "auto" on one of its machines; None for the
        environment variable RAY_ADDRESS, and without that to start Ray on this machine. If the
        program has initialized Ray already, that is used.
    workers: Actors, each with one CPU and its copy of the model; 0 for as many as the cluster has
        CPUs, or GPUs.
    gpus: Each worker also has a GPU.
    settings, resume, restart, on_progress: As for `annotate`.

    Returns what summary.json has. Raises InputError for invalid inputs, folders and clusters, and
    if Ray is not installed; OSError if the cluster or a storage cannot be reached; WorkerError if
    a task fails that Ray cannot repeat. Finished shards stay.
    """
    require_packages("ray", "ray.data")
    run = Run(model, inputs, output, settings)
    with _connected(address):
        engine = _Cluster(workers or _capacity("GPU" if gpus else "CPU"), 0 if gpus else -1)
        return run.execute(
            nullcontext(engine), resume=resume, restart=restart, on_progress=on_progress
        )


class _Cluster(NamedTuple):
    """The engine: tasks of Ray Data read, and actors annotate and write."""

    workers: int
    gpu_id: int  # 0 or -1; in an actor, Ray shows only the GPU that it has given

    def resolve_precision(self, model: str, precision: Optional[str]) -> Optional[str]:
        import ray

        task = ray.remote(num_cpus=1, num_gpus=self.gpu_id + 1)(resolve_precision)
        chosen: Optional[str] = ray.get(task.remote(model, precision, self.gpu_id))
        return chosen

    def annotate(
        self, run: Run, settings: Settings, folder: ShardFolder
    ) -> Iterator[Optional[ShardReport]]:
        """Read with our readers, not with those of Ray.

        For these, a line that is no JSON ends the run, a text that looks like a date becomes one,
        and lines have no numbers.
        """
        from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy, from_items

        portions = _portions(run, settings)
        number = len(portions)
        context = DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.target_max_block_size = 1  # bytes: a block, which an actor is given, is a shard
        with DataContext.current(context):
            reports = (
                from_items([{"portion": i} for i in range(number)], override_num_blocks=number)
                # Without CPUs: else actors on all CPUs would wait for shards, and reading for a
                # CPU. And Ray would let the actors read: one would annotate all of a large file.
                .flat_map(
                    _cut,  # type: ignore[arg-type]  # Ray takes any iterable of rows
                    fn_args=(portions, settings, folder.finished),
                    num_cpus=0,
                    compute=TaskPoolStrategy(size=min(self.workers, number)),
                )
                .map(
                    _Worker,  # type: ignore[arg-type]  # and a class, for actors
                    fn_constructor_args=(run.model, settings, folder.location, self.gpu_id),
                    num_cpus=1,  # and so one thread for arithmetic, which Ray sees to
                    num_gpus=self.gpu_id + 1,
                    compute=ActorPoolStrategy(size=self.workers),
                )
            )
            for row in reports.iter_rows():
                yield ShardReport(**json.loads(row["report"]))


def _portions(run: Run, settings: Settings) -> List["Portion"]:
    """Divide a corpus into what tasks read."""
    portions: List[Portion] = []
    for kind, group in groupby(run.sources.sources, lambda source: source.kind):
        alike = [*group]
        schema = None
        if settings.format == "parquet" and kind in ("jsonl", "spacy"):
            # The types of all are those of the first documents, whoever reads them.
            shards = cut_shards(alike, settings)
            schema = next((each.schema for each in shards if each.schema is not None), None)
        size = PORTION_SIZE
        for source in alike:
            if size + source.size > PORTION_SIZE:
                portions.append(([], schema))
                size = 0
            portions[-1][0].append(source)
            size += source.size
    return portions


def _cut(
    row: Dict[str, int], portions: List["Portion"], settings: Settings, finished: Set[str]
) -> Iterator[Dict[str, Any]]:
    """Read a portion, and yield its shards."""
    number = row["portion"]
    sources, schema = portions[number]
    for shard in cut_shards(sources, settings, prefix=f"part-{number:06}", schema=schema):
        if shard.name not in finished:
            yield {"shard": shard}


class _Worker:
    """Annotate shards, and write them.

    Ray may annotate a shard again after a failure: it is written again under the same name. Only
    its report goes through Ray.
    """

    def __init__(self, model: str, settings: Settings, output: Location, gpu_id: int) -> None:
        self.arguments = model, settings, output, gpu_id
        load(model, gpu_id, settings.precision)

    def __call__(self, row: Dict[str, Any]) -> Dict[str, str]:
        report = annotate_shard(row["shard"], *self.arguments)
        return {"report": json.dumps(report._asdict(), default=str)}


@contextmanager
def _connected(address: Optional[str]) -> Iterator[None]:
    """Connect to a cluster, and disconnect at the end, unless the program is connected already."""
    import ray

    if ray.is_initialized():
        yield
        return
    # Without an address, Ray would look for a cluster on this machine, also for one that has died.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _require_reachable(address)
    logging.getLogger("ray.data").setLevel(logging.WARNING)
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

    resources: Dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    number = int(resources.get(resource, 0))
    if not number and resource == "GPU":
        raise InputError(
            "expected a cluster with GPUs, got none. Set the number of workers if the cluster "
            "grows, or leave the GPUs out."
        )
    return max(number, 1)
