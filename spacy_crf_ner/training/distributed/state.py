"""The training in progress, through which the blocks of a config know of each other."""

from dataclasses import dataclass
from typing import Optional

from spacy.language import Language
from thinc.api import Optimizer


@dataclass
class Run:
    """A training in progress; spaCy makes the blocks of a config apart, and hands them nothing.

    nlp: The pipeline, once it is initialized and its training begins.
    equal: Whether the ranks have made sure that they begin with the same weights.
    optimizer: The one that updates the weights, from the first update on.
    resumed: What an earlier optimizer knew, until that of this run has taken it up.
    """

    nlp: Optional[Language] = None
    equal: bool = False
    optimizer: Optional[Optimizer] = None
    resumed: Optional[bytes] = None


_run = Run()


def run() -> Run:
    """Find the training in progress, or one that has not begun."""
    return _run


def begin(nlp: Language) -> Run:
    """Begin to train a pipeline that is initialized."""
    global _run
    _run = Run(nlp)
    return _run
