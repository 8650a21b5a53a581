"""Adam with settings that depend on the names of the parameters."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, tee
from typing import Any, cast

from thinc.api import Optimizer
from thinc.optimizers import FloatOrSeq, KeyT
from thinc.types import FloatsXd

from ..extras import required
from ..input_error import InputError

with required("train"):
    from torch import Tensor, nn

    from .fused_adam import can_fuse, fused_steps, is_plain, to_numpy_state

FACTORS = ("learn_rate", "L2", "grad_clip")
# Some parameters learn later than others, such as those of a shared transformer.
STEPS_TO_MATCH = 20
# The last step of `spacy train` has the rate 0 that a schedule ends with.
STEPS_AT_ZERO = 20
# The most steps of a warm-up.
WARM_UP = 100_000


class ParameterGroup(Optimizer):
    """Factors on an optimizer's settings, for the parameters whose names match a pattern.

    They can be schedules, which thinc's Optimizer steps. `where` is the place of the group in the
    config, for messages; `matched` is whether a parameter has matched its pattern `names`.
    """

    __slots__ = ["matched", "names", "where"]

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        self.where = where
        self.matched = False
        unknown = settings.keys() - {"names", *FACTORS}
        if unknown or "names" not in settings:
            got = f"also {sorted(unknown)}" if unknown else "no names"
            raise InputError(
                f"{where}: expected names, a regular expression, and some of {[*FACTORS]}, got "
                f"{got}. Example: names = 'projection', learn_rate = 10.0."
            )
        try:
            self.names = re.compile(settings["names"])
        except (re.error, TypeError) as error:
            raise InputError(
                f"{where}.names: expected a regular expression, got {settings['names']!r} "
                f"({error}). Escape its special characters by a backslash."
            ) from error
        learn_rate, L2, grad_clip = (settings.get(name, 1.0) for name in FACTORS)
        try:
            super().__init__(learn_rate, L2=L2, grad_clip=grad_clip, use_averages=False)
        except ValueError as error:
            raise InputError(f"{where}: expected numbers or schedules, got {error}") from error
        for name in FACTORS:
            if getattr(self, name) < 0:
                raise InputError(
                    f"{where}.{name}: expected a factor of 0 or more, got {getattr(self, name)}."
                )


def highest_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of an optimizer at the end of its warm-up, without stepping it."""
    rate: float = optimizer.learn_rate
    schedules: Any = optimizer.schedules
    if "learn_rate" in schedules:
        following, schedules["learn_rate"] = tee(schedules["learn_rate"])
        for later in islice(following, WARM_UP):
            if later < rate:
                break
            rate = later
    return rate


