"""A run over a corpus: a function from a shard to a file, for each shard whose report is absent."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from spacy.util import get_package_path, is_package

from ..atomic import check_folder_name
from ..extras import require, versions
from ..input_error import InputError
from ..ml.checksummed import file_digest
from ..pipeline.seen_texts import SEEN_TEXTS
from .files import UNFINISHED, Location, Source, find_sources, locate
from .readers import check_text_column
from .settings import Settings, check_settings
from .shards import Shard, ShardReport, annotate_shard, cut_shards, load_model
from .writers import json_line

Summary = dict[str, Any]
# Packages whose versions may change predictions. An exported pipeline runs without torch.
PACKAGES = ("spacy-crf-ner", "spacy", "thinc", "torch", "transformers", "onnxruntime", "tokenizers")
USED_DTYPE = "used_dtype"  # in a fingerprint: the dtype, with "auto" resolved
# pyarrow, Spark and Ray ignore names that begin with "_".
STATE = "_progress"
FINGERPRINT, LOCK = "fingerprint.json", "lock"
ERRORS, SUMMARY = "errors.jsonl", "summary.json"
# To read reports from an object store, where each takes long.
THREADS = 16


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
# Loads the model for a dtype and a GPU; returns the dtype, with "auto" resolved.
Load = Callable[[str | None, int], str | None]
# Returns the content of a file, or None, for a shard, a GPU and settings; and counts.
Work = Callable[[Shard, int, Settings], tuple[bytes | None, ShardReport]]


class Engine(NamedTuple):
    """Workers, each with its own copy of the model."""

    size: int
    # Yields `work(item, gpu_id)` when it is done, in any order; takes few items in advance.
    map: Callable[[Callable[[Any, int], Any], Iterable[Any]], Iterator[Any]]


def make_fingerprint(model: str, sources: list[Source], settings: Settings) -> dict[str, Any]:
    """Describe what the output depends on; a file by size and time, in the order of the input."""
    if not Path(model).is_dir() and not is_package(model):
        raise InputError(
            f"model: expected the folder of a pipeline, or the name of a package, got {model}. "
            "Train one with spacy train."
        )
    folder = Path(model) if Path(model).is_dir() else Path(get_package_path(model))
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name} {file_digest(path)}\n".encode())
    return {
        "model": digest.hexdigest(),
        "input": [[each.name, each.kind, each.size, each.modified] for each in sources],
        **settings._asdict(),
        "versions": versions(PACKAGES),
    }


def write_shard(
    work: Work, ending: str, settings: Settings, output: Location, shard: Shard, gpu_id: int
) -> ShardReport:
    """Write the file of a shard, and then the report, which marks it as finished."""
    content, report = work(shard, gpu_id, settings)
    if content is not None:
        (output / f"{shard.name}{ending}").write([content])
    # An id may have any type of Parquet.
    stored = json.dumps(report._asdict(), default=str).encode()
    (output / STATE / f"{report.name}.json").write([stored])
    return report


class Run:
    """A run of workers over the files of a corpus, which writes shards to a folder.

    Attributes:
        finished: The names of the finished shards, each with whether its report has errors.
        totals: The counts of their reports, and "shards".
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        output: str | Path,
        settings: Settings,
        resume: bool,
        restart: bool,
    ) -> None:
        require("annotate")
        check_settings(settings)
        if "://" not in str(output):
            check_folder_name(Path(output))
        self.output = locate(str(output))
        self.state = self.output / STATE
        self.found = find_sources(inputs, self.output)
        check_text_column(self.found.sources[0], settings)
        self.settings, self.resume, self.restart = settings, resume, restart
        self.finished: dict[str, bool] = {}
        self.totals: Counter[str] = Counter()

    def annotate(
        self, model: str, engine: AbstractContextManager[Engine], on_progress: OnProgress
    ) -> Summary:
        """Annotate the corpus, see `execute`."""
        sources, settings = self.found.sources, self.settings
        return self.execute(
            cut_shards(sources, settings),
            make_fingerprint(model, sources, settings),
            engine,
            on_progress,
            load=partial(load_model, model=model),
            work=partial(annotate_shard, model=model),
            ending=f".{settings.format}",
        )

    def execute(
        self,
        shards: Iterable[Shard],
        fingerprint: dict[str, Any],
        engine: AbstractContextManager[Engine],
        on_progress: OnProgress,
        *,
        load: Load,
        work: Work,
        ending: str,
        summarize: Callable[[Summary], Summary] = dict,
    ) -> Summary:
        """Write the shards that are not finished, and return the content of summary.json.

        The shards have no names yet, and depend only on what the fingerprint has. After the context
        of the engine, no worker writes.
        """
        began = monotonic()
        total = sum(source.size for source in self.found.sources)
        with self.opened(), engine as workers, self._failures():
            fingerprint = self.begin(fingerprint)
            resumed = self.totals.copy()

            def progress() -> Progress:
                now, seconds = self.totals - resumed, monotonic() - began
                return Progress(self.totals["size"], total, now["documents"], now["words"], seconds)

            named = (shard._replace(name=f"part-{i:06}") for i, shard in enumerate(shards))
            left = (shard for shard in named if shard.name not in self.finished)
            if (first := next(left, None)) is not None:
                dtype = fingerprint.get(USED_DTYPE, self.settings.dtype)
                dtype = next(workers.map(load, [dtype] * workers.size))
                self._write(self.state / FINGERPRINT, {**fingerprint, USED_DTYPE: dtype})
                on_progress(progress())
                settings = self.settings._replace(dtype=dtype)
                write = partial(write_shard, work, ending, settings, self.output)
                for report in workers.map(write, chain([first], left)):
                    self.add(report)
                    on_progress(progress())
            summary = summarize(self._summary(progress(), resumed["shards"]))
            self.finish(summary)
        return summary

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lock the folder, which may not exist yet. No worker may write at the end."""
        from filelock import FileLock, Timeout
        from pyarrow.fs import FileSelector, FileType

        filesystem, path, name = self.output
        if filesystem.get_file_info([path])[0].type == FileType.File:
            raise InputError(f"{name}: expected a folder, got a file. Choose another.")
        infos = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        # A run that was killed at its start leaves an empty state.
        if {each.base_name for each in infos} - {STATE} and FINGERPRINT not in self.state.names():
            raise InputError(
                f"{name}: expected a new or an empty folder, or one of an earlier run, got one "
                "with other files. Choose another."
            )
        with ExitStack() as locks:
            if self.output.is_local:
                filesystem.create_dir(self.state.path, recursive=True)
                try:
                    locks.enter_context(FileLock(f"{self.state.path}/{LOCK}", timeout=0))
                except Timeout:
                    raise InputError(
                        f"{name}: expected a folder that no other process writes to, got one in "
                        "use. Wait for the other process, or choose another folder."
                    ) from None
            self._remove_unfinished()
            try:
                yield
            finally:
                self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove the unfinished files of processes that were killed; no worker may write now."""
        for folder in (self.output, self.state):
            folder.remove(lambda name: name.startswith("_") and name.endswith(UNFINISHED))

    def begin(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """Begin, or find the finished shards of an earlier run; return its fingerprint.

        What only that one has does not matter; raise InputError if something else differs.
        """
        now: dict[str, Any] = json.loads(json.dumps(fingerprint))
        before = self.earlier()
        if before is None:
            self._write(self.state / FINGERPRINT, now)
            return now
        for key in now:
            if before.get(key) != now[key]:
                was, got = (json.dumps(each.get(key))[:200] for each in (before, now))
                raise InputError(
                    f"{self.output.name}: expected the {key} of the earlier run, {was}, got "
                    f"{got}. Use the earlier one, or replace the run with --restart."
                )
        for report in self._reports(n for n in self.state.names() if n.startswith("part-")):
            self.add(report)
        return before

    def earlier(self) -> dict[str, Any] | None:
        """Return the fingerprint of an earlier run to resume; remove its output to restart."""
        if FINGERPRINT not in self.state.names():
            return None
        if self.restart:
            # Reports first, so that no shard without a file counts as finished if this is
            # interrupted; last the fingerprint, by which the folder is known.
            self.state.remove(lambda name: name not in (LOCK, FINGERPRINT))
            written = ERRORS, SUMMARY, SEEN_TEXTS
            self.output.remove(lambda name: name.startswith("part-") or name in written)
            self.state.remove(lambda name: name == FINGERPRINT)
            return None
        if self.resume:
            return dict(json.loads((self.state / FINGERPRINT).read()))
        raise InputError(
            f"{self.output.name}: expected a new or an empty folder, got one with an earlier "
            "run. Continue that run with --resume, or replace it with --restart."
        )

    def add(self, report: ShardReport) -> None:
        """Count a finished shard."""
        self.finished[report.name] = bool(report.errors)
        counts = {**report._asdict(), "errors": len(report.errors)}
        del counts["name"]
        self.totals.update(counts, shards=1)

    def finish(self, summary: Summary) -> None:
        """Write the errors of all shards, in the order of the input, and a summary."""
        names = sorted(name for name, has_errors in self.finished.items() if has_errors)
        reports = self._reports(f"{name}.json" for name in names)
        errors = (json_line(error) for each in reports for error in each.errors)
        (self.output / ERRORS).write(errors)
        self._write(self.output / SUMMARY, summary)

    def _reports(self, names: Iterable[str]) -> Iterator[ShardReport]:
        """Read reports, a few at a time, because they may contain many errors."""

        def read(name: str) -> ShardReport:
            return ShardReport(**json.loads((self.state / name).read()))

        names, number = [*names], 1 if self.output.is_local else THREADS
        with ThreadPoolExecutor(number) as threads:
            for i in range(0, len(names), number):
                yield from threads.map(read, names[i : i + number])

    @staticmethod
    def _write(file: Location, content: dict[str, Any]) -> None:
        file.write([json.dumps(content, indent=2).encode()])

    @contextmanager
    def _failures(self) -> Iterator[None]:
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
            n = len(self.finished)
            advice = f"{n} finished shards are kept: continue" if n else "Try again"
            message = f"{self.output.name}: {what.rstrip('.')}. {advice} with --resume."
            raise kind(message) from error

    def _summary(self, progress: Progress, resumed_shards: int) -> Summary:
        totals = self.totals
        seconds = max(progress.seconds, 1e-3)  # clocks may tick slowly
        return {
            "in": totals["documents"],
            "out": totals["documents"] - totals["errors"],
            "errors": totals["errors"],
            "blank_lines": totals["blank"],
            "files": len(self.found.sources),
            "ignored_files": len(self.found.ignored),
            **{name: totals[name] for name in ("words", "entities", "shards")},
            "resumed_shards": resumed_shards,
            "seconds": round(progress.seconds, 3),
            "documents_per_second": round(progress.documents / seconds, 1),
            "words_per_second": round(progress.words / seconds, 1),
            "output": self.output.name,
        }
