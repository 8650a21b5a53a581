"""A CRF pipe that teaches others, and learns from teachers, and from itself in an earlier state."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from thinc.api import Model, Optimizer, set_dropout_rate

from ..extras import required
from ..ml.label_chains import extended
from ..ml.potentials import SCORES, Potentials
from .calibrated_pipe import CalibratedPipe, restricted
from .listeners import require_features
from .spacy_internals import listeners
from .teaching import Lesson, Teacher, mixture_counts


class TeachablePipe(CalibratedPipe):
    """A CRF pipe whose losses compare its distribution with those of teachers.

    A subclass has the attributes of `CRFPipe`, and sets a `_rehearsal_model`.
    """

    @property
    def _rehearsal_model(self) -> Model[list[Doc], Potentials] | None:
        """The model to rehearse; `nlp.resume_training` sets this attribute of all components."""
        return self._original

    @_rehearsal_model.setter
    def _rehearsal_model(self, model: Model[list[Doc], Potentials] | None) -> None:
        self._original = model
        # It knows nothing of labels that were added and not trained.
        self._not_rehearsed = (*self.cfg["untrained"],)

    def teach(self, docs: Sequence[Doc]) -> tuple[Teacher, list[NDArray[np.float32]]]:
        """Compute what a student learns from: the scores of the tags, at the fitted temperature.

        docs: The components before this one must have processed them. Preset entities are ignored.

        Returns the scores that all docs share, and those of the tags at the tokens of each doc,
        (T, C). Raises InputError as `predict`.
        """
        potentials = self._potentials(docs)
        E, A, start, end = ((array / self.temperature).astype("f") for array in potentials.arrays())
        kind = self._scheme_name, self.labels, self.entities, self.layers
        return Teacher(*kind, A, start, end), np.split(E, potentials.lengths.cumsum()[:-1])

    def rehearse(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Train on docs to repeat the predictions from when `nlp.resume_training` was called.

        The loss is the Kullback-Leibler divergence from the distribution of the model at that time.
        Labels that were added since, or had not been trained then, are left out of the comparison.

        examples: Their predicted docs are rehearsed; their gold docs are not read.
        drop: The dropout rate.
        sgd: Updates the weights; None keeps the gradients for the next update.
        losses: The loss is added to the entry of the component; None for a new dict.

        Returns the losses.
        """
        with required("train"):
            from ..ml.losses import distill, expected_counts
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, "CRFEntityRecognizer.rehearse")
        docs = [eg.predicted for eg in examples]
        if self._rehearsal_model is None or not any(len(doc) for doc in docs):
            return losses
        require_features(self, docs)
        self.seen_texts.learn(examples)
        teacher = self._rehearsal_model.predict(docs)
        set_dropout_rate(self.model, drop)
        if any(listeners(self.model)):
            # A listener trains only with its upstream component, which is not updated here.
            features = self.model.get_ref("tok2vec").predict(docs)
            scores, backprop = self.model.get_ref("output_layer").begin_update(features)
        else:
            scores, backprop = self.model.begin_update(docs)
        if self.entities_key is not None:  # added labels are their own teachers
            teacher = extended(teacher, scores)
        teacher, _ = self.chains.split(teacher)
        scores, join = self.chains.split(scores)
        teacher, scores = (
            restricted(self.chains, each, self._not_rehearsed) for each in (teacher, scores)
        )
        constraints = self.chains.scheme.constraints
        legal = constraints.of_first(teacher.emissions.shape[1])
        divergence, d_scores = distill(scores, expected_counts(teacher, legal), constraints)
        backprop(join(d_scores))
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += divergence
        return losses

    def _mix(
        self, loss: float, d_scores: Potentials, scores: Potentials, lessons: Sequence[Lesson]
    ) -> tuple[float, Potentials]:
        """Add the loss against teachers to that against gold entities, and their gradients."""
        from ..ml.losses import distill

        teachers, _, weight, temperature = lessons[0]  # those of others are of the same kind
        for teacher in teachers:
            teacher.require_kind(self.labels, self.entities, self.layers, f"[{self.name}]")
        counts = mixture_counts(lessons, self.labels, self._scheme_name, self.chains_of)
        constraints = self.chains.scheme.constraints
        divergence, d_divergence = distill(scores, counts, constraints, temperature)
        share = weight * temperature**2
        mixed = {
            name: (1 - weight) * getattr(d_scores, name) + share * getattr(d_divergence, name)
            for name in SCORES
        }
        return (1 - weight) * loss + share * divergence, d_scores._replace(**mixed)
