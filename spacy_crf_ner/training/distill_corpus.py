"""The corpus of a student: docs with the scores of their teachers, read as a stream."""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, repeat
from math import inf
from pathlib import Path

import srsly
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.distill_targets import KEY, DistillTarget, Teacher
from ..pipeline.lookup import recognizer, recognizer_names
from ..pipeline.seen_texts import SEEN_TEXTS
from .teacher_shard import as_example, checksum, count_docs, find_shards, read_shard

READER = "spacy-crf-ner.DistillCorpus.v1"
# Files that are read at once, to shuffle their docs.
OPEN_FILES = 8

Reader = Callable[[Language], Iterable[Example]]
# A file, one of its docs, the checksum of the tokens that the teachers read, and what they say.
Row = tuple[Path, Doc, int, DistillTarget]


def distill_corpus(
    path: str | Path,
    weight: float = 0.5,
    temperature: float = 1.0,
    hold_out: int = 0,
    seed: int = 0,
) -> Reader:
    """Build `spacy-crf-ner.DistillCorpus.v1`, a reader of what `spacy-crf-ner distill` writes.

    It needs `max_epochs = -1` in `[training]`: it shuffles docs, in another order in each epoch,
    and holds those of eight files in memory.

    Args:
        path: The folder of the teachers' scores.
        weight: Weight of the divergence from the teachers. The weight of the gold entities, in docs
            that have them, is 1 - weight.
        temperature: Divides the scores of the teachers and of the student. A higher one gives more
            weight to less probable entities.
        hold_out: If not 0, docs 0, n, 2n, ... of the corpus are left out, to measure agreement on.
        seed: Seed of the order of the docs.

    Raises:
        InputError: For numbers out of their range; and when it reads, for a damaged file, and for
            tokens other than those that the teachers read.
    """
    check_numbers(weight, temperature, hold_out)
    rng = random.Random(seed)

    def read(nlp: Language) -> Iterator[Example]:
        waiting = find_shards(Path(path))
        if (Path(path) / SEEN_TEXTS).exists():
            _inherit(nlp, Path(path) / SEEN_TEXTS)
        counts = map(count_docs, waiting) if hold_out else repeat(0)
        first = dict(zip(waiting, accumulate(counts, initial=0)))  # index in the corpus
        rng.shuffle(waiting)
        known: list[Teacher] = []  # one object for all docs of a teacher
        kinds: list[object] = []
        opened: list[list[Row]] = []
        is_empty = True
        while waiting or opened:
            while waiting and len(opened) < OPEN_FILES:
                file = waiting.pop()
                shard = read_shard(file, nlp.vocab)
                teachers = [_shared(teacher, known) for teacher in shard.teachers]
                kinds = kinds or [teacher.tag_spec for teacher in teachers]
                if kinds != [teacher.tag_spec for teacher in teachers]:
                    raise InputError(
                        f"{file}: expected the kinds of teachers of the other files in the folder, "
                        "got others. Keep the files of one run of spacy-crf-ner distill in a "
                        "folder."
                    )
                rows = [
                    (file, doc, expected, DistillTarget(teachers, emissions, weight, temperature))
                    for doc, expected, emissions in zip(*shard[:2], shard.emissions)
                ]
                numbered = enumerate(rows, first[file])
                rows = [row for i, row in numbered if not hold_out or i % hold_out]
                rng.shuffle(rows)
                opened += [rows] if rows else []
            if opened:
                (i,) = rng.choices(range(len(opened)), [*map(len, opened)])
                file, doc, expected, target = opened[i].pop()
                if not opened[i]:
                    del opened[i]
                eg = as_example(nlp, doc)
                if checksum(eg.predicted) != expected:
                    raise InputError(
                        f"{file}, doc {eg.text[:60]!r}: expected the tokens that the teachers "
                        f"read, got {[token.text for token in eg.predicted[:10]]} and so on. Use "
                        "the tokenizer of the config that spacy-crf-ner distill was given, or run "
                        "it again."
                    )
                doc.user_data[KEY] = target
                yield eg
                is_empty = False
        if is_empty:  # spaCy would wait for docs forever
            raise InputError(
                f"{path}: expected docs to train on, got none beside those that are held out. Add "
                "texts, or give gold docs for the evaluations (--dev)."
            )

    return read


def check_numbers(weight: float, temperature: float, hold_out: int = 0) -> None:
    """Raise InputError for numbers out of their range."""
    if not 0.0 <= weight <= 1.0 or not 0.0 < temperature < inf or hold_out < 0 or hold_out == 1:
        raise InputError(
            "expected a weight from 0.0 to 1.0, a temperature over 0, and hold_out 0 or more than "
            f"1, got {weight}, {temperature} and {hold_out}."
        )


def _inherit(nlp: Language, file: Path) -> None:
    """Let all recognizers know the texts that the teachers have seen."""
    try:
        for saved in srsly.read_json(file):
            for name in recognizer_names(nlp):
                recognizer(nlp, name).seen_texts.inherit(saved)
    except (KeyError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{file} cannot be read: {reason}. The file is damaged: copy the folder again, or run "
            "spacy-crf-ner distill again."
        ) from error


def _shared(teacher: Teacher, known: list[Teacher]) -> Teacher:
    for each in known:
        if each.equals(teacher):
            return each
    known.append(teacher)
    return teacher
