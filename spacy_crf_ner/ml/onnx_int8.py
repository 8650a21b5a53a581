"""A torch module in ONNX Runtime, with int8 linear layers."""

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from .torch_internals import has_int8


def has_onnx() -> bool:
    """Whether the packages for int8 are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class OnnxModule(nn.Module):
    """A module in ONNX Runtime; weights are quantized once, the inputs of a layer at each call.

    module: A module on the CPU; it takes tensors by position and returns one tensor.
    examples: An example of each input, by name: (B, T) or (B, T, nI). B and T may vary in calls.
    """

    def __init__(self, module: nn.Module, examples: dict[str, Tensor]) -> None:
        super().__init__()
        with TemporaryDirectory() as folder:
            self.quantized = _quantize(module, examples, Path(folder))
        self._session: tuple[int, Any] = (0, None)

    @property
    def session(self) -> Any:
        """The session of this process; a forked child needs its own, as it has no threads."""
        from onnxruntime import InferenceSession, SessionOptions

        if self._session[0] != os.getpid():
            options = SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            running = InferenceSession(self.quantized, options, providers=["CPUExecutionProvider"])
            self._session = os.getpid(), running
        return self._session[1]

    def forward(self, **inputs: Tensor) -> Tensor:
        """Compute the output, (B, T, nO) float32, from the named inputs."""
        arrays = {name: given.numpy() for name, given in inputs.items()}
        (Y,) = self.session.run(None, arrays)
        return torch.from_numpy(Y)


def _quantize(module: nn.Module, examples: dict[str, Tensor], folder: Path) -> bytes:
    """Export a module to ONNX and quantize it to int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    whole, prepared, quantized = (str(folder / f"{step}.onnx") for step in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        torch.onnx.export(
            module.eval(),
            tuple(examples.values()),
            whole,
            input_names=[*examples],
            output_names=["Y"],
            dynamic_axes={name: {0: "B", 1: "T"} for name in [*examples, "Y"]},
            opset_version=17,
            dynamo=False,
        )
    quant_pre_process(whole, prepared, skip_symbolic_shape=True)
    # Without int8 instructions, ONNX Runtime's sums of 8-bit products overflow: use 7-bit weights.
    settings = {"per_channel": True, "reduce_range": not has_int8()}
    quantize_dynamic(prepared, quantized, weight_type=QuantType.QInt8, **settings)
    return Path(quantized).read_bytes()
