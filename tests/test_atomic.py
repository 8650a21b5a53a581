"""Files and folders that are written completely or not at all."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

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


def test_atomic_write_keeps_user_file_ending_in_part(tmp_path: Path) -> None:
    (tmp_path / "folder.part").write_text("mine")
    write(tmp_path / "folder", "new")
    assert (tmp_path / "folder.part").read_text() == "mine"


def test_atomic_write_of_file_over_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    is_refused = pytest.raises(InputError, match="expected the name of a file, got a folder")
    with is_refused, atomic_write(tmp_path / "folder") as unfinished:
        unfinished.write_text("new")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "mine"]


@pytest.mark.parametrize("names", [[], ["mine"]])
def test_atomic_write_with_folder_by_file_replaces_folder(names: list[str], tmp_path: Path) -> None:
    """As the part of a corpus, which is a folder if it is large."""
    (tmp_path / "folder").mkdir()
    for name in names:
        (tmp_path / "folder" / name).touch()
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


def test_atomic_write_fills_empty_folder_in_place(tmp_path: Path) -> None:
    """It may be a mount, or the current folder of a shell."""
    (tmp_path / "empty").mkdir(mode=0o700)
    number = (tmp_path / "empty").stat().st_ino
    write(tmp_path / "empty", "new")
    assert (tmp_path / "empty").stat().st_ino == number
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["file"]


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


def test_atomic_write_fills_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path(), "new")
    assert (tmp_path / "here" / "file").read_text() == "new"
