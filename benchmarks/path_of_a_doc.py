"""Which files a Doc passes through: calls, files and hops of one prediction and one update.

    python benchmarks/path_of_a_doc.py

A hop is a call or a return that changes the file; a tree of N files, each entered once, has
2 (N - 1) of them. Functions of other packages are passed through. Default tok2vec, warm caches, and
a model that finds the three entities of the sentence.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import spacy
from spacy.training import Example
from thinc.api import fix_random_seed

import spacy_crf_ner

PACKAGE = Path(spacy_crf_ner.__file__).parent
TEXT = "Anna Schmidt works for Siemens in Munich."
ENTITIES = [(0, 12, "PER"), (23, 30, "ORG"), (34, 40, "LOC")]


class Recorder:
    """Records the files of the package that a function enters."""

    def __init__(self) -> None:
        self.calls = self.hops = 0
        self.files: dict[str, int] = {}  # in order of their first entry, with the entries of each
        self._last: str | None = None

    def follow(self, function: Callable[[], Any]) -> None:
        sys.setprofile(self._record)
        try:
            function()
        finally:
            sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: Any) -> None:
        file = _file_of(frame)
        if file is None or event not in ("call", "return"):
            return
        if event == "call":
            self.calls += 1
            self._enter(file, is_new=True)
            return
        caller = frame.f_back
        while caller is not None and _file_of(caller) is None:
            caller = caller.f_back
        if caller is not None:
            self._enter(str(_file_of(caller)), is_new=False)

    def _enter(self, file: str, is_new: bool) -> None:
        if file != self._last:
            self.hops += self._last is not None
            if is_new:
                self.files[file] = self.files.get(file, 0) + 1
        self._last = file


def _file_of(frame: FrameType) -> str | None:
    """Return the file of a frame inside the package; None for a frame of other code."""
    path = frame.f_code.co_filename
    return path.removeprefix(f"{PACKAGE}/") if path.startswith(f"{PACKAGE}/") else None


def main() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    example = Example.from_dict(nlp.make_doc(TEXT), {"entities": ENTITIES})
    fix_random_seed(0)
    optimizer = nlp.initialize(lambda: [example])
    while len(nlp(TEXT).ents) < len(ENTITIES):  # each entity has a confidence to set
        nlp.update([example], sgd=optimizer)
    functions: dict[str, Callable[[], Any]] = {
        "nlp.pipe, one sentence": lambda: list(nlp.pipe([TEXT])),
        "nlp.update, one example": lambda: nlp.update([example], sgd=optimizer),
    }
    for name, function in functions.items():
        for _ in range(3):
            function()
        path = Recorder()
        path.follow(function)
        n = len(path.files)
        print(f"{name}: {path.calls} calls, {n} files, {path.hops} hops (a tree: {2 * (n - 1)})")
        print("  " + " -> ".join(f"{file} ({entries})" for file, entries in path.files.items()))


if __name__ == "__main__":
    main()
