"""A run of the teachers over a corpus: their scores, in shards."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import load_model_from_config
from thinc.api import Config

from ..annotate.chunking import chunk_text
from ..annotate.runner import Failure, failure, map_batches
from ..annotate.settings import Settings
from ..annotate.shards import Shard, ShardReport, resolved_dtype
from ..pipeline.given_text import CHANGED, changes_text
from ..pipeline.load import load
from ..pipeline.lookup import recognizer, recognizer_name, upstream_only
from ..pipeline.queries import teacher_scores
from ..training import teacher_shard
from ..training.teacher_shard import TeacherShard, as_example, checksum


class LoadedTeacher:
    """A teacher pipeline, up to its component."""

    def __init__(self, model: str, gpu_id: int, dtype: str | None, component: str | None):
        self.nlp = load(model, gpu_id, dtype)
        self.pipe = recognizer(self.nlp, recognizer_name(self.nlp, component))
        self.common, _ = teacher_scores(self.pipe, [])

    def teacher_scores(self, docs: Sequence[Doc]) -> list[NDArray[np.float32]]:
        """Return the scores of the tags at the tokens of docs that a student has tokenized.

        Raises ValueError if a component of the teacher merges or splits tokens.
        """
        own = [_adopt(self.nlp, doc) for doc in docs]
        with upstream_only(self.nlp, self.pipe.name):
            own = list(self.nlp.pipe(own, batch_size=len(own)))
        for doc, read in zip(docs, own, strict=True):
            if checksum(read) != checksum(doc):
                raise ValueError(
                    f"expected the {len(doc)} tokens of the student, got {len(read)} others from "
                    "the components of the teacher"
                )
        return list(teacher_scores(self.pipe, own)[1])


_loaded: dict[Any, list[LoadedTeacher]] = {}


def load_teachers(
    teachers: tuple[str, ...], gpu_id: int, dtype: str | None, component: str | None
) -> list[LoadedTeacher]:
    """Load pipelines that have the component, and keep them for the next shard of the process."""
    key = teachers, gpu_id, dtype, component
    if key not in _loaded:
        _loaded.clear()  # before others are in memory
        _loaded[key] = [LoadedTeacher(model, gpu_id, dtype, component) for model in teachers]
    return _loaded[key]


def forget_teachers() -> None:
    """Free the memory of the pipelines that `load_teachers` has kept in this process."""
    _loaded.clear()


def load_in_worker(
    dtype: str | None, gpu_id: int, *, teachers: Sequence[str], component: str | None
) -> str | None:
    """Load the teachers; return the dtype of all of them: fp32, if "auto" differs."""
    loaded = load_teachers(tuple(teachers), gpu_id, dtype, component)
    found = {resolved_dtype(teacher.nlp) for teacher in loaded} - {None}
    return "fp32" if len(found) > 1 else next(iter(found), dtype)


@lru_cache(maxsize=1)
def load_tokenizer(config: str) -> Language:
    """Build a pipeline without components."""
    blank = Config().from_str(config, interpolate=False)
    blank["components"], blank["nlp"]["pipeline"], blank["nlp"]["disabled"] = {}, [], []
    return load_model_from_config(blank, auto_fill=True)


def teach_shard(
    shard: Shard,
    gpu_id: int,
    settings: Settings,
    *,
    teachers: Sequence[str],
    teachers_of: Mapping[str, Sequence[str]],
    component: str | None,
    student: str,
) -> tuple[bytes | None, ShardReport]:
    """Compute the scores of a shard; return the content of its file, with the docs without errors.

    It is None if there is no doc with a token. In the report, empty texts count as blank lines. An
    error of the machine is raised: OSError, MemoryError, and errors of a GPU. `teachers_of` has the
    teachers of some files, which are in shards of their own.
    """
    names = teachers_of.get(shard.items[0].file, teachers)
    loaded = load_teachers(tuple(names), gpu_id, settings.dtype, component)
    nlp = load_tokenizer(student)
    with ExitStack() as zones:
        for each in (nlp, *(teacher.nlp for teacher in loaded)):
            zones.enter_context(each.memory_zone())
        content, words, empty = _teach(shard, loaded, nlp, settings)
    report = shard.report(words)
    return content, report._replace(documents=report.documents - empty, blank=report.blank + empty)


def _teach(
    shard: Shard, loaded: Sequence[LoadedTeacher], nlp: Language, settings: Settings
) -> tuple[bytes | None, int, int]:
    """Return the content of a file, and the numbers of tokens and of empty texts.

    Docs must not outlive the memory of their words: none is returned.
    """
    examples = []
    empty = 0
    for item, row in shard.rows:
        own = _tokenize(nlp, row[settings.text_column], settings.max_characters)
        if isinstance(own, Failure):
            item.reason = own
        else:
            empty += not own
            examples += [(item, eg) for eg in own]

    def score(batch: Sequence[Example]) -> list[list[NDArray[np.float32]]]:
        docs = [eg.predicted for eg in batch]
        return [[*each] for each in zip(*(teacher.teacher_scores(docs) for teacher in loaded))]

    lengths = [len(eg.predicted.text) for _, eg in examples]
    scores = map_batches(score, [eg for _, eg in examples], lengths, settings.batch_size)
    for (item, _), found in zip(examples, scores):
        if isinstance(found, Failure):
            item.reason = found
    kept: list[tuple[Example, Any]] = [
        (eg, found) for (item, eg), found in zip(examples, scores) if not item.reason
    ]
    if not kept:
        return None, 0, empty
    from_teachers = TeacherShard(
        [eg.reference for eg, _ in kept],
        [checksum(eg.predicted) for eg, _ in kept],
        [teacher.common for teacher in loaded],
        [found for _, found in kept],
    )
    words = sum(len(eg.predicted) for eg, _ in kept)
    return teacher_shard.to_bytes(from_teachers), words, empty


def _tokenize(nlp: Language, text: Any, max_characters: int) -> list[Example] | Failure:
    """Make the examples of a text: several of a long one, none of a text without a token."""
    try:
        if isinstance(text, bytes):
            docs = [Doc(nlp.vocab).from_bytes(text)]
        else:
            chunks = chunk_text(text, max_characters, overlap=0)
            parts = [text[chunk.start : chunk.end] for chunk in chunks]
            docs = [nlp.make_doc(part) for part in parts]
            if any(map(changes_text, docs, parts)):
                raise ValueError(CHANGED)
        return [as_example(nlp, doc) for doc in docs if len(doc)]
    except Exception as error:  # bytes that are not a Doc raise errors of all types
        return failure(error)


def _adopt(nlp: Language, doc: Doc) -> Doc:
    """Copy the tokens of a doc; if the tokenizer makes the same ones, with their attributes."""
    words = [token.text for token in doc]
    if not doc.has_unknown_spaces:
        own = nlp.make_doc(doc.text)
        if [token.text for token in own] == words:
            return own
    return Doc(nlp.vocab, words, [bool(token.whitespace_) for token in doc])
