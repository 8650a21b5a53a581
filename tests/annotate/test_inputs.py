"""`find_sources` returns each file of a corpus once and in order, and lists the ignored ones."""

import os
from io import BufferedReader, BytesIO
from pathlib import Path

import pytest

from spacy_crf_ner.annotate.files import Sources, find_sources, locate
from spacy_crf_ner.annotate.inputs import cut_inputs
from spacy_crf_ner.annotate.settings import Settings
from spacy_crf_ner.input_error import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a corpus in it, whose output will be beside it."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.jsonl", "a/z.csv.gz", "a/deep/c.TSV.Zst", "a/deep/read.me", "d.spacy"):
        make(Path("in", name))
    return Path("in")


def make(path: Path, content: str = "words") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def find(*inputs: str) -> Sources:
    return find_sources(inputs, locate("out"))


def found(*inputs: str) -> list[str]:
    return [source.name for source in find(*inputs).sources]


IN_ORDER = ["in/a/deep/c.TSV.Zst", "in/a/z.csv.gz", "in/a.jsonl", "in/b.txt", "in/d.spacy"]


def test_source_has_kind_compression_size_and_mtime(folder: Path) -> None:
    source, _, plain, *_ = find("in").sources
    assert (source.name, *source[1:4]) == ("in/a/deep/c.TSV.Zst", "tsv", "zst", 5)
    assert (plain.name, *plain[1:4]) == ("in/a.jsonl", "jsonl", "", 5)
    assert plain.modified == Path("in/a.jsonl").stat().st_mtime_ns


def test_find_sources_keeps_order_of_inputs_and_sorts_those_of_a_folder(folder: Path) -> None:
    assert found("in") == IN_ORDER
    assert find("in").ignored == ["in/a/deep/read.me"]
    assert found("in/b.txt", "in/a", "in/a.jsonl") == ["in/b.txt", *IN_ORDER[:3]]


@pytest.mark.parametrize(
    "glob, expected",
    [
        ("in/*.jsonl", ["in/a.jsonl"]),
        ("in/?.*", ["in/a.jsonl", "in/b.txt", "in/d.spacy"]),
        ("in/**/*.T*", ["in/a/deep/c.TSV.Zst"]),
        ("i[n]/a/*.gz", ["in/a/z.csv.gz"]),
        ("in/*", IN_ORDER),  # as where a shell expands it: folders are read
        ("in/**", IN_ORDER),
        ("in/**/*", IN_ORDER),
    ],
)
def test_find_sources_expands_and_sorts_glob(folder: Path, glob: str, expected: list[str]) -> None:
    assert found(glob) == expected
    assert found(str(folder.resolve().parent / glob)) == [
        (folder.resolve().parent / path).as_posix() for path in expected
    ]


def test_find_sources_does_not_expand_existing_name_with_glob_characters(folder: Path) -> None:
    for name in ("in/[b].txt", "in/x*.txt", "in/xy.txt", "odd [1]/a.txt"):
        make(Path(name))
    assert found("in/[b].txt") == ["in/[b].txt"]
    assert found("in/x*.txt") == ["in/x*.txt"]
    assert found("odd [1]") == ["odd [1]/a.txt"]


@pytest.mark.parametrize("name", ["_SUCCESS.txt", ".x.txt", "_temporary/0/a.txt", ".git/a.txt"])
def test_find_sources_lists_hidden_names_as_ignored(folder: Path, name: str) -> None:
    make(folder / name)
    for given in ("in", "in/**/*"):
        assert f"in/{name}" in find(given).ignored
        assert [source.name for source in find(given).sources] == IN_ORDER


def test_find_sources_reads_explicit_hidden_name(folder: Path) -> None:
    make(Path("_made/_a.txt"))
    assert found("_made/_a.txt") == ["_made/_a.txt"]
    make(Path("_made/b.txt"))
    assert found("_made") == ["_made/b.txt"]
    assert found("_made/*") == ["_made/b.txt"]


def test_find_sources_lists_pipes_and_links_to_folders_or_nothing_as_ignored(folder: Path) -> None:
    (folder / "again").symlink_to(folder.resolve(), target_is_directory=True)
    os.mkfifo(folder / "pipe.txt")
    (folder / "broken.txt").symlink_to("nowhere")
    assert found("in") == IN_ORDER
    assert {"in/again", "in/pipe.txt", "in/broken.txt"} < {*find("in").ignored}


