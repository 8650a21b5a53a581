"""Networks that only predict, in ONNX Runtime."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import srsly
from numpy.typing import NDArray
from thinc.api import Model, Shim

from ..extras import required
from ..input_error import InputError
from .checksummed import readable, seal, unseal
from .threads import number_of_threads

# The type of each stored value; of an array, of float32, its number of axes, else 0.
Types = dict[str, tuple[type, int]]


class OnnxShim(Shim):
    """A shim whose network runs in ONNX Runtime on the CPU.

    Its session is started when it is needed, once in each process: a forked process has no copy of
    its parent's threads. It keeps its parent's session, because the destructor would wait for these
    threads forever.

    Args:
        state: "onnx", the network as bytes, and what else the layer stores: arrays, texts, numbers.
            Empty before it is loaded.
        types: What the layer stores beside the network.
    """

    def __init__(self, state: dict[str, Any] | None = None, **types: tuple[type, int]) -> None:
        super().__init__(None)
        self.state = state or {}
        self._types: Types = {"onnx": (bytes, 0), **types}
        self._sessions: dict[int, Any] = {}  # by process

    def run(self, **inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the output of the network from its named inputs; it need not read all of them.

        Raises:
            InputError: If onnxruntime is not installed.
        """
        session = self._session()
        names = {each.name for each in session.get_inputs()}
        (Y,) = session.run(None, {name: x for name, x in inputs.items() if name in names})
        return Y  # type: ignore[no-any-return]

    def _session(self) -> Any:
        if os.getpid() not in self._sessions:
            with required("runtime"):
                from onnxruntime import InferenceSession, SessionOptions
            options = SessionOptions()
            options.intra_op_num_threads = number_of_threads()
            with readable("a network for ONNX Runtime"):
                self._sessions[os.getpid()] = InferenceSession(
                    self["onnx"], options, providers=["CPUExecutionProvider"]
                )
        return self._sessions[os.getpid()]

    def __getitem__(self, name: str) -> Any:
        if not self.state:
            raise InputError(
                "The model has no weights yet: expected an exported pipeline. Load one with "
                "spacy.load(), or train with the config of the pipeline that it was exported from."
            )
        return self.state[name]

    def to_bytes(self) -> bytes:
        """Write network and values."""
        return seal(srsly.msgpack_dumps(self.state))

    def from_bytes(self, data: bytes) -> "OnnxShim":
        """Read network and values. Raises InputError for other bytes."""
        with readable("an exported network"):
            state = srsly.msgpack_loads(unseal(data))
            check_types(state, self._types)
        self.state, self._sessions = state, {}
        return self

    def to_device(self, device_type: str, device_id: int) -> None:
        """Stay on the CPU."""

    def finish_update(self, optimizer: Any) -> None:
        """Change nothing: there is no gradient."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without the sessions."""
        return {**self.__dict__, "_sessions": {}}


def check_types(state: dict[str, Any], types: Types) -> None:
    """Raise InputError for stored values of other types, and for arrays of other numbers.

    The axes of all arrays are the C tags.
    """
    lengths = set()
    for name, (expected, axes) in types.items() if state else ():
        value: Any = state.get(name)
        got = type(value).__name__
        is_valid = type(value) is expected
        if is_valid and expected is np.ndarray:
            got = f"{value.dtype} {value.shape}"
            lengths.update(value.shape)
            is_valid = value.dtype == np.float32 and value.ndim == axes and len(lengths) == 1
        if not is_valid:
            raise InputError(
                f"The stored weights cannot be read: expected {expected.__name__} for {name!r}, "
                f"got {got}. Copy the pipeline again."
            )


def check_trainable(model: Model[Any, Any]) -> None:
    """Raise InputError if a layer, or one in it, only predicts."""
    if any(isinstance(shim, OnnxShim) for node in model.walk() for shim in node.shims):
        raise InputError(
            "expected a pipeline that can be trained, got an exported one, which only predicts. "
            "Train the pipeline that it was exported from, and export it again."
        )


def no_backprop(model: Model[Any, Any], is_train: bool) -> Callable[[Any], Any]:
    """Return the callback for the backward pass of a layer; raise InputError in training."""
    if is_train:
        check_trainable(model)
    return lambda d_outputs: []
