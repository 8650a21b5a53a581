"""The folder of annotated shards: each is whole or absent, and has a report when it is finished."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ..input_error import InputError
from .storage import Location

# pyarrow, Spark and Ray take what begins with "_" for no data.
STATE = "_progress"
FINGERPRINT, LOCK = "fingerprint.json", "lock"
ERRORS, SUMMARY = "errors.jsonl", "summary.json"
# Reports that are read at the same time from a store of objects, which takes long for each.
READERS = 16


class ShardReport(NamedTuple):
    """What became of a shard.

    documents: Number read from the input; of these, `errors` are not in the shard.
    blank: Blank lines, in formats in which a line is a record.
    words, entities: In the shard.
    size: Bytes of the input that it takes.
    errors: For each document that is not in it: file, line, id and reason.
    """

    name: str
    documents: int
    blank: int
    words: int
    entities: int
    size: int
    errors: list[dict[str, Any]]


class ShardFolder:
    """A folder of shards, which one run at a time may write.

    Use it as a context. A shard is finished when its report is in the folder: the shard is written
    first, the report last.

    location: The folder; it may not exist yet.

    finished: Names of the finished shards.
    totals: Counts over them: "shards", "documents", "blank", "words", "entities", "size", "errors".

    Raises InputError for a folder that holds something else, and, at a path, for one that another
    process is writing.
    """

    def __init__(self, location: Location) -> None:
        self.location, self.state = location, location / STATE
        self.finished: set[str] = set()
        self.totals: Counter[str] = Counter()
        self._with_errors: list[str] = []
        self._exit = ExitStack()

    def __enter__(self) -> "ShardFolder":
        self._require_known()
        if self.location.is_local:
            self.state.filesystem.create_dir(self.state.path, recursive=True)
            lock = FileLock(f"{self.state.path}/{LOCK}")
            try:
                self._exit.enter_context(lock.acquire(timeout=0))
            except Timeout:
                raise InputError(
                    f"{self.location.name}: expected a folder that no other process writes, got "
                    "one that is being written. Wait for it, or name another."
                ) from None
        return self

    def __exit__(self, *error: object) -> None:
        self._remove_unfinished()
        self._exit.close()

    def read_fingerprint(self) -> dict[str, Any] | None:
        """Read the fingerprint of the run that began the folder; None in a new folder."""
        if FINGERPRINT not in _names(self.state):
            return None
        return dict(json.loads((self.state / FINGERPRINT).read()))

    def begin(self, fingerprint: dict[str, Any], *, resume: bool, restart: bool) -> None:
        """Take the folder for a run, and find out which shards are finished.

        fingerprint: What the shards follow from.
        resume: Continue an earlier run. restart: Remove what an earlier run has left.

        Raises InputError for an earlier run if neither was given, or if it had another fingerprint.
        """
        self._remove_unfinished()
        for folder in (self.location, self.state) if restart else ():
            for name in _names(folder):
                ours = folder is self.state or name.startswith("part-") or name in (ERRORS, SUMMARY)
                if ours and name != LOCK:
                    folder.filesystem.delete_file((folder / name).path)
        before = self.read_fingerprint()
        if before is None:
            (self.state / FINGERPRINT).write([json.dumps(fingerprint, indent=2).encode()])
        elif not resume:
            raise InputError(
                f"{self.location.name}: expected a new or an empty folder, got one that an earlier "
                "run has begun. Continue it by --resume, or begin anew by --restart."
            )
        else:
            _require_same(self.location.name, before, json.loads(json.dumps(fingerprint)))
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
        errors = (json.dumps(error).encode() + b"\n" for each in reports for error in each.errors)
        (self.location / ERRORS).write(errors)
        (self.location / SUMMARY).write([json.dumps(summary, indent=2).encode()])

    def _remove_unfinished(self) -> None:
        """Remove what was being written when a process was killed; no worker writes now."""
        for folder in (self.location, self.state):
            for name in _names(folder):
                if name.startswith("_") and name.endswith(".tmp"):
                    folder.filesystem.delete_file((folder / name).path)

    def _reports(self, names: Iterable[str]) -> Iterator[ShardReport]:
        """Read reports, few at a time: there may be many errors in them."""
        names, number = [*names], 1 if self.location.is_local else READERS
        with ThreadPoolExecutor(number) as threads:
            for i in range(0, len(names), number):
                yield from threads.map(self._report, names[i : i + number])

    def _report(self, name: str) -> ShardReport:
        return ShardReport(**json.loads((self.state / name).read()))

    def _require_known(self) -> None:
        from pyarrow.fs import FileSelector, FileType

        filesystem, path, name = self.location
        (info,) = filesystem.get_file_info([path])
        if info.type == FileType.File:
            raise InputError(f"{name}: expected a folder, got a file. Name another.")
        infos = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        # A run that was killed as it began leaves an empty state.
        if {each.base_name for each in infos} - {STATE} and self.read_fingerprint() is None:
            raise InputError(
                f"{name}: expected a new or an empty folder, or one that annotate has begun, got "
                "one that holds something else. Name another."
            )


def write_report(output: Location, report: ShardReport) -> None:
    """Note that a shard is finished. Its file must have been written before."""
    # An id may have any type of Parquet.
    content = json.dumps(report._asdict(), default=str).encode()
    (output / STATE / f"{report.name}.json").write([content])


def _names(folder: Location) -> list[str]:
    return [info.base_name for info in folder.files()]


def _require_same(name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        was, got = (json.dumps(each.get(changed[0]))[:200] for each in (before, now))
        raise InputError(
            f"{name}: expected the {changed[0]} of the run that began it, {was}, got {got}. "
            "Continue with what it was, or begin anew by --restart."
        )
