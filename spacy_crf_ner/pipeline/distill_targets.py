"""Knowledge distillation: the loss against the distributions of teachers.

A gold doc has the scores of its teachers in `doc.user_data`, beside its entities, if it has any.

Axes: T tokens of a doc, C tags of a teacher.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import is_not
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example

from .. import crf
from ..input_error import InputError
from ..tags import SpanOffsets
from .encoding import Encoding
from .platt_scaling import UNCHANGED

KEY = "spacy_crf_ner_distill_target"

# Returns the encoding of labels in a tag scheme.
EncodingOf = Callable[[str, tuple[str, ...]], Encoding]


@dataclass(frozen=True, eq=False)
class Teacher:
    """What is the same for all docs: the tags of a teacher, and the scores of its transitions.

    All scores of a teacher are divided by the temperature that was fitted to it. Those of tag pairs
    are (C, C), [from, to], and those of first and last tags (C,). Labels are in the order of the
    tags, with `max_nesting` chains each; `overlap` is whether entities of different labels may
    overlap.
    """

    scheme: str
    labels: tuple[str, ...]
    overlap: bool
    max_nesting: int
    transitions: NDArray[np.float32]
    start: NDArray[np.float32]
    end: NDArray[np.float32]

    @property
    def tag_spec(self) -> tuple[str, tuple[str, ...], bool, int]:
        """All but the scores."""
        return self.scheme, self.labels, self.overlap, self.max_nesting

    @property
    def scores(self) -> tuple[NDArray[np.float32], ...]:
        """The scores of transitions, start and end."""
        return self.transitions, self.start, self.end

    def equals(self, other: "Teacher") -> bool:
        """Whether all fields are equal."""
        names = [field.name for field in fields(self)]
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def check_tag_spec(
        self, labels: Sequence[str], overlap: bool, max_nesting: int, where: str
    ) -> None:
        """Raise InputError for other labels than those of the student, or other entities."""
        missing, unknown = ({*labels} - {*self.labels}), ({*self.labels} - {*labels})
        if missing or unknown:
            raise InputError(
                f"{where}: expected a teacher of the labels {sorted(labels)}, got one "
                + " and ".join(
                    f"{word} {sorted(found)}"
                    for word, found in (("without", missing), ("also of", unknown))
                    if found
                )
                + ". Use a teacher of the same labels, or rename them."
            )
        if (overlap, max_nesting) != (self.overlap, self.max_nesting):
            raise InputError(
                f"{where}: expected a teacher with overlap {overlap} and max_nesting "
                f"{max_nesting}, got one with overlap {self.overlap} and max_nesting "
                f"{self.max_nesting}. Set both of the student to those of its teachers."
            )


class DistillTarget(NamedTuple):
    """What the teachers of a doc say, and how much it counts.

    Teachers are of one kind each for all docs of a corpus; one object stands for all docs of one.
    """

    teachers: Sequence[Teacher]
    emissions: Sequence[NDArray[np.float32]]  # (T, C), by each teacher
    weight: float  # of the divergence from the teachers; that of the gold entities is 1 - weight
    temperature: float  # divides the scores of the teachers and of the student


def distill_targets(examples: Sequence[Example], name: str) -> list[DistillTarget]:
    """Return the targets of examples; none if no gold doc has one.

    Raises InputError for targets that only some docs have, or of other kinds of teachers, and for
    one that does not have a row for each token.
    """
    found: list[Any] = [eg.reference.user_data.get(KEY) for eg in examples]
    if all(target is None for target in found):
        return []
    first = next(target for target in found if target is not None)
    kinds = [teacher.tag_spec for teacher in first.teachers]
    for eg, target in zip(examples, found):
        where = f"[{name}] doc {eg.text[:60]!r}"
        if (
            target is None
            or [teacher.tag_spec for teacher in target.teachers] != kinds
            or target[2:] != first[2:]
        ):
            raise InputError(
                f"{where}: expected a teacher, of the same kind for all docs of a batch, got "
                "another or none. Train on one corpus with teachers, and on no other beside it."
            )
        for emissions in target.emissions:
            if len(emissions) != len(eg.predicted):
                raise InputError(
                    f"{where}: expected teachers of {len(eg.predicted)} tokens, got "
                    f"{len(emissions)}. Run distill with the tokenizer of this pipeline."
                )
    return found


def mixture_counts(
    targets: Sequence[DistillTarget], student: Encoding, encoding_of: EncodingOf
) -> crf.ExpectedCounts:
    """Compute the expected counts of the student's tags under the mixture of the teachers.

    Tags of another scheme are mapped by way of BILUO, which can express what each scheme can.
    """
    parts = []
    for k, teacher in enumerate(targets[0].teachers):
        encoding = encoding_of(teacher.scheme, student.labels)
        own = encoding.scheme
        chain, _ = encoding.split(_potentials(targets, k, student.labels, encoding_of))
        chain = chain.divided_by(targets[0].temperature)
        in_biluo = crf.constrain(chain.select_tags(own.from_biluo), *own.in_biluo)
        counts, entropy = crf.expected_counts(in_biluo)
        of_student = counts.sum_tags(student.scheme.from_biluo, len(student.scheme.tags))
        parts.append(crf.ExpectedCounts(of_student, entropy))
    return crf.mixture(parts)


def _potentials(
    targets: Sequence[DistillTarget], k: int, labels: tuple[str, ...], encoding_of: EncodingOf
) -> crf.Chain:
    """Return the potentials of docs by the k-th teacher of each.

    Docs have their own transitions, for all k, if any of their teachers differ.
    """
    teacher = targets[0].teachers[k]
    given = {tag: i for i, tag in enumerate(encoding_of(teacher.scheme, teacher.labels).tags.tags)}
    order = np.array([given[tag] for tag in encoding_of(teacher.scheme, labels).tags.tags])
    kinds = teacher.scores
    if any(any(map(is_not, each.teachers, targets[0].teachers)) for each in targets):
        kinds = tuple(map(np.stack, zip(*(each.teachers[k].scores for each in targets))))
    emissions = [target.emissions[k] for target in targets]
    lengths = np.array([*map(len, emissions)])
    return crf.Chain(np.concatenate(emissions), lengths, *kinds).select_tags(order)


def probable_entities(
    doc: Doc, target: DistillTarget, encoding_of: EncodingOf
) -> list[SpanOffsets]:
    """Find the spans whose mean posterior is above 0.5, so that they are disjoint.

    With entities that overlap, those of one label are nested or disjoint in a level.
    """
    posteriors = []
    for teacher, emissions in zip(target.teachers, target.emissions):
        potentials = crf.Chain(emissions, np.array([len(doc)]), *teacher.scores)
        chains = encoding_of(teacher.scheme, teacher.labels)
        posteriors.append(chains.posterior([doc], potentials, True, 1.0, UNCHANGED))
    spans: set[SpanOffsets] = set()
    for posterior, teacher in zip(posteriors, target.teachers):
        # A mean above 0.5 has a part above it.
        (found,) = posterior.candidates(np.full(len(teacher.labels), 0.5))
        spans.update(span for span, _ in found)
    asked = sorted(spans)
    p = np.mean([posterior.probabilities([asked])[0] for posterior in posteriors], axis=0)
    return [span for span, p_of in zip(asked, p) if p_of > 0.5]
