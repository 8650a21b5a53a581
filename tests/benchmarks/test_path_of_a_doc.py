"""The recorder of the files of a path, against a path that is counted by hand."""

import pytest

from path_of_a_doc import PACKAGE, Recorder, main


def test_recorder_counts_calls_files_and_hops_of_the_package() -> None:
    names: dict = {}
    for file, code in {
        f"{PACKAGE}/b.py": "def b(): c(); c()",
        f"{PACKAGE}/deeper/c.py": "def c(): pass",
        "/elsewhere/between.py": "def between(): b()",
        f"{PACKAGE}/a.py": "def a(): between(); a2()\ndef a2(): pass",
    }.items():
        exec(compile(code, file, "exec"), names)
    recorder = Recorder()
    recorder.follow(names["a"])
    # a -> b -> c -> b -> c -> b -> a; `between` is of no file of the package, a2 of the same.
    assert (recorder.calls, recorder.hops) == (5, 6)
    assert recorder.files == {"a.py": 1, "b.py": 1, "deeper/c.py": 2}


def test_path_of_a_prediction_and_an_update_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    first, files, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("nlp.pipe, one sentence: ") and files.startswith(
        "  pipeline/crf_ner.py"
    )
    assert second.startswith("nlp.update, one example: ")
