"""The torch module of a thinc layer: its weights, how it trains, and how it predicts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, Self, cast

import srsly
import torch
from safetensors.torch import load
from thinc.api import Optimizer, Shim, get_torch_default_device
from torch import Tensor, nn

from ..input_error import InputError
from .arrays import to_array, to_tensor
from .checksummed import readable, seal, unseal
from .dtype import (
    DTYPES,
    cast_recurrent,
    check_available,
    check_dtype,
    fastest_dtype,
    largest_weight,
)
from .memory import limit_kernel_cache, return_free_memory
from .stored_weights import build_without_weights, weights_to_bytes
from .threads import use_one_thread_after_fork
from .torch_internals import has_fast_bf16

MixedPrecision = bool | Literal["bf16", "auto"]
# Makes a module from its dimensions, such as nI, which the module keeps in its attribute `dims`.
Build = Callable[..., nn.Module]


def module_of(shim: Any) -> nn.Module | None:
    """Return the torch module of a shim, also one of thinc; None if it has none, or not yet."""
    module = getattr(shim, "_model", None)
    return module if isinstance(module, nn.Module) else None


class TorchShim(Shim):
    """A torch module that is built when its dimensions are known.

    Weights and gradients are in float32. Optimizers know them by the id of the shim and the name in
    the module. `loss_scale` is of the gradients of the layer and those in it, in float16.

    Args:
        mixed_precision: Train in 16 bits: True, on a GPU, "bf16", or "auto".
        dtype: Dtype in prediction, one of `DTYPE_NAMES`; None for that of the training.
    """

    is_large = False  # whether 16 bits may be worth it in training on a CPU

    def __init__(
        self, build: Build, mixed_precision: MixedPrecision = False, dtype: str | None = None
    ) -> None:
        super().__init__(None)
        check_dtype(dtype)
        self.build, self.mixed_precision, self.dtype = build, mixed_precision, dtype
        self.loss_scale = LossScale()
        self.parameters: dict[str, nn.Parameter] = {}
        self._inference: nn.Module | None = None  # the module to predict with
        # What "auto" is, by the type of device, in training and in prediction.
        self._measured: dict[tuple[str, bool], str] = {}

    # The module

    @property
    def module(self) -> nn.Module:
        """The module. Raises InputError if it is not built yet."""
        module = module_of(self)
        if module is None:
            raise InputError(
                "The model has no weights yet: call nlp.initialize() on examples, or load a "
                "trained pipeline with spacy.load()."
            )
        return module

    @property
    def device(self) -> torch.device:
        """The device of the module; if it has no weights, the device in use."""
        _ = self.module
        weights = next(iter(self.parameters.values()), None)
        return get_torch_default_device() if weights is None else weights.device

    def build_module(self, **dims: int) -> None:
        """Build the module, with new weights, on the device in use."""
        self.replace_module(self.build(**dims))

    def replace_module(self, module: nn.Module) -> None:
        """Replace the module. Optimizers treat its weights as new ones."""
        self.load_module(module)
        self.take_new_id()

    def load_module(self, module: nn.Module | None) -> None:
        """Take a module with stored weights, on the device in use; None if it is not built yet."""
        # Libraries give some modules in evaluation.
        self._model = module and module.to(get_torch_default_device()).train()
        self.parameters = dict(module.named_parameters()) if module is not None else {}
        self.set_dtype(self.dtype)

    def take_new_id(self) -> None:
        """Let optimizers treat the weights as new ones: they keep moments by the id."""
        self.id = Shim(None).id

    # Training

    @property
    def dtype_in_training(self) -> str:
        """The dtype of the arithmetic in training: "fp32", "bf16" or "fp16".

        "auto" on a CPU is measured once, before the first update. Raises InputError for bfloat16 on
        a GPU that does not support it.
        """
        on_gpu = self.device.type == "cuda"
        on_cpu = self.is_large and self.mixed_precision in ("auto", "bf16")
        if not self.mixed_precision or not (on_gpu or on_cpu):
            return "fp32"
        if self.mixed_precision == "bf16":
            if on_gpu and not has_fast_bf16():
                raise InputError(
                    'mixed_precision: expected a GPU that supports bfloat16 for "bf16", got '
                    f"{torch.cuda.get_device_name()}. Set it to true, for float16, or to false."
                )
            return "bf16"
        return self._fastest(in_training=True)

    def _fastest(self, in_training: bool) -> str:
        """Resolve "auto", once for a type of device."""
        key = self.device.type, in_training
        if key not in self._measured:
            sizes, int8 = largest_weight(self.module), not in_training and self.can_be_int8
            self._measured[key] = fastest_dtype(self.device, sizes, int8) if sizes else "fp32"
        return self._measured[key]

    def begin_update(self, inputs: tuple[Any, ...]) -> Any:
        """Run the module in training; its outputs are part of a graph of torch."""
        use_one_thread_after_fork()
        limit_kernel_cache()
        self.train()
        with self._autocast():
            return self.module(*inputs)

    def train(self) -> None:
        """Switch the module to training, if a prediction has switched it to evaluation."""
        if not self.module.training:
            self.module.train()

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        dtype = self.dtype_in_training
        if dtype == "fp32":
            yield
            return
        try:
            with torch.autocast(self.device.type, DTYPES[dtype]):
                yield
        except RuntimeError as error:
            if "bfloat16" not in str(error).lower():
                raise
            raise InputError(
                f"mixed_precision: expected a model that trains in bfloat16, got one that fails: "
                f"{error}. Set it to false in the config of the model."
            ) from error

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients that there are, dense ones."""
        found = {}
        for name, weights in self.parameters.items():
            if weights.grad is not None:
                if weights.grad.is_sparse:
                    weights.grad = weights.grad.to_dense()
                found[name] = weights.grad
        return found

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights with their gradients, and forget those.

        The optimizer may be the function by which `nlp.rehearse` collects gradients.
        """
        found = self.gradients()
        if not found:
            return
        self.invalidate()
        update_together: Any = getattr(optimizer, "update_together", None)
        keyed = {(self.id, name): self.parameters[name] for name in found}
        if update_together is None or not update_together(keyed):
            for key, weights in keyed.items():
                _update_alone(optimizer, key, weights)
        for weights in keyed.values():
            weights.grad = None
        return_free_memory()

    @contextmanager
    def use_params(self, params: dict[Any, Any]) -> Iterator[None]:
        """Use other weights temporarily, such as the averages of an optimizer, by its keys."""
        own = [
            (weights, weights.data, params.get((self.id, name)))
            for name, weights in self.parameters.items()
        ]
        self.invalidate()
        try:
            for weights, before, other in own:
                if other is not None:
                    weights.data = torch.as_tensor(other, device=before.device)
            yield
        finally:
            for weights, before, _ in own:
                weights.data = before
            self.invalidate()

    # Prediction

    def set_dtype(self, dtype: str | None) -> None:
        """Set the dtype of prediction. "auto" is resolved at once, or when there are weights.

        So all processes of `nlp.pipe(n_process=2)` use the dtype that their parent chose.
        """
        self.dtype = dtype
        self.invalidate()
        if dtype == "auto" and self._model is not None:
            _ = self.resolved_dtype

    @property
    def resolved_dtype(self) -> str | None:
        """The dtype of prediction, with "auto" resolved once for a type of device; or None.

        Raises InputError if the device does not support the dtype, or its packages are missing.
        """
        if self.dtype is None:
            return None
        if self.dtype == "auto":
            return self._fastest(in_training=False)
        check_available(self.dtype, self.device)
        return self.dtype

    @property
    def can_be_int8(self) -> bool:
        """Whether "auto" may be int8 in prediction."""
        return False

    def predict(self, inputs: tuple[Any, ...]) -> Any:
        """Run the module in the dtype of prediction.

        It stays in evaluation until the next update: otherwise dropout would be on in other threads
        that predict with it.
        """
        use_one_thread_after_fork()
        module = self.module.eval() if self.dtype is None else self.inference_module()
        is_mixed = self.dtype is None and self.device.type == "cuda"
        if is_mixed and self.mixed_precision == "bf16":
            is_mixed = has_fast_bf16()  # a GPU without it can predict
        # As in training, which is faster there.
        with torch.no_grad(), self._autocast() if is_mixed else nullcontext():
            return module(*inputs)

    def inference_module(self) -> nn.Module:
        """Return the module to predict with; rebuild it if weights or dtype have changed."""
        if self._inference is None:
            dtype = self.resolved_dtype
            assert dtype is not None
            self._inference = self.to_inference(dtype).eval()
        return self._inference

    def to_inference(self, dtype: str) -> nn.Module:
        """Make the module to predict with, in a dtype that is not "auto"; it may share weights."""
        return cast_recurrent(self.module, dtype)

    def invalidate(self) -> None:
        """Drop the module to predict with, before the weights change."""
        self._inference = None

    # Copies

    def to_bytes(self) -> bytes:
        """Write the dimensions and the weights of the module; nothing if it is not built yet."""
        module: Any = module_of(self)
        if module is None:
            return b""
        return seal(srsly.msgpack_dumps({"dims": module.dims, "weights": weights_to_bytes(module)}))

    def from_bytes(self, data: bytes) -> Self:
        """Read the module. Raises InputError for bytes that are not its weights."""
        self.load_module(self._read_module(data))
        return self

    def _read_module(self, data: bytes) -> nn.Module | None:
        """Build a module with stored weights, on the CPU."""
        if not data:
            return None
        with readable("the weights of a model with the settings of the config"):
            stored = srsly.msgpack_loads(unseal(data))
            weights = load(stored["weights"])
            module = build_without_weights(partial(self.build, **stored["dims"]), weights)
            module = module.to_empty(device="cpu")
            module.load_state_dict(weights)
        return module

    def to_device(self, device_type: str, device_id: int) -> None:
        """Move the module."""
        if self._model is not None:
            device = "cuda" if device_type == "gpu" else device_type
            place = torch.device(device, device_id) if device == "cuda" else torch.device(device)
            self._model.to(place)
        self.invalidate()

    def copy(self) -> Self:
        """Copy the shim and its module."""
        copied = cast(Self, super().copy())  # type: ignore[no-untyped-call]
        copied.take_new_id()
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without what is made from the module."""
        return {**self.__dict__, "_inference": None}


def _update_alone(optimizer: Any, key: tuple[int, str], weights: nn.Parameter) -> None:
    """Update weights with an optimizer of thinc, which is for arrays; or collect their gradient."""
    array, gradient = to_array(weights), to_array(cast(Tensor, weights.grad))
    updated = optimizer(key, array, gradient)
    if isinstance(optimizer, Optimizer) and updated[0] is not array:
        weights.data.copy_(to_tensor(updated[0]))


class LossScale:
    """The factor by which gradients are multiplied in float16, which ends at 65,504.

    It begins low: losses are sums over tokens. With MiniLM, a gradient of the first 1,000 words of
    GMB is 780. After an overflow it is halved, and after 2,000 batches without one it is doubled.

    Source: Micikevicius et al. (2018), "Mixed precision training".
    """

    def __init__(self) -> None:
        self.value = 2.0**3
        self._batches = 0

    def update(self, overflowed: bool) -> None:
        """Adapt the factor after a batch."""
        self._batches = 0 if overflowed else self._batches + 1
        if overflowed:
            self.value /= 2
        elif self._batches == 2000:
            self.value, self._batches = 2 * self.value, 0