class GroupedAdam(Optimizer):
    """`spacy-crf-ner.Adam.v1`: thinc's Adam, with its settings, and groups of parameters.

    Each group can have its own learning rate, weight decay and clipping, such as a high rate for
    new layers over a pretrained transformer, a low one for its embeddings, and no decay for biases.

    A schedule of the learning rate needs a call of `step_schedules` after each update, as in `spacy
    train`. If there is none before the second update, as in a loop of `nlp.update`, the highest
    rate before the schedule falls is used, also for groups.

    Args:
        learn_rate: A number or schedule.
        L2: Weight decay: a step shrinks weights by this share of themselves, times the learning
            rate.
        beta1: Decay of the mean of the gradients.
        beta2: Decay of the mean of their squares.
        eps: Added to the denominator of a step.
        grad_clip: The largest norm of the gradient of each parameter; a larger one is scaled down
            to it. 0 for none.
        L2_is_weight_decay: Decay weights as AdamW does; else add L2 times the weights to their
            gradient.
        use_averages: Keep moving averages of the weights, over about the last tenth of the updates.
            They begin with the weights, where thinc's begin at zero. spaCy evaluates and saves
            pipelines with them. They have no effect in torch modules of other packages, such as
            spacy-transformers' own layer. Source: Polyak and Juditsky (1992), "Acceleration of
            stochastic approximation by averaging".
        groups: Groups by name. Each has `names`, a regular expression that is searched in the names
            that parameters have in their torch module or thinc layer, and factors, numbers or
            schedules, for `learn_rate`, `L2` and `grad_clip`. A parameter in several groups has the
            product of their factors; one in none has factors of 1. A parameter with a rate of 0
            does not change; a gradient with a grad_clip of 0 is not clipped.

    Raises:
        InputError: For a setting out of its range.

    Source: Howard and Ruder (2018), "Universal language model fine-tuning for text classification",
    section 3.2, discriminative fine-tuning.

    Warns after some steps of groups without parameters, and after some steps with a learning rate
    of 0.
    """

    __slots__ = ["_at_zero", "_first_rates", "_matching", "_steps", "groups"]

    def __init__(
        self,
        learn_rate: FloatOrSeq = 0.001,
        *,
        L2: FloatOrSeq = 0.0,
        beta1: FloatOrSeq = 0.9,
        beta2: FloatOrSeq = 0.999,
        eps: FloatOrSeq = 1e-8,
        grad_clip: FloatOrSeq = 1.0,
        L2_is_weight_decay: bool = True,
        use_averages: bool = True,
        groups: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            learn_rate,
            L2=L2,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            grad_clip=grad_clip,
            L2_is_weight_decay=L2_is_weight_decay,
            use_averages=use_averages,
        )
        self.groups = [
            ParameterGroup(f"training.optimizer.groups.{name}", settings)
            for name, settings in (groups or {}).items()
        ]
        self._matching: dict[str, list[ParameterGroup]] = {}
        self._steps = self._at_zero = 0
        # Those of the schedules, until the first step of them.
        self._first_rates = [(each, each.learn_rate) for each in (self, *self.groups)]

    def __call__(
        self, key: KeyT, weights: FloatsXd, gradient: FloatsXd, *, lr_scale: float = 1.0
    ) -> Any:
        """Update weights in place, and set their gradient to zero; return both.

        The key is the id of the layer, and the name of the weights in it.
        """
        self._warm_up_at_once(key)
        with self._factors_of(key) as factor:
            to_numpy_state(self, key)
            if self.averages is not None and key not in self.averages:
                self.averages[key] = weights.copy()
            return super().__call__(key, weights, gradient, lr_scale=lr_scale * factor)

    def update_together(self, parameters: dict[KeyT, nn.Parameter]) -> bool:
        """Update the parameters of a module, all of a group in one call of torch.

        Their gradients are not set to zero. Returns whether it did: not for other settings than
        those of Adam with decoupled decay, nor for arrays that are not contiguous and of float32.
        """
        tensors = [x for each in parameters.values() for x in (each, each.grad)]
        if not can_fuse(self) or not all(is_plain(tensor) for tensor in tensors):
            return False
        alike: dict[tuple[float, float, float, int], list[KeyT]] = {}
        for key in parameters:
            self._warm_up_at_once(key)
            with self._factors_of(key) as factor:
                settings = factor, self.L2, self.grad_clip, self.nr_update[key]
            alike.setdefault(settings, []).append(key)
        for keys in alike.values():
            weights = [parameters[key].detach() for key in keys]
            gradients = [cast(Tensor, parameters[key].grad) for key in keys]
            with self._factors_of(keys[0]) as factor:
                fused_steps(self, keys, weights, gradients, factor)
        return True

    def _warm_up_at_once(self, key: KeyT) -> None:
        """Use the highest rates from the second update on if nobody steps the schedules."""
        if self._first_rates and self.nr_update[key]:
            for each, rate in self._first_rates:
                if each.learn_rate == rate:  # it was not set by hand either
                    each.learn_rate = highest_rate(each)
            self._first_rates = []

    @contextmanager
    def _factors_of(self, key: KeyT) -> Iterator[float]:
        """Apply the factors of a parameter to L2 and grad_clip; yield its learning rate factor."""
        before = self.L2, self.grad_clip
        factor = 1.0
        for group in self._groups_of(key[1]):
            factor *= group.learn_rate
            self.L2 *= group.L2
            self.grad_clip *= group.grad_clip
        try:
            yield factor
        finally:
            self.L2, self.grad_clip = before

    def _groups_of(self, name: str) -> list[ParameterGroup]:
        """Return the groups of a parameter."""
        if name not in self._matching:
            self._matching[name] = [each for each in self.groups if each.names.search(name)]
            for group in self._matching[name]:
                group.matched = True
        return self._matching[name]

    def step_schedules(self) -> None:
        """Step the schedules, after an update of all parameters."""
        self._first_rates = []
        was_updated = bool(self.nr_update)  # not when a resumed training repeats its steps
        self._steps += was_updated
        self._at_zero = 0 if self.learn_rate else self._at_zero + was_updated
        if self._at_zero == STEPS_AT_ZERO:
            warnings.warn(
                "training.optimizer.learn_rate: expected a rate above 0, got 0 for "
                f"{STEPS_AT_ZERO} steps, in which nothing was learned. If the schedule ended "
                "before the training, set its total_steps to the steps of the training.",
                stacklevel=2,
            )
        super().step_schedules()  # type: ignore[no-untyped-call]
        for group in self.groups:
            group.step_schedules()  # type: ignore[no-untyped-call]
            if self._steps == STEPS_TO_MATCH and not group.matched:
                warnings.warn(
                    f"{group.where}: expected trained parameters whose names match "
                    f"{group.names.pattern!r}, got none. The group has no effect: correct the "
                    "pattern, or delete the group if these parameters are frozen.",
                    stacklevel=2,
                )
