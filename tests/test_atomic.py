"""Files and folders that are written completely or not at all."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spacy_crf_ner import atomic
from spacy_crf_ner.atomic import UNFINISHED, atomic_write
from spacy_crf_ner.input_error import InputError


def write(folder: Path, text: str) -> None:
    with atomic_write(folder) as unfinished:
        unfinished.mkdir()
        (unfinished / "file").write_text(text)


def test_atomic_write_replaces_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, "old")
    (folder / "more").touch()
    write(folder, "new")
    assert [file.read_text() for file in folder.iterdir()] == ["new"]
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("fault", ["remove", "rename"])
def test_atomic_write_with_failing_replacement_keeps_complete_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    folder = tmp_path / "folder"
    write(folder, "old")
    replace = Path.replace

    def remove(path: Path, *args: object, **kwargs: object) -> None:
        for file in Path(path).rglob("file"):
            file.unlink()
        raise OSError("busy")

    def rename(path: Path, target: Path) -> Path:
        if target == folder and path.name.endswith(UNFINISHED):
            raise OSError("busy")
        return replace(path, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="busy"):
        if fault == "remove":
            patch.setattr(shutil, "rmtree", remove)
        else:
            patch.setattr(Path, "replace", rename)
        write(folder, "new")
    expected = {"remove": "new", "rename": "old"}
    assert (folder / "file").read_text() == expected[fault]
    write(folder, "newer")
    assert (folder / "file").read_text() == "newer"


@pytest.mark.parametrize(
    "name",
    ["x" * 251 + ".txt", "é" * 125 + ".json", "表" * 83 + ".xls"],
    ids=["one-byte", "two-bytes", "three-bytes"],
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_atomic_write_takes_every_name_that_the_file_system_does(tmp_path, name, is_folder) -> None:
    path = tmp_path / name
    path.touch()  # the name is allowed
    path.unlink()
    for text in ("old", "new"):  # a new one, and one that is replaced
        if is_folder:
            write(path, text)
        else:
            with atomic_write(path) as unfinished:
                assert len(os.fsencode(unfinished.name)) <= 143
                unfinished.write_text(text)
        assert (path / "file" if is_folder else path).read_text() == text
    assert [*tmp_path.iterdir()] == [path]


def test_atomic_write_of_long_name_removes_what_killed_processes_left(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("x" * 200)) as unfinished:
        left = unfinished.with_name(unfinished.name.replace(f".{os.getpid()}.", ".99999999."))
        left.touch()
        mine = unfinished.with_name(unfinished.name.replace(UNFINISHED, "1" + UNFINISHED))
        mine.touch()  # of this process, which may write to a name that begins in the same way
        unfinished.touch()
    with atomic_write(tmp_path / ("x" * 201)) as unfinished:
        unfinished.touch()
        assert mine.exists() and not left.exists()


def test_atomic_write_replaces_folder_by_file_only_if_asked(tmp_path: Path) -> None:
    """As the part of a corpus, which is a folder if it is large."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    is_refused = pytest.raises(InputError, match="expected the name of a file, got a folder")
    with is_refused, atomic_write(tmp_path / "folder") as unfinished:
        unfinished.write_text("new")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "mine"]
    with atomic_write(tmp_path / "folder", folder_by_file=True) as unfinished:
        unfinished.write_text("new")
    assert (tmp_path / "folder").read_text() == "new"
    assert [*tmp_path.iterdir()] == [tmp_path / "folder"]


def test_atomic_write_through_link_replaces_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    for name in ("folder", "file"):
        (tmp_path / f"to_{name}").symlink_to(name)
    write(tmp_path / "to_folder", "new")
    with atomic_write(tmp_path / "to_file") as unfinished:
        unfinished.write_text("new")
    assert (tmp_path / "to_folder").is_symlink() and (tmp_path / "to_file").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "new"
    assert (tmp_path / "file").read_text() == "new"


def test_atomic_write_fills_empty_folder_in_place(tmp_path, monkeypatch) -> None:
    """It may be a mount, or the current folder of a shell."""
    (tmp_path / "empty").mkdir(mode=0o700)
    number = (tmp_path / "empty").stat().st_ino
    monkeypatch.chdir(tmp_path / "empty")
    write(Path(), "new")
    assert (tmp_path / "empty").stat().st_ino == number
    assert [path.read_text() for path in Path().iterdir()] == ["new"]


def test_atomic_write_to_named_pipe_writes_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    with atomic_write(tmp_path / "pipe") as unfinished:
        unfinished.write_text("new")
    reader.join(timeout=10)
    assert read == ["new"] and (tmp_path / "pipe").is_fifo()


def test_atomic_write_to_standard_output_writes_text() -> None:
    """A link to a pipe that has no name."""
    code = "from spacy_crf_ner.atomic import *; from pathlib import Path\n"
    code += "with atomic_write(Path('/dev/stdout')) as file: file.write_text('new')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "new", done.stderr


@pytest.mark.parametrize("kind", ["new", "file", "folder", "empty folder"])
def test_atomic_write_by_two_processes_keeps_one_whole(tmp_path: Path, kind: str) -> None:
    """The second one begins while the first one writes, and ends before it."""
    path = tmp_path / "out"
    if kind == "file":
        path.write_text("old")
    elif kind.endswith("folder"):
        path.mkdir()
        if kind == "folder":
            (path / "old").touch()

    def files(text: str) -> Iterator[Path]:
        with atomic_write(path) as unfinished:
            unfinished.mkdir()
            (unfinished / text).write_text(text)
            yield path
            (unfinished / "both").write_text(text)

    first, second = files("first"), files("second")
    next(first)
    next(second)
    assert [*second] == []
    if kind == "empty folder":
        with pytest.raises(InputError, match="another process has written to it"):
            next(first)
        last = "second"
    else:
        assert [*first] == []
        last = "first"
    assert {file.name: file.read_text() for file in path.iterdir()} == {"both": last, last: last}
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("found", ["nothing", "file", "folder"])
def test_atomic_write_with_others_between_two_renames_keeps_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """Another process takes the old folder away, or puts its own there, just before this one."""
    path = tmp_path / "out"
    write(path, "old")
    replace, targets = Path.replace, []

    def race(source: Path, target: Path) -> Path:
        targets.append(target)
        if found == "nothing" and len(targets) == 1:
            shutil.rmtree(path)
        elif found == "file" and len(targets) == 2:
            path.write_text("other")
        elif found == "folder" and len(targets) == 2:
            write(path, "other")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", race)
    write(path, "new")
    assert (path / "file").read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def test_atomic_write_removes_files_of_killed_process_only(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from spacy_crf_ner.atomic import *\n"
    code += "with atomic_write(Path(sys.argv[1])) as part: part.mkdir(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "out"], check=True)
    (left,) = tmp_path.iterdir()
    others = [left.with_name(left.name.replace("out.", name)) for name in ("out2.", "out.other.")]
    for other in others:
        other.touch()
    with atomic_write(tmp_path / "out") as running:
        running.touch()
        with atomic_write(tmp_path / "out") as second:
            second.touch()
            assert {*tmp_path.iterdir()} == {running, second, *others}


def test_no_signal_is_sent_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, `os.kill(pid, 0)` is Ctrl-C."""
    monkeypatch.setattr(os, "kill", lambda pid, signal: pytest.fail("a signal was sent"))
    monkeypatch.setattr(os, "name", "nt")
    assert atomic._is_running(os.getpid())
