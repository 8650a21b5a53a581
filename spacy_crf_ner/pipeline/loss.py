"""The losses of a component: against gold entities, teachers, and its own earlier model."""

from collections.abc import Collection, Sequence

from spacy.training import Example

from ..extras import required
from ..ml.potentials import SCORES, Potentials
from .component import Component
from .encoding import Encoding, forbid_labels
from .network import require_valid
from .teaching import Lesson, mixture_counts


def gold_loss(
    pipe: Component, examples: Sequence[Example], scores: Potentials, lessons: Sequence[Lesson]
) -> tuple[float, Potentials]:
    """Compute the negative log likelihood of gold entities, mixed with the loss against teachers.

    Args:
        examples: The examples of an update.
        scores: The potentials of their predicted docs.
        lessons: What the teachers of each doc say, all of the same kind; none without teachers.

    Returns:
        The loss in nats, summed over docs, and its gradient for the scores.

    Raises:
        InputError: For a gold entity that has an unknown label, begins or ends with whitespace, or
            is also a negative span; for scores that are not finite or do not match the labels; and
            for teachers of other labels.
    """
    with required("train"):
        from ..ml.losses import distill, nll_with_gradient
    encoding = pipe.encoding
    require_valid(pipe, [eg.predicted for eg in examples], scores)
    encoding.warn_dropped(examples)
    gold, hidden = encoding.gold(examples)
    negatives = encoding.negatives(examples, pipe.incorrect_spans_key)
    constraints = encoding.scheme.constraints
    chains, backprop = encoding.split(scores)
    losses, d_chains = nll_with_gradient(chains, gold, constraints, negatives, hidden)
    loss = float(losses.sum())
    if lessons:
        teachers, _, weight, temperature = lessons[0]
        for teacher in teachers:
            teacher.require_kind(pipe.labels, pipe.entities, pipe.layers, f"[{pipe.name}]")
        counts = mixture_counts(lessons, pipe.labels, encoding.tags.name, pipe.encoding_of)
        divergence, d_divergence = distill(chains, counts, constraints, temperature)
        share = weight * temperature**2
        loss = (1 - weight) * loss + share * divergence
        mixed = {
            name: (1 - weight) * getattr(d_chains, name) + share * getattr(d_divergence, name)
            for name in SCORES
        }
        d_chains = d_chains._replace(**mixed)
    return loss, backprop(d_chains)


def rehearsal_loss(
    encoding: Encoding, teacher: Potentials, scores: Potentials, left_out: Collection[str]
) -> tuple[float, Potentials]:
    """Compute the Kullback-Leibler divergence of a model from its earlier state.

    Args:
        encoding: How the model writes entities as tags.
        teacher: The potentials of docs in the earlier state, which may have fewer labels.
        scores: Those of the present model.
        left_out: Labels that the earlier state had not been trained on.

    Returns:
        The divergence in nats, summed over docs, and its gradient for the scores.
    """
    with required("train"):
        from ..ml.losses import distill, expected_counts
    before, _ = encoding.split(encoding.extend(teacher, scores))
    now, backprop = encoding.split(scores)
    before, now = (forbid_labels(encoding, each, left_out) for each in (before, now))
    constraints = encoding.scheme.constraints
    counts = expected_counts(before, constraints.of_first(before.emissions.shape[1]))
    divergence, d_now = distill(now, counts, constraints)
    return divergence, backprop(d_now)
