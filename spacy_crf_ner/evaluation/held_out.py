"""Leave out the documents that a pipeline has seen: no guarantee can be fitted to them."""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spacy.language import Language
from spacy.training import Example

from ..input_error import InputError
from ..pipeline.lookup import recognizer, recognizer_names
from ..pipeline.seen_texts import hashes_of, is_seen

if TYPE_CHECKING:
    from .fit_guarantees import Targets

SHOWN = 5  # numbers of documents in a message
NOT_COUNTED = "Documents of train and dev do not count."


def new_examples(
    nlp: Language, name: str, examples: Iterable[Example], targets: "Targets"
) -> tuple[list[Example], list[str]]:
    """Leave out examples of texts that the pipeline has seen, with a warning.

    It has seen them in its training, in the evaluations that chose its weights, or when it was
    calibrated. Returns the others, and which parts they were compared with: "train", "dev". Raises
    InputError if it is not known what the pipeline was trained on, or no example is left.
    """
    examples, trained_on = list(examples), targets.trained_on
    known = [recognizer(nlp, each).seen_texts.known() for each in recognizer_names(nlp)]
    train = set().union(*(each.train for each in known)) | hashes_of(trained_on or ())
    dev = set().union(*(each.dev for each in known))
    is_known = all(each.is_complete for each in known) or trained_on is not None
    if not is_known and not targets.held_out:
        raise InputError(
            f"[{name}] The pipeline does not say which documents it was trained on, and nothing "
            "can be promised from those. Give its training data (--train, or trained_on in "
            f"Python), or state that all documents are new (--held-out, or held_out). {NOT_COUNTED}"
        )
    parts = {"train": train} | ({} if targets.count_dev else {"dev": dev})
    part_of = [
        next((part for part, hashes in parts.items() if is_seen(eg.text, hashes)), None)
        for eg in examples
    ]
    left = [eg for eg, part in zip(examples, part_of) if part is None]
    if len(left) < len(examples):
        message = _left_out(examples, part_of, targets.count_dev)
        if not left:
            raise InputError(f"[{name}] {message} Use new ones. {NOT_COUNTED}")
        warnings.warn(f"[{name}] {message}", stacklevel=2)
    return left, [part for part, hashes in parts.items() if hashes and (is_known or part == "dev")]


def seen_in_training(nlp: Language, examples: Iterable[Example]) -> int:
    """Count the examples of texts that a `crf_ner` of a pipeline was trained on."""
    known = [recognizer(nlp, each).seen_texts.known().train for each in recognizer_names(nlp)]
    train = set[int]().union(*known)
    return sum(is_seen(eg.text, train) for eg in examples) if train else 0


def _left_out(examples: Sequence[Example], part_of: Sequence[str | None], count_dev: bool) -> str:
    seen = [i for i, part in enumerate(part_of) if part is not None]
    numbers = ", ".join(str(i + 1) for i in seen[:SHOWN]) + (", ..." if seen[SHOWN:] else "")
    train = part_of.count("train")
    dev = f", and {len(seen) - train} in the evaluations or the calibration that followed"
    return (
        f"{len(seen)} of {len(examples)} documents are left out, because the pipeline has seen "
        f"them or most of their sentences: {train} in training{'' if count_dev else dev} "
        f"(document {numbers}; the first is "
        f"{examples[seen[0]].text[:60]!r}). {len(examples) - len(seen)} are left."
    )
