"""What to guarantee for new documents, and from which documents."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..input_error import InputError


@dataclass(frozen=True)
class Targets:
    """What to guarantee for new documents, and from which documents; None for nothing of a kind.

    Attributes:
        recall: Share of the entities of a document that are among its candidates.
        precision: Share of the entities of a document that are right, of those that the component
            adds.
        set_coverage: Share of documents whose right labeling is in `prediction_sets`.
        confidence_level: Confidence level of recall and precision; None for recall on average, and
            a precision of 95 %.
        by_label: Guarantee the recall of each label.
        trained_on: Texts of the training data, of a pipeline that does not know them. As those that
            it knows, they are left out.
        held_out: State that a pipeline that does not know its training data has seen no document.
        count_dev: Use documents that chose the weights, or served the calibration, too; the
            guarantee is then too good.

    Raises:
        InputError: If nothing is to be guaranteed, for a number that is not between 0 and 1, and
            for `by_label` or a confidence level without what it is for.
    """

    recall: float | None = None
    precision: float | None = None
    set_coverage: float | None = None
    confidence_level: float | None = None
    by_label: bool = False
    trained_on: Sequence[str] | None = None
    held_out: bool = False
    count_dev: bool = False

    def __post_init__(self) -> None:
        for name in ("recall", "precision", "set_coverage", "confidence_level"):
            number = getattr(self, name)
            if number is not None and not 0 < number < 1:
                what = name.replace("_", " ")
                raise InputError(f"The {what} must be between 0 and 1, got {number}.")
        if (self.recall, self.precision, self.set_coverage) == (None, None, None):
            raise InputError(
                "There is nothing to promise. Name a recall, a precision or a set coverage, as "
                "--recall 0.95 does."
            )
        if self.recall is None and self.by_label:
            raise InputError("A promise by label is of a recall. Name one, as --recall 0.95 does.")
        if self.recall is None and self.precision is None and self.confidence_level is not None:
            raise InputError(
                "A confidence level is of a recall or a precision. Name one, as --recall 0.95 does."
            )
