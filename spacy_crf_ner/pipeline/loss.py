"""The losses of a component: against gold entities, teachers, and its own earlier model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from spacy.training import Example

from .. import crf
from ..crf import Chain
from .distill_targets import DistillTarget, mixture_counts
from .encoding import forbid_labels
from .network import check_potentials, is_constrained

if TYPE_CHECKING:
    from .crf_ner import CRFEntityRecognizer


def gold_loss(
    pipe: CRFEntityRecognizer,
    examples: Sequence[Example],
    scores: Chain,
    targets: Sequence[DistillTarget],
) -> tuple[float, Chain]:
    """Compute the negative log likelihood of gold entities, mixed with the loss against teachers.

    It is in nats, summed over docs, with its gradient for the scores. Raises InputError for gold
    entities that cannot be learned, scores that are not finite or do not match the labels, and
    teachers of other labels.
    """
    encoding = pipe.encoding
    check_potentials(pipe, [eg.predicted for eg in examples], scores)
    encoding.warn_dropped(examples)
    gold, ambiguous = encoding.gold(examples)
    negatives = encoding.negatives(examples, pipe.incorrect_spans_key)
    chains, backprop = encoding.split(scores)
    if is_constrained(pipe.model):
        chains = crf.constrain(chains, *encoding.scheme.constraints)
    losses, d_chains = crf.nll_with_gradient(chains, gold, negatives, ambiguous)
    loss = float(losses.sum())
    if targets:
        teachers, _, weight, temperature = targets[0]
        for teacher in teachers:
            teacher.check_tag_spec(pipe.labels, pipe.overlap, pipe.max_nesting, f"[{pipe.name}]")
        counts = mixture_counts(targets, encoding, pipe.encoding_of)
        divergence, d_divergence = crf.divergence(chains.divided_by(temperature), counts)
        loss = (1 - weight) * loss + weight * temperature**2 * divergence
        # The scores were divided by the temperature.
        d_chains = d_chains.map(
            lambda d, d_div: (1 - weight) * d + weight * temperature * d_div, d_divergence
        )
    return loss, backprop(d_chains.astype_of(scores))


def rehearsal_loss(
    pipe: CRFEntityRecognizer, teacher: Chain, scores: Chain, left_out: Collection[str]
) -> tuple[float, Chain]:
    """Compute the Kullback-Leibler divergence of a model from its earlier state, in nats.

    It is summed over docs, with its gradient for the scores. The potentials of the earlier state,
    the teacher, may have fewer labels; `left_out` are labels that it had not been trained on.
    """
    encoding, C = pipe.encoding, len(teacher.start)
    n_before = (C - 1) * len(pipe.labels) // (len(encoding.tags.tags) - 1)
    left_out = {*left_out, *pipe.labels[n_before:]}
    whole = scores.map(np.copy)  # with tags of the labels that are left out
    whole.emissions[:, :C] = teacher.emissions
    whole.transitions[:C, :C] = teacher.transitions
    whole.start[:C], whole.end[:C] = teacher.start, teacher.end
    before, _ = encoding.split(whole)
    now, backprop = encoding.split(scores)
    before, now = (forbid_labels(encoding, each.to_float64(), left_out) for each in (before, now))
    if is_constrained(pipe.model):
        before, now = (crf.constrain(x, *encoding.scheme.constraints) for x in (before, now))
    divergence, d_now = crf.divergence(now, crf.expected_counts(before))
    return divergence, backprop(d_now.astype_of(scores))
