"""A run over a corpus: a function from a shard to a file, for each shard whose report is absent."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from ..atomic import check_folder_name
from ..extras import require
from ..input_error import InputError
from .fingerprint import make_fingerprint
from .inputs import Sources, find_sources
from .output_folder import ShardFolder, ShardReport, open_folder, write_report
from .readers import check_text_column
from .settings import Settings, check_settings
from .shards import Shard, annotate_shard, cut_shards
from .storage import Location, locate
from .worker import load_model

Summary = dict[str, Any]
USED_DTYPE = "used_dtype"  # in a fingerprint: the dtype, with "auto" resolved


class WorkerError(RuntimeError):
    """A worker failed or died."""


class Progress(NamedTuple):
    """The progress of a run."""

    size: int  # processed bytes of the input
    total: int  # bytes of the input
    documents: int  # annotated in this run
    words: int  # annotated in this run
    seconds: float  # since its start


OnProgress = Callable[[Progress], None]


class Engine(NamedTuple):
    """Workers, each with its own copy of the model."""

    size: int
    # Yields `work(item, gpu_id)` when it is done, in any order; takes few items in advance.
    map: Callable[[Callable[[Any, int], Any], Iterable[Any]], Iterator[Any]]


class Run(NamedTuple):
    """The files to read, and how to read and write them."""

    found: Sources
    output: Location
    settings: Settings
    resume: bool
    restart: bool
    on_progress: OnProgress


class Job(NamedTuple):
    """What workers do with the shards of a corpus."""

    # Loads the model for a dtype and a GPU; returns the dtype, with "auto" resolved.
    load: Callable[[str | None, int], str | None]
    # Returns the content of a file, or None, for a shard, a GPU and settings; and counts.
    work: Callable[[Shard, int, Settings], tuple[bytes | None, ShardReport]]
    ending: str  # of the name of the file
    fingerprint: dict[str, Any]  # everything that the shards depend on


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    settings: Settings,
    resume: bool,
    restart: bool,
    on_progress: OnProgress,
) -> Run:
    """Find the files of a run. Raises InputError for invalid settings, inputs and outputs."""
    require("annotate")
    check_settings(settings)
    if "://" not in str(output):
        check_folder_name(Path(output))
    found = find_sources(inputs, location := locate(str(output)))
    check_text_column(found.sources[0], settings)
    return Run(found, location, settings, resume, restart, on_progress)


def annotate_corpus(model: str, run: Run, engine: AbstractContextManager[Engine]) -> Summary:
    """Annotate a corpus, see `execute`."""
    sources, settings = run.found.sources, run.settings
    load, work = partial(load_model, model=model), partial(annotate_shard, model=model)
    fingerprint = make_fingerprint(model, sources, settings)
    job = Job(load, work, f".{settings.format}", fingerprint)
    return execute(run, cut_shards(sources, settings), job, engine)


def execute(
    run: Run,
    shards: Iterable[Shard],
    job: Job,
    engine: AbstractContextManager[Engine],
    summarize: Callable[[Summary], Summary] = dict,
) -> Summary:
    """Write the shards that are not finished, and return the content of summary.json.

    Args:
        shards: All shards of the corpus, without names.
        engine: A context of workers; after it, none of them writes.
        summarize: Changes the content of summary.json.

    Raises:
        InputError: For a folder with other contents.
        WorkerError: If a worker fails or dies; finished shards are kept.
        OSError: If a file cannot be read or written; finished shards are kept.
    """
    began = monotonic()
    total = sum(source.size for source in run.found.sources)
    with open_folder(run.output) as folder, engine as workers, _failures(folder):
        fingerprint = folder.begin(job.fingerprint, resume=run.resume, restart=run.restart)
        resumed = folder.totals.copy()

        def progress() -> Progress:
            now, seconds = folder.totals - resumed, monotonic() - began
            return Progress(folder.totals["size"], total, now["documents"], now["words"], seconds)

        named = (shard._replace(name=f"part-{i:06}") for i, shard in enumerate(shards))
        left = (shard for shard in named if shard.name not in folder.finished)
        if (first := next(left, None)) is not None:
            dtype = fingerprint.get(USED_DTYPE, run.settings.dtype)
            dtype = next(workers.map(job.load, [dtype] * workers.size))
            folder.write_fingerprint({**fingerprint, USED_DTYPE: dtype})
            run.on_progress(progress())
            settings = run.settings._replace(dtype=dtype)
            work = partial(_write_shard, job.work, job.ending, settings, run.output)
            for report in workers.map(work, chain([first], left)):
                folder.add(report)
                run.on_progress(progress())
        summary = summarize(_summary(run, folder, progress(), resumed["shards"]))
        folder.finish(summary)
    return summary


def _write_shard(
    work: Callable[[Shard, int, Settings], tuple[bytes | None, ShardReport]],
    ending: str,
    settings: Settings,
    output: Location,
    shard: Shard,
    gpu_id: int,
) -> ShardReport:
    """Write the file of a shard, if it has one, then the report. Raises OSError."""
    content, report = work(shard, gpu_id, settings)
    if content is not None:
        (output / f"{shard.name}{ending}").write([content])
    write_report(output, report)
    return report


def _summary(run: Run, folder: ShardFolder, progress: Progress, resumed_shards: int) -> Summary:
    totals = folder.totals
    seconds = max(progress.seconds, 1e-3)  # clocks may tick slowly
    return {
        "in": totals["documents"],
        "out": totals["documents"] - totals["errors"],
        "errors": totals["errors"],
        "blank_lines": totals["blank"],
        "files": len(run.found.sources),
        "ignored_files": len(run.found.ignored),
        **{name: totals[name] for name in ("words", "entities", "shards")},
        "resumed_shards": resumed_shards,
        "seconds": round(progress.seconds, 3),
        "documents_per_second": round(progress.documents / seconds, 1),
        "words_per_second": round(progress.words / seconds, 1),
        "output": run.output.name,
    }


@contextmanager
def _failures(folder: ShardFolder) -> Iterator[None]:
    """Convert the error that ends a run to one that explains how to continue."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        kind = OSError if isinstance(error, OSError) else WorkerError
        what = str(error)
        if kind is WorkerError:
            what = f"{type(error).__name__}: {(what.splitlines() or [''])[0]}"
        n = len(folder.finished)
        advice = f"{n} finished shards are kept: continue" if n else "Try again"
        message = f"{folder.location.name}: {what.rstrip('.')}. {advice} with --resume."
        raise kind(message) from error