@pytest.mark.parametrize(
    "inputs, expected",
    [
        (["in/none.txt"], r"in/none.txt does not exist\. Correct the name"),
        (["in/a/deep/read.me"], "in/a/deep/read.me: expected files whose names end with .txt, "),
        (["in/*.none"], r"in/\*.none: expected files whose names end with .* got 0 others"),
        (["in/a/deep/*.me"], r"in/a/deep/\*.me: expected files .* got 1 others"),
        (["empty"], "empty: expected files .* got 0 others"),
        (["in/b.txt", "in/b.txt"], "in/b.txt: expected every file once, got it also as in/b.txt"),
        (["in/b.txt", "in/a/../b.txt"], "expected every file once, got it also as in/b.txt"),
        (["in", "in/*.txt"], "in/b.txt: expected every file once"),
        (["in", "link.txt"], "link.txt: expected every file once, got it also as in/b.txt"),
        (["out/part.txt"], "out/part.txt: expected an input outside of the output"),
        (["**/*.txt"], "expected an input outside of the output"),
        (["."], "out: expected an output outside of the input, got one in"),
        (["out"], "out: expected an output outside of the input, got one in out"),
    ],
)
def test_find_sources_invalid_inputs_raise(folder: Path, inputs: list[str], expected: str) -> None:
    Path("empty").mkdir()
    make(Path("out/part.txt"))
    if "link.txt" in inputs:
        Path("link.txt").symlink_to("in/b.txt")
    with pytest.raises(ValueError, match=expected):
        find(*inputs)


@pytest.mark.parametrize(
    "inputs, expected",
    [
        (["file://{}/none"], "none does not exist"),
        (["file://{}/*.txt"], "txt does not exist.*globs are only for local paths"),
        (["file://{}/empty"], "whose names end with"),
        (["file://{}/in/b.txt", "file://{}/in/b.txt"], "every file once"),
        (["file://{}/in/b.txt", "{}/in/b.txt"], "every file once"),
        (["file://{}/out/a.txt"], "outside of the output"),
        (["http://me:secret@host/a.txt"], "^http://: only local files .*: no aiohttp. Correct"),
    ],
)
def test_find_sources_invalid_uris_raise(folder, inputs, expected, monkeypatch) -> None:
    def url_to_fs(uri: str) -> None:
        raise ImportError("no aiohttp")

    monkeypatch.setattr("fsspec.core.url_to_fs", url_to_fs)
    for name in ("out/a.txt", "empty/c.pdf"):
        make(Path(name))
    with pytest.raises(InputError, match=expected):
        find(*(each.format(Path.cwd()) for each in inputs))


def test_credentials_of_a_uri_are_not_shown() -> None:
    location = locate("s3://key:secret@bucket/a/b.txt?region=eu-west-1")
    assert location.name == "s3://bucket/a/b.txt"
    assert "secret" not in (location / "c").name


def test_find_sources_output_inside_input_through_link_raises(folder: Path) -> None:
    Path("link").symlink_to("in", target_is_directory=True)
    with pytest.raises(ValueError, match="link/out: expected an output outside"):
        find_sources(["in"], locate("link/out"))


def test_find_sources_accepts_output_with_shared_name_prefix(folder: Path) -> None:
    make(Path("out-2/a.txt"))
    assert found("out-2") == ["out-2/a.txt"]
    assert find_sources(["in/b.txt"], locate("in/b")).sources


def test_find_sources_unlistable_folder_raises(folder, monkeypatch) -> None:
    listed = os.scandir

    def forbid(path: str) -> object:
        if Path(path).name == "deep":
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", forbid)
    with pytest.raises(PermissionError, match="deep"):
        find("in")


def test_find_sources_without_inputs_raises(tmp_path):
    with pytest.raises(ValueError, match="got none"):
        find_sources([], locate(str(tmp_path / "out")))


def test_find_sources_non_utf8_name_raises(tmp_path: Path) -> None:
    for name in (b"\xff.txt", b"ok.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("a")
    with pytest.raises(InputError, match=r"name of a file in .*: expected UTF-8, got .*udcff"):
        find_sources([tmp_path], locate(os.devnull))
    with pytest.raises(InputError, match="name of an input: expected UTF-8"):
        find_sources([os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")], locate(os.devnull))


def test_cut_inputs_reads_the_standard_input_in_parts() -> None:
    stream = BufferedReader(BytesIO(b"".join(b"line %d\n" % i for i in range(100))))  # type: ignore[arg-type]
    cut, ignored = cut_inputs(["-"], Settings(shard_size=10), stream)
    assert stream.tell() == 0 and not ignored
    first = next(cut)
    assert [item.place for item in first.items] == [f"-:{i}" for i in range(1, 11)]
    assert stream.tell() == len(b"line 0\n" * 10)
    assert sum(len(shard.items) for shard in cut) == 90
