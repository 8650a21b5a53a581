"""The folder of the shards of a run: a shard is finished when its report is there."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from ..input_error import InputError
from ..pipeline.seen_texts import SEEN_TEXTS
from .storage import UNFINISHED, Location
from .writers import json_line

# pyarrow, Spark and Ray ignore names that begin with "_".
STATE = "_progress"
FINGERPRINT, LOCK = "fingerprint.json", "lock"
ERRORS, SUMMARY = "errors.jsonl", "summary.json"
# To read reports from an object store, where each takes long.
THREADS = 16


class ShardReport(NamedTuple):
    """The counts of a shard."""

    name: str
    documents: int  # read, including those in `errors`
    blank: int  # lines, in formats in which a line is a record
    words: int
    entities: int
    size: int  # bytes of the input
    errors: list[dict[str, Any]]  # file, line, id and reason of each document that is left out


class ShardFolder:
    """The output folder of one run.

    Attributes:
        finished: The names of the finished shards, each with whether its report has errors.
        totals: The counts of their reports, and "shards".
    """

    def __init__(self, location: Location) -> None:
        self.location, self.state = location, location / STATE
        self.finished: dict[str, bool] = {}
        self.totals: Counter[str] = Counter()

    def begin(self, fingerprint: dict[str, Any], *, resume: bool, restart: bool) -> dict[str, Any]:
        """Begin a run, or find the finished shards of an earlier one; return its fingerprint.

        Raises:
            InputError: If it had another fingerprint, without regard to what only that one has.
        """
        now: dict[str, Any] = json.loads(json.dumps(fingerprint))
        before = self.check_free(resume=resume, restart=restart)
        if before is None:
            self.write_fingerprint(now)
            return now
        for key in now:
            if before.get(key) != now[key]:
                was, got = (json.dumps(each.get(key))[:200] for each in (before, now))
                raise InputError(
                    f"{self.location.name}: expected the {key} of the earlier run, {was}, got "
                    f"{got}. Use the earlier one, or replace the run with --restart."
                )
        for report in self._reports(n for n in self.state.names() if n.startswith("part-")):
            self.add(report)
        return before

    def check_free(self, *, resume: bool, restart: bool) -> dict[str, Any] | None:
        """Return the fingerprint of an earlier run to resume; remove its output to restart."""
        if FINGERPRINT not in self.state.names():
            return None
        if restart:
            self._clear()
            return None
        if resume:
            return dict(json.loads((self.state / FINGERPRINT).read()))
        raise InputError(
            f"{self.location.name}: expected a new or an empty folder, got one with an earlier "
            "run. Continue that run with --resume, or replace it with --restart."
        )

    def _clear(self) -> None:
        # Reports first, so that no shard without a file counts as finished if this is interrupted;
        # last the fingerprint, by which the folder is known.
        for name in self.state.names():
            if name not in (LOCK, FINGERPRINT):
                self.state.remove(name)
        for name in self.location.names():
            if name.startswith("part-") or name in (ERRORS, SUMMARY, SEEN_TEXTS):
                self.location.remove(name)
        self.state.remove(FINGERPRINT)

    def remove_unfinished(self) -> None:
        """Remove the unfinished files of processes that were killed; no worker may write now."""
        for folder in (self.location, self.state):
            for name in folder.names():
                if name.startswith("_") and name.endswith(UNFINISHED):
                    folder.remove(name)

    def write_fingerprint(self, fingerprint: dict[str, Any]) -> None:
        """Store everything that the shards depend on."""
        (self.state / FINGERPRINT).write([json.dumps(fingerprint, indent=2).encode()])

    def add(self, report: ShardReport) -> None:
        """Count a finished shard."""
        self.finished[report.name] = bool(report.errors)
        counts = {**report._asdict(), "errors": len(report.errors)}
        del counts["name"]
        self.totals.update(counts, shards=1)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the errors of all shards, in the order of the input, and a summary."""
        names = sorted(name for name, has_errors in self.finished.items() if has_errors)
        reports = self._reports(f"{name}.json" for name in names)
        errors = (json_line(error) for each in reports for error in each.errors)
        (self.location / ERRORS).write(errors)
        (self.location / SUMMARY).write([json.dumps(summary, indent=2).encode()])

    def _reports(self, names: Iterable[str]) -> Iterator[ShardReport]:
        """Read reports, a few at a time, because they may contain many errors."""

        def read(name: str) -> ShardReport:
            return ShardReport(**json.loads((self.state / name).read()))

        names, number = [*names], 1 if self.location.is_local else THREADS
        with ThreadPoolExecutor(number) as threads:
            for i in range(0, len(names), number):
                yield from threads.map(read, names[i : i + number])


@contextmanager
def open_folder(location: Location) -> Iterator[ShardFolder]:
    """Open a folder for one run at a time; it may not exist yet. No worker may write at the end."""
    from filelock import FileLock, Timeout
    from pyarrow.fs import FileSelector, FileType

    folder = ShardFolder(location)
    filesystem, path, name = location
    if filesystem.get_file_info([path])[0].type == FileType.File:
        raise InputError(f"{name}: expected a folder, got a file. Choose another.")
    infos = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
    # A run that was killed at its start leaves an empty state.
    if {each.base_name for each in infos} - {STATE} and FINGERPRINT not in folder.state.names():
        raise InputError(
            f"{name}: expected a new or an empty folder, or one of an earlier run, got one "
            "with other files. Choose another."
        )
    with ExitStack() as locks:
        if location.is_local:
            filesystem.create_dir(folder.state.path, recursive=True)
            lock = FileLock(f"{folder.state.path}/{LOCK}")
            try:
                locks.enter_context(lock.acquire(timeout=0))
            except Timeout:
                raise InputError(
                    f"{name}: expected a folder that no other process writes to, got one in use. "
                    "Wait for the other process, or choose another folder."
                ) from None
        folder.remove_unfinished()
        try:
            yield folder
        finally:
            folder.remove_unfinished()


def write_report(output: Location, report: ShardReport) -> None:
    """Mark a shard as finished. Its file must already be written."""
    # An id may have any type of Parquet.
    content = json.dumps(report._asdict(), default=str).encode()
    (output / STATE / f"{report.name}.json").write([content])
