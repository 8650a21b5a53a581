"""What the functions of this package read from the component, whose module imports theirs."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from spacy.tokens import Doc
from thinc.api import Model

from ..crf import Chain
from .encoding import Encoding, EntityPosterior


class Component(Protocol):
    """The parts of a `CRFEntityRecognizer` that its queries, its calibration and its losses use."""

    name: str
    model: Model[list[Doc], Chain]
    vocab: Any
    cfg: dict[str, Any]

    # Settings, see `CRFEntityRecognizer`
    overlap: bool
    max_nesting: int
    confidence: bool
    threshold: float
    thresholds: Mapping[str, float]
    decode: str
    f_score_threshold: float
    spans_key: str | None
    candidate_threshold: float
    candidate_thresholds: Mapping[str, float]
    disabled_labels: Sequence[str]
    incorrect_spans_key: str | None
    overwrite: bool

    # What is fitted to held-out docs
    temperature: float
    platt_slope: float
    platt_intercept: float
    platt_ceiling: float
    calibrated_on: int | None

    computed: Any  # potentials in memory, see `network.computed_once`

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity labels, in the order of the model's tags."""

    @property
    def enabled_labels(self) -> tuple[str, ...]:
        """The labels that are predicted."""

    @property
    def excluded(self) -> set[str]:
        """The labels that are not predicted."""

    @property
    def encoding(self) -> Encoding:
        """How entities are written as tags."""

    def encoding_of(self, scheme: str, labels: tuple[str, ...]) -> Encoding:
        """How entities are written as tags of another scheme, or of other labels."""

    def potentials(self, docs: Sequence[Doc]) -> Chain:
        """Run the network on docs."""

    def posterior(self, docs: Sequence[Doc]) -> EntityPosterior:
        """Compute the posterior distribution over the entities of docs."""
