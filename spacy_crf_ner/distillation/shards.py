"""A run of the teachers over a corpus: their scores, in shards."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import load_model_from_config
from thinc.api import Config

from ..annotate.chunking import chunk_text
from ..annotate.fingerprint import make_fingerprint
from ..annotate.inputs import find_sources
from ..annotate.output_folder import ShardFolder, ShardReport, write_report
from ..annotate.readers import GOLD, Item, check_text_column
from ..annotate.run import Progress, Run, Summary
from ..annotate.runner import batches, in_halves, is_machine_error
from ..annotate.settings import Settings
from ..annotate.shards import Shard
from ..annotate.storage import Location
from ..annotate.worker import resolved_dtype
from ..input_error import InputError
from ..pipeline.given_text import CHANGED, changes_text
from ..pipeline.load import load
from ..pipeline.lookup import recognizer, recognizer_name, upstream_only
from ..pipeline.queries import teacher_scores
from ..training import teacher_shard
from ..training.teacher_shard import SUFFIX, TeacherShard, as_example, checksum

# Characters of a doc to train on: a longer text is cut into several docs.
DOC_CHARACTERS = 10_000
SHARD_SIZE = 500  # documents; the reader has several shards in memory


@dataclass
class TeachingRun(Run):
    """A corpus, its teachers, and the folder for their scores.

    Attributes:
        gold: The number of the first inputs that have gold entities, which are kept.
        teachers: Folders or packages of all teachers.
        of_folds: If not empty, the teachers of each of the inputs with gold entities, instead of
            `teachers`.
        component: The name of their component, if there are several.
        student: The config of the student, whose tokenizer the teachers are given.
        model: Folder or package of the first teacher.
    """

    gold: int
    teachers: Sequence[str]
    of_folds: Sequence[Sequence[str]]
    component: str | None
    student: str
    added: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        found = self.sources.sources
        self.gold_files: list[str] = []
        if self.gold:
            n = len(find_sources(self.inputs[: self.gold], self.location).sources)
            for i, source in enumerate(found[:n]):
                if source.kind != "spacy":
                    raise InputError(
                        f"{source.name}: expected a .spacy file of gold docs, got another file. "
                        "Convert it with spacy-crf-ner convert."
                    )
                found[i] = source._replace(kind=GOLD, group=i if self.of_folds else 0)
            self.gold_files = [source.name for source in found[:n]]
            if found[n:]:
                check_text_column(found[n], self.settings.text_column)
        names = (source.name for source in found)
        self.teachers_of = dict(zip(names, self.of_folds))

    @property
    def load(self) -> Callable[[str | None, int], str | None]:
        """Load the teachers in a worker."""
        return partial(_load_in_worker, teachers=self.teachers, component=self.component)

    @property
    def work(self) -> Callable[..., ShardReport]:
        """What a worker does with a shard, a GPU, settings and the output."""
        return partial(
            write_teacher_shard,
            teachers=self.teachers,
            teachers_of=self.teachers_of,
            component=self.component,
            student=self.student,
        )

    def fingerprint(self, settings: Settings) -> dict[str, Any]:
        """Describe everything that the shards depend on."""
        nlp = Config().from_str(self.student)["nlp"]
        names = [*self.teachers, *chain.from_iterable(self.of_folds)]
        prints = [make_fingerprint(each, self.sources, settings) for each in names]
        return {
            **prints[0],
            "model": [each["model"] for each in prints],
            "component": self.component,
            "tokenizer": {name: nlp[name] for name in ("lang", "tokenizer", "vectors")},
        }

    def summary(self, folder: ShardFolder, progress: Progress, resumed_shards: int) -> Summary:
        """Return the content of summary.json."""
        summary = super().summary(folder, progress, resumed_shards)
        del summary["entities"]
        return {"empty": summary.pop("blank_lines"), **summary}


@dataclass
class _StudentDoc:
    """A doc to train on.

    Attributes:
        item: The record that it is from.
        gold: The doc, with its entities, if they are known.
        predicted: The tokens of the doc for the student.
        emissions: The scores of each teacher.
    """

    item: Item
    gold: Doc
    predicted: Doc
    emissions: list[NDArray[np.float32]]

    @property
    def length(self) -> int:
        """Number of characters."""
        return len(self.predicted.text)


class LoadedTeacher:
    """A teacher pipeline, up to its component."""

    def __init__(self, model: str, gpu_id: int, dtype: str | None, component: str | None):
        self.nlp = load(model, gpu_id, dtype)
        self.name = recognizer_name(self.nlp, component)
        self.pipe = recognizer(self.nlp, self.name)
        self.common, _ = teacher_scores(self.pipe, [])

    def teacher_scores(self, docs: Sequence[Doc]) -> list[NDArray[np.float32]]:
        """Return the scores of the tags at the tokens of docs that a student has tokenized.

        Raises:
            ValueError: If a component of the teacher merges or splits tokens.
        """
        own = [_adopt(self.nlp, doc) for doc in docs]
        with upstream_only(self.nlp, self.name):
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
    """Load pipelines, and keep them for the next shard of the process.

    Raises:
        InputError: For a pipeline without the component.
    """
    key = teachers, gpu_id, dtype, component
    if key not in _loaded:
        _loaded.clear()  # before others are in memory
        _loaded[key] = [LoadedTeacher(model, gpu_id, dtype, component) for model in teachers]
    return _loaded[key]


def forget_teachers() -> None:
    """Free the memory of the pipelines that `load_teachers` has kept in this process."""
    _loaded.clear()


def _load_in_worker(
    dtype: str | None, gpu_id: int, *, teachers: Sequence[str], component: str | None
) -> str | None:
    """Load the teachers; return their dtype: fp32, which all of them have, if they differ."""
    loaded = load_teachers(tuple(teachers), gpu_id, dtype, component)
    found = {resolved_dtype(teacher.nlp) for teacher in loaded} - {None}
    return found.pop() if len(found) == 1 else "fp32" if found else None


@lru_cache(maxsize=1)
def load_tokenizer(config: str) -> Language:
    """Build a pipeline without components."""
    blank = Config().from_str(config, interpolate=False)
    blank["components"], blank["nlp"]["pipeline"], blank["nlp"]["disabled"] = {}, [], []
    return load_model_from_config(blank, auto_fill=True)


def write_teacher_shard(
    shard: Shard,
    gpu_id: int,
    *,
    teachers: Sequence[str],
    teachers_of: Mapping[str, Sequence[str]],
    component: str | None,
    student: str,
    settings: Settings,
    output: Location,
) -> ShardReport:
    """Compute the scores of a shard; write the docs without errors, then the report.

    Args:
        teachers_of: The teachers of some files, which are in shards of their own.

    Raises:
        OSError: If a file cannot be written, and for other errors of the machine; also MemoryError,
            and errors of a GPU.
    """
    names = (teachers_of.get(item.file, teachers) for item in shard.items)
    loaded = load_teachers(tuple(next(names, ())), gpu_id, settings.dtype, component)
    nlp = load_tokenizer(student)
    empty = 0

    def score(batch: Sequence[_StudentDoc]) -> None:
        of_teachers = [
            teacher.teacher_scores([student_doc.predicted for student_doc in batch])
            for teacher in loaded
        ]
        for student_doc, emissions in zip(batch, zip(*of_teachers)):
            student_doc.emissions = list(emissions)

    with ExitStack() as zones:
        for each in (nlp, *(teacher.nlp for teacher in loaded)):
            zones.enter_context(each.memory_zone())
        student_docs: list[_StudentDoc] = []
        for item in shard.items:
            if item.row is not None and not item.reason:
                own = _tokenize(nlp, item, item.row[settings.text_column], settings.max_characters)
                empty += not own and not item.reason
                student_docs += own
        for batch in batches(
            sorted(student_docs, key=lambda each: each.length), settings.batch_size
        ):
            in_halves(batch, score, lambda student_doc, error: _fail(student_doc.item, error))
        student_docs = [student_doc for student_doc in student_docs if not student_doc.item.reason]
        if student_docs:
            from_teacher = TeacherShard(
                [student_doc.gold for student_doc in student_docs],
                [checksum(student_doc.predicted) for student_doc in student_docs],
                [teacher.common for teacher in loaded],
                [student_doc.emissions for student_doc in student_docs],
            )
            (output / f"{shard.name}{SUFFIX}").write([teacher_shard.to_bytes(from_teacher)])
        words = sum(len(student_doc.predicted) for student_doc in student_docs)
        del student_docs  # docs must not outlive the memory of their words
    report = shard.report(settings.id_column, words, empty=empty)
    write_report(output, report)
    return report


def _tokenize(nlp: Language, item: Item, text: Any, max_characters: int) -> list[_StudentDoc]:
    """Make the docs of a record: several of a long text, none of a text without a token."""
    try:
        if isinstance(text, bytes):
            docs = [Doc(nlp.vocab).from_bytes(text)]
        else:
            chunks = chunk_text(text, max_characters, overlap=0)
            parts = [text[chunk.start : chunk.end] for chunk in chunks]
            docs = [nlp.make_doc(part) for part in parts]
            if any(map(changes_text, docs, parts)):
                raise ValueError(CHANGED)
        return [
            _StudentDoc(item, doc, as_example(nlp, doc).predicted, []) for doc in docs if len(doc)
        ]
    except Exception as error:  # bytes that are not a Doc raise errors of all types
        _fail(item, error)
        return []


def _fail(item: Item, error: Exception) -> None:
    if is_machine_error(error):
        raise error
    item.reason = f"{type(error).__name__}: {error}"


def _adopt(nlp: Language, doc: Doc) -> Doc:
    """Copy the tokens of a doc; if the tokenizer makes the same ones, with their attributes."""
    words = [token.text for token in doc]
    if not doc.has_unknown_spaces:
        own = nlp.make_doc(doc.text)
        if [token.text for token in own] == words:
            return own
    return Doc(nlp.vocab, words, [bool(token.whitespace_) for token in doc])
