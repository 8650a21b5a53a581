"""Adam with weight decay and learning rates that depend on the names of the weights."""

import re
from typing import Any

from thinc.api import Optimizer
from thinc.optimizers import FloatOrSeq, KeyT
from thinc.types import FloatsXd

from ..input_error import InputError
from .fused_adam import can_fuse, fused_step
from .layer_index import layer_index

# The parameters "b" and "G" are those of thinc's own layers.
_NO_DECAY = re.compile(
    r"^[bG]$"
    r"|(?:^|\.)\w*bias\w*$"
    r"|(?:^|\.)(?:\w*(?i:norm)\w*|ln_\w+)\.(?:weight|gamma|beta)$"
    r"|(?:^|\.)(?:start_|end_)?transitions$"
)


class LayerwiseAdam(Optimizer):
    """`spacy-crf-ner.Adam.v1`: thinc's Adam, with its settings, and two differences.

    L2 does not apply to biases, layer norms and the transitions of a CRF, which are too few to
    overfit. And each layer of a transformer can learn more slowly than the layer above it. Sources:
    Howard and Ruder (2018), "Universal language model fine-tuning for text classification",
    section 3.2; Clark et al. (2020), "ELECTRA", with a layer_decay of 0.8 or 0.9.

    learn_rate: A number or schedule: the rate of the top layer of a transformer, and of all
        weights outside of one.
    L2: Weight decay: a step shrinks weights by this share of themselves, times the learning rate.
    beta1, beta2, eps: The parameters of Adam.
    grad_clip: The largest norm of the gradient of each parameter; a larger one is scaled down to
        it. 0 for none.
    L2_is_weight_decay: Decay weights as AdamW does; else add L2 times the weights to their
        gradient.
    use_averages: Keep averages of the weights. They have no effect in torch modules.
    layer_decay: Learning rate of a transformer layer divided by the rate of the layer above
        it; the embeddings are the lowest layer.
    layers: Number of layers of the transformer, required if layer_decay is not 1.

    Raises InputError for a setting out of its range.
    """

    __slots__ = ["_deepest_seen", "layer_decay", "layers"]

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
        layer_decay: float = 1.0,
        layers: int | None = None,
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
        if not 0 < layer_decay <= 1:
            raise InputError(f"layer_decay: expected a number in (0, 1], got {layer_decay}.")
        if layer_decay != 1 and layers is None:
            raise InputError(
                f"layers: expected the number of layers of the transformer, as layer_decay is "
                f"{layer_decay}, got none. Use num_hidden_layers of the transformer's config."
            )
        if layers is not None and layers < 1:
            raise InputError(f"layers: expected 1 or more, got {layers}.")
        self.layer_decay = layer_decay
        self.layers = layers
        # The highest layer index seen so far in each transformer, by the id in its keys.
        self._deepest_seen: dict[int, int] = {}

    def __call__(
        self, key: KeyT, weights: FloatsXd, gradient: FloatsXd, *, lr_scale: float = 1.0
    ) -> Any:
        """Update weights in place, and set their gradient to zero.

        key: The id of the layer, and the name of the weights in it; a `ScaledKey` has a multiplier
            of the learning rate.
        weights, gradient: Arrays of one shape.
        lr_scale: Multiplies the learning rate.

        Returns weights and gradient. Raises InputError if `layers` is not the number of layers of
        the transformer.
        """
        lr_scale *= self._layer_rate(key) * getattr(key, "lr_scale", 1.0)
        L2 = self.L2
        if _NO_DECAY.search(key[1]):
            self.L2 = 0.0
        try:
            if can_fuse(self, weights, gradient):
                fused_step(self, key, weights, gradient, lr_scale)
                return weights, gradient
            return super().__call__(key, weights, gradient, lr_scale=lr_scale)
        finally:
            self.L2 = L2

    def _layer_rate(self, key: KeyT) -> float:
        """Return the factor on the optimizer's learning rate for some weights."""
        index = None if self.layers is None or self.layer_decay == 1 else layer_index(key[1])
        if index is None:
            return 1.0
        assert self.layers is not None
        expected = f"layers: expected the number of layers of the transformer, got {self.layers}"
        if index > self.layers:
            raise InputError(
                f"{expected}, but {key[1]!r} is in layer {index}. Use num_hidden_layers of the "
                "transformer's config."
            )
        deepest = self._deepest_seen.get(key[0], 0)
        # By its second update, all weights of a transformer have been seen.
        if key in self.nr_update and deepest < self.layers:
            raise InputError(
                f"{expected}, but by their names, trained weights are in layer {deepest} at most. "
                "Use num_hidden_layers of the transformer's config. If you did, the names do not "
                "identify the layers: set layer_decay to 1.0."
            )
        self._deepest_seen[key[0]] = max(deepest, index)
        return float(self.layer_decay ** (self.layers - index))
