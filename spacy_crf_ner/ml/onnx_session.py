"""A network in ONNX Runtime."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extras import required
from .checksummed import readable
from .threads import number_of_threads


class Session:
    """A network in ONNX Runtime on the CPU, that is started when it is needed.

    It is started once in each process: a forked process has no copy of its parent's threads. It
    keeps its parent's session, because the destructor would wait for these threads forever.
    """

    def __init__(self, onnx: bytes) -> None:
        self._onnx = onnx
        self._started: dict[int, Any] = {}  # by process

    def run(self, **inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Compute the output of the network from its named inputs; it need not read all of them.

        Raises InputError if onnxruntime is not installed, and for bytes that are no network.
        """
        process = os.getpid()
        if process not in self._started:
            with required("runtime"):
                from onnxruntime import InferenceSession, SessionOptions
            options = SessionOptions()
            options.intra_op_num_threads = number_of_threads()
            with readable("a network for ONNX Runtime"):
                self._started[process] = InferenceSession(
                    self._onnx, options, providers=["CPUExecutionProvider"]
                )
        session = self._started[process]
        names = {each.name for each in session.get_inputs()}
        (Y,) = session.run(None, {name: x for name, x in inputs.items() if name in names})
        return Y  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without the sessions."""
        return {**self.__dict__, "_started": {}}
