"""The engine for Ray: a corpus annotated by the machines of a cluster."""

import json
import logging
import os
import pickle
import socket
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
)
from urllib.parse import urlsplit

from .filesystem import OutputFolder, find_files
from .fingerprint import make_plan
from .inputs import Source, Sources
from .multiprocess import Progress, Summary, summarize
from .output_folder import ERRORS, SUMMARY, Report
from .process_pool import WorkerError
from .readers import require_text_column
from .settings import Settings, require_settings
from .shards import Shard, cut_shards
from .worker import Annotator, Task

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from ray.data import Dataset

# Bytes of the files that a task reads; it reads a larger file whole.
PORTION = 64 * 2**20
PATIENCE = 10  # seconds, for a cluster to take a connection


class Portion(NamedTuple):
    """Consecutive files of one kind, that one task reads.

    It goes to the task, and shards to the actors, pickled, as all that Ray hands over within a run.

    number: From 0, in the order of the input.
    schema: Types of the columns, where they are those of the first documents of the corpus.
    """

    number: int
    sources: List[Source]
    schema: Optional["Schema"]


def annotate_on_ray(
    model: str,
    inputs: Sequence[str],
    output: str,
    settings: Settings = Settings(),  # noqa: B008
    *,
    address: Optional[str] = None,
    workers: int = 0,
    gpus: bool = False,
    restart: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Summary:
    """Annotate the documents of files on a Ray cluster, and write them in shards.

    Every document is in the output once, or in errors.jsonl with file, line and reason; the names
    of the shards have the order of the input. Ray runs again what is lost with a machine. A folder
    without summary.json is not finished.

    model: Folder or package of a pipeline, which every machine of the cluster has.
    inputs: Files, globs or folders that every machine can read; or URIs of files or folders, such
        as s3://bucket/folder. Kinds of files and ids are those of `annotate`.
    output: Folder that every machine can write, or its URI.
    settings: How documents are read, annotated and written.
    address: Of the cluster: host:port, or "auto" on one of its machines; without one, that of the
        environment variable RAY_ADDRESS, else Ray is started on this machine. Where the program
        has initialised Ray already, that is used.
    workers: Actors, each with one CPU and its copy of the model; 0 for as many as the cluster has
        CPUs, or GPUs.
    gpus: Each worker has a GPU, too.
    restart: Remove what an earlier run has left in the folder.
    watch: Told how far it is, after each shard.

    Returns what summary.json has. Raises ValueError for inputs, folders and clusters that cannot
    be, and where Ray is not installed; OSError where the cluster cannot be reached, or a storage;
    WorkerError where a task fails that Ray cannot run again.
    """
    require_ray()
    require_settings(settings)
    folder = OutputFolder(output)
    found = find_files(inputs, folder)
    require_text_column(found.sources[0], settings.text_column)
    plan = make_plan(model, Sources([], []), settings)
    with _connected(address), _a_block_a_shard():
        size = workers or _capacity("GPU" if gpus else "CPU")
        folder.begin(plan, restart)
        run = _Run(folder, found, watch)
        try:
            dataset = _dataset(model, found.sources, folder, settings, size, gpus)
            run.collect(dataset.iter_rows())
        except Exception as error:  # Ray's, and whatever it raises of the tasks
            raise WorkerError(f"{output}: {_reason(error)}. Begin anew with --restart") from error
        summary = run.summary()
        folder.write(SUMMARY, json.dumps(summary, indent=2).encode())
    return summary


def require_ray() -> None:
    """Raise ValueError where Ray, or what it needs for data, is not installed."""
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"expected Ray, got no package {error.name}. "
            "Install it: pip install 'spacy-crf-ner[ray]'."
        ) from error


class _Run:
    """A run, and how far it is."""

    def __init__(
        self, folder: OutputFolder, sources: Sources, watch: Callable[[Progress], None]
    ) -> None:
        self.folder, self.sources, self.watch = folder, sources, watch
        self._began = monotonic()
        self._totals: Counter[str] = Counter()

    def collect(self, results: Iterable[Dict[str, Any]]) -> None:
        """Count what became of the shards, and write the errors, in their order."""
        with self.folder.open(ERRORS) as errors:
            for result in results:
                report = Report(**json.loads(result["report"]))
                for error in report.errors:
                    errors.write(json.dumps(error).encode() + b"\n")
                counts = {**report._asdict(), "errors": len(report.errors)}
                self._totals.update(counts, shards=1, size=result["size"])
                self.watch(self._now())

    def summary(self) -> Summary:
        """What became of the corpus, and how long it took."""
        return summarize(self._totals, self.sources, self._now(), self.folder.name)

    def _now(self) -> Progress:
        return Progress(
            size=self._totals["size"],
            total=sum(source.size for source in self.sources.sources),
            documents=self._totals["documents"],
            words=self._totals["words"],
            seconds=monotonic() - self._began,
        )


@contextmanager
def _a_block_a_shard() -> Iterator[None]:
    """Let Ray keep the order of blocks, and make one of each shard: what an actor is given."""
    from ray.data import DataContext

    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.target_max_block_size = 1  # bytes
    with DataContext.current(context):
        yield


