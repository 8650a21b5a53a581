"""The local engine: a corpus of any size, annotated by worker processes of this machine."""

import os
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from .fingerprint import make_plan
from .inputs import Sources, find_sources
from .output_folder import Folder, Report
from .process_pool import WorkerError, Workers
from .readers import require_text_column
from .settings import Settings, require_settings
from .shards import Shard, cut_shards
from .worker import Annotator, Task

# Each worker has a copy of the model.
MOST_WORKERS = 8

Summary = Dict[str, Any]


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


def annotate(
    model: str,
    inputs: Sequence[Union[str, Path]],
    output: Union[str, Path],
    settings: Settings = Settings(),  # noqa: B008
    *,
    workers: int = 0,
    gpu_ids: Sequence[int] = (),
    resume: bool = False,
    restart: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Summary:
    """Annotate the documents of files, and write them in shards.

    Every document is in the output once, in the order of the input, or in errors.jsonl with file,
    line and reason. Memory does not grow with the corpus.

    model: Folder or package of a pipeline.
    inputs: Files, globs or folders: .txt, .jsonl, .csv, .tsv, also .gz and .zst; .parquet; .spacy.
    output: Folder for part-000000.jsonl and so on, errors.jsonl and summary.json.
    settings: How documents are read, annotated and written.
    workers: Processes, each with one thread and its copy of the model; 0 for as many as there are
        cores, at most 8.
    gpu_ids: A worker for each of these GPUs, instead.
    resume: Go on with what an earlier, interrupted run has left: finished shards stay.
    restart: Remove what an earlier run has left.
    watch: Told how far it is, when a worker has begun, and after each shard.

    Returns what summary.json has. Raises ValueError for settings, inputs and folders that cannot
    be, OSError where a file cannot be written, WorkerError where a worker dies. What is finished
    by then stays.
    """
    require_settings(settings)
    output = Path(output)
    found = find_sources([*inputs], output)
    require_text_column(found.sources[0], settings.text_column)
    plan = make_plan(model, found, settings)
    devices = [*gpu_ids] or [-1] * (workers or min(_cores(), MOST_WORKERS))
    with Folder(output, settings.format, plan, resume=resume, restart=restart) as folder:
        run = _Run(folder, found, settings, watch)
        shards = run.unfinished()
        first = next(shards, None)
        if first is not None:
            with Workers(Annotator, [(model, device, settings) for device in devices]) as processes:
                try:
                    run.annotate(first, shards, processes)
                except (WorkerError, OSError) as error:
                    raise type(error)(f"{output}: {error}. {run.under_way()}") from error
        summary = run.summary()
        folder.finish(summary)
    return summary


def summarize(
    totals: Mapping[str, int], sources: Sources, progress: Progress, output: str
) -> Summary:
    """Say what became of a corpus, and how long it took.

    totals: Of the shards: "shards", "documents", "blank", "words", "entities", "errors".
    """
    return {
        "in": totals["documents"],
        "out": totals["documents"] - totals["errors"],
        "errors": totals["errors"],
        "blank_lines": totals["blank"],
        "files": len(sources.sources),
        "ignored_files": len(sources.ignored),
        "words": totals["words"],
        "entities": totals["entities"],
        "shards": totals["shards"],
        "seconds": round(progress.seconds, 3),
        "documents_per_second": round(progress.documents / progress.seconds, 1),
        "words_per_second": round(progress.words / progress.seconds, 1),
        "output": output,
    }


class _Run:
    """A run, and how far it is."""

    def __init__(
        self,
        folder: Folder,
        sources: Sources,
        settings: Settings,
        watch: Callable[[Progress], None],
    ) -> None:
        self.folder, self.sources, self.settings, self.watch = folder, sources, settings, watch
        self._resumed = Counter(folder.totals)
        self._began = monotonic()
        self._size = 0
        self._sizes: Dict[int, int] = {}  # of shards that are with a worker

    def unfinished(self) -> Iterator[Shard]:
        """Read the corpus, and yield the shards that no earlier run has finished."""
        for shard in cut_shards(self.sources.sources, self.settings):
            if shard.number not in self.folder:
                yield shard
                continue
            self._size += shard.size

    def annotate(self, first: Shard, others: Iterator[Shard], workers: Workers) -> None:
        """Let workers annotate shards. The next one is read while they do."""
        shard: Optional[Shard] = first
        workers.receive()  # one has begun
        self.watch(self._now())
        # Workers that have not begun by the end are not waited for.
        while shard is not None or self._sizes:
            report = workers.receive() if shard is None or not workers.idle else None
            sent = shard is not None and workers.idle > 0
            if shard is not None and sent:
                self._sizes[shard.number] = shard.size
                workers.send(Task(shard, self.folder.unfinished(shard.number)))
            if report is not None:
                self._commit(report)
            if sent:
                shard = next(others, None)

    def under_way(self) -> str:
        """Say which shards are with the workers, and what stays where it ends here."""
        names = ", ".join(self.folder.shard(number).name for number in sorted(self._sizes))
        return (
            f"Not finished: {names or 'none begun'}. {self.folder.totals['shards']} finished "
            "shards stay: go on with --resume."
        )

    def summary(self) -> Summary:
        """What became of the corpus, and how long this run took."""
        totals = self.folder.totals
        summary = summarize(totals, self.sources, self._now(), str(self.folder.path))
        return {**summary, "resumed_shards": self._resumed["shards"]}

    def _commit(self, report: Report) -> None:
        self.folder.commit(report)
        self._size += self._sizes.pop(report.number)
        self.watch(self._now())

    def _now(self) -> Progress:
        return Progress(
            size=self._size,
            total=sum(source.size for source in self.sources.sources),
            documents=self.folder.totals["documents"] - self._resumed["documents"],
            words=self.folder.totals["words"] - self._resumed["words"],
            seconds=monotonic() - self._began,
        )


def _cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
