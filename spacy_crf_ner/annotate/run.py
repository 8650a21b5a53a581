"""A run over a corpus: what is the same for all engines."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Union,
)

from ..input_error import InputError
from .fingerprint import has_auto_precision, make_fingerprint
from .inputs import find_sources
from .output_folder import ShardFolder, ShardReport
from .readers import require_text_column
from .settings import Settings, require_packages, require_settings
from .storage import locate

Summary = Dict[str, Any]


class WorkerError(RuntimeError):
    """A worker failed, or died."""


class Progress(NamedTuple):
    """How far a run is.

    size, total: Bytes of the input that are done, and of all of it.
    documents, words: What this run has annotated.
    seconds: Since it began.
    """

    size: int
    total: int
    documents: int
    words: int
    seconds: float


OnProgress = Callable[[Progress], None]


class Engine(Protocol):
    """Where the work is done."""

    def resolve_precision(self, model: str, precision: Optional[str]) -> Optional[str]:
        """Say, where a worker is, which precision "auto" is."""

    def annotate(
        self, run: "Run", settings: Settings, folder: ShardFolder
    ) -> Iterator[Optional[ShardReport]]:
        """Annotate the shards that are not finished.

        Yields a report for each; and None when a worker has loaded the model.
        """


@dataclass
class Run:
    """A corpus, a model, and the folder to write. Raises InputError for what cannot be."""

    model: str
    inputs: Sequence[Union[str, Path]]
    output: Union[str, Path]
    settings: Settings

    def __post_init__(self) -> None:
        require_packages("annotate", "pandas", "pyarrow")
        require_settings(self.settings)
        self.location = locate(str(self.output))
        self.sources = find_sources(self.inputs, self.location)
        require_text_column(self.sources.sources[0], self.settings.text_column)
        self.total = sum(source.size for source in self.sources.sources)

    def execute(
        self,
        workers: ContextManager[Engine],
        *,
        resume: bool,
        restart: bool,
        on_progress: OnProgress,
    ) -> Summary:
        """Annotate the corpus, and return what summary.json has.

        workers: At its end, no worker writes any more.

        Raises InputError for a folder of something else, and WorkerError or OSError for what ends
        the run: finished shards stay.
        """
        began = monotonic()
        with (
            ShardFolder(self.location) as folder,
            workers as engine,
            _failures(self.location.name, folder),
        ):
            settings = self._resolved(engine, folder, resume)
            fingerprint = make_fingerprint(self.model, self.sources, settings)
            folder.begin(fingerprint, resume=resume, restart=restart)
            resumed = folder.totals.copy()

            def progress() -> Progress:
                size, now = folder.totals["size"], folder.totals - resumed
                seconds = monotonic() - began
                return Progress(size, self.total, now["documents"], now["words"], seconds)

            for report in engine.annotate(self, settings, folder):
                if report is not None:
                    folder.add(report)
                on_progress(progress())
            summary = self._summary(folder, progress(), resumed["shards"])
            folder.finish(summary)
        return summary

    def _resolved(self, engine: Engine, folder: ShardFolder, resume: bool) -> Settings:
        """Replace the precision "auto": all shards of a folder are predicted in the same one."""
        given = self.settings.precision
        if given != "auto" and (given or not has_auto_precision(self.model)):
            return self.settings
        before = folder.read_fingerprint() if resume else None
        if before is None:
            return self.settings._replace(precision=engine.resolve_precision(self.model, given))
        return self.settings._replace(precision=before["precision"])

    def _summary(self, folder: ShardFolder, progress: Progress, resumed_shards: int) -> Summary:
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
def _failures(output: str, folder: ShardFolder) -> Iterator[None]:
    """Turn what ends a run into an error that says what stays, and how to continue."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        kind = OSError if isinstance(error, OSError) else WorkerError
        raise kind(
            f"{output}: {_describe(error).rstrip('.')}. {len(folder.finished)} finished shards "
            "stay: continue with --resume."
        ) from error


def _describe(error: Exception) -> str:
    """Describe in a line what was raised where the work was done."""
    if isinstance(error, OSError) and not hasattr(error, "cause"):
        return str(error)
    cause = getattr(error, "cause", None)  # Ray adds lines to its message
    if cause is None and type(error).__module__.startswith("ray."):
        # The actor could not begin: there is only its trace, which ends with the error.
        return ([line.strip() for line in str(error).splitlines() if line.strip()] or [""])[-1]
    error = cause or error
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
