"""The folder of annotated shards: each is whole or absent, and what is finished is known."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Type

import srsly
from filelock import FileLock, Timeout

from ..data.atomic import atomic_write
from .fingerprint import Plan

# What begins with "_" is no data, in the eyes of pyarrow, Spark and Ray.
STATE = "_progress"
ERRORS, SUMMARY = "errors.jsonl", "summary.json"
PLAN, FINISHED, LOCK = "plan.json", "finished.jsonl", "lock"


class Report(NamedTuple):
    """What became of a shard.

    documents: Read from the input; of these, `errors` are not in the shard.
    blank: Lines that are blank, where a line is a record.
    words, entities: In the shard.
    errors: Of each document that is not in it: file, line, id and reason.
    """

    number: int
    documents: int
    blank: int
    words: int
    entities: int
    errors: List[Dict[str, Any]]


class Folder:
    """A folder of shards, which one process at a time may write.

    Use it as a context. A shard counts as finished when its file has its name and its report is
    noted: the report is written first, the name is given last.

    path: The folder; it may not exist yet.
    extension: Of the shards.
    plan: What the shards follow from: model, input and settings.
    resume: Go on with what an earlier run of the same plan has left.
    restart: Remove what an earlier run has left.

    totals: Of the finished shards: "shards", "documents", "blank", "words", "entities", "errors".

    Raises ValueError for a folder that holds something else, or an earlier run where neither was
    said, or one of another plan; and where another process is writing it.
    """

    def __init__(
        self,
        path: Path,
        extension: str,
        plan: Plan,
        *,
        resume: bool = False,
        restart: bool = False,
    ) -> None:
        self.path, self.extension, self.plan = path, extension, plan
        self.resume, self.restart = resume, restart
        self.totals: Counter[str] = Counter()
        self._reports: Dict[int, int] = {}  # where each is noted, in bytes
        self._state = path / STATE
        self._lock = FileLock(self._state / LOCK)

    def __enter__(self) -> "Folder":
        self._require_known()
        self._state.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"{self.path}: expected a folder that no other process writes, got one that is "
                "being written. Wait for it, or name another."
            ) from None
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for unfinished in self._state.glob("part-*"):
            unfinished.unlink(missing_ok=True)
        self._lock.release()

    def __contains__(self, number: int) -> bool:
        """Tell whether a shard is finished."""
        return number in self._reports

    def shard(self, number: int) -> Path:
        """The file of a finished shard."""
        return self.path / f"part-{number:06}.{self.extension}"

    def unfinished(self, number: int) -> Path:
        """The file of a shard that is being written."""
        return self._state / f"part-{number:06}.{self.extension}"

    def commit(self, report: Report) -> None:
        """Take a shard that has been written: from now on it is finished, whatever happens."""
        with (self._state / FINISHED).open("ab") as file:
            start = file.tell()
            # An id may be of any type of Parquet.
            file.write(json.dumps(report._asdict(), default=str).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.unfinished(report.number).replace(self.shard(report.number))
        _sync(self.path)
        self._count(report, start)

    def finish(self, summary: Dict[str, Any]) -> None:
        """Write the errors of all shards, in the order of the input, and a summary."""
        with atomic_write(self.path / ERRORS) as unfinished:
            srsly.write_jsonl(unfinished, self._errors())
        with atomic_write(self.path / SUMMARY) as unfinished:
            srsly.write_json(unfinished, summary)
        _sync(self.path)

    def _errors(self) -> Iterator[Dict[str, Any]]:
        if not self._reports:
            return
        with (self._state / FINISHED).open("rb") as file:
            for _, start in sorted(self._reports.items()):
                file.seek(start)
                yield from json.loads(file.readline())["errors"]

    def _count(self, report: Report, start: int) -> None:
        """Count a shard as finished. Its report is not kept: there may be many errors."""
        counts = {**report._asdict(), "shards": 1, "errors": len(report.errors)}
        del counts["number"]
        self.totals.update(counts)
        self._reports[report.number] = start

    def _require_known(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ValueError(f"{self.path}: expected a folder, got a file. Name another.")
        if any(self.path.iterdir()) and not (self._state / PLAN).exists():
            # Between the two steps of the first run there may be an empty state: it is ours.
            if [each.name for each in self.path.iterdir()] == [STATE]:
                return
            raise ValueError(
                f"{self.path}: expected a new or an empty folder, or one that annotate has begun, "
                "got one that holds something else. Name another."
            )

    def _begin(self) -> None:
        plan = self._state / PLAN
        if self.restart:
            self._clear()
        if not plan.exists():
            with atomic_write(plan) as unfinished:
                srsly.write_json(unfinished, self.plan)
            return
        if not self.resume:
            raise ValueError(
                f"{self.path}: expected a new or an empty folder, got one that an earlier run has "
                "begun. Go on with it by --resume, or begin anew by --restart."
            )
        _require_same(self.path, srsly.read_json(plan), json.loads(json.dumps(self.plan)))
        self._recover()

    def _clear(self) -> None:
        for shard in self.path.glob("part-*"):
            shard.unlink()
        for name in (ERRORS, SUMMARY):
            (self.path / name).unlink(missing_ok=True)
        for each in self._state.iterdir():
            if each.name != LOCK:
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    def _recover(self) -> None:
        """Find what is finished. A report whose shard has no name yet is of none."""
        for unfinished in self._state.glob("part-*"):
            unfinished.unlink()
        finished = self._state / FINISHED
        start = 0
        for line in finished.read_bytes().splitlines(keepends=True) if finished.exists() else ():
            try:
                report = Report(**json.loads(line))
            except (ValueError, TypeError):  # half a line: the process was killed in it
                pass
            else:
                if self.shard(report.number).exists() and report.number not in self:
                    self._count(report, start)
            start += len(line)
            if not line.endswith(b"\n"):
                with finished.open("ab") as file:
                    file.write(b"\n")


def _sync(folder: Path) -> None:
    """Make the names of files in a folder outlast a failure of the machine."""
    if os.name == "nt":  # which cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_same(path: Path, before: Plan, now: Plan) -> None:
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if changed:
        name = changed[0]
        raise ValueError(
            f"{path}: expected the {name} of the run that began it, {_short(before.get(name))}, "
            f"got {_short(now.get(name))}. Go on with what it was, or begin anew by --restart."
        )


def _short(value: Any) -> str:
    text = srsly.json_dumps(value)
    return text if len(text) <= 200 else f"{text[:200]} ..."
