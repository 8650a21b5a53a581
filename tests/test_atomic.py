"""Files and folders that are written completely or not at all."""

import shutil
from pathlib import Path

import pytest

from spacy_crf_ner.atomic import atomic_write


def write(folder: Path, text: str) -> None:
    with atomic_write(folder) as unfinished:
        unfinished.mkdir()
        (unfinished / "file").write_text(text)


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, "old")
    (folder / "more").touch()
    write(folder, "new")
    assert [file.read_text() for file in folder.iterdir()] == ["new"]
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("fault", ["remove", "rename"])
def test_an_old_folder_is_whole_if_a_new_one_cannot_replace_it(
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
        if target == folder and path.suffix == ".part":
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
