"""An Adam that tells weights apart by their names: which decay, and how fast each one learns."""

import re
from typing import Any, Dict, Optional

import numpy as np
from thinc.api import Optimizer
from thinc.backends import get_array_ops
from thinc.optimizers import FloatOrSeq, KeyT
from thinc.types import FloatsXd

from .fused_adam import adam_step
from .layer_index import depth

# The parameters "b" and "G" are those of thinc's own layers.
_NO_DECAY = re.compile(
    r"^[bG]$"
    r"|(?:^|\.)\w*bias\w*$"
    r"|(?:^|\.)(?:\w*(?i:norm)\w*|ln_\w+)\.(?:weight|gamma|beta)$"
    r"|(?:^|\.)(?:start_|end_)?transitions$"
)

# Of so many weights on, a call of torch takes less time than it saves.
WORTH = 2**15


class LayerwiseAdam(Optimizer):
    """Adam with a learning rate for each layer of a transformer; see `adam`.

    layer_decay: Rate of a layer over that of the layer above it.
    layers: Number of layers of the transformer.
    settings: Those of thinc's Optimizer.
    """

    __slots__ = ["_highest", "layer_decay", "layers"]

    def __init__(
        self,
        learn_rate: FloatOrSeq,
        *,
        layer_decay: float = 1.0,
        layers: Optional[int] = None,
        **settings: Any,
    ) -> None:
        super().__init__(learn_rate, **settings)
        if not 0 < layer_decay <= 1:
            raise ValueError(f"layer_decay: expected above 0, 1 at most, got {layer_decay}.")
        if layer_decay != 1 and layers is None:
            raise ValueError(
                f"layers: expected the number of layers of the transformer, as layer_decay is "
                f"{layer_decay}, got none. It is num_hidden_layers in the transformer's config."
            )
        if layers is not None and layers < 1:
            raise ValueError(f"layers: expected 1 or more, got {layers}.")
        self.layer_decay = layer_decay
        self.layers = layers
        # The greatest depth that was seen in each transformer, by the first part of its keys.
        self._highest: Dict[int, int] = {}

    def __call__(
        self, key: KeyT, weights: FloatsXd, gradient: FloatsXd, *, lr_scale: float = 1.0
    ) -> Any:
        """Update weights in place, and set their gradient to zero.

        key: The id of the layer, and the name of the weights in it.
        weights, gradient: Arrays of one shape.
        lr_scale: Times the learning rate.

        Returns weights and gradient. Raises ValueError where the transformer has not as many
        layers as was said.
        """
        lr_scale *= self._rate(key)
        L2 = self.L2
        if _NO_DECAY.search(key[1]):
            self.L2 = 0.0
        try:
            if self._in_one_pass(weights, gradient):
                return self._step(key, weights, gradient, lr_scale)
            return super().__call__(key, weights, gradient, lr_scale=lr_scale)
        finally:
            self.L2 = L2

    def _in_one_pass(self, weights: FloatsXd, gradient: FloatsXd) -> bool:
        """Whether this is Adam, with decay, on plain arrays of a CPU that are worth the call."""
        arrays = (weights, gradient)
        return (
            weights.size >= WORTH
            and self.b1 > 0
            and self.b2 > 0
            and (self.L2_is_weight_decay or not self.L2)
            and weights.shape == gradient.shape
            and all(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in arrays)
            and all(a.flags.carray for a in arrays)
        )

    def _step(self, key: KeyT, weights: Any, gradient: Any, lr_scale: float) -> Any:
        """What thinc's Optimizer does, in one pass."""
        self.nr_update[key] += 1
        ops: Any = get_array_ops(weights)  # type: ignore[no-untyped-call]
        for moments in (self.mom1, self.mom2):
            if key not in moments:
                moments[key] = ops.alloc1f(weights.size)
        learn_rate = lr_scale * self.learn_rate
        adam_step(
            weights,
            gradient,
            self.mom1[key],
            self.mom2[key],
            step=self.nr_update[key],
            learn_rate=learn_rate,
            decay=learn_rate * self.L2,
            beta1=self.b1,
            beta2=self.b2,
            eps=self.eps,
            grad_clip=self.grad_clip,
        )
        if self.averages is not None:
            if key not in self.averages:
                self.averages[key] = ops.alloc(weights.shape)
            ops.update_averages(self.averages[key], weights, self.nr_update[key])
        return weights, gradient

    def _rate(self, key: KeyT) -> float:
        """How fast weights learn, as a share of the learning rate."""
        deep = None if self.layers is None or self.layer_decay == 1 else depth(key[1])
        if deep is None:
            return 1.0
        assert self.layers is not None
        if deep > self.layers:
            raise ValueError(
                f"layers: expected the number of layers of the transformer, got {self.layers}, but "
                f"{key[1]!r} is in layer {deep}. It is num_hidden_layers in the transformer's "
                "config."
            )
        highest = self._highest.get(key[0], 0)
        # By its second update, all weights of a transformer have been seen.
        if key in self.nr_update and highest < self.layers:
            raise ValueError(
                f"layers: expected the number of layers of the transformer, got {self.layers}, but "
                f"the weights that learn are in {highest} at most, by their names. It is "
                "num_hidden_layers in the transformer's config; where that is so, its layers have "
                "no names that can be told apart: set layer_decay to 1.0."
            )
        self._highest[key[0]] = max(highest, deep)
        return float(self.layer_decay ** (self.layers - deep))


def adam(
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
) -> LayerwiseAdam:
    """Make `spacy-crf-ner.Adam.v1`: thinc's Adam, with its settings, and two differences.

    L2 holds for neither biases, layer norms nor the transitions of a CRF: to be zero is no
    virtue in them, and they are too few to overfit. And below the top of a transformer, each
    layer can learn more slowly than the one above it, as what it knows is more general. Sources:
    Howard and Ruder (2018), "Universal language model fine-tuning for text classification",
    section 3.2; Clark et al. (2020), "ELECTRA", with a layer_decay of 0.8 or 0.9.

    learn_rate: A number or schedule: the rate of the top layer of a transformer, and of all that
        is in none.
    L2: Times the learning rate, the share of themselves that weights lose in a step.
    beta1, beta2, eps: As in Adam.
    grad_clip: The largest norm of the gradient of a parameter, each by itself; a larger one is
        scaled down to it. 0 for none.
    L2_is_weight_decay: As AdamW has it; else L2 times the weights is added to their gradient.
    use_averages: Keep averages of the weights. They have no effect in torch modules.
    layer_decay: Rate of a layer of a transformer over that of the layer above it; that of the
        embeddings over that of the lowest layer.
    layers: Number of layers of the transformer, required where layer_decay is not 1.

    Raises ValueError for a setting out of its range.
    """
    return LayerwiseAdam(
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
