"""An Adam whose gradients are summed over ranks."""

from io import BytesIO
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from spacy.language import Language
from thinc.api import get_current_ops
from thinc.optimizers import FloatOrSeq, KeyT

from ...ml.torch_layer import to_array, to_tensor
from ..layer_index import layer_index
from ..optimizer import LayerwiseAdam
from .parameters import Parameter, parameters
from .process_group import ranks
from .state import run


class _Queued(NamedTuple):
    """Weights whose update waits for the gradients of the other ranks."""

    weights: Any
    gradient: Any
    lr_scale: float


class DistributedAdam(LayerwiseAdam):
    """Adam on the gradients of all ranks; see `distributed_adam` for its settings."""

    __slots__ = ["_known", "_queue", "_steps"]

    def __init__(self, learn_rate: FloatOrSeq, **settings: Any) -> None:
        super().__init__(learn_rate, **settings)
        self._queue: Dict[KeyT, _Queued] = {}
        self._known: Dict[KeyT, Parameter] = {}
        self._steps = 0

    def __call__(self, key: KeyT, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> Any:
        """Take up a gradient, and set it to zero; `step_schedules` updates the weights, in place.

        A process that is alone updates them at once.

        key, weights, gradient, lr_scale: As of `LayerwiseAdam`.

        Returns weights and gradient. Raises ValueError for a second gradient of the same weights
        before `step_schedules`.
        """
        self._take_up()
        if ranks().alone:
            return super().__call__(key, weights, gradient, lr_scale=lr_scale)
        if key in self._queue:
            raise ValueError(
                f"{key[1]!r}: expected step_schedules() between two updates, got none. With "
                "several ranks, it is what updates weights: call it after each nlp.update()."
            )
        self._queue[key] = _Queued(weights, gradient.copy(), lr_scale)
        gradient[...] = 0.0
        return weights, gradient

    def step_schedules(self) -> None:
        """Update the weights with the gradients of all ranks, and go on in all schedules.

        Raises ValueError where the ranks may have begun with different weights, OSError where one
        of them ended.
        """
        self._take_up()
        if not ranks().alone:
            self._update()
        super().step_schedules()  # type: ignore[no-untyped-call]
        self._steps += 1
        ranks().step = self._steps

    def state(self, nlp: Language) -> bytes:
        """Write down, as an .npz file, what the next update depends on.

        nlp: The pipeline with the weights.
        """
        arrays: Dict[str, Any] = {"steps": np.array(self._steps)}
        ops: Any = get_current_ops()
        for key, parameter in parameters(nlp).items():
            if key not in self.nr_update:
                continue
            arrays[f"updates {parameter.name}"] = np.array(self.nr_update[key])
            for moment, values in (("mom1", self.mom1), ("mom2", self.mom2)):
                if key in values:
                    arrays[f"{moment} {parameter.name}"] = ops.to_numpy(values[key])
        stream = BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    def restore(self, nlp: Language, state: bytes) -> None:
        """Go on where another optimizer has stopped.

        nlp: The pipeline with the weights.
        state: What `state` of the other has returned.

        Raises ValueError for the state of a pipeline with other weights, and for averages.
        """
        if self.averages is not None:
            raise ValueError(
                "resume: expected use_averages = false in [training.optimizer], got true. A "
                "checkpoint has the averages, not the weights that learn."
            )
        arrays, keys = _read(state), {p.name: key for key, p in parameters(nlp).items()}
        for _ in range(int(arrays.pop("steps"))):
            super().step_schedules()  # type: ignore[no-untyped-call]
            self._steps += 1
        sizes = {p.name: p.tensor.numel() for p in parameters(nlp).values()}
        for entry, values in arrays.items():
            kind, _, name = entry.partition(" ")
            if name not in keys or (kind != "updates" and values.size != sizes[name]):
                raise ValueError(
                    f"resume: expected the state of an optimizer of this pipeline, got weights "
                    f"{name!r} of {values.size} numbers, which are {sizes.get(name, 'not')} in it. "
                    "Resume with the config and the labels of the checkpoint."
                )
            key = keys[name]
            if kind == "updates":
                self.nr_update[key] = int(values)
                # Which layers have been seen: as if all weights had had an update.
                self._deepest_seen[key[0]] = max(
                    self._deepest_seen.get(key[0], 0), layer_index(name) or 0
                )
            else:
                moments = self.mom1 if kind == "mom1" else self.mom2
                moments[key] = get_current_ops().asarray1f(values)

    def _take_up(self) -> None:
        """Become the optimizer of the training in progress, and take up the state it began with."""
        run_ = run()
        if run_.nlp is None or run_.optimizer is self:
            return
        run_.optimizer = self
        if run_.resumed is not None:
            self.restore(run_.nlp, run_.resumed)
            run_.resumed = None

    def _update(self) -> None:
        """Sum the gradients over ranks, and do the same step in each."""
        nlp = run().nlp
        if nlp is None or not run().equal:
            raise ValueError(
                f"Rank {ranks().rank}: expected ranks with the same weights, got ones that were "
                "not compared. A distributed config needs all blocks of configs/distributed.cfg."
            )
        if not self._known or not self._queue.keys() <= self._known.keys():
            self._known = parameters(nlp)
        learning = self._learning()
        if not learning:
            return
        queued = [self._queue.get(key) or self._without_gradient(nlp, key) for key in learning]
        self._queue = {}
        flat = get_current_ops().xp.concatenate([q.gradient.reshape(-1) for q in queued])
        ranks().sum(to_tensor(flat))
        begin = 0
        for key, (weights, own, lr_scale) in zip(learning, queued):
            gradient = flat[begin : begin + own.size].reshape(own.shape)
            begin += own.size
            updated, _ = super().__call__(key, weights, gradient, lr_scale=lr_scale)
            if not weights.flags.c_contiguous:
                # thinc has updated a copy.
                weights[...] = updated

    def _learning(self) -> List[KeyT]:
        """The weights that have a gradient in any rank, in the order of all ranks."""
        import torch

        unknown = self._queue.keys() - self._known.keys()
        if unknown:
            names = sorted(name for _, name in unknown)
            raise ValueError(
                f"Expected gradients of weights that the pipeline has, got those of {names[:3]}. "
                "Weights were made anew in training: call nlp.initialize() before it."
            )
        has = [float(key in self._queue) for key in self._known]
        counts = torch.tensor(has, device=ranks().device)
        ranks().sum(counts)
        return [key for key, count in zip(self._known, counts.tolist()) if count]

    def _without_gradient(self, nlp: Language, key: KeyT) -> _Queued:
        """Weights to which this rank contributes nothing, and another rank does."""
        parameter = parameters(nlp)[key]
        weights = to_array(parameter.tensor)
        return _Queued(weights, get_current_ops().xp.zeros_like(weights), parameter.lr_scale)


def _read(state: bytes) -> Dict[str, Any]:
    try:
        with np.load(BytesIO(state), allow_pickle=False) as file:
            return {name: file[name] for name in ["steps", *file.files]}
    except Exception as error:
        raise ValueError(
            f"resume: expected the state of an optimizer in optimizer.npz, got {len(state)} bytes "
            f"that fail with a {type(error).__name__}. The file is truncated, or another one."
        ) from error


def distributed_adam(
    learn_rate: FloatOrSeq = 0.001,
    *,
    L2: FloatOrSeq = 0.0,
    beta1: FloatOrSeq = 0.9,
    beta2: FloatOrSeq = 0.999,
    eps: FloatOrSeq = 1e-8,
    grad_clip: FloatOrSeq = 1.0,
    L2_is_weight_decay: bool = True,
    use_averages: bool = True,
    layer_decay: float = 1.0,
    layers: Optional[int] = None,
) -> DistributedAdam:
    """Make `spacy-crf-ner.DistributedAdam.v1`: our Adam, on the gradients of all ranks.

    Gradients are summed, not averaged: the loss of a batch is summed over its docs, so that N
    ranks with batches of b docs learn as one process does with batches of N times b. A rank that
    has no docs left adds zeros. A step takes two collective calls, however many weights there
    are: which of them have a gradient in any rank, and the sum of these, in one piece. All that
    follows, the clipping too, is the same arithmetic on the same numbers in each rank.

    learn_rate, L2, beta1, beta2, eps, grad_clip, L2_is_weight_decay, use_averages, layer_decay,
        layers: As of `spacy-crf-ner.Adam.v1`.

    Raises ValueError for a setting out of its range.
    """
    return DistributedAdam(
        learn_rate,
        L2=L2,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        grad_clip=grad_clip,
        L2_is_weight_decay=L2_is_weight_decay,
        use_averages=use_averages,
        layer_decay=layer_decay,
        layers=layers,
    )
