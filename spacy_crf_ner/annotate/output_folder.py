"""The folder of annotated shards, each with a report when it is finished."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..input_error import InputError
from ..pipeline.seen_texts import SEEN_TEXTS
from .storage import Location
from .writers import json_line

# pyarrow, Spark and Ray ignore names that begin with "_".
STATE = "_progress"
FINGERPRINT, LOCK = "fingerprint.json", "lock"
ERRORS, SUMMARY = "errors.jsonl", "summary.json"
# To read reports from an object store, where each takes long.
THREADS = 16


class ShardReport(NamedTuple):
    """The result of a shard.

    Attributes:
        documents: Number of documents read, including those in `errors`.
        blank: Blank lines, in formats in which a line is a record.
        words: Number of tokens in the shard.
        entities: Number of entities in the shard.
        size: Bytes of the input.
        errors: File, line, id and reason of each document that is not in the shard.
    """

    name: str
    documents: int
    blank: int
    words: int
    entities: int
    size: int
    errors: list[dict[str, Any]]


class ShardFolder:
    """A folder of shards, for one run at a time, as a context manager.

    A shard is finished when its report, which is written last, is in the folder.

    Args:
        location: The folder; it may not exist yet.

    Attributes:
        begun: Whether it holds a run, which `begin` can continue.
        finished: Names of the finished shards.
        totals: Their counts: "shards", "documents", "blank", "words", "entities", "size", "errors".

    Raises:
        InputError: For a folder with other contents, and for a local one that another process is
            writing to.
    """

    def __init__(self, location: Location) -> None:
        self.location, self.state = location, location / STATE
        self.begun = False
        self.finished: set[str] = set()
        self.totals: Counter[str] = Counter()
        self._with_errors: list[str] = []
        self._exit = ExitStack()

    def __enter__(self) -> "ShardFolder":
        from filelock import FileLock, Timeout

        self._check_known()
        if self.location.is_local:
            self.state.filesystem.create_dir(self.state.path, recursive=True)
            lock = FileLock(f"{self.state.path}/{LOCK}")
            try:
                self._exit.enter_context(lock.acquire(timeout=0))
            except Timeout:
                raise InputError(
                    f"{self.location.name}: expected a folder that no other process writes to, "
                    "got one in use. Wait for the other process, or choose another folder."
                ) from None
        return self

    def __exit__(self, *error: object) -> None:
        self._remove_unfinished()
        self._exit.close()

    def read_fingerprint(self) -> dict[str, Any] | None:
        """Read the fingerprint of the run that created the folder; None for a new folder."""
        if FINGERPRINT not in _names(self.state):
            return None
        return dict(json.loads((self.state / FINGERPRINT).read()))

    @property
    def not_empty(self) -> InputError:
        """The error of a folder with an earlier run, that is neither continued nor replaced."""
        return InputError(
            f"{self.location.name}: expected a new or an empty folder, got one with an earlier "
            "run. Continue that run with --resume, or replace it with --restart."
        )

    def clear(self) -> None:
        """Remove the output of an earlier run.

        Reports first, so that no shard without a file counts as finished if this is interrupted;
        last the fingerprint, by which the folder is known.
        """
        state = {*_names(self.state)} - {LOCK, FINGERPRINT}
        shards = (
            n
            for n in _names(self.location)
            if n.startswith("part-") or n in (ERRORS, SUMMARY, SEEN_TEXTS)
        )
        files = [self.state / name for name in state] + [self.location / name for name in shards]
        if FINGERPRINT in _names(self.state):
            files.append(self.state / FINGERPRINT)
        for file in files:
            file.filesystem.delete_file(file.path)

    def begin(self, fingerprint: dict[str, Any], *, resume: bool, restart: bool) -> None:
        """Begin a run in the folder, and find the finished shards.

        Args:
            fingerprint: Everything that the shards depend on.
            resume: Continue an earlier run.
            restart: Remove the output of an earlier run.

        Raises:
            InputError: For an earlier run if neither was given, or if it had another fingerprint.
        """
        self._remove_unfinished()
        if restart:
            self.clear()
        before = self.read_fingerprint()
        if before is None:
            (self.state / FINGERPRINT).write([json.dumps(fingerprint, indent=2).encode()])
        elif not resume:
            raise self.not_empty
        else:
            _check_same(self.location.name, before, json.loads(json.dumps(fingerprint)))
        self.begun = True
        for report in self._reports(n for n in _names(self.state) if n.startswith("part-")):
            self.add(report)

    def add(self, report: ShardReport) -> None:
        """Count a finished shard."""
        self.finished.add(report.name)
        counts = {**report._asdict(), "errors": len(report.errors)}
        del counts["name"]
        self.totals.update(counts, shards=1)
        if report.errors:
            self._with_errors.append(f"{report.name}.json")

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the errors of all shards, in the order of the input, and a summary."""
        reports = self._reports(sorted(self._with_errors))
        errors = (json_line(error) for each in reports for error in each.errors)
        (self.location / ERRORS).write(errors)
        (self.location / SUMMARY).write([json.dumps(summary, indent=2).encode()])

    def _remove_unfinished(self) -> None:
        """Remove the unfinished files of processes that were killed; no worker writes now."""
        for folder in (self.location, self.state):
            for name in _names(folder):
                if name.startswith("_") and name.endswith(".tmp"):
                    folder.filesystem.delete_file((folder / name).path)

    def _reports(self, names: Iterable[str]) -> Iterator[ShardReport]:
        """Read reports, a few at a time, because they may contain many errors."""
        names, number = [*names], 1 if self.location.is_local else THREADS
        with ThreadPoolExecutor(number) as threads:
            for i in range(0, len(names), number):
                yield from threads.map(self._report, names[i : i + number])

    def _report(self, name: str) -> ShardReport:
        return ShardReport(**json.loads((self.state / name).read()))

    def _check_known(self) -> None:
        from pyarrow.fs import FileSelector, FileType

        filesystem, path, name = self.location
        (info,) = filesystem.get_file_info([path])
        if info.type == FileType.File:
            raise InputError(f"{name}: expected a folder, got a file. Choose another.")
        infos = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        # A run that was killed at its start leaves an empty state.
        if {each.base_name for each in infos} - {STATE} and self.read_fingerprint() is None:
            raise InputError(
                f"{name}: expected a new or an empty folder, or one of an earlier run, got one "
                "with other files. Choose another."
            )


def write_report(output: Location, report: ShardReport) -> None:
    """Mark a shard as finished. Its file must already be written."""
    # An id may have any type of Parquet.
    content = json.dumps(report._asdict(), default=str).encode()
    (output / STATE / f"{report.name}.json").write([content])


def _names(folder: Location) -> list[str]:
    return [info.base_name for info in folder.files()]


def _check_same(name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        was, got = (json.dumps(each.get(changed[0]))[:200] for each in (before, now))
        raise InputError(
            f"{name}: expected the {changed[0]} of the earlier run, {was}, got {got}. "
            "Use the earlier one, or replace the run with --restart."
        )
