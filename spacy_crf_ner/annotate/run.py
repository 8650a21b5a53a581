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
    """The progress of a run.

    Attributes:
        size: Processed bytes of the input.
        total: Total bytes of the input.
        documents: Number of documents annotated in this run.
        words: Number of tokens annotated in this run.
        seconds: Time since its start.
    """

    size: int
    total: int
    documents: int
    words: int
    seconds: float


OnProgress = Callable[[Progress], None]


class Engine(NamedTuple):
    """Workers, each with its own copy of the model.

    Attributes:
        size: Their number.
        map: Yields `work(item, gpu_id)` for each item when it is done, in any order. It takes few
            items in advance.
    """

    size: int
    map: Callable[[Callable[[Any, int], Any], Iterable[Any]], Iterator[Any]]


class Corpus(NamedTuple):
    """The files to read, and how to read and write them."""

    found: Sources
    output: Location
    settings: Settings


class Job(NamedTuple):
    """What workers do with the shards of a corpus.

    Attributes:
        load: Loads the model for a dtype and a GPU; returns the dtype, with "auto" resolved.
        work: Returns the content of a file, or None, for a shard, a GPU and `settings`; and counts.
        ending: Of the name of the file.
        fingerprint: Everything that the shards depend on.
    """

    load: Callable[[str | None, int], str | None]
    work: Callable[..., tuple[bytes | None, ShardReport]]
    ending: str
    fingerprint: dict[str, Any]


def find_corpus(inputs: Sequence[str | Path], output: str | Path, settings: Settings) -> Corpus:
    """Check settings, inputs and output. Raises InputError for invalid ones."""
    require("annotate")
    check_settings(settings)
    if "://" not in str(output):
        check_folder_name(Path(output))
    found = find_sources(inputs, location := locate(str(output)))
    check_text_column(found.sources[0], settings.text_column)
    return Corpus(found, location, settings)


def annotate_corpus(
    model: str,
    corpus: Corpus,
    engine: AbstractContextManager[Engine],
    *,
    resume: bool,
    restart: bool,
    on_progress: OnProgress,
) -> Summary:
    """Annotate a corpus, see `run`."""
    found, _, settings = corpus
    load, work = partial(load_model, model=model), partial(annotate_shard, model=model)
    fingerprint = make_fingerprint(model, found.sources, settings)
    job = Job(load, work, f".{settings.format}", fingerprint)
    shards = cut_shards(found.sources, settings)
    return run(corpus, shards, job, engine, resume, restart, on_progress)


def run(
    corpus: Corpus,
    shards: Iterator[Shard],
    job: Job,
    engine: AbstractContextManager[Engine],
    resume: bool,
    restart: bool,
    on_progress: OnProgress,
    summarize: Callable[[Summary], Summary] = dict,
) -> Summary:
    """Write the shards that are not finished, and return the content of summary.json.

    Args:
        shards: All shards of the corpus, without names.
        engine: A context of workers; after it, none of them writes.
        resume: Continue an earlier run and keep its finished shards.
        restart: Remove the output of an earlier run.
        on_progress: Called when a worker has loaded the model, and after each shard.
        summarize: Changes the content of summary.json.

    Raises:
        InputError: For a folder with other contents.
        WorkerError: If a worker fails or dies; finished shards are kept.
        OSError: If a file cannot be read or written; finished shards are kept.
    """
    began = monotonic()
    sources, settings = corpus.found.sources, corpus.settings
    with open_folder(corpus.output) as folder, engine as workers, _failures(folder):
        fingerprint = folder.begin(job.fingerprint, resume=resume, restart=restart)
        resumed = folder.totals.copy()

        def progress() -> Progress:
            now, seconds = folder.totals - resumed, monotonic() - began
            total = sum(source.size for source in sources)
            return Progress(folder.totals["size"], total, now["documents"], now["words"], seconds)

        dtype = fingerprint.get(USED_DTYPE, settings.dtype)
        named = (shard._replace(name=f"part-{i:06}") for i, shard in enumerate(shards))
        left = (shard for shard in named if shard.name not in folder.finished)
        if (first := next(left, None)) is not None:
            dtype = next(workers.map(job.load, [dtype] * workers.size))
            on_progress(progress())
            folder.write_fingerprint({**fingerprint, USED_DTYPE: dtype})
            settings = settings._replace(dtype=dtype)
            work = partial(
                _write_shard,
                work=partial(job.work, settings=settings),
                ending=job.ending,
                output=corpus.output,
            )
            for report in workers.map(work, chain([first], left)):
                folder.add(report)
                on_progress(progress())
        summary = summarize(_summary(corpus, folder, progress(), resumed["shards"]))
        folder.finish(summary)
    return summary


def _write_shard(
    shard: Shard,
    gpu_id: int,
    *,
    work: Callable[[Shard, int], tuple[bytes | None, ShardReport]],
    ending: str,
    output: Location,
) -> ShardReport:
    """Write the file of a shard, if it has one, then the report. Raises OSError."""
    content, report = work(shard, gpu_id)
    if content is not None:
        (output / f"{shard.name}{ending}").write([content])
    write_report(output, report)
    return report


def _summary(
    corpus: Corpus, folder: ShardFolder, progress: Progress, resumed_shards: int
) -> Summary:
    totals = folder.totals
    seconds = max(progress.seconds, 1e-3)  # clocks may tick slowly
    return {
        "in": totals["documents"],
        "out": totals["documents"] - totals["errors"],
        "errors": totals["errors"],
        "blank_lines": totals["blank"],
        "files": len(corpus.found.sources),
        "ignored_files": len(corpus.found.ignored),
        **{name: totals[name] for name in ("words", "entities", "shards")},
        "resumed_shards": resumed_shards,
        "seconds": round(progress.seconds, 3),
        "documents_per_second": round(progress.documents / seconds, 1),
        "words_per_second": round(progress.words / seconds, 1),
        "output": corpus.output.name,
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