def _dataset(
    model: str,
    sources: List[Source],
    folder: OutputFolder,
    settings: Settings,
    workers: int,
    gpus: bool,
) -> "Dataset":
    """Describe the work. The rows are the report and the size of each shard, in order.

    The files are read by our own readers, and not by those of Ray: for these a line that is no
    JSON is the end of the run, a text that looks like a date becomes one, and lines have no
    numbers. So the corpus is cut into shards, and their documents get their ids, as on one machine.
    """
    from ray.data import ActorPoolStrategy, TaskPoolStrategy, from_items

    portions = [{"portion": pickle.dumps(each)} for each in _portions(sources, settings)]
    return (
        from_items(portions, override_num_blocks=len(portions))
        # Without CPUs: else actors on all CPUs would wait for shards, and reading for a CPU. And
        # Ray would let the actors read: one of them would have to annotate all of a large file.
        .map_batches(
            partial(_cut, settings=settings),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0,
            compute=TaskPoolStrategy(size=min(workers, len(portions))),
        )
        .map_batches(
            _Worker,
            fn_constructor_args=(model, gpus, folder, settings),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=1,  # and so one thread for arithmetic, which Ray sees to
            num_gpus=1 if gpus else 0,
            compute=ActorPoolStrategy(size=workers),
        )
    )


def _portions(sources: List[Source], settings: Settings) -> List[Portion]:
    """Divide a corpus into what tasks read."""
    portions: List[Portion] = []
    for kind, group in groupby(sources, lambda source: source.kind):
        alike = [*group]
        schema = None
        if settings.format == "parquet" and kind in ("jsonl", "spacy"):
            # The types of all are those of the first documents, whoever reads them.
            shards = cut_shards(alike, settings)
            schema = next((each.schema for each in shards if each.schema is not None), None)
        size = PORTION
        for source in alike:
            if size + source.size > PORTION:
                portions.append(Portion(len(portions), [], schema))
                size = 0
            portions[-1].sources.append(source)
            size += source.size
    return portions


def _cut(batch: "Table", settings: Settings) -> Iterator["Table"]:
    """Read the portions of a batch, and yield their shards."""
    for packed in batch["portion"].to_pylist():
        portion: Portion = pickle.loads(packed)
        for shard in cut_shards(portion.sources, settings):
            if portion.schema is not None:
                shard = shard._replace(schema=portion.schema)
            name = f"part-{portion.number:06}-{shard.number:06}.{settings.format}"
            yield _table(name=name, shard=pickle.dumps(shard))


class _Worker:
    """Annotate shards with a pipeline, and write them.

    A shard that Ray lets annotate again, after a failure, is written again under the same name:
    it is there once. Only its report goes through Ray: the shard would have to be kept in memory,
    or on the disks of the cluster, until another task writes it.
    """

    def __init__(self, model: str, gpu: bool, folder: OutputFolder, settings: Settings) -> None:
        self.annotator = Annotator(model, 0 if gpu else -1, settings)
        self.folder = folder

    def __call__(self, batch: "Table") -> Iterator["Table"]:
        for row in batch.to_pylist():
            shard: Shard = pickle.loads(row["shard"])
            with TemporaryDirectory() as place:
                path = Path(place, row["name"])
                report = self.annotator(Task(shard, path))
                self.folder.write(row["name"], path.read_bytes())
            yield _table(report=json.dumps(report._asdict(), default=str), size=shard.size)


def _table(**row: Any) -> "Table":
    import pyarrow

    # A block with more than 2 GiB in a column needs the large types.
    types = {bytes: pyarrow.large_binary(), str: pyarrow.large_string(), int: pyarrow.int64()}
    return pyarrow.table({name: pyarrow.array([v], types[type(v)]) for name, v in row.items()})


@contextmanager
def _connected(address: Optional[str]) -> Iterator[None]:
    """Connect with a cluster, and leave it at the end; one that the program is in stays."""
    import ray

    if ray.is_initialized():
        yield
        return
    # Said nothing, Ray would look for a cluster on this machine, also for one that has died.
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
    """Raise OSError where nobody answers at an address: Ray would wait for minutes, and exit."""
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        if place.hostname and place.port:
            socket.create_connection((place.hostname, place.port), PATIENCE).close()
    except OSError as error:
        raise OSError(
            f"{address}: expected the address of a Ray cluster, got no answer ({error}). "
            "Start it with ray start --head, or correct the address."
        ) from error


def _capacity(resource: str) -> int:
    """Number of CPUs or GPUs of the cluster; what grows with its work may have no CPU yet."""
    import ray

    resources: Dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    number = int(resources.get(resource, 0))
    if not number and resource == "GPU":
        raise ValueError(
            "expected a cluster with GPUs, got none. Say how many workers there shall be, if it "
            "grows, or leave the GPUs out."
        )
    return max(number, 1)


def _reason(error: Exception) -> str:
    """Say in a line what was raised where the work is done."""
    cause = getattr(error, "cause", None)
    if cause is not None:  # to whose message Ray adds lines
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    # Of an actor that could not begin there is but the trace: it ends with what was raised.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
