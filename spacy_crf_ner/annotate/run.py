"""A run over a corpus, independent of the engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from ..atomic import check_folder_name
from ..extras import require
from ..input_error import InputError
from .fingerprint import has_auto_precision, make_fingerprint
from .inputs import find_sources
from .output_folder import ShardFolder, ShardReport
from .readers import check_text_column
from .settings import ENTITIES, Settings, check_settings
from .shards import annotate_shard, cut_shards
from .storage import locate
from .worker import load_model

Summary = dict[str, Any]
Result = TypeVar("Result")


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


class Engine(Protocol):
    """An engine of `size` workers, each with its own copy of the model."""

    size: int

    def map(self, work: Callable[..., Result], items: Iterable[Any]) -> Iterator[Result]:
        """Yield `work(item, gpu_id)` for each item when it is done, in any order.

        The number of items taken from the iterable in advance must be small.
        """


@dataclass
class Run:
    """A corpus, a model and an output folder.

    Attributes:
        model: Folder or package of a pipeline.
        inputs: Files, globs, folders or URIs.
        output: Folder for the shards, errors.jsonl and summary.json.
        settings: How documents are read, annotated and written.
        resume: Continue an earlier run and keep its finished shards.
        restart: Remove the output of an earlier run.
        on_progress: Called when a worker has loaded the model, and after each shard.

    Raises:
        InputError: For invalid settings, inputs and folders.
    """

    model: str
    inputs: Sequence[str | Path]
    output: str | Path
    settings: Settings
    resume: bool
    restart: bool
    on_progress: OnProgress
    added: ClassVar[str | None] = ENTITIES  # the column that the shards have in addition

    def __post_init__(self) -> None:
        require("annotate")
        check_settings(self.settings)
        if "://" not in str(self.output):
            check_folder_name(Path(self.output))
        self.location = locate(str(self.output))
        self.sources = find_sources(self.inputs, self.location)
        check_text_column(self.sources.sources[0], self.settings.text_column)

    @property
    def load(self) -> Callable[[str | None, int], str | None]:
        """Load the model in a worker; returns its dtype."""
        return partial(load_model, model=self.model)

    @property
    def work(self) -> Callable[..., ShardReport]:
        """What a worker does with a shard, a GPU, settings and the output."""
        return partial(annotate_shard, model=self.model)

    def fingerprint(self, settings: Settings) -> dict[str, Any]:
        """Describe everything that the shards depend on."""
        return make_fingerprint(self.model, self.sources, settings)

    def execute(self, workers: AbstractContextManager[Engine]) -> Summary:
        """Annotate the corpus, and return the content of summary.json.

        Args:
            workers: A context that yields the engine; after it, no worker writes.

        Raises:
            InputError: For a folder with other contents.
            WorkerError: If a worker fails or dies; finished shards are kept.
            OSError: If a file cannot be read or written; finished shards are kept.
        """
        began = monotonic()
        total = sum(source.size for source in self.sources.sources)
        with ShardFolder(self.location) as folder, workers as engine, _failures(folder):
            settings = self._resolve_precision(engine, folder)
            folder.begin(self.fingerprint(settings), resume=self.resume, restart=self.restart)
            resumed = folder.totals.copy()

            def progress() -> Progress:
                now, seconds = folder.totals - resumed, monotonic() - began
                size = folder.totals["size"]
                return Progress(size, total, now["documents"], now["words"], seconds)

            shards = cut_shards(self.sources.sources, settings, self.added)
            shards = (shard for shard in shards if shard.name not in folder.finished)
            if (first := next(shards, None)) is not None:
                next(engine.map(self.load, [settings.dtype] * engine.size))
                self.on_progress(progress())
                work = partial(self.work, settings=settings, output=self.location)
                for report in engine.map(work, chain([first], shards)):
                    folder.add(report)
                    self.on_progress(progress())
            summary = self.summary(folder, progress(), resumed["shards"])
            folder.finish(summary)
        return summary

    def _resolve_precision(self, engine: Engine, folder: ShardFolder) -> Settings:
        """Resolve the dtype "auto", so that all shards of a folder have the same one."""
        given = self.settings.dtype
        if given != "auto" and (given or not has_auto_precision(self.model)):
            return self.settings
        before = folder.read_fingerprint() if self.resume else None
        if before is not None:
            return self.settings._replace(dtype=before["dtype"])
        (dtype,) = engine.map(self.load, [given])
        return self.settings._replace(dtype=dtype)

    def summary(self, folder: ShardFolder, progress: Progress, resumed_shards: int) -> Summary:
        """Return the content of summary.json."""
        totals = folder.totals
        seconds = max(progress.seconds, 1e-3)  # clocks may tick slowly
        return {
            "in": totals["documents"],
            "out": totals["documents"] - totals["errors"],
            "errors": totals["errors"],
            "blank_lines": totals["blank"],
            "files": len(self.sources.sources),
            "ignored_files": len(self.sources.ignored),
            **{name: totals[name] for name in ("words", "entities", "shards")},
            "resumed_shards": resumed_shards,
            "seconds": round(progress.seconds, 3),
            "documents_per_second": round(progress.documents / seconds, 1),
            "words_per_second": round(progress.words / seconds, 1),
            "output": self.location.name,
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
        advice = ""
        if folder.begun:
            n = len(folder.finished)
            advice = f" {n} finished shards are kept: continue" if n else " Try again"
            advice += " with --resume."
        raise kind(f"{folder.location.name}: {what.rstrip('.')}.{advice}") from error
